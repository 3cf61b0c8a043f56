"""The one place where images are decoded.

Every image in the project comes through `load_image`: RGB, first frame, in the frame that the annotation refers to,
size-checked before any pixel is decoded. What is odd but readable about a file is logged as a warning that names it.
"""

from __future__ import annotations

import logging
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from PIL import Image, ImageFile

from cyclegrpo.errors import DataError, printable_path
from cyclegrpo.files import StrPath, resolve_below

logger = logging.getLogger(__name__)

MAX_PIXELS = 100_000_000
"""Default limit on height * width of an image, in pixels."""

# The formats we open: photographs and screenshots. Others (EPS runs an interpreter, PDF, icons) are refused.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
_SUFFIXES = {
    "JPEG": {".jpg", ".jpeg", ".jpe", ".jfif"},
    "MPO": {".jpg", ".jpeg", ".jpe", ".jfif", ".mpo"},
    "TIFF": {".tif", ".tiff"},
    "PPM": {".ppm", ".pgm", ".pbm", ".pnm"},
}
# What Pillow's plugins raise on a header that is not theirs or is damaged, and its EXIF reader on a damaged block.
_HEADER_ERRORS = (SyntaxError, IndexError, TypeError, KeyError, ValueError, struct.error, OSError)
_EXIF_ERRORS = (*_HEADER_ERRORS, ZeroDivisionError)
_ORIENTATION_TAG = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SWAPS_SIDES = {5, 6, 7, 8}


@dataclass(frozen=True)
class ImageHeader:
    """What a file says of its image, without decoding it.

    height, width: in pixels, as stored (before any turn by the orientation tag).
    orientation: EXIF 1 to 8; 1 where the tag is missing, out of range or unreadable.
    format: Pillow's name (`JPEG`, `PNG`, `MPO`, ...), from the bytes, not from the file's name.
    num_bytes: the file's size.
    """

    height: int
    width: int
    orientation: int
    format: str
    num_bytes: int


def read_image_header(path: StrPath) -> ImageHeader:
    """The image's size, orientation and format, undecoded; DataError, naming the file, if there is no image."""
    with _open_binary(path) as file:
        return _header(_open_image(file, path), file, path)


def load_image(
    path: StrPath,
    *,
    declared_size: tuple[int, int] | None = None,
    upright: bool = False,
    max_pixels: int = MAX_PIXELS,
) -> Image.Image:
    """The image as RGB, decoded once, without metadata (so that saving it again cannot turn it twice).

    Args:
        declared_size: (height, width) that the annotation states. It decides the frame: where an EXIF orientation swaps
            the sides and only the upright size fits, the image is turned upright; else it stays as stored. A size that
            fits neither is a DataError. None: see `upright`.
        upright: the frame where no size is declared: as viewers show the image (True), or as stored (False).
        max_pixels: the limit on height * width, checked before any pixel is decoded.

    The first frame of an animation counts; grey, palette, CMYK and 16-bit images become RGB, transparency is dropped.
    DataError, naming the file, for: missing, broken link, folder, 0 bytes, no image, over the limit, truncated.
    A warning is logged where the name's extension belongs to another format, for animations, and where a turn that
    leaves the size as it is cannot be told from the declared size.
    """
    with _open_binary(path) as file:
        image = _open_image(file, path)
        header = _header(image, file, path)
        if header.height * header.width > max_pixels:
            message = f"the image is {header.width}x{header.height}, over the limit of {max_pixels} pixels."
            raise DataError(f"{message} Make it smaller, or raise check.max_pixels.", file=path)
        turn = _turn(header, declared_size, path)
        if upright and declared_size is None:
            turn = _UPRIGHT.get(header.orientation)
        _warn_about_format(image, header, path)
        try:
            rgb = _to_rgb(image)
        except (SyntaxError, ValueError, EOFError, struct.error, OSError) as error:
            raise DataError(f"the image cannot be decoded ({error}): truncated or damaged.", file=path) from error
    return rgb.transpose(turn) if turn is not None else rgb


def load_image_below(
    root: StrPath, relative: str, *, declared_size: tuple[int, int] | None = None, max_pixels: int = MAX_PIXELS
) -> Image.Image:
    """The image that a data file names, `root / relative`, as `load_image` gives it.

    The path must stay below the root (`resolve_below`); the file itself may be a link that leads out, as the link stage
    places them.
    """
    path = resolve_below(root, relative, allow_links=True)
    return load_image(path, declared_size=declared_size, max_pixels=max_pixels)


