"""How well predicted regions cover the targets, in [0, 1]: 1.0 where both sides are empty, 0.0 where one is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cyclegrpo.regions.geometry import Box, mask_iou, masks_union
from cyclegrpo.regions.tokens import Code

SAME_FIRST_CODE = 0.4
"""Grade of a predicted mask whose first code is right and whose second is not (the public code's value)."""


Masks = Sequence[np.ndarray] | np.ndarray


def mask_overlap(predicted_masks: Masks, target_masks: Masks) -> float:
    """Pixel IoU of the union of the predicted masks with the union of the target masks.

    Args:
        predicted_masks, target_masks: arrays of one shape (H, W), nonzero is inside; sequences, or stacks (N, H, W).

    A side is empty if it has no mask. A mask without pixels still counts as an answer, so it scores 0.0 against no
    target.

    Raises:
        ValueError: the shapes differ.

    >>> left = np.array([[1, 0]], bool); right = ~left
    >>> mask_overlap([left, right], [right]), mask_overlap([], []), mask_overlap([left], [])
    (0.5, 1.0, 0.0)
    """
    if len(predicted_masks) == 0 or len(target_masks) == 0:
        return float(len(predicted_masks) == len(target_masks))
    height, width = np.asarray(target_masks[0]).shape
    return mask_iou(masks_union(predicted_masks, height, width), masks_union(target_masks, height, width))


def token_overlap(predicted_codes: Sequence[Code], target_codes: Sequence[Code]) -> float:
    """Graded match of codes without decoding: 1.0 for both codes equal, 0.4 for the same first code, else 0.

    Every distinct predicted pair takes its best match among the targets; the sum is divided by the larger number of
    regions, duplicates counted, so that repeating or listing does not pay.

    >>> token_overlap([(1, 45), (1, 46)], [(1, 45)]), token_overlap([(1, 45), (1, 45)], [(1, 45)])
    (0.7, 0.5)
    """
    if len(predicted_codes) == 0 or len(target_codes) == 0:
        return float(len(predicted_codes) == len(target_codes))
    targets = {tuple(code) for code in target_codes}
    first_codes = {code[0] for code in targets}
    grades = (
        1.0 if code in targets else SAME_FIRST_CODE if code[0] in first_codes else 0.0
        for code in dict.fromkeys(tuple(code) for code in predicted_codes)
    )
    return min(1.0, sum(grades) / max(len(predicted_codes), len(target_codes)))


def box_overlap(predicted_boxes: Sequence[Box], target_boxes: Sequence[Box]) -> float:
    """IoU of the areas that two sets of half-open boxes `x0, y0, x1, y1` of one frame cover.

    Args:
        predicted_boxes, target_boxes: in any unit, the same for both.

    Boxes without area cover nothing.

    >>> t1, t2 = (0, 0, 100, 100), (200, 200, 300, 300)
    >>> box_overlap([t1], [t1, t2]), box_overlap([t1], []), box_overlap([], [])
    (0.5, 0.0, 1.0)
    """
    if len(predicted_boxes) == 0 or len(target_boxes) == 0:
        return float(len(predicted_boxes) == len(target_boxes))
    return _union_iou(predicted_boxes, target_boxes)


def _union_iou(boxes_a: Sequence[Box], boxes_b: Sequence[Box]) -> float:
    """IoU of two unions, exact: the edges of all boxes cut the plane into cells that are wholly inside or outside."""
    every = np.array([*boxes_a, *boxes_b], dtype=np.float64)
    xs, ys = np.unique(every[:, 0::2]), np.unique(every[:, 1::2])
    inside = [np.zeros((len(ys) - 1, len(xs) - 1), dtype=np.bool_) for _ in range(2)]
    for cells, boxes in zip(inside, (boxes_a, boxes_b), strict=True):
        for x0, y0, x1, y1 in set(boxes):
            columns, rows = np.searchsorted(xs, (x0, x1)), np.searchsorted(ys, (y0, y1))
            cells[rows[0] : rows[1], columns[0] : columns[1]] = True
    areas = np.diff(ys)[:, None] * np.diff(xs)[None, :]
    union = float(areas[inside[0] | inside[1]].sum())
    return 0.0 if union == 0 else min(1.0, float(areas[inside[0] & inside[1]].sum()) / union)
