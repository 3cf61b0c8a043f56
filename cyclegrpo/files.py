"""Files: atomic writes, digests, paths that cannot escape a root, and the one place where images are decoded.

Every writer makes the folders it needs, writes to a temporary name in the same folder and renames, so that a reader
never meets half a file. Every image in the project comes through `load_image`: RGB, first frame, in the frame that the
annotation refers to, size-checked before any pixel is decoded. What is odd but readable about a file is logged as a
warning that names it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, TYPE_CHECKING, Any

from PIL import Image, ImageFile

from cyclegrpo.errors import DataError, printable_path

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

MAX_PIXELS = 100_000_000
"""Default limit on height * width of an image, in pixels."""

StrPath = str | os.PathLike[str]

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


@contextmanager
def atomic_path(path: StrPath) -> Iterator[Path]:
    """A temporary path beside `path`, with its suffix, that takes the place of `path` when the block ends well.

    The caller creates a file or a folder there. An existing file is replaced in one step, also a read-only one; an
    existing folder is removed just before the rename. When the block raises (Ctrl-C included) the temporary is removed
    and `path` is as it was. Parents of `path` are made.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.stem}.{secrets.token_hex(4)}.tmp{target.suffix}")
    try:
        yield temporary
        if temporary.is_dir() and target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        os.replace(temporary, target)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        else:
            temporary.unlink(missing_ok=True)


def write_bytes(path: StrPath, data: bytes) -> None:
    """Writes the bytes to `path`, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: StrPath, text: str) -> None:
    """Writes the text to `path` as UTF-8 with the line ends as given, atomically."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: StrPath, obj: Any) -> None:
    """Writes the object to `path` as JSON, atomically: sorted keys, indent 2, a newline at the end.

    NaN and infinity are no JSON and raise ValueError; write None where a number does not exist.
    """
    write_text(path, json.dumps(obj, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_table(path: StrPath, table: pa.Table, *, row_group_size: int = 1000) -> None:
    """Writes the table to `path` as parquet (zstd), atomically. The same table gives the same bytes.

    Args:
        row_group_size: rows per group; a reader of one row reads one group.
    """
    import pyarrow.parquet as pq

    with atomic_path(path) as temporary:
        pq.write_table(table, temporary, row_group_size=row_group_size, compression="zstd")


def sha256_file(path: StrPath) -> str:
    """The SHA-256 of the file's bytes, 64 hex digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(*objects: Any) -> str:
    """The SHA-256 of the objects as canonical JSON, 64 hex digits: the same for equal values, whatever the order of
    keys.

    Takes what JSON can hold (a pydantic model: its `model_dump(mode="json")`); anything else raises TypeError.

    >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    True
    >>> digest("a", "b") == digest("ab")
    False
    """
    text = json.dumps(objects, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def resolve_below(root: StrPath, relative: str, *, allow_links: bool = False) -> Path:
    """`root / relative`, if that lies below `root`; else DataError. It need not exist.

    Args:
        relative: a path with `/` between its parts, as data files hold it.
        allow_links: the last part may be a symlink that leads anywhere (the link stage places such links);
            the folder that holds it must still lie below the root.

    Refused: an empty path, an absolute one (also with a drive letter), `..`, a NUL, a link on the way that leads out.

    >>> resolve_below("data", "a/b.jpg").as_posix()
    'data/a/b.jpg'
    >>> resolve_below("data", "../b.jpg")
    Traceback (most recent call last):
    ...
    cyclegrpo.errors.DataError: ../b.jpg: the path leaves its root; expected a path below data without `..`.
    """
    shown_root = printable_path(root)
    if not relative or "\0" in relative:
        raise DataError(f"the path is empty or holds a NUL; expected a path below {shown_root}.", file=repr(relative))
    if PurePosixPath(relative).is_absolute() or PureWindowsPath(relative).drive or relative.startswith("\\"):
        raise DataError(f"the path is absolute; expected a path relative to {shown_root}.", file=relative)
    if ".." in PurePosixPath(relative).parts or ".." in PureWindowsPath(relative).parts:
        raise DataError(f"the path leaves its root; expected a path below {shown_root} without `..`.", file=relative)
    path = Path(root) / relative
    if "\\" in relative and not os.path.lexists(path):
        raise DataError("the path holds a backslash and does not exist; write `/` between folders.", file=relative)
    real_root = os.path.realpath(root)
    real = os.path.realpath(path.parent) if allow_links else os.path.realpath(path)
    if os.path.commonpath([real_root, real]) != real_root:
        message = f"a link leads out of {shown_root}, to {printable_path(real)}; expected a file below it."
        raise DataError(message, file=relative)
    return path


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
        return open(path, "rb")
    except FileNotFoundError as error:
        if os.path.islink(path):
            target = printable_path(os.readlink(path))
            raise DataError(f"broken link to {target}; expected an image there.", file=path) from error
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