def _open_binary(path: StrPath) -> IO[bytes]:
    try:
        given = Path(path)
        if given.exists() and not given.is_file() and not given.is_dir():  # opening a pipe would wait for ever
            raise DataError("no regular file; expected an image.", file=path)
        return open(path, "rb")
    except FileNotFoundError as error:
        if os.path.islink(path):
            target = printable_path(os.readlink(path))
            remedy = "Put it back, or link the images anew (cyclegrpo prepare link)."
            raise DataError(f"broken link to {target}; expected an image there. {remedy}", file=path) from error
        raise DataError("no such file; expected an image.", file=path) from error
    except IsADirectoryError as error:
        raise DataError("a folder; expected an image.", file=path) from error
    except PermissionError as error:
        raise DataError("not readable (permission denied); expected an image.", file=path) from error


def _open_image(file: IO[bytes], path: StrPath) -> ImageFile.ImageFile:
    """The undecoded image.

    Not `Image.open`: its own pixel limit is a process-wide setting that warns or raises before the size can be told.
    """
    Image.init()
    prefix = file.read(16)
    if not prefix:
        raise DataError("0 bytes; expected an image.", file=path)
    damaged = ""
    for name in (name for name in _FORMATS if name in Image.OPEN):
        factory, accept = Image.OPEN[name]
        if accept is not None and accept(prefix) is not True:
            continue
        file.seek(0)
        try:
            return factory(file, os.fspath(path))
        except _HEADER_ERRORS as error:
            damaged = f"a damaged or truncated {name} ({error})"
    found = damaged or f"not an image (it begins with {prefix!r})"
    raise DataError(f"{found}; expected one of {', '.join(_FORMATS)}.", file=path)


def _header(image: ImageFile.ImageFile, file: IO[bytes], path: StrPath) -> ImageHeader:
    orientation = 1
    try:
        orientation = image.getexif().get(_ORIENTATION_TAG, 1)
    except _EXIF_ERRORS as error:
        logger.warning("%s: unreadable EXIF block (%s); the image is read as stored.", printable_path(path), error)
    if orientation not in range(1, 9):
        orientation = 1
    num_bytes = os.fstat(file.fileno()).st_size
    return ImageHeader(image.height, image.width, int(orientation), image.format or "", num_bytes)


def _turn(header: ImageHeader, declared: tuple[int, int] | None, path: StrPath) -> Image.Transpose | None:
    """The turn that brings the stored image into the frame of the declared size; None for none."""
    if declared is None:
        return None
    stored = (header.height, header.width)
    upright = stored[::-1] if header.orientation in _SWAPS_SIDES else stored
    declared = (int(declared[0]), int(declared[1]))
    if declared == stored:
        if header.orientation != 1 and upright == stored:
            logger.warning(
                "%s: EXIF orientation %d, but the declared size fits both frames, so the frame cannot be told; "
                "the image is read as stored.",
                printable_path(path),
                header.orientation,
            )
        return None
    if declared == upright:
        return _UPRIGHT[header.orientation]
    sizes = f"{header.width}x{header.height}" + (f" (upright {upright[1]}x{upright[0]})" if upright != stored else "")
    swapped = " The declared sides look swapped." if declared == stored[::-1] else ""
    message = f"declared as {declared[1]}x{declared[0]} (width x height) but the image is {sizes}."
    raise DataError(f"{message}{swapped} Mend the annotation.", file=path)


def _warn_about_format(image: ImageFile.ImageFile, header: ImageHeader, path: StrPath) -> None:
    suffix = Path(path).suffix.lower()
    expected = _SUFFIXES.get(header.format, {f".{header.format.lower()}"})
    if suffix and suffix not in expected:
        logger.warning("%s: the extension is %s but the bytes are %s.", printable_path(path), suffix, header.format)
    num_frames = getattr(image, "n_frames", 1)
    if num_frames > 1 and header.format not in ("MPO", "JPEG"):  # the further frames of an MPO are previews
        logger.warning("%s: an animation of %d frames; the first one counts.", printable_path(path), num_frames)


def _to_rgb(image: Image.Image) -> Image.Image:
    """Decodes and converts; the result carries no metadata."""
    image.load()
    image.info.clear()  # a palette's transparency would warn, an orientation tag would be written again
    if image.mode == "F":
        raise ValueError("floating-point pixels have no defined range")
    if image.mode.startswith("I"):  # 16 bits a pixel; Pillow's own conversion clips at 255
        image = image.convert("I").point(lambda value: value / 256).convert("L")
    return image.convert("RGB")
