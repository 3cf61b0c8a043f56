"""Numbers about a dataset: rows, regions, crops, how much of the codebooks is in use, image sizes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import mean, median
from typing import Any

from cyclegrpo.images import ImageHeader


def summarise(values: Sequence[float]) -> dict[str, float]:
    """Mean, smallest, middle and largest value; empty for no values.

    >>> summarise([1, 2, 6])
    {'mean': 3, 'min': 1, 'median': 2, 'max': 6}
    """
    if not values:
        return {}
    return {"mean": mean(values), "min": min(values), "median": median(values), "max": max(values)}


def code_usage(codes: Iterable[tuple[int, int]], depth: int) -> dict[str, float]:
    """How many entries of one codebook occur, and the entropy of their distribution in bits.

    Args:
        depth: 0 or 1, which of the two codes.

    >>> code_usage([(1, 7), (2, 7)], 0), code_usage([(1, 7), (2, 7)], 1)
    ({'used': 2, 'entropy_bits': 1.0}, {'used': 1, 'entropy_bits': 0.0})
    """
    counts = Counter(pair[depth] for pair in codes)
    total = counts.total()
    entropy = sum(count / total * math.log2(total / count) for count in counts.values())
    return {"used": len(counts), "entropy_bits": round(entropy, 4)}


def dataset_statistics(
    regions_per_row: Sequence[int], codes: Sequence[tuple[int, int]], num_crops: int, headers: Sequence[ImageHeader]
) -> dict[str, Any]:
    """The statistics of the report.

    Args:
        regions_per_row: number of target regions of every row that has some.
        codes: code pairs of all target regions (none in the box space).
        num_crops: crops that rows name.
        headers: of the distinct whole images.
    """
    return {
        "num_regions": sum(regions_per_row),
        "num_crops": num_crops,
        "num_images": len(headers),
        "regions_per_row": summarise(regions_per_row),
        "codebook_0": code_usage(codes, 0),
        "codebook_1": code_usage(codes, 1),
        "image_height": summarise([header.height for header in headers]),
        "image_width": summarise([header.width for header in headers]),
    }
