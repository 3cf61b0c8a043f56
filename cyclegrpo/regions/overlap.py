"""How well predicted regions cover the targets, in [0, 1]: 1.0 where both sides are empty, 0.0 where one is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from cyclegrpo.regions.geometry import Box, box_iou, mask_iou, masks_union
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


def box_overlap(
    predicted_boxes: Sequence[Box], target_boxes: Sequence[Box], *, match: Literal["union", "hungarian"] = "union"
) -> float:
    """Overlap of two sets of half-open boxes `x0, y0, x1, y1` of one frame.

    Args:
        predicted_boxes, target_boxes: in any unit, the same for both.
        match: `union` is the IoU of the areas that the two sets cover; `hungarian` pairs the boxes one to one so that
            their IoU sums highest, and divides the sum by the larger number of boxes.

    >>> t1, t2 = (0, 0, 100, 100), (200, 200, 300, 300)
    >>> box_overlap([t1], [t1, t2]), box_overlap([t1] * 10 + [t2], [t1, t2], match="hungarian") == 2 / 11
    (0.5, True)
    """
    if len(predicted_boxes) == 0 or len(target_boxes) == 0:
        return float(len(predicted_boxes) == len(target_boxes))
    if match == "union":
        return _union_iou(predicted_boxes, target_boxes)
    if match != "hungarian":
        raise ValueError(f"match is {match!r}; expected 'union' or 'hungarian'.")
    ious = np.array([[box_iou(predicted, target) for target in target_boxes] for predicted in predicted_boxes])
    return min(1.0, best_assignment(ious) / max(ious.shape))


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


def best_assignment(scores: np.ndarray) -> float:
    """The highest sum of scores over one-to-one pairs of rows and columns (scipy's `linear_sum_assignment`, without
    scipy).

    Args:
        scores: (N, M), not negative.

    The Hungarian method with potentials on the shorter side, O(min(N, M)^2 max(N, M)).

    >>> best_assignment(np.array([[0.9, 0.8], [0.7, 0.1]]))
    1.5
    """
    costs = -np.asarray(scores, dtype=np.float64)
    if costs.shape[0] > costs.shape[1]:
        costs = costs.T
    num_rows, num_columns = costs.shape
    row_potential, column_potential = np.zeros(num_rows), np.zeros(num_columns + 1)
    row_of = np.full(num_columns + 1, -1)  # the last column is a helper that holds the row being placed
    for row in range(num_rows):
        row_of[num_columns] = row
        column = num_columns
        slack, came_from = np.full(num_columns, np.inf), np.full(num_columns, num_columns)
        visited = np.zeros(num_columns + 1, dtype=np.bool_)
        while row_of[column] >= 0:
            visited[column] = True
            here = row_of[column]
            reduced = costs[here] - row_potential[here] - column_potential[:-1]
            shorter = ~visited[:-1] & (reduced < slack)
            slack[shorter], came_from[shorter] = reduced[shorter], column
            nearest = int(np.argmin(np.where(visited[:-1], np.inf, slack)))
            step = slack[nearest]
            row_potential[row_of[visited]] += step
            column_potential[visited] -= step
            slack[~visited[:-1]] -= step
            column = nearest
        while column != num_columns:
            row_of[column] = row_of[came_from[column]]
            column = int(came_from[column])
    placed = np.flatnonzero(row_of[:-1] >= 0)
    return float(-costs[row_of[placed], placed].sum())
