"""The held-out set: regions to describe and locate, with their true masks, given expressions, and what fits nothing.

It is read with the data stages' own gRefCOCO reader. Items are chosen by a rule that looks at none of them: image after
image in file order, one item each in the first round, then a second one, until there are enough (`spread`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image

from cyclegrpo.dataset.link import ImageFinder, name_parts
from cyclegrpo.dataset.tables import read_work_rows
from cyclegrpo.errors import DataError
from cyclegrpo.images import MAX_PIXELS, load_image
from cyclegrpo.params import Evaluate
from cyclegrpo.regions.geometry import rle_to_mask
from cyclegrpo.sources.grefcoco import read_grefcoco
from cyclegrpo.sources.json_list import iter_json_list
from cyclegrpo.sources.records import Kind, Record, Rle, Skip

SOURCE = "heldout"
Item = TypeVar("Item")


@dataclass(frozen=True)
class HeldoutRegion:
    """A region to describe: `key` is unique and stable, `expressions` are given and true of it.

    `image` is the name under which the set opens the image, `rle` the true mask in that image's frame, `ann_id` its
    annotation (0 where unknown; then nothing is said about the truth of captions).
    """

    key: str
    image: str
    rle: Rle
    ann_id: int = 0
    expressions: tuple[str, ...] = ()

    @property
    def mask(self) -> np.ndarray:
        """The true mask, bool (H, W)."""
        return rle_to_mask(self.rle)

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the image that the mask lies in."""
        height, width = self.rle["size"]
        return height, width


@dataclass(frozen=True)
class HeldoutNoTarget:
    """An expression that nothing in the image fits; `size` is the image's declared (height, width), if there is one."""

    key: str
    image: str
    text: str
    size: tuple[int, int] | None = None


@dataclass(frozen=True)
class Heldout:
    """A held-out set. `open_image(name, size)` gives the RGB image in the frame of the declared (height, width)."""

    regions: tuple[HeldoutRegion, ...]
    no_targets: tuple[HeldoutNoTarget, ...]
    open_image: Callable[[str, tuple[int, int] | None], Image.Image]
    num_skipped: int = 0


def heldout_in_memory(
    images: Mapping[str, Image.Image], regions: Sequence[HeldoutRegion], no_targets: Sequence[HeldoutNoTarget] = ()
) -> Heldout:
    """A held-out set whose images are already open, by name."""
    return Heldout(tuple(regions), tuple(no_targets), lambda name, size: images[name])


def read_heldout(params: Evaluate, *, max_skip_ratio: float = 0.01, max_pixels: int = MAX_PIXELS) -> Heldout:
    """The held-out set of the `evaluate` section: `num_regions` regions and as many no-target expressions.

    A region is the target of a single-target expression; all expressions with that target are given ones. Images are
    found below `image_root` as the link stage finds them. Raises DataError when the split has no region, when more than
    `max_skip_ratio` of its references are unusable, and later, when opening it, for a missing image (a lost item would
    change the score).
    """
    kinds: tuple[Kind, ...] = ("expression", "no_target")
    found = read_grefcoco(params.annotations, params.instances, name=SOURCE, split=params.split, kinds=kinds)
    records: list[Record] = []
    skips: list[Skip] = []
    for item in found:
        (records if isinstance(item, Record) else skips).append(item)  # type: ignore[arg-type]
    _refuse_many_skips(skips, len(records), max_skip_ratio, params)
    ann_ids = _ann_ids(params.annotations)
    regions = spread(group_regions(records, ann_ids), lambda region: region.image, params.num_regions)
    if not regions:
        raise DataError(
            f"split {params.split!r} has no expression with a single target; set evaluate.split",
            file=params.annotations,
        )
    no_targets = [HeldoutNoTarget(r.record_id, r.image, r.text or "", r.size) for r in records if r.kind == "no_target"]
    no_targets = spread(no_targets, lambda item: item.image, params.num_regions)
    finder = ImageFinder(params.image_root)

    def open_image(name: str, size: tuple[int, int] | None) -> Image.Image:
        return load_image(finder.find(name), declared_size=size, max_pixels=max_pixels)

    return Heldout(tuple(regions), tuple(no_targets), open_image, len(skips))


