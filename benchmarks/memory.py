"""Peak memory of the regions stage above the model, for more and more regions of one large image.

    python -m benchmarks.memory

Each number runs in a process of its own; half of the regions come as tokens, half as true masks.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys

import numpy as np
from PIL import Image

from benchmarks.common import made_up_image, made_up_masks, random_tokenizer
from cyclegrpo.dataset.spelling import ImageTokens, spell_regions
from cyclegrpo.regions.rle import mask_to_rle
from cyclegrpo.regions.tokens import codes_to_token

HEIGHT, WIDTH = 3000, 4000


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


def main() -> None:
    """Measure every number of regions in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="large", choices=("tiny", "small", "base_plus", "large"))
    parser.add_argument("--regions", type=int, nargs="+", default=[2, 32, 256])
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one is not None:
        measure(arguments.size, arguments.one)
        return
    for number in arguments.regions:
        command = [sys.executable, "-m", "benchmarks.memory", "--size", arguments.size, "--one", str(number)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
