"""Preparing data: our order of work against the public one, same weights, in turn.

    python -m benchmarks.prepare

The public procedure embeds the image again for every mask that it decodes and every crop that it encodes, one at a
time. Ours embeds every image once, and every crop once. 10 images with 4 masks each, sam2.1 tiny at 1024 px.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from PIL import Image

from benchmarks.common import encoder_clock, made_up_image, made_up_masks, random_tokenizer
from cyclegrpo.dataset.crops import ZoomCrop, zoom_crop
from cyclegrpo.params import Crop
from cyclegrpo.tokenizer import MaskTokenizer

CROPS_PER_PASS = 8


def public_order(
    tokenizer: MaskTokenizer, image: Image.Image, codes: np.ndarray, crops: list[ZoomCrop]
) -> list[np.ndarray]:
    """One pass of the image encoder for every mask and for every crop; the codes of the crops."""
    for pair in codes:
        features = tokenizer.embed_images([image])[0]
        tokenizer.decode_masks(features, pair[None], image.height, image.width)
    return [tokenizer.encode(tokenizer.embed_images([cut.pixels])[0], cut.mask[None]).numpy()[0] for cut in crops]


def our_order(
    tokenizer: MaskTokenizer, image: Image.Image, codes: np.ndarray, crops: list[ZoomCrop]
) -> list[np.ndarray]:
    """What the stages regions and tokenize do: one pass for the image, one for each crop."""
    features = tokenizer.embed_images([image])[0]
    for _ in tokenizer.iterate_masks(features, codes, image.height, image.width):
        pass
    encoded: list[np.ndarray] = []
    for start in range(0, len(crops), CROPS_PER_PASS):
        part = crops[start : start + CROPS_PER_PASS]
        crop_features = tokenizer.embed_images([cut.pixels for cut in part])
        encoded += list(tokenizer.encode(crop_features, [cut.mask for cut in part], range(len(part))).numpy())
    return encoded


def main() -> None:
    """Run both orders in turn and print seconds, passes and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--images", type=int, default=10)
    parser.add_argument("--masks", type=int, default=4)
    parser.add_argument("--size", default="tiny", choices=("tiny", "small", "base_plus", "large"))
    arguments = parser.parse_args()
    tokenizer = random_tokenizer(arguments.size)
    work = []
    for seed in range(arguments.images):
        image, masks = Image.fromarray(made_up_image(seed)), made_up_masks(seed, arguments.masks)
        cuts = [zoom_crop(image, mask, Crop()) for mask in masks]
        codes = np.random.default_rng(seed).integers(0, 256, (arguments.masks, 2))
        work.append((image, codes, [cut for cut in cuts if cut is not None]))
    ratios = []
    for number in range(arguments.rounds):
        seconds, results = {}, {}
        for order in (public_order, our_order):
            with encoder_clock(tokenizer) as clock:
                start = time.perf_counter()
                results[order.__name__] = [codes for item in work for codes in order(tokenizer, *item)]
                seconds[order.__name__] = time.perf_counter() - start
            share = clock.seconds / seconds[order.__name__]
            print(
                f"round {number}: {order.__name__:<12}  {seconds[order.__name__]:7.1f} s  {clock.num_images:3d} images "
                f"embedded  {share:.1%} of the time in the encoder",
                flush=True,
            )
        ratios.append(seconds["public_order"] / seconds["our_order"])
        same = np.mean([np.array_equal(a, b) for a, b in zip(*results.values(), strict=True)])
        print(f"round {number}: {ratios[-1]:.2f} x as fast; {same:.0%} of the crops have the same codes", flush=True)
    print(f"median {np.median(ratios):.2f} x (lowest {min(ratios):.2f}, highest {max(ratios):.2f})")


if __name__ == "__main__":
    main()
