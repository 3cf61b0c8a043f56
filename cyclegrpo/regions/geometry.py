"""The one convention for boxes, masks and frames; every other file follows it.

- A mask is a bool array (H, W). Sizes are `height, width`, in that order.
- A box is half-open pixels `x0, y0, x1, y1`: `width = x1 - x0`, and `image[y0:y1, x0:x1]` is what it holds.
- The one exception is what the release measures with inclusive maxima, its crops and the boxes in its prompts:
  `mask_to_box_inclusive`, `mask_to_prompt_box`, `crop_window`.
- An empty mask has no box: the functions return `None` or raise, never `(0, 0, 0, 0)`.
- `box_image` is in pixels of the image, `box_1000` in thousandths of its sides, the frame in which models write boxes.
- Run lengths and polygons (`cyclegrpo.regions.rle`, offered here too) are COCO's: column-major, `size` is `[height,
  width]`.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from cyclegrpo.regions.rle import (
    MAX_MASK_PIXELS,
    Rle,
    as_mask,
    mask_to_rle,
    polygons_to_mask,
    rle_to_mask,
)

__all__ = [
    "MAX_MASK_PIXELS",
    "Box",
    "Rle",
    "as_mask",
    "box_1000_to_image",
    "box_image_to_1000",
    "box_to_mask",
    "crop_size",
    "crop_window",
    "crop_window_of_box",
    "mask_iou",
    "mask_to_box",
    "mask_to_box_1000",
    "mask_to_box_inclusive",
    "mask_to_prompt_box",
    "mask_to_rle",
    "masks_union",
    "polygons_to_mask",
    "rle_to_mask",
]

Box = tuple[float, float, float, float]


def mask_to_box_inclusive(mask: np.ndarray) -> tuple[int, int, int, int] | None:
    """First and last column and row of the mask, `x0, y0, x1, y1` with inclusive maxima, or None if it is empty.

    The release's convention (torchvision's `masks_to_boxes`): a single pixel gives a box of zero width.

    >>> mask_to_box_inclusive(np.ones((4, 4), bool)), mask_to_box_inclusive(np.zeros((4, 4), bool))
    ((0, 0, 3, 3), None)
    """
    inside = as_mask(mask)
    columns = np.flatnonzero(inside.any(axis=0))
    if columns.size == 0:
        return None
    rows = np.flatnonzero(inside.any(axis=1))
    return int(columns[0]), int(rows[0]), int(columns[-1]), int(rows[-1])


def mask_to_box(mask: np.ndarray) -> tuple[int, int, int, int] | None:
    """The tight half-open box of the mask in pixels, `x0, y0, x1, y1`, or None if it is empty.

    >>> mask_to_box(np.ones((4, 4), bool)), mask_to_box(np.zeros((4, 4), bool))
    ((0, 0, 4, 4), None)
    """
    box = mask_to_box_inclusive(mask)
    return None if box is None else (box[0], box[1], box[2] + 1, box[3] + 1)


def box_to_mask(box_image: Box, height: int, width: int) -> np.ndarray:
    """A half-open box in pixels, filled, as bool array (height, width).

    Corners are rounded to whole pixels, but a side is never rounded away. What lies outside the image is left out; a
    box without area gives an empty mask.

    >>> box_to_mask((0.6, 0, 2, 0.3), 2, 3).astype(int).tolist(), int(box_to_mask((9, 9, 12, 12), 2, 3).sum())
    ([[0, 1, 0], [0, 0, 0]], 0)
    """
    mask = np.zeros((height, width), dtype=np.bool_)
    x0, y0, x1, y1 = box_image
    if x0 < x1 and y0 < y1:
        left, top = round(x0), round(y0)
        right, bottom = max(round(x1), left + 1), max(round(y1), top + 1)
        mask[max(0, top) : max(0, bottom), max(0, left) : max(0, right)] = True
    return mask


def mask_iou(mask_a: np.ndarray, mask_b: np.ndarray) -> float:
    """Intersection over union of two masks, in [0, 1].

    Args:
        mask_a, mask_b: arrays of one shape (H, W), in the same frame; nonzero is inside.

    Two empty masks agree, so their IoU is 1.0 (the no-target case); one empty mask gives 0.0.

    Raises:
        ValueError: the shapes differ.

    >>> a = np.zeros((2, 2), bool); b = a.copy(); a[0, 0] = b[0, :] = True
    >>> mask_iou(a, b)
    0.5
    """
    inside_a, inside_b = as_mask(mask_a), as_mask(mask_b)
    if inside_a.shape != inside_b.shape:
        raise ValueError(
            f"masks of {inside_a.shape} and {inside_b.shape}; expected one shape. Bring them to one frame."
        )
    union = int(np.count_nonzero(inside_a | inside_b))
    return 1.0 if union == 0 else int(np.count_nonzero(inside_a & inside_b)) / union


def masks_union(masks: Iterable[np.ndarray], height: int, width: int) -> np.ndarray:
    """The pixels inside any of the masks, as bool array (height, width); no mask at all gives an empty one.

    Raises:
        ValueError: a mask has another shape.

    >>> masks_union([np.eye(2, dtype=bool), np.eye(2, dtype=bool)[::-1]], 2, 2).tolist()
    [[True, True], [True, True]]
    """
    union = np.zeros((height, width), dtype=np.bool_)
    for mask in masks:
        inside = as_mask(mask)
        if inside.shape != union.shape:
            raise ValueError(f"a mask of {inside.shape} in a frame of {union.shape}; expected one shape.")
        union |= inside
    return union


def box_image_to_1000(box_image: Box, height: int, width: int) -> Box:
    """A box in pixels as thousandths of the image's sides, clipped to 0..1000, not rounded.

    Args:
        box_image: `x0, y0, x1, y1` in pixels of the image.
        height, width: the image's size in pixels.

    Raises:
        ValueError: the image has no pixels.

    >>> box_image_to_1000((8, 6, 24, 18), height=60, width=80)
    (100.0, 100.0, 300.0, 300.0)
    """
    _check_image(height, width)
    scaled = (1000 * value / side for value, side in zip(box_image, (width, height, width, height), strict=True))
    x0, y0, x1, y1 = (min(max(float(value), 0.0), 1000.0) for value in scaled)
    return x0, y0, x1, y1


def mask_to_box_1000(mask: np.ndarray) -> Box:
    """The tight half-open box of a mask in thousandths of the image's sides, not rounded: what is truly there.

    Answers are scored against it; prompts spell another one (`mask_to_prompt_box`).

    Raises:
        ValueError: the mask is empty.

    >>> mask_to_box_1000(np.eye(4, 5, k=1, dtype=bool))
    (200.0, 0.0, 1000.0, 1000.0)
    """
    return _box_to_1000(mask_to_box(mask), mask)


def mask_to_prompt_box(mask: np.ndarray) -> Box:
    """The tight box of a mask as prompts and answers spell it: in thousandths of the image's sides, not rounded.

    It is made from the first and last column and row of the mask (inclusive maxima), as the public box prompts are.

    Raises:
        ValueError: the mask is empty.

    >>> mask_to_prompt_box(np.eye(4, 5, k=1, dtype=bool))
    (200.0, 0.0, 800.0, 750.0)
    """
    return _box_to_1000(mask_to_box_inclusive(mask), mask)


def _box_to_1000(box: Box | None, mask: np.ndarray) -> Box:
    if box is None:
        raise ValueError("an empty mask has no box; expected at least one pixel.")
    height, width = np.asarray(mask).shape
    return box_image_to_1000(box, height, width)


def box_1000_to_image(box_1000: Box, height: int, width: int) -> Box:
    """A box in thousandths of the image's sides as pixels of the image, not rounded.

    >>> box_1000_to_image((100, 100, 300, 300), height=60, width=80)
    (8.0, 6.0, 24.0, 18.0)
    """
    _check_image(height, width)
    sides = (width, height, width, height)
    x0, y0, x1, y1 = (float(value) * side / 1000 for value, side in zip(box_1000, sides, strict=True))
    return x0, y0, x1, y1


def _check_image(height: int, width: int) -> None:
    if height < 1 or width < 1:
        raise ValueError(f"an image of height {height} and width {width}; expected at least one pixel.")


def crop_window(
    mask: np.ndarray, *, max_area_fraction: float = 0.30, min_side_px: int = 140
) -> tuple[int, int, int, int] | None:
    """The half-open window `x0, y0, x1, y1` of a region's zoom-in crop in the image, or None where the region is large.

    The release's rule, step by step: the tight box has inclusive maxima (`x1, y1` are the last column and row of the
    mask, and the window ends before them); a crop is cut where the box's `(x1 - x0)(y1 - y0)` is below
    `max_area_fraction` of the image; sides below `min_side_px` are moved out by half of what is missing, rounded
    down, and clipped.

    Args:
        mask: (H, W) of the whole image; nonzero is inside.
        max_area_fraction: share of the image in [0, 1] from which on no crop is cut.
        min_side_px: shortest side that is left as it is, in pixels.

    A mask one pixel wide has a box without area; it is cropped on purpose, and the window has at least one pixel. The
    window loses the last row and column of a mask whose sides are not moved out, so a caller must still check that
    the cropped mask is not empty.

    Raises:
        ValueError: the mask is empty.

    >>> mask = np.zeros((480, 640), bool); mask[100:120, 100:140] = True
    >>> crop_window(mask)
    (50, 40, 189, 179)
    """
    box = mask_to_box_inclusive(mask)
    if box is None:
        raise ValueError("an empty mask has no zoom-in crop; expected at least one pixel.")
    height, width = np.asarray(mask).shape
    return crop_window_of_box(box, height, width, max_area_fraction=max_area_fraction, min_side_px=min_side_px)


def crop_window_of_box(
    box_inclusive: tuple[int, int, int, int],
    height: int,
    width: int,
    *,
    max_area_fraction: float = 0.30,
    min_side_px: int = 140,
) -> tuple[int, int, int, int] | None:
    """The same window as `crop_window`, from the mask's tight box with inclusive maxima.

    Args:
        box_inclusive: first and last column and row, `x0, y0, x1, y1`, of `mask_to_box_inclusive`.
        height, width: the image's size in pixels.

    Raises:
        ValueError: the corners are exchanged, or the box begins outside the image.

    >>> crop_window_of_box((300, 300, 550, 540), height=480, width=640)
    (300, 300, 550, 480)
    """
    x0, y0, x1, y1 = box_inclusive
    if not 0 <= x0 <= x1 or not 0 <= y0 <= y1 or x0 >= width or y0 >= height:
        raise ValueError(
            f"a box is {box_inclusive} in an image {width} wide and {height} high; expected ordered corners inside."
        )
    # Divided, not multiplied out: a quotient of exactly 30 % rounds to the same float as the literal 0.30.
    if (x1 - x0) * (y1 - y0) / (width * height) >= max_area_fraction:
        return None
    x0, x1 = _widened(x0, x1, min_side_px, width)
    y0, y1 = _widened(y0, y1, min_side_px, height)
    return x0, y0, x1, y1


def _widened(low: int, high: int, min_side_px: int, limit: int) -> tuple[int, int]:
    """Both ends moved out where the side is too short, clipped to 0..limit; at least one pixel remains."""
    margin = max(0, (min_side_px - (high - low)) // 2)
    low, high = max(0, low - margin), min(limit, high + margin)
    return low, max(high, low + 1)


def crop_size(width: int, height: int, enlarge_to_px: int = 280) -> tuple[int, int]:
    """Width and height in pixels to which a crop is resized (as Pillow's `resize` takes them).

    The release's rule: a crop whose LONGER side is below `enlarge_to_px` is enlarged until its SHORTER side has that
    many pixels, the other side truncated; every other crop stays as it is.

    >>> crop_size(139, 139), crop_size(250, 180), crop_size(300, 140)
    ((280, 280), (388, 280), (300, 140))
    """
    if width < 1 or height < 1:
        raise ValueError(f"a crop of width {width} and height {height}; expected at least one pixel.")
    if max(width, height) >= enlarge_to_px:
        return width, height
    shorter = min(width, height)
    return width * enlarge_to_px // shorter, height * enlarge_to_px // shorter
