"""The crop's pixels and mask: hand-computed boxes and sizes, and masks that the crop may lose."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from cyclegrpo.dataset.crops import crop_id, cut_crop, encode_jpeg
from cyclegrpo.params import Crop
from cyclegrpo.regions.geometry import crop_window


@pytest.mark.parametrize(
    ("box_inclusive", "window", "size"),
    [
        ((100, 100, 139, 119), (50, 40, 189, 179), (280, 280)),
        ((0, 0, 20, 20), (0, 0, 80, 80), (280, 280)),
        ((100, 50, 400, 150), (100, 30, 400, 170), (300, 140)),
        ((300, 300, 550, 540), (300, 300, 550, 480), (388, 280)),
    ],
)
def test_the_release_rule_on_640_x_480(
    box_inclusive: tuple[int, int, int, int], window: tuple[int, int, int, int], size: tuple[int, int]
) -> None:
    x0, y0, x1, y1 = box_inclusive
    mask = np.zeros((480, 640), dtype=bool)
    mask[y0 : y1 + 1, x0 : x1 + 1] = True
    if y1 < 480:  # the last box of the public table leaves the image, and a mask cannot
        assert crop_window(mask) == window
    crop, crop_mask = cut_crop(Image.new("RGB", (640, 480)), mask, window)
    assert crop.size == size and crop_mask.shape == size[::-1]


def test_mask_and_pixels_move_together() -> None:
    pixels = np.zeros((60, 80, 3), dtype=np.uint8)
    mask = np.zeros((60, 80), dtype=bool)
    mask[20:30, 40:50] = True
    pixels[mask] = 255
    crop, crop_mask = cut_crop(Image.fromarray(pixels), mask, (30, 10, 60, 40), enlarge_to_px=90)
    bright = np.asarray(crop)[..., 0] > 127
    assert crop.size == (90, 90)
    assert int(crop_mask.sum()) == 30 * 30 - 4  # at a corner the share is 2/3 * 2/3, below one half
    assert int((bright ^ crop_mask).sum()) <= 4


@given(
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    data=st.data(),
)
def test_without_enlargement_the_crop_pastes_back(height: int, width: int, data: st.DataObject) -> None:
    x0, y0 = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
    x1, y1 = data.draw(st.integers(x0 + 1, width)), data.draw(st.integers(y0 + 1, height))
    mask = np.random.default_rng(height * 41 + width).random((height, width)) < 0.5
    _, crop_mask = cut_crop(Image.new("RGB", (width, height)), mask, (x0, y0, x1, y1), enlarge_to_px=1)
    pasted = np.zeros_like(mask)
    pasted[y0:y1, x0:x1] = crop_mask
    inside = np.zeros_like(mask)
    inside[y0:y1, x0:x1] = mask[y0:y1, x0:x1]
    assert np.array_equal(pasted, inside)


def test_a_single_pixel_can_vanish_and_says_so_by_an_empty_mask() -> None:
    mask = np.zeros((64, 64), dtype=bool)
    mask[31, 31] = True
    _, crop_mask = cut_crop(Image.new("RGB", (64, 64)), mask, (0, 0, 63, 63), enlarge_to_px=64)
    assert crop_mask.shape == (64, 64) and crop_mask.sum() <= 1


def test_jpeg_bytes_are_stable_and_quality_counts() -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8))
    assert encode_jpeg(image, 95) == encode_jpeg(image, 95)
    assert len(encode_jpeg(image, 95)) > len(encode_jpeg(image, 75))


def test_a_crop_is_named_after_all_that_it_shows() -> None:
    frame = {"image": "a.jpg", "num_bytes": 5, "height": 3, "width": 5}
    names = {
        crop_id("dw/0", frame, "321O103", Crop()),
        crop_id("dw/1", frame, "321O103", Crop()),
        crop_id("dw/0", {**frame, "num_bytes": 6}, "321O103", Crop()),
        crop_id("dw/0", frame, "213", Crop()),
        crop_id("dw/0", frame, "321O103", Crop(jpeg_quality=90)),
    }
    assert len(names) == 5
    assert crop_id("dw/0", frame, "321O103", Crop()) in names