def group_regions(records: Iterable[Record], ann_ids: Mapping[str, int]) -> list[HeldoutRegion]:
    """The distinct single-target regions of the expressions, in the order of their first one, each with all its
    expressions.

    Args:
        records: `expression` records; those of other kinds or with several regions are left out.
        ann_ids: annotation id by reference id (the record id without source and sentence number).
    """
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        if record.kind == "expression" and len(record.regions) == 1 and record.regions[0].rle is not None:
            groups.setdefault((record.image, record.regions[0].rle["counts"]), []).append(record)
    regions = []
    for members in groups.values():
        first = members[0]
        rle = first.regions[0].rle
        assert rle is not None, "filtered above"
        expressions = tuple(dict.fromkeys(member.text or "" for member in members))
        ann_id = ann_ids.get(reference_id(first.record_id), 0)
        regions.append(HeldoutRegion(first.record_id, first.image, rle, ann_id, expressions))
    return regions


def reference_id(record_id: str) -> str:
    """The reference's id in its own file, from the record id of one of its sentences.

    >>> reference_id("heldout/17-0")
    '17'
    """
    return record_id.split("/", 1)[-1].rsplit("-", 1)[0]


def spread(items: Sequence[Item], image_of: Callable[[Item], str], limit: int) -> list[Item]:
    """At most `limit` items, spread over as many images as possible, in the order of the images and their items.

    Round k takes one item of every image that has more than k: image number i gives its item (i + k) modulo its
    number of items, so that the first item of an image is not preferred.

    >>> spread(["a1", "a2", "b1", "b2", "c1"], lambda item: item[0], 4)
    ['a1', 'a2', 'b2', 'c1']
    """
    groups: dict[str, list[int]] = {}
    for index, item in enumerate(items):
        groups.setdefault(image_of(item), []).append(index)
    longest = max((len(group) for group in groups.values()), default=0)
    chosen: list[int] = []
    for round_number in range(longest):
        for number, group in enumerate(groups.values()):
            if round_number < len(group):
                chosen.append(group[(number + round_number) % len(group)])
    return [items[index] for index in sorted(chosen[:limit])]


def num_images_in_training(heldout: Heldout, work_dir: Path) -> int | None:
    """How many of the set's images the training table, `<work_dir>/images.parquet`, names too; None without a table.

    Names are equal in their last two parts, as the link stage places images, or in the file name where one of them has
    nothing else.
    """
    if not (work_dir / "images.parquet").is_file():
        return None
    trained = [name_parts(row["name"]) for row in read_work_rows(work_dir, "images", ["name"])]
    files = {parts[-1:] for parts in trained}
    known = {parts[-2:] for parts in trained}
    bare = {parts for parts in known if len(parts) == 1}
    images = {region.image for region in heldout.regions} | {item.image for item in heldout.no_targets}
    names = {name_parts(image) for image in images}
    return sum(parts[-2:] in known or parts[-1:] in (files if len(parts) == 1 else bare) for parts in names)


def _ann_ids(annotations: Path) -> dict[str, int]:
    """Annotation id of every single-target reference of the file, by reference id."""
    ids: dict[str, int] = {}
    for reference in iter_json_list(annotations):
        targets = reference.get("ann_id") if isinstance(reference, dict) else None
        if isinstance(targets, list) and len(targets) == 1 and "ref_id" in reference:
            ids[str(reference["ref_id"])] = targets[0]
    return ids


def _refuse_many_skips(skips: Sequence[Skip], num_records: int, max_skip_ratio: float, params: Evaluate) -> None:
    total = len(skips) + num_records
    if skips and len(skips) > max_skip_ratio * total:
        first = skips[0]
        raise DataError(
            f"{len(skips)} of {total} records cannot be used (first: {first.record_id}, {first.reason}: "
            f"{first.message}); expected at most {max_skip_ratio:.2%}. Mend the file, or raise base.max_skip_ratio.",
            file=params.annotations,
        )
