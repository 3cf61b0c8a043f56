"""Findings in the files that rows name: does the path stay inside, is there an image, can every pixel of it be
decoded?"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath

from cyclegrpo.dataset.checks.findings import Severity
from cyclegrpo.dataset.processes import map_ordered
from cyclegrpo.errors import DataError
from cyclegrpo.files import resolve_below
from cyclegrpo.images import ImageHeader, load_image, read_image_header

Problem = tuple[str, str, Severity]
"""(kind, message, severity)"""

_BATCH = 32


@dataclass(frozen=True, slots=True)
class ImageState:
    """What was found out about one image path.

    Attributes:
        header: its size and format, or None where there is no image.
        problems: what is wrong with it.
    """

    header: ImageHeader | None
    problems: tuple[Problem, ...] = ()


def inspect_images(
    dataset_dir: Path, images: Sequence[str], *, links: Collection[str] | None, max_pixels: int, num_workers: int = 0
) -> dict[str, ImageState]:
    """Path -> what was found out about it; every image is decoded once.

    Args:
        images: distinct paths as rows have them, relative to `dataset_dir`.
        links: paths at which the link stage placed links, which may lead anywhere; None allows links anywhere below
            `images`.
        max_pixels: the limit on height * width.
        num_workers: as in `processes.map_ordered`.
    """
    allowed = None if links is None else frozenset(links)
    inspect = partial(_inspect_batch, dataset_dir, links=allowed, max_pixels=max_pixels)
    batches = [images[start : start + _BATCH] for start in range(0, len(images), _BATCH)]
    states = (state for batch in map_ordered(inspect, batches, num_workers=num_workers) for state in batch)
    return dict(zip(images, states, strict=True))


def _inspect_batch(
    dataset_dir: Path, images: Sequence[str], *, links: frozenset[str] | None, max_pixels: int
) -> list[ImageState]:
    return [_inspect_image(dataset_dir, image, links=links, max_pixels=max_pixels) for image in images]


def _inspect_image(dataset_dir: Path, image: str, *, links: frozenset[str] | None, max_pixels: int) -> ImageState:
    may_be_link = image.startswith("images/") if links is None else image in links
    try:
        path = resolve_below(dataset_dir, image, allow_links=may_be_link)
    except DataError as error:
        absolute = PurePosixPath(image).is_absolute() or bool(PureWindowsPath(image).drive)
        return ImageState(None, (("path_absolute" if absolute else "path_escapes", error.message, "error"),))
    kind = _missing_kind(path)
    try:
        header = read_image_header(path)
        if kind is None and header.height * header.width > max_pixels:
            kind = "image_too_large"
        load_image(path, max_pixels=max_pixels)
    except DataError as error:
        return ImageState(None, ((kind or _broken_kind(path), error.message, "error"),))
    if header.orientation != 1:
        message = f"the image has EXIF orientation {header.orientation}; masks refer to the pixels as they are stored"
        return ImageState(header, (("image_rotated", message, "warning"),))
    return ImageState(header)


def _missing_kind(path: Path) -> str | None:
    """What stands in the way before any byte is read."""
    if path.is_symlink() and not path.exists():
        return "broken_link"
    if not path.exists():
        return "image_missing"
    if path.is_dir():
        return "image_is_folder"
    return "image_empty" if path.stat().st_size == 0 else None


def _broken_kind(path: Path) -> str:
    """Whether a file that cannot be decoded is at least the beginning of an image."""
    try:
        read_image_header(path)
    except DataError as error:
        return "image_unreadable" if "permission" in error.message else "not_an_image"
    return "image_truncated"
