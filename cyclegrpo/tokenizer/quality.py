"""How well masks come back: encode, decode, IoU; by size and kind of mask, with the use of each codebook."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from cyclegrpo.regions.geometry import mask_iou
from cyclegrpo.tokenizer.examples import MaskExample
from cyclegrpo.tokenizer.model import MaskTokenizer

AREA_EDGES = (0.001, 0.01, 0.1)
"""Masks are grouped by their share of the image, with these borders."""
AREA_NAMES = ("below 0.1 %", "0.1 to 1 %", "1 to 10 %", "above 10 %")


@dataclass(frozen=True)
class MaskScore:
    """One mask and how it comes back.

    Attributes:
        name, number: of the image, and of the mask in it.
        kind: what the mask is of, or empty.
        area_px, area_ratio: its pixels, and their share of the image.
        codes: its codes.
        iou: of the mask and what its codes decode to.
        iou_first_code: the same with the first code alone.
    """

    name: str
    number: int
    kind: str
    area_px: int
    area_ratio: float
    codes: tuple[int, ...]
    iou: float
    iou_first_code: float


def score_masks(tokenizer: MaskTokenizer, example: MaskExample) -> list[MaskScore]:
    """The scores of an image's masks, in order; one pass of the image encoder."""
    features = tokenizer.embed_images([example.image])[0]
    codes = tokenizer.encode(features, example.masks)
    first_alone = codes.clone()
    first_alone[:, 1:] = -1
    height, width = example.image.shape[:2]
    # One by one, so that large images with many masks need little memory.
    decoded = tokenizer.iterate_masks(features, torch.cat((codes, first_alone)), height, width)
    both = [mask_iou(mask, next(decoded)) for mask in example.masks]
    first = [mask_iou(mask, next(decoded)) for mask in example.masks]
    kinds = example.kinds or ("",) * len(example.masks)
    numbers = example.numbers or tuple(range(len(example.masks)))
    rows = zip(numbers, kinds, example.masks, codes.tolist(), both, first, strict=True)
    return [
        MaskScore(example.name, number, kind, int(mask.sum()), float(mask.mean()), tuple(code), iou, iou_first)
        for number, kind, mask, code, iou, iou_first in rows
    ]


def summarise(scores: Sequence[MaskScore], codebook_size: int) -> dict[str, Any]:
    """The figures of all scores.

    `all`, `by_area` and `by_kind` (where there are kinds) hold `num`, `mean` and `median` IoU, the `mean_first_code`
    (IoU with the first code alone), and `below_half`, the share of masks that come back with less than 0.5;
    `codebooks` says how many codes of each occur and their entropy.
    """
    areas, kinds = defaultdict(list), defaultdict(list)
    for score in scores:
        areas[AREA_NAMES[int(np.searchsorted(AREA_EDGES, score.area_ratio, side="right"))]].append(score)
        kinds[score.kind].append(score)
    summary = {
        "all": _figures(scores),
        "by_area": {name: _figures(areas[name]) for name in AREA_NAMES if name in areas},
        "codebooks": code_use(torch.tensor([score.codes for score in scores]), codebook_size),
    }
    named = {kind: _figures(of_kind) for kind, of_kind in kinds.items() if kind}
    return summary | ({"by_kind": named} if named else {})


def _figures(scores: Iterable[MaskScore]) -> dict[str, float]:
    ious = np.array([score.iou for score in scores])
    return {
        "num": len(ious),
        "mean": round(float(ious.mean()), 4),
        "median": round(float(np.median(ious)), 4),
        "mean_first_code": round(float(np.mean([score.iou_first_code for score in scores])), 4),
        "below_half": round(float((ious < 0.5).mean()), 4),
    }


def code_use(codes: torch.Tensor, codebook_size: int) -> list[dict[str, float]]:
    """For each column of codes (N, L): how many different codes occur, and their entropy in bits.

    >>> code_use(torch.tensor([[0, 5], [1, 5]]), 8)
    [{'used': 2, 'entropy_bits': 1.0}, {'used': 1, 'entropy_bits': 0.0}]
    """
    use = []
    for column in codes.unbind(1):
        shares = torch.bincount(column, minlength=codebook_size).double() / len(column)
        shares = shares[shares > 0]
        entropy = abs(float(-(shares * shares.log2()).sum()))
        use.append({"used": len(shares), "entropy_bits": round(entropy, 4)})
    return use
