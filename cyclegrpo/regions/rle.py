"""Masks in COCO's spellings: run lengths and polygons. Column-major, `size` is `[height, width]`.

Writing is left to pycocotools. Reading is checked here first, because pycocotools pads short run lengths with
background, reads past the end of broken strings and takes four numbers of a polygon for a box (cocodataset/cocoapi
issues 362, 369).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import numpy as np
from pycocotools import mask as coco_mask

from cyclegrpo.errors import DataError

MAX_MASK_PIXELS = 100_000_000
"""Larger masks are refused before memory is taken for them; the default pixel limit of images."""

_MIN_POLYGON_NUMBERS = 6
_MAX_RUN_BITS = 60


class Rle(TypedDict):
    """A mask as run lengths: `size` is `[height, width]`, `counts` is COCO's compressed text."""

    size: list[int]
    counts: str


def as_mask(mask: np.ndarray) -> np.ndarray:
    """The mask as bool array (H, W).

    Integers and bools: nonzero is inside, so {0, 1} and {0, 255} are both fine. Floats must be exactly 0 or 1.

    Raises:
        ValueError: not two-dimensional, or floats that are scores rather than a mask.

    >>> as_mask(np.array([[0, 255]], np.uint8))
    array([[False,  True]])
    """
    array = np.asarray(mask)
    if array.ndim != 2:
        raise ValueError(f"a mask has shape {array.shape}; expected (height, width). Pass one mask at a time.")
    if array.dtype == np.bool_:
        return array
    inside = array != 0
    if not np.issubdtype(array.dtype, np.integer) and not np.array_equal(array, inside):
        raise ValueError(f"a mask of dtype {array.dtype} holds other values than 0 and 1. Threshold the scores first.")
    return inside


def mask_to_rle(mask: np.ndarray) -> Rle:
    """The mask as COCO compressed run lengths, with `counts` as text.

    Args:
        mask: (H, W), nonzero is inside; any memory order.

    >>> mask_to_rle(np.array([[0, 1, 1, 1, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0]], bool))
    {'size': [3, 5], 'counts': '321O103'}
    """
    encoded = coco_mask.encode(np.asfortranarray(as_mask(mask), dtype=np.uint8))
    return {"size": [int(side) for side in encoded["size"]], "counts": encoded["counts"].decode("ascii")}


def rle_to_mask(rle: Mapping[str, Any] | str, *, height: int | None = None, width: int | None = None) -> np.ndarray:
    """The mask of COCO run lengths, as bool array (H, W).

    Args:
        rle: `{"size": [height, width], "counts": ...}`, or that as JSON text. `counts` is compressed (text or bytes)
            or a list of run lengths (integers, or floats that are whole numbers).
        height, width: the size of the image in pixels. Given, another `size` is refused: nothing is transposed or
        resized.

    Raises:
        DataError: anything else, run lengths that do not fill the size exactly included.

    >>> rle_to_mask({"size": [3, 3], "counts": [1, 2, 6]}).astype(int)
    array([[0, 0, 0],
           [1, 0, 0],
           [1, 0, 0]])
    """
    fields = _from_json(rle) if isinstance(rle, str) else rle
    if not isinstance(fields, Mapping) or "size" not in fields or "counts" not in fields:
        raise DataError("a mask is not an RLE object; expected the keys size and counts.")
    rows, columns = _checked_size(fields["size"])
    if (height is not None and height != rows) or (width is not None and width != columns):
        raise DataError(
            f"an RLE mask of size [height, width] = [{rows}, {columns}] belongs to an image of [{height}, {width}]; "
            "expected equal sizes. Swapped or foreign sizes are not repaired."
        )
    counts = fields["counts"]
    runs = _runs_from_text(counts) if isinstance(counts, str | bytes) else _runs_from_list(counts)
    if sum(runs) != rows * columns:
        raise DataError(f"RLE counts cover {sum(runs)} pixels; expected {rows} x {columns} = {rows * columns}.")
    values = np.arange(len(runs)) % 2 == 1
    return np.ascontiguousarray(np.repeat(values, runs).reshape(columns, rows).T)


def _from_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"a mask is the text {text[:40]!r}, which is not JSON; expected an RLE object.") from error


