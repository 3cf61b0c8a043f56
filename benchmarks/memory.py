"""Peak memory of the regions stage: of one large image with more and more regions, and of more and more images.

    python -m benchmarks.memory            # above the model (sam2.1 large), for 2, 32 and 256 regions of 12 megapixels
    python -m benchmarks.memory --stage    # above the start, for 2,000, 20,000 and 160,000 regions of small images

Each number runs in a process of its own. In the first, half of the regions come as tokens and half as true masks; in
the second all are tokens, and a stand-in decodes them, so that what is left is the stage's own tables.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.common import made_up_image, made_up_masks, params_of, random_tokenizer, write_raw
from cyclegrpo.dataset.link import run_link
from cyclegrpo.dataset.regions import run_regions
from cyclegrpo.dataset.spelling import ImageTokens, spell_regions
from cyclegrpo.regions.rle import mask_to_rle
from cyclegrpo.regions.tokens import codes_to_token

HEIGHT, WIDTH = 3000, 4000
SMALL, MASKS_PER_IMAGE = 64, 64


def peak_gb() -> float:
    """The most memory that this process has held, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def measure(size: str, num_regions: int) -> None:
    """Spell so many regions of a 12-megapixel image and print the peak before and after."""
    image = Image.fromarray(made_up_image(0, HEIGHT, WIDTH))
    rng = np.random.default_rng(0)
    regions = []
    for number in range(num_regions):
        spelled = {"tokens": None, "rle": None, "box": None, "label": None}
        if number % 2:
            spelled["rle"] = mask_to_rle(made_up_masks(number, 1, HEIGHT, WIDTH)[0])
        else:
            spelled["tokens"] = codes_to_token(*rng.integers(0, 256, 2).tolist())
        regions.append(spelled)
    tokenizer = random_tokenizer(size)
    before = peak_gb()
    spelled_regions = spell_regions(regions, ImageTokens(image, lambda: tokenizer), space="mask")
    kept = sum(region.reason is None for region in spelled_regions)
    print(f"{num_regions:5d} regions ({kept} kept): {peak_gb() - before:.2f} GB above the model's {before:.2f} GB")


class Speckles:
    """Decodes every pair of codes to a mask of its own, drawn at random, which takes many runs to write down."""

    config = SimpleNamespace(codebook_size=256)

    def embed_images(self, images: Sequence[Image.Image]) -> list[None]:
        return [None] * len(images)

    def iterate_masks(self, features: Any, codes: Any, height: int, width: int) -> Iterator[np.ndarray]:
        for pair in np.asarray(codes):
            yield np.random.default_rng(pair).random((height, width)) < 0.5


def measure_stage(num_regions: int) -> None:
    """Run the stages link and regions on so many regions and print the peak before and after."""
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "raw"
        write_raw(raw, [MASKS_PER_IMAGE] * (num_regions // MASKS_PER_IMAGE), SMALL, SMALL)
        params = params_of(raw, Path(folder) / "made")
        run_link(params)
        before = peak_gb()
        report = run_regions(params, Speckles())  # type: ignore[arg-type]
        made = report.made["regions"]
        print(f"{made:6d} regions: {peak_gb() - before:.2f} GB above the {before:.2f} GB after the stage link")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every number of regions in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="large", choices=("tiny", "small", "base_plus", "large"))
    parser.add_argument("--stage", action="store_true", help="the whole stage on many images, with a stand-in")
    parser.add_argument("--regions", type=int, nargs="+", help="how many regions")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one is not None:
        measure_stage(options.one) if options.stage else measure(options.size, options.one)
        return
    for number in options.regions or ([2_000, 20_000, 160_000] if options.stage else [2, 32, 256]):
        command = [sys.executable, "-m", "benchmarks.memory", "--size", options.size, "--one", str(number)]
        subprocess.run([*command, *(["--stage"] if options.stage else [])], check=True)


if __name__ == "__main__":
    main()
