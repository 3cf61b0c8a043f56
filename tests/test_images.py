"""Images as users have them: frames, channels, damage, giants, odd names.

The numbers B.. are those of the list of public bug reports that the project holds itself to.
"""

from __future__ import annotations

import logging
import os
import resource
import struct
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cyclegrpo.errors import DataError
from cyclegrpo.images import load_image, read_image_header

RED = (255, 0, 0)


def save_turned(path: Path, orientation: int = 6, size: tuple[int, int] = (40, 30)) -> Path:
    """A picture, stored as `size` (width, height) with a red band of 10 pixels on its left, and an orientation tag."""
    image = Image.new("RGB", size)
    image.paste(RED, (0, 0, 10, size[1]))
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.save(path, exif=exif, quality=95)
    return path


def save_png_header(path: Path, width: int, height: int) -> Path:
    """A PNG that claims a size and holds ten bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data) & 0xFFFFFFFF)

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 10)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)
    return path


def mean_color(image: Image.Image, box: tuple[int, int, int, int]) -> np.ndarray:
    return np.asarray(image.crop(box)).reshape(-1, 3).mean(axis=0)


# B01: the pixels turn, the annotation does not


@pytest.mark.parametrize(
    ("declared", "size", "red"),
    [
        ((40, 30), (30, 40), (0, 0, 30, 10)),  # the upright frame: the band is on top
        ((30, 40), (40, 30), (0, 0, 10, 30)),  # the stored frame
        (None, (40, 30), (0, 0, 10, 30)),
    ],
)
def test_the_declared_size_decides_the_frame(
    tmp_path: Path, declared: tuple[int, int] | None, size: tuple[int, int], red: tuple[int, int, int, int]
) -> None:
    image = load_image(save_turned(tmp_path / "r6.jpg"), declared_size=declared)
    assert image.size == size
    x0, y0, x1, y1 = red
    band = mean_color(image, (x0 + 1, y0 + 1, x1 - 1, y1 - 1))
    assert band[0] > 240 and band[1] < 20 and band[2] < 20


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_is_turned_as_pillow_turns_it(tmp_path: Path, orientation: int) -> None:
    from PIL import ImageOps

    path = save_turned(tmp_path / "o.jpg", orientation)
    with Image.open(path) as stored:
        expected = ImageOps.exif_transpose(stored)
    loaded = load_image(path, declared_size=(expected.height, expected.width))
    if expected.size != (40, 30):  # the others keep the size, so the frame cannot be told
        assert np.array_equal(np.asarray(loaded), np.asarray(expected))
    else:
        assert loaded.size == (40, 30)
    assert np.array_equal(np.asarray(load_image(path, upright=True)), np.asarray(expected))
    assert load_image(path, declared_size=(30, 40), upright=True).size == (40, 30)  # the annotation's frame comes first


def test_a_size_that_fits_no_frame_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"50x50.*40x30.*30x40"):
        load_image(save_turned(tmp_path / "r6.jpg"), declared_size=(50, 50))


def test_swapped_sides_are_named(tmp_path: Path) -> None:
    Image.new("RGB", (80, 60)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match=r"60x80.*80x60.*swapped"):
        load_image(tmp_path / "a.png", declared_size=(80, 60))


def test_a_square_picture_warns_that_the_frame_cannot_be_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    image = load_image(save_turned(tmp_path / "square.jpg", size=(40, 40)), declared_size=(40, 40))
    assert mean_color(image, (1, 1, 9, 39))[0] > 240
    assert "square.jpg" in caplog.text and "cannot be told" in caplog.text


def test_an_orientation_out_of_range_counts_as_none(tmp_path: Path) -> None:
    path = save_turned(tmp_path / "o9.jpg", 9)
    assert read_image_header(path).orientation == 1
    assert load_image(path, declared_size=(30, 40)).size == (40, 30)


def test_a_damaged_xmp_block_is_survived(tmp_path: Path) -> None:
    data = save_turned(tmp_path / "r6.jpg").read_bytes()
    payload = b"http://ns.adobe.com/xap/1.0/\x00<x:xmpmeta>\xa8</x:xmpmeta>"
    segment = b"\xff\xe1" + struct.pack(">H", len(payload) + 2) + payload
    (tmp_path / "xmp.jpg").write_bytes(data[:2] + segment + data[2:])
    assert load_image(tmp_path / "xmp.jpg").size == (40, 30)


@pytest.mark.parametrize(
    "error", [UnicodeDecodeError("ascii", b"\xa8", 0, 1, "no"), ZeroDivisionError("division by zero")]
)
def test_an_unreadable_exif_block_gives_pixels_and_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    path = save_turned(tmp_path / "r6.jpg")

    def fail(_: Image.Image) -> Image.Exif:
        raise error

    monkeypatch.setattr(Image.Image, "getexif", fail)
    assert load_image(path).size == (40, 30)
    assert len(caplog.records) == 1 and "r6.jpg" in caplog.text


def test_a_saved_copy_is_not_turned_again(tmp_path: Path) -> None:
    image = load_image(save_turned(tmp_path / "r6.jpg"), declared_size=(40, 30))
    for name in ("copy.jpg", "copy.png"):
        image.save(tmp_path / name)
        assert read_image_header(tmp_path / name).orientation == 1


# B03: channels


def test_every_mode_becomes_rgb(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Image.new("CMYK", (8, 8), (0, 255, 255, 0)).save(tmp_path / "cmyk.jpg")
    Image.new("L", (8, 8), 200).save(tmp_path / "grey.png")
    bits = Image.new("1", (4, 1))
    bits.putdata([0, 1, 0, 1])
    bits.save(tmp_path / "bits.png")
    deep = Image.fromarray(np.array([[0, 256, 65535, 32768]], np.uint16))
    deep.save(tmp_path / "deep.png")
    clear = Image.new("RGBA", (2, 2), (10, 20, 30, 0))
    clear.save(tmp_path / "clear.png")
    palette = Image.new("P", (2, 1))
    palette.putpalette([1, 2, 3, 4, 5, 6] + [0] * 762)
    palette.putdata([0, 1])
    palette.save(tmp_path / "palette.png", transparency=b"\x00\x80")

    pixels = {path.name: np.asarray(load_image(path)) for path in tmp_path.iterdir()}
    assert all(array.dtype == np.uint8 and array.shape[2] == 3 for array in pixels.values())
    assert np.abs(pixels["cmyk.jpg"].astype(int) - RED).max() <= 3
    assert (pixels["grey.png"] == 200).all()
    assert pixels["bits.png"][0, :, 0].tolist() == [0, 255, 0, 255]
    assert pixels["deep.png"][0, :, 1].tolist() == [0, 1, 255, 128]
    assert pixels["clear.png"][0, 0].tolist() == [10, 20, 30]
    assert pixels["palette.png"][0].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert not caplog.records


def test_an_animation_gives_its_first_frame_and_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    frames = [Image.new("RGB", (6, 4), color) for color in (RED, (0, 0, 255))]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert load_image(tmp_path / "a.gif").getpixel((0, 0)) == RED
    assert "a.gif" in caplog.text and "2 frames" in caplog.text


def test_a_very_flat_image_keeps_its_sides(tmp_path: Path) -> None:
    Image.new("RGB", (300, 3)).save(tmp_path / "flat.png")
    assert np.asarray(load_image(tmp_path / "flat.png")).shape == (3, 300, 3)


# B05: truncated and empty files


def test_half_a_file_is_refused_by_name_and_left_as_it_is(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "good.jpg")
    data = (tmp_path / "good.jpg").read_bytes()
    for name, content, message in [
        ("half.jpg", data[: len(data) // 2], "truncated"),
        ("zero.jpg", b"", "0 bytes"),
    ]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=message) as caught:
            load_image(tmp_path / name)
        assert name in str(caught.value)
        assert (tmp_path / name).read_bytes() == content
    with pytest.raises(DataError, match="0 bytes"):
        read_image_header(tmp_path / "zero.jpg")


@pytest.mark.parametrize("noisy", [True, False])
def test_a_missing_end_marker_never_gives_other_pixels(tmp_path: Path, noisy: bool) -> None:
    # Whether the last block can be read without the marker is up to the decoder; a half-grey picture is never accepted.
    high = 256 if noisy else 1
    pixels = np.random.default_rng(0).integers(0, high, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "good.jpg")
    (tmp_path / "noeoi.jpg").write_bytes((tmp_path / "good.jpg").read_bytes()[:-2])
    try:
        loaded = load_image(tmp_path / "noeoi.jpg")
    except DataError as error:
        assert "noeoi.jpg" in str(error) and "truncated" in str(error)
    else:
        assert np.array_equal(np.asarray(loaded), np.asarray(load_image(tmp_path / "good.jpg")))


# B06: the extension lies


def test_the_bytes_decide_the_format(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Image.new("RGB", (8, 6)).save(tmp_path / "x.jpg", format="WEBP")
    assert load_image(tmp_path / "x.jpg").size == (8, 6)
    assert "WEBP" in caplog.text and ".jpg" in caplog.text


def test_a_phone_picture_in_several_parts_is_one_image(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    preview = Image.new("RGB", (8, 6), (0, 0, 255))
    Image.new("RGB", (16, 12), RED).save(tmp_path / "m.jpg", format="MPO", save_all=True, append_images=[preview])
    image = load_image(tmp_path / "m.jpg")
    assert image.size == (16, 12) and mean_color(image, (0, 0, 16, 12))[0] > 240
    assert not caplog.records


def test_a_web_page_is_no_image(tmp_path: Path) -> None:
    (tmp_path / "p.jpg").write_bytes(b"<html>404</html>")
    with pytest.raises(DataError, match=r"not an image.*html"):
        load_image(tmp_path / "p.jpg")


# B07: giants


def test_a_giant_is_refused_before_any_pixel_is_decoded(tmp_path: Path) -> None:
    bomb = save_png_header(tmp_path / "bomb.png", 30000, 30000)
    limit, start = Image.MAX_IMAGE_PIXELS, time.monotonic()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match=r"bomb\.png: the image is 30000x30000, over the limit of 100000000 pixels"):
        load_image(bomb)
    assert time.monotonic() - start < 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kilobytes
    assert limit == Image.MAX_IMAGE_PIXELS
    assert read_image_header(bomb).width == 30000


def test_a_large_image_raises_no_warning_of_pillow(tmp_path: Path) -> None:
    # 96 megapixels, over Pillow's own warning: under `-W error` (as all tests run) that would be an exception.
    with pytest.raises(DataError, match="truncated"):
        load_image(save_png_header(tmp_path / "big.png", 12000, 8000))
    with pytest.raises(DataError, match="over the limit of 1000"):
        load_image(tmp_path / "big.png", max_pixels=1000)


# B10: names


@pytest.mark.parametrize("name", ["été 猫 01.jpg", "a b.jpg", "כלב.png", "100%.jpg", "#1.jpg", "it's.jpg", "-x.jpg"])
def test_odd_names_load(tmp_path: Path, name: str) -> None:
    Image.new("RGB", (3, 2)).save(tmp_path / name)
    assert load_image(tmp_path / name).size == (3, 2)


def test_a_name_that_is_no_text_can_be_reported_anywhere(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.jpg")
    Path(path).write_bytes(b"")
    with pytest.raises(DataError) as caught:
        load_image(path)
    assert str(caught.value).encode("ascii").endswith(b"\\xff.jpg: 0 bytes; expected an image.")


def test_what_is_not_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "dangling.jpg").symlink_to("/nowhere/x.jpg")
    for name, message in [
        ("no.jpg", "no such file"),
        (".", "a folder"),
        ("dangling.jpg", "broken link to /nowhere/x.jpg"),
    ]:
        with pytest.raises(DataError, match=message):
            load_image(tmp_path / name)


def test_warnings_are_logged_not_printed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Image.new("RGB", (2, 2)).save(tmp_path / "a.png", format="GIF")
    with caplog.at_level(logging.ERROR):
        load_image(tmp_path / "a.png")
    assert not caplog.records


def test_a_pipe_in_the_place_of_an_image_does_not_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jpg")
    for read in (load_image, read_image_header):
        with pytest.raises(DataError, match=r"a\.jpg: no regular file"):
            read(tmp_path / "a.jpg")
