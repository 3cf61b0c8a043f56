"""Stage link: the images that the sources name, as links (or copies) below the dataset directory, and a manifest of
them.

An image named `<anything>/<folder>/<file>` lies at `images/<link_as>/<folder>/<file>`, one named `<file>` at
`images/<link_as>/<file>`, whatever the user's own tree looks like. Raw data are only read. Linking again changes
nothing.
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pyarrow as pa

from cyclegrpo.dataset.report import StageReport
from cyclegrpo.errors import DataError
from cyclegrpo.files import atomic_path, resolve_below, write_table
from cyclegrpo.images import ImageHeader, read_image_header
from cyclegrpo.params import Params, Source
from cyclegrpo.sources import Record, Skip, read_source

SCHEMA = pa.schema(
    [
        ("source", pa.string()),
        ("name", pa.string()),
        ("image", pa.string()),
        ("num_bytes", pa.int64()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("orientation", pa.int8()),
    ]
)
"""images.parquet: a source's name for an image, and where it lies relative to the dataset directory."""


def run_link(params: Params) -> StageReport:
    """Link every image that a record names, and write `<work_dir>/images.parquet`.

    Images that are missing, ambiguous, outside their root or no images are skipped and reported, all of them.
    """
    base, report = params.base, StageReport("link", read={"image": 0})
    found: list[FoundImage] = []
    for source in base.sources:
        names = _image_names(source)
        report.read["image"] += len(names)
        for image in _find_images(source, names):
            if isinstance(image, Skip):
                report.skips.append(image)
            else:
                found.append(image)
    _refuse_shared_places(found)
    for image in found:
        place_image(
            image.original, resolve_below(base.dataset_dir, image.place, allow_links=True), copy=params.link.copy
        )
    report.made["images"] = len(found)
    report.finish(base.work_dir, base.max_skip_ratio)
    rows = [image.manifest_row() for image in found]
    write_table(base.work_dir / "images.parquet", pa.Table.from_pylist(rows, schema=SCHEMA))
    return report


def _image_names(source: Source) -> list[str]:
    """The images that the source's records name, sorted. DataError where it has records and none can be used."""
    names: set[str] = set()
    first_skip: Skip | None = None
    for record in read_source(source):
        if isinstance(record, Record):
            names.add(record.image)
        else:
            first_skip = first_skip or record
    if first_skip is not None and not names:
        problem = f"no record can be used; the first one, {first_skip.record_id}: {first_skip.message}"
        raise DataError(problem, file=source.annotations)
    return sorted(names)


@dataclass(frozen=True, slots=True)
class FoundImage:
    """An image that a source names.

    Attributes:
        source, name: the source, and what it calls the image.
        original: the user's file.
        place: where its link lies, relative to the dataset directory.
        header: what the file says of itself.
    """

    source: str
    name: str
    original: Path
    place: str
    header: ImageHeader

    def manifest_row(self) -> dict[str, object]:
        """The image's row of images.parquet."""
        return {
            "source": self.source,
            "name": self.name,
            "image": self.place,
            "num_bytes": self.header.num_bytes,
            "width": self.header.width,
            "height": self.header.height,
            "orientation": self.header.orientation,
        }


def _find_images(source: Source, names: Iterable[str]) -> Iterator[FoundImage | Skip]:
    finder = ImageFinder(source.image_root)
    for name in names:
        try:
            original = finder.find(name)
            header = read_image_header(original)
        except DataError as error:
            yield Skip(f"{source.name}/{name}", "image_unusable", str(error), "image")
        else:
            yield FoundImage(source.name, name, original, image_place(name, source.link_as), header)


def image_place(name: str, link_as: str) -> str:
    """Where an image lies, relative to the dataset directory: its name's last two parts below `images/<link_as>`.

    >>> image_place("V3Det/images/n07745046/21_371.jpg", "v3det"), image_place("a.jpg", "coco_train2014")
    ('images/v3det/n07745046/21_371.jpg', 'images/coco_train2014/a.jpg')
    """
    return str(PurePosixPath("images", link_as, *name_parts(name)[-2:]))


class ImageFinder:
    """Finds named images below a root: as given, then by the last two parts of the name, then by the file name alone.

    The later steps look in an index of the whole tree, which is made by one walk when it is first needed.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._index: dict[str, list[Path]] | None = None

    def find(self, name: str) -> Path:
        """The file of that name. DataError where there is none, or where several fit equally well (the message names
        them)."""
        given = resolve_below(self.root, name, allow_links=True)
        if os.path.lexists(given):
            return given
        parts = name_parts(name)
        found = self._indexed(parts[-1])
        same_folder = [path for path in found if path.parts[-2:] == parts[-2:]]
        candidates = same_folder or found
        if not candidates:
            raise DataError(f"no such image below {self.root}; expected it there, or a file of that name.", file=name)
        if len(candidates) > 1:
            shown = ", ".join(path.relative_to(self.root).as_posix() for path in candidates[:5])
            raise DataError(f"{len(candidates)} images below {self.root} have this name: {shown}.", file=name)
        return candidates[0]

    def _indexed(self, file_name: str) -> list[Path]:
        if self._index is None:
            index: dict[str, list[Path]] = defaultdict(list)
            for folder, folders, files in os.walk(self.root):
                folders.sort()
                for file in sorted(files):
                    index[file].append(Path(folder, file))
            self._index = dict(index)
        return self._index.get(file_name, [])


def place_image(original: Path, place: Path, *, copy: bool) -> None:
    """Make `place` a link to (or a copy of) `original`, if it is not one yet. A foreign file at `place` is a
    DataError."""
    original = original.absolute()
    if place.is_symlink():
        if not copy and os.readlink(place) == str(original):
            return
    elif place.exists():
        if place.stat().st_size != original.stat().st_size:
            raise DataError(f"is not the image {original}, which shall lie here; move it away.", file=place)
        return
    with atomic_path(place) as temporary:
        if copy:
            shutil.copyfile(original, temporary)
        else:
            temporary.symlink_to(original)


def name_parts(name: str) -> tuple[str, ...]:
    r"""The folders and the file of an image's name, whichever slash stands between them.

    >>> name_parts("V3Det\\n07745046/21_371.jpg")
    ('V3Det', 'n07745046', '21_371.jpg')
    """
    return PurePosixPath(name.replace("\\", "/")).parts


def _refuse_shared_places(images: Iterable[FoundImage]) -> None:
    """Different images must not share a place: the second link would replace the first. Two names of one image may."""
    first: dict[str, FoundImage] = {}
    for image in images:
        other = first.setdefault(image.place, image)
        if other.original != image.original:
            shown = f"{other.name} and {image.name} would both lie at {image.place}"
            raise DataError(f"{shown}; expected names whose last two parts differ. Mend base.sources[{image.source}].")
