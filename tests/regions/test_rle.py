"""Run lengths and polygons: what COCO files really hold, and what must be refused."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cyclegrpo.errors import DataError
from cyclegrpo.regions.geometry import mask_to_box, mask_to_rle, polygons_to_mask, rle_to_mask

MASK = np.array([[0, 1, 1, 1, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0]], bool)
SQUARE = [1, 1, 5, 1, 5, 5, 1, 5]


def rows(*lines: str) -> np.ndarray:
    return np.array([[character == "1" for character in line] for line in lines])


@pytest.mark.parametrize(
    ("mask", "counts", "text"),
    [
        (rows("1110", "1110", "0000", "0000"), [0, 2, 2, 2, 2, 2, 6], "0220004"),
        (rows("0000", "0000", "0000", "0000"), [16], "`0"),
        (rows("010", "000"), [2, 1, 3], "213"),
        (MASK, [3, 2, 1, 1, 2, 1, 5], "321O103"),
    ],
)
def test_known_run_lengths(mask: np.ndarray, counts: list[int], text: str) -> None:
    size = list(mask.shape)
    assert mask_to_rle(mask) == {"size": size, "counts": text}
    for spelling in (counts, text, text.encode(), [float(count) for count in counts], np.array(counts)):
        assert np.array_equal(rle_to_mask({"size": size, "counts": spelling}), mask)


def test_run_lengths_are_column_major_also_when_square() -> None:
    assert rle_to_mask({"size": [3, 3], "counts": [1, 2, 6]}).astype(int).tolist() == [[0, 0, 0], [1, 0, 0], [1, 0, 0]]


@given(hnp.arrays(np.bool_, hnp.array_shapes(min_dims=2, max_dims=2, max_side=40)))
def test_mask_to_rle_to_mask(mask: np.ndarray) -> None:
    rle = mask_to_rle(mask)
    assert np.array_equal(rle_to_mask(json.dumps(rle)), mask)


@pytest.mark.parametrize(
    "mask", [np.ones((4, 6), np.uint8), np.full((4, 6), 255, np.uint8), np.ones((4, 6), order="C")]
)
def test_any_dtype_and_memory_order_is_encoded(mask: np.ndarray) -> None:
    assert rle_to_mask(mask_to_rle(mask)).all()


def test_a_label_map_is_read_as_one_mask() -> None:
    assert rle_to_mask(mask_to_rle(np.array([[0, 1], [2, 0]], np.uint8))).tolist() == [[False, True], [True, False]]


@pytest.mark.parametrize(
    ("rle", "message"),
    [
        ({"size": [3, 5], "counts": "b'321O103'"}, "printed Python bytes"),
        ({"size": [3, 5], "counts": [3.5, 1.5, 1, 1, 2, 1, 5]}, "whole numbers"),
        ({"size": [3, 5], "counts": [-3, 8, 10]}, "not negative"),
        ({"size": [3, 5], "counts": [3, 2]}, "cover 5 pixels"),
        ({"size": [3, 6], "counts": "321O103"}, "cover 15 pixels"),
        ({"size": [3, 5], "counts": "321O1"}, "cover"),
        ({"size": [3, 5], "counts": "321O10p"}, "character"),
        ({"size": [3, 5], "counts": "321O10S"}, "cut off"),
        ({"size": [3, 5], "counts": "000\u0660"}, "character"),
        ({"size": [3, 5], "counts": None}, "NoneType"),
        ({"size": [3, 5], "counts": [None]}, "whole numbers"),
        ({"size": [3, 5], "counts": [float("nan")]}, "whole numbers"),
        ({"size": [3, 5], "counts": [float("inf")]}, "whole numbers"),
        ({"size": [3, 5], "counts": [10**400]}, "cover"),
        ({"size": [3, 5], "counts": "o" * 5000 + "0"}, "without end"),
        ({"size": [10**400, 5], "counts": [3]}, "at most"),
        ({"size": [3], "counts": "0"}, "height, width"),
        ({"size": ["3", "5"], "counts": "0"}, "size hold"),
        ({"size": [10**6, 10**6], "counts": [10**12]}, "at most"),
        ({"counts": "0"}, "keys size and counts"),
        ([{"size": [3, 5], "counts": "321O103"}], "keys size and counts"),
        ("not json", "not JSON"),
        (None, "keys size and counts"),
    ],
)
def test_broken_run_lengths_are_refused(rle: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        rle_to_mask(rle)


def test_swapped_and_foreign_sizes_are_refused_with_both() -> None:
    swapped = {"size": [5, 3], "counts": [3, 2, 1, 1, 2, 1, 5]}
    with pytest.raises(DataError, match=r"\[5, 3\].*\[3, 5\]"):
        rle_to_mask(swapped, height=3, width=5)
    with pytest.raises(DataError, match=r"\[3, 5\].*\[6, 10\]"):
        rle_to_mask(mask_to_rle(MASK), height=6, width=10)
    assert rle_to_mask(mask_to_rle(MASK), height=3, width=5).sum() == 4


@given(st.text(max_size=40) | st.binary(max_size=40) | st.lists(st.integers(), max_size=6))
def test_any_counts_give_a_mask_or_a_data_error(counts: Any) -> None:
    with contextlib.suppress(DataError):
        assert rle_to_mask({"size": [4, 4], "counts": counts}).shape == (4, 4)


@pytest.mark.parametrize(
    ("polygons", "area", "box"),
    [
        ([SQUARE], 16, (1, 1, 5, 5)),
        ([SQUARE, [2, 2, 3, 3]], 16, (1, 1, 5, 5)),
        ([[2, 2, 3, 3], SQUARE], 16, (1, 1, 5, 5)),
        ([[1, 1, 5, 1, 9, 1]], 0, None),
        ([[6, 3, 9, 3]], 0, None),
        ([], 0, None),
        ([[]], 0, None),
        ([[-5, -5, 5, -5, 5, 5, -5, 5]], 25, (0, 0, 5, 5)),
        ([[0, 0, 10, 0, 10, 10, 0, 10], [3, 3, 7, 3, 7, 7, 3, 7]], 100, (0, 0, 10, 10)),
        ([[0, 0, 2, 0, 2, 2, 0, 2], [6, 6, 8, 6, 8, 8, 6, 8]], 8, (0, 0, 8, 8)),
        ([[0, 0, 4, 0, 4, 4, 0, 4], [2, 2, 6, 2, 6, 6, 2, 6]], 28, (0, 0, 6, 6)),
        ([[20, 20, 30, 20, 30, 30, 20, 30]], 0, None),
    ],
)
def test_polygons(polygons: list[list[float]], area: int, box: tuple[int, int, int, int] | None) -> None:
    mask = polygons_to_mask(polygons, 10, 10)
    assert mask.shape == (10, 10) and mask.dtype == np.bool_
    assert int(mask.sum()) == area
    assert mask_to_box(mask) == box


@pytest.mark.parametrize(
    ("polygons", "message"),
    [
        ([[1, 1, 5, 1, 5, 5, 1]], "7 numbers"),
        ([[1, 1, 5, None, 5, 5]], "something else than numbers"),
        ([[1, 1, 5, float("nan"), 5, 5]], "something else than numbers"),
        ([[1, 1, 1e9, 1, 5, 5]], "between -100 and 100"),
        ([[1, 1, 10**400, 1, 5, 5]], "between -100 and 100"),
        ([[1, 1, float("-inf"), 1, 5, 5]], "between -100 and 100"),
        (SQUARE, "inside the list"),
        ("321O103", "type str"),
    ],
)
def test_broken_polygons_are_refused(polygons: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        polygons_to_mask(polygons, 10, 10)


@pytest.mark.parametrize("polygons", [[], [SQUARE]])
def test_polygons_of_a_huge_image_take_no_memory(polygons: Any) -> None:
    with pytest.raises(DataError, match="at most"):
        polygons_to_mask(polygons, 10**6, 10**6)


def test_a_ring_a_pixel_and_a_line_survive() -> None:
    ring = np.ones((10, 10), bool)
    ring[3:7, 3:7] = False
    pixel, line = np.zeros((2, 10, 10), bool)
    pixel[4, 5] = line[:, 9] = True
    for mask, area in ((ring, 84), (pixel, 1), (line, 10)):
        assert rle_to_mask(mask_to_rle(mask)).sum() == area
