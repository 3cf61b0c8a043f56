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
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import pyarrow as pa

from cyclegrpo.dataset.report import StageReport
from cyclegrpo.errors import DataError
from cyclegrpo.files import atomic_path, read_image_header, resolve_below, write_table
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
    rows: list[dict[str, object]] = []
    for source in base.sources:
        names = sorted({record.image for record in read_source(source) if isinstance(record, Record)})
        report.read["image"] += len(names)
        rows += _link_source(source, names, base.dataset_dir, copy=params.link.copy, skips=report.skips)
    _refuse_shared_places(rows)
    report.made["images"] = len(rows)
    report.finish(base.work_dir, base.max_skip_ratio)
    write_table(base.work_dir / "images.parquet", pa.Table.from_pylist(rows, schema=SCHEMA))
    return report


def _link_source(
    source: Source, names: Iterable[str], dataset_dir: Path, *, copy: bool, skips: list[Skip]
) -> list[dict[str, object]]:
    finder = ImageFinder(source.image_root)
    rows: list[dict[str, object]] = []
    for name in names:
        try:
            original = finder.find(name)
            header = read_image_header(original)
        except DataError as error:
            skips.append(Skip(f"{source.name}/{name}", "image_unusable", str(error), "image"))
            continue
        image = image_place(name, source.link_as)
        place_image(original, resolve_below(dataset_dir, image, allow_links=True), copy=copy)
        rows.append(
            {
                "source": source.name,
                "name": name,
                "image": image,
                "num_bytes": header.num_bytes,
                "width": header.width,
                "height": header.height,
                "orientation": header.orientation,
            }
        )
    return rows


def image_place(name: str, link_as: str) -> str:
    """Where an image lies, relative to the dataset directory: its name's last two parts below `images/<link_as>`.

    >>> image_place("V3Det/images/n07745046/21_371.jpg", "v3det"), image_place("a.jpg", "coco_train2014")
    ('images/v3det/n07745046/21_371.jpg', 'images/coco_train2014/a.jpg')
    """
    return str(PurePosixPath("images", link_as, *_parts(name)[-2:]))


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
        parts = _parts(name)
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


def _parts(name: str) -> tuple[str, ...]:
    return PurePosixPath(name.replace("\\", "/")).parts


def _refuse_shared_places(rows: list[dict[str, object]]) -> None:
    """Two names of different images must not share a place: the second link would have replaced the first."""
    names: dict[object, set[object]] = defaultdict(set)
    for row in rows:
        names[row["image"]].add(row["name"])
    for image, sharing in names.items():
        if len(sharing) > 1:
            shown = " and ".join(sorted(map(str, sharing)))
            raise DataError(f"{shown} would both lie at {image}; expected names whose last two parts differ.")
