"""Overlap of masks, codes and boxes, against hand-computed numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyclegrpo.regions.geometry import Box, mask_iou
from cyclegrpo.regions.overlap import box_overlap, mask_overlap, token_overlap

T1, T2 = (0, 0, 100, 100), (200, 200, 300, 300)
WHOLE = (0, 0, 1000, 1000)


def square(x0: int, y0: int, x1: int, y1: int) -> np.ndarray:
    mask = np.zeros((10, 10), bool)
    mask[y0:y1, x0:x1] = True
    return mask


@pytest.mark.parametrize(
    ("predicted", "targets", "expected"),
    [
        ([], [], 1.0),
        ([square(0, 0, 2, 2)], [], 0.0),
        ([], [square(0, 0, 2, 2)], 0.0),
        ([square(0, 0, 0, 0)], [], 0.0),  # an answer without pixels is still an answer
        ([square(0, 0, 0, 0)], [square(0, 0, 0, 0)], 1.0),
        ([square(0, 0, 2, 2)], [square(0, 0, 2, 4)], 0.5),
        ([square(0, 0, 2, 2), square(0, 2, 2, 4)], [square(0, 0, 2, 4)], 1.0),
        ([square(0, 0, 2, 2), square(5, 5, 7, 7)], [square(5, 5, 7, 7)], 0.5),
        ([square(0, 0, 2, 2)] * 3, [square(0, 0, 2, 2)], 1.0),
    ],
)
def test_mask_overlap(predicted: list[np.ndarray], targets: list[np.ndarray], expected: float) -> None:
    assert mask_overlap(predicted, targets) == expected


def test_mask_overlap_takes_stacks_and_refuses_other_shapes() -> None:
    assert mask_overlap(np.ones((2, 4, 4), bool), np.ones((1, 4, 4), bool)) == 1.0
    assert mask_overlap(np.ones((0, 4, 4), bool), np.ones((1, 4, 4), bool)) == 0.0
    with pytest.raises(ValueError, match="one shape"):
        mask_overlap([np.ones((2, 3), bool)], [np.ones((3, 2), bool)])


@pytest.mark.parametrize(
    ("predicted", "targets", "expected"),
    [
        ([(1, 45)], [(1, 45)], 1.0),
        ([(1, 46)], [(1, 45)], 0.4),
        ([(2, 45)], [(1, 45)], 0.0),
        ([(1, 45), (1, 45)], [(1, 45)], 0.5),
        ([(1, 45), (1, 46)], [(1, 45)], 0.7),
        ([(1, 45)], [(1, 45), (2, 46)], 0.5),
        ([], [], 1.0),
        ([], [(1, 45)], 0.0),
        ([(1, 45)], [], 0.0),
        ([(1, None)], [(1, 45)], 0.4),
        ([(1, 45)] * 10, [(1, 45), (2, 46)], 0.1),
        ([(1, 45)] * 10 + [(2, 46)], [(1, 45), (2, 46)], 2 / 11),
    ],
)
def test_token_overlap(
    predicted: list[tuple[int, int | None]], targets: list[tuple[int, int | None]], expected: float
) -> None:
    assert token_overlap(predicted, targets) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("predicted", "targets", "expected"),
    [
        ([], [], 1.0),
        ([T1], [], 0.0),
        ([], [T1], 0.0),
        ([T1, T2], [T1, T2], 1.0),
        ([T2, T1], [T1, T2], 1.0),
        ([T1], [T1, T2], 0.5),
        ([T1] * 10, [T1, T2], 0.5),
        ([T1] * 10 + [T2], [T1, T2], 1.0),
        ([WHOLE], [(300, 300, 700, 700)], 0.16),
        ([WHOLE], [(50, 50, 950, 950)], 0.81),
        ([(0, 0, 2, 2), (1, 1, 3, 3)], [(0, 0, 3, 3)], 7 / 9),
        ([(0, 0, 10, 10)], [(5, 0, 15, 10)], 1 / 3),
        ([(0, 0, 10, 10)], [(10, 0, 20, 10)], 0.0),
        ([(5, 5, 5, 9)], [(5, 5, 5, 9)], 0.0),
    ],
)
def test_box_overlap(predicted: list[Box], targets: list[Box], expected: float) -> None:
    assert box_overlap(predicted, targets) == pytest.approx(expected)


boxes = st.lists(
    st.tuples(*[st.integers(0, 12)] * 4).map(
        lambda b: (min(b[0], b[2]), min(b[1], b[3]), max(b[0], b[2]), max(b[1], b[3]))
    ),
    min_size=1,
    max_size=4,
)


@given(boxes, boxes)
def test_the_union_of_boxes_is_that_of_their_pixels(boxes_a: list[Box], boxes_b: list[Box]) -> None:
    pixels = np.zeros((2, 12, 12), bool)
    for mask, some in zip(pixels, (boxes_a, boxes_b), strict=True):
        for x0, y0, x1, y1 in some:
            mask[int(y0) : int(y1), int(x0) : int(x1)] = True
    expected = mask_iou(pixels[0], pixels[1]) if pixels.any() else 0.0
    assert box_overlap(boxes_a, boxes_b) == pytest.approx(expected)
    assert box_overlap(boxes_b, boxes_a) == pytest.approx(expected)
