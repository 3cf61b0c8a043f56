"""Preparing data: our stages against the public order of work, same weights, same files, in turn.

    python -m benchmarks.prepare

The public procedure embeds the image again for every mask that it decodes and every crop that it encodes, one at a
time. The stages regions, crop and tokenize embed every image once, and every crop once. 10 images with 4 masks each, of
which 24 get a crop: 64 passes against 34; sam2.1 tiny at 1024 px. Masks are decoded for real, and then replaced: random
weights make none that a crop fits.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.common import encoder_clock, made_up_masks, params_of, random_tokenizer, write_raw
from cyclegrpo.dataset.crops import run_crop, zoom_crop
from cyclegrpo.dataset.link import run_link
from cyclegrpo.dataset.regions import run_regions
from cyclegrpo.dataset.tables import read_work_rows
from cyclegrpo.dataset.tokenize import run_tokenize
from cyclegrpo.images import load_image
from cyclegrpo.params import Params
from cyclegrpo.regions.tokens import parse_tokens


class MadeUpDecoder:
    """A tokenizer whose decoder works for its time and then answers with the made-up mask of (mask, image)."""

    def __init__(self, tokenizer: Any, masks: Sequence[np.ndarray]) -> None:
        self.tokenizer, self.masks, self.config = tokenizer, masks, tokenizer.config

    def embed_images(self, images: Sequence[Image.Image]) -> Any:
        return self.tokenizer.embed_images(images)

    def encode(self, features: Any, masks: Any, image_of_mask: Any = None) -> Any:
        return self.tokenizer.encode(features, masks, image_of_mask)

    def iterate_masks(self, features: Any, codes: Any, height: int, width: int) -> Iterator[np.ndarray]:
        decoded = self.tokenizer.iterate_masks(features, codes, height, width)
        for (mask, image), _ in zip(np.asarray(codes), decoded, strict=True):
            yield self.masks[image][mask]


def public_order(params: Params, tokenizer: MadeUpDecoder) -> list[tuple[int, int]]:
    """One pass of the image encoder for every mask and for every crop; the codes of the crops."""
    codes = []
    for image_number, masks in enumerate(tokenizer.masks):
        image = load_image(params.base.sources[0].image_root / f"{image_number:05d}.png")
        for number in range(len(masks)):
            features = tokenizer.embed_images([image])[0]
            (mask,) = tokenizer.iterate_masks(features, [(number, image_number)], image.height, image.width)
            cut = zoom_crop(image, mask, params.crop)
            if cut is not None:
                crop_features = tokenizer.embed_images([cut.pixels])[0]
                codes.append(tuple(tokenizer.encode(crop_features, cut.mask[None])[0].tolist()))
    return codes


def our_stages(params: Params, tokenizer: MadeUpDecoder) -> list[tuple[int, int]]:
    """The stages regions, crop and tokenize; the codes of the crops."""
    run_regions(params, tokenizer)  # type: ignore[arg-type]
    run_crop(params)
    run_tokenize(params, tokenizer)  # type: ignore[arg-type]
    return [parse_tokens(row["tokens"]).codes[0] for row in read_work_rows(params.base.work_dir, "crop_tokens")]  # type: ignore[misc]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run both in turn and print seconds, passes and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--images", type=int, default=10)
    parser.add_argument("--masks", type=int, default=4)
    parser.add_argument("--size", default="tiny", choices=("tiny", "small", "base_plus", "large"))
    options = parser.parse_args(arguments)
    real = random_tokenizer(options.size)
    masks = [made_up_masks(image, options.masks) for image in range(options.images)]
    orders: list[Callable[[Params, MadeUpDecoder], list[tuple[int, int]]]] = [public_order, our_stages]
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "raw"
        write_raw(raw, [options.masks] * options.images)
        for number in range(options.rounds):
            params = params_of(raw, Path(folder) / str(number))
            run_link(params)
            seconds, codes = {}, {}
            for order in orders:
                name = order.__name__
                with encoder_clock(real) as clock:
                    start = time.perf_counter()
                    codes[name] = order(params, MadeUpDecoder(real, masks))
                    seconds[name] = time.perf_counter() - start
                print(
                    f"round {number}: {name:<12}  {seconds[name]:7.1f} s  {clock.num_images:3d} images embedded  "
                    f"{clock.seconds / seconds[name]:.1%} of the time in the encoder",
                    flush=True,
                )
            ratios.append(seconds["public_order"] / seconds["our_stages"])
            same = np.mean([ours == theirs for theirs, ours in zip(*codes.values(), strict=True)])
            print(
                f"round {number}: {ratios[-1]:.2f} x as fast; {same:.0%} of the crops have the same codes", flush=True
            )
    print(f"median {np.median(ratios):.2f} x (lowest {min(ratios):.2f}, highest {max(ratios):.2f})")


if __name__ == "__main__":
    main()