def _checked_size(size: Any) -> tuple[int, int]:
    if not isinstance(size, list | tuple | np.ndarray) or len(size) != 2:
        raise DataError(f"an RLE mask has size {size!r:.60}; expected [height, width].")
    rows, columns = (_whole(side, "size") for side in size)
    if rows * columns > MAX_MASK_PIXELS:
        raise DataError(f"a mask has {rows} x {columns} pixels; expected at most {MAX_MASK_PIXELS}.")
    return rows, columns


def _whole(value: Any, name: str) -> int:
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not number or not 0 <= value < math.inf or value != int(value):
        raise DataError(f"RLE {name} hold {value!r:.60}; expected whole numbers that are not negative.")
    return int(value)


def _runs_from_list(counts: Any) -> list[int]:
    if not isinstance(counts, list | tuple | np.ndarray):
        raise DataError(f"RLE counts are of type {type(counts).__name__}; expected text or a list of run lengths.")
    return [_whole(count, "counts") for count in counts]


def _runs_from_text(counts: str | bytes) -> list[int]:
    """Run lengths from COCO's text: characters from `0` on hold five bits each; from the fourth run on, differences."""
    text = counts.decode("latin-1") if isinstance(counts, bytes) else counts
    if text.startswith(("b'", 'b"')):
        raise DataError(f"RLE counts are {text[:40]!r}, a printed Python bytes object; expected the text inside it.")
    runs: list[int] = []
    value = shift = 0
    for character in text:
        bits = ord(character) - 48
        if not 0 <= bits < 64:
            raise DataError(f"RLE counts hold the character {character!a}; expected COCO's characters 0 to o.")
        value |= (bits & 0x1F) << shift
        shift += 5
        if shift > _MAX_RUN_BITS:
            raise DataError("RLE counts hold a number without end; the text is broken.")
        if bits & 0x20:
            continue
        if bits & 0x10:
            value -= 1 << shift
        if len(runs) > 2:
            value += runs[-2]
        if value < 0:
            raise DataError("RLE counts hold a negative run length; the text is broken.")
        runs.append(value)
        value = shift = 0
    if shift:
        raise DataError("RLE counts end within a number; the text is cut off.")
    return runs


def polygons_to_mask(polygons: Sequence[Sequence[float]], height: int, width: int) -> np.ndarray:
    """The union of polygons, rasterised as COCO does, as bool array (height, width).

    Args:
        polygons: each a flat list `x0, y0, x1, y1, ...` in pixels of the image; parts outside the image are clipped.
        height, width: the image's size in pixels.

    A part with fewer than three points has no area and is left out; no part at all, or parts
    without area, give an empty mask. Overlapping parts are a union, so a hole cannot be spelled with polygons.

    Raises:
        DataError: not a list of lists, an odd count of numbers, something that is not a finite number, a coordinate
            farther outside than ten image sizes (rasterising would take memory for it), or an image of more than
            `MAX_MASK_PIXELS`.

    >>> int(polygons_to_mask([[0, 0, 2, 0, 2, 2, 0, 2], [6, 6, 8, 6, 8, 8, 6, 8]], 10, 10).sum())
    8
    """
    _checked_size((height, width))
    if not isinstance(polygons, list | tuple):
        raise DataError(f"polygons are of type {type(polygons).__name__}; expected a list of lists of numbers.")
    limit = 10 * max(height, width)
    parts: list[list[float]] = []
    for polygon in polygons:
        if not isinstance(polygon, list | tuple):
            raise DataError(f"a polygon is {polygon!r:.60}; expected a list [x0, y0, x1, y1, ...] inside the list.")
        if len(polygon) % 2:
            raise DataError(f"a polygon has {len(polygon)} numbers; expected pairs x, y.")
        if not all(_is_coordinate(value, limit) for value in polygon):
            raise DataError(f"a polygon holds something else than numbers between -{limit} and {limit}.")
        if len(polygon) >= _MIN_POLYGON_NUMBERS:
            parts.append([float(value) for value in polygon])
    if not parts:
        return np.zeros((height, width), dtype=np.bool_)
    return rle_to_mask(coco_mask.merge(coco_mask.frPyObjects(parts, height, width)), height=height, width=width)


def _is_coordinate(value: Any, limit: float) -> bool:
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    return bool(number and -limit <= value <= limit)  # NaN is neither
