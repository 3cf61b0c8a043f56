"""Boxes, masks and the crop rule, against hand-computed numbers and the release's own cases."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cyclegrpo.regions.geometry import (
    Box,
    box_1000_to_image,
    box_image_to_1000,
    crop_size,
    crop_window,
    crop_window_of_box,
    mask_iou,
    mask_to_box,
    mask_to_box_inclusive,
    masks_union,
)

masks = hnp.arrays(np.bool_, hnp.array_shapes(min_dims=2, max_dims=2, max_side=9))


def mask_of_box(box_inclusive: tuple[int, int, int, int], height: int = 480, width: int = 640) -> np.ndarray:
    mask = np.zeros((height, width), bool)
    x0, y0, x1, y1 = box_inclusive
    mask[y0, x0] = mask[y1, x1] = True
    return mask


def test_box_of_the_upper_left_block() -> None:
    mask = np.array([[1, 1, 1, 0], [1, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]], bool)
    assert mask_to_box_inclusive(mask) == (0, 0, 2, 1)
    assert mask_to_box(mask) == (0, 0, 3, 2)


def test_an_empty_mask_has_no_box_and_no_crop() -> None:
    empty = np.zeros((4, 4), bool)
    assert mask_to_box(empty) is None and mask_to_box_inclusive(empty) is None
    with pytest.raises(ValueError, match="empty mask"):
        crop_window(empty)


@given(masks)
def test_the_half_open_box_holds_every_pixel_and_touches_all_sides(mask: np.ndarray) -> None:
    box = mask_to_box(mask)
    if box is None:
        assert not mask.any()
        return
    x0, y0, x1, y1 = box
    inside = mask[y0:y1, x0:x1]
    assert inside.sum() == mask.sum()
    assert inside[0].any() and inside[-1].any() and inside[:, 0].any() and inside[:, -1].any()


@pytest.mark.parametrize(
    ("mask_a", "mask_b", "expected"),
    [
        ([[0, 0]], [[0, 0]], 1.0),
        ([[1, 0]], [[0, 0]], 0.0),
        ([[0, 0]], [[0, 1]], 0.0),
        ([[1, 1]], [[1, 0]], 0.5),
        ([[255, 0]], [[1, 0]], 1.0),
    ],
)
def test_mask_iou(mask_a: list[list[int]], mask_b: list[list[int]], expected: float) -> None:
    assert mask_iou(np.array(mask_a), np.array(mask_b)) == expected


def test_mask_iou_does_not_overflow_in_half_precision() -> None:
    full = np.ones((1024, 1024), np.float16)
    assert mask_iou(full, full) == 1.0


def test_mask_iou_refuses_other_shapes_and_scores() -> None:
    with pytest.raises(ValueError, match=r"\(10, 10\) and \(20, 20\)"):
        mask_iou(np.ones((10, 10)), np.ones((20, 20)))
    with pytest.raises(ValueError, match="Threshold"):
        mask_iou(np.full((2, 2), 0.7), np.ones((2, 2)))
    with pytest.raises(ValueError, match="height, width"):
        mask_iou(np.ones((1, 2, 2), bool), np.ones((1, 2, 2), bool))


@given(masks)
def test_mask_iou_is_symmetric_and_bounded(mask: np.ndarray) -> None:
    other = mask[::-1, ::-1]
    assert mask_iou(mask, mask) == 1.0
    assert 0.0 <= mask_iou(mask, other) == mask_iou(other, mask) <= 1.0


def test_masks_union() -> None:
    a, b = np.array([[1, 0, 0]], bool), np.array([[0, 0, 1]], bool)
    assert masks_union([a, b], 1, 3).tolist() == [[True, False, True]]
    assert not masks_union([], 2, 3).any() and masks_union([], 2, 3).shape == (2, 3)
    with pytest.raises(ValueError, match="one shape"):
        masks_union([a], 3, 1)


def test_box_frames() -> None:
    assert box_1000_to_image((342, 308, 670, 766), height=480, width=640) == pytest.approx(
        (218.88, 147.84, 428.8, 367.68)
    )
    assert box_image_to_1000((-5, -5, 15, 15), height=80, width=100) == (0, 0, 150, 187.5)
    with pytest.raises(ValueError, match="at least one pixel"):
        box_image_to_1000((0, 0, 1, 1), height=0, width=5)


@given(st.tuples(*[st.floats(0, 1000)] * 4), st.integers(1, 5000), st.integers(1, 5000))
def test_box_frames_invert_each_other(box: Box, height: int, width: int) -> None:
    assert box_image_to_1000(box_1000_to_image(box, height, width), height, width) == pytest.approx(box, abs=1e-9)


@pytest.mark.parametrize(
    ("box_inclusive", "window", "size"),
    [
        ((100, 100, 139, 119), (50, 40, 189, 179), (280, 280)),
        ((0, 0, 20, 20), (0, 0, 80, 80), (280, 280)),
        ((100, 50, 400, 150), (100, 30, 400, 170), (300, 140)),
        ((300, 300, 550, 540), (300, 300, 550, 480), (388, 280)),
        ((10, 10, 600, 400), None, None),
    ],
)
def test_crop_of_the_release(
    box_inclusive: tuple[int, int, int, int],
    window: tuple[int, int, int, int] | None,
    size: tuple[int, int] | None,
) -> None:
    """The published cases on 640x480; one box reaches below the image, so it cannot come from a mask."""
    assert crop_window_of_box(box_inclusive, height=480, width=640) == window
    if box_inclusive[3] < 480:
        assert crop_window(mask_of_box(box_inclusive)) == window
    if window is not None:
        assert crop_size(window[2] - window[0], window[3] - window[1]) == size


@pytest.mark.parametrize("box", [(5, 0, 4, 9), (0, 5, 9, 4), (640, 0, 650, 9), (-1, 0, 5, 5)])
def test_a_box_that_is_none_is_refused_with_its_numbers(box: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match=str(box[2])):
        crop_window_of_box(box, height=480, width=640)


def test_the_fraction_is_of_inclusive_extents_and_strict() -> None:
    exactly = mask_of_box((0, 0, 30, 10), height=20, width=50)  # 30 * 10 of 1000
    assert crop_window(exactly, min_side_px=1) is None
    assert crop_window(mask_of_box((0, 0, 29, 10), height=20, width=50), min_side_px=1) == (0, 0, 29, 10)


@pytest.mark.parametrize(
    ("box_inclusive", "window"),
    [
        ((499, 499, 499, 499), (483, 483, 500, 500)),  # the last pixel
        ((250, 0, 250, 499), (234, 0, 266, 499)),  # one pixel wide
        ((0, 250, 499, 250), (0, 234, 499, 266)),  # one pixel high
    ],
)
def test_degenerate_masks_are_cropped_on_purpose(
    box_inclusive: tuple[int, int, int, int], window: tuple[int, int, int, int]
) -> None:
    assert crop_window(mask_of_box(box_inclusive, 500, 500), min_side_px=32) == window


@given(masks, st.integers(1, 12))
def test_a_window_lies_in_the_image_and_has_pixels(mask: np.ndarray, min_side_px: int) -> None:
    if not mask.any():
        return
    window = crop_window(mask, min_side_px=min_side_px)
    if window is None:
        return
    x0, y0, x1, y1 = window
    assert 0 <= x0 < x1 <= mask.shape[1] and 0 <= y0 < y1 <= mask.shape[0]
    pasted = np.zeros_like(mask)
    pasted[y0:y1, x0:x1] = mask[y0:y1, x0:x1]
    assert not (pasted & ~mask).any()


@pytest.mark.parametrize(
    ("width", "height", "expected"),
    [
        (250, 180, (388, 280)),
        (180, 250, (280, 388)),
        (279, 279, (280, 280)),
        (280, 10, (280, 10)),
        (279, 140, (558, 280)),
        (1, 1, (280, 280)),
    ],
)
def test_crop_size(width: int, height: int, expected: tuple[int, int]) -> None:
    assert crop_size(width, height) == expected


def test_crop_size_refuses_no_pixels() -> None:
    with pytest.raises(ValueError, match="at least one pixel"):
        crop_size(0, 5)
