"""gRefCOCO: `grefs(unc).json` (expressions) and `instances.json` (the masks they mean), on COCO train2014 images.

One expression may mean one object, several, or none (`ann_id == [-1]`). The image is found through `image_id`: the
`file_name` of an expression may carry an extra suffix. Every sentence of a reference is a sample of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cyclegrpo.errors import DataError
from cyclegrpo.params import Kind
from cyclegrpo.regions.geometry import Rle, mask_to_box, mask_to_rle, polygons_to_mask, rle_to_mask
from cyclegrpo.sources.json_list import iter_json_list
from cyclegrpo.sources.records import Record, Region, Skip
from cyclegrpo.sources.values import is_positive, is_text, is_whole, shown

NO_TARGET_IDS = [-1]


def read_grefcoco(
    annotations: Path, instances: Path, *, name: str, split: str | None, kinds: Collection[Kind]
) -> Iterator[Record | Skip]:
    """Yield one record for every sentence, or one Skip for every reference that cannot be used.

    Args:
        annotations, instances: `grefs(unc).json` and `instances.json`.
        name: the source's name, the first part of every record id.
        split: only references of this split; None takes all.
        kinds: `expression` (regions with true masks, ordered left to right, then top to bottom) and/or `no_target`.

    Skips: `malformed_record`, `image_unknown` (no such `image_id` in instances), `contradictory` (the ids and
    `no_target` disagree), `no_sentence`, `annotation_missing`, `bad_segmentation`.
    """
    catalogue = load_instances(instances)
    for index, reference in enumerate(iter_json_list(annotations)):
        if not isinstance(reference, dict):
            yield Skip(f"{name}/#{index}", "malformed_record", f"expected an object, found {type(reference).__name__}")
            continue
        if split is not None and reference.get("split") != split:
            continue
        yield from _read_reference(reference, catalogue, name=name, index=index, kinds=kinds)


@dataclass
class Instances:
    """The images and annotations of one COCO instances file.

    Attributes:
        images: image id -> {id, file_name, height, width, ...}.
        annotations: annotation id -> {id, image_id, segmentation, ...}; crowds are left out, as in the official
            loader.
    """

    path: Path
    images: dict[int, dict[str, Any]]
    annotations: dict[int, dict[str, Any]]
    regions: dict[int, tuple[tuple[int, int, int], Region]] = field(default_factory=dict)


def load_instances(path: Path) -> Instances:
    """Load an instances file. DataError where it is missing, broken or has no images, and where an image or annotation
    lacks what it is known by; a broken segmentation is found when a reference needs it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        reason = error.strerror or error
        message = f"cannot be read: {reason}; expected COCO instances. Mend its path in the params."
        raise DataError(message, path) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"is not JSON: {error}", file=path) from error
    if not isinstance(content, dict) or not content.get("images") or "annotations" not in content:
        raise DataError("expected COCO instances: an object with non-empty `images` and with `annotations`", file=path)
    images = _by_id(content["images"], "images", path)
    annotations = _by_id(content["annotations"], "annotations", path)
    return Instances(path, images, {key: value for key, value in annotations.items() if not value.get("iscrowd")})


_Check = tuple[Callable[[Any], bool], str]
_NUMBER: _Check = (is_whole, "a whole number")
_SIDE: _Check = (is_positive, "a whole number >= 1")
_FIELDS: dict[str, dict[str, _Check]] = {
    "images": {"id": _NUMBER, "file_name": (is_text, "a text"), "height": _SIDE, "width": _SIDE},
    "annotations": {"id": _NUMBER, "image_id": _NUMBER},
}
"""List of an instances file -> its fields that are needed -> what each must be, as a check and in words."""


def _by_id(items: Any, name: str, path: Path) -> dict[int, dict[str, Any]]:
    """The objects of one list by their id. DataError, which names file and record, where one has another form."""
    if not isinstance(items, list):
        raise DataError(f"`{name}` is {shown(items)}; expected a list of objects. Mend the file.", file=path)
    for number, item in enumerate(items):
        if not isinstance(item, dict):
            raise DataError(f"is {shown(item)}; expected an object. Mend the file.", path, f"{name}[{number}]")
        for key, (is_right, meaning) in _FIELDS[name].items():
            if not is_right(item.get(key)):
                found = shown(item[key]) if key in item else "missing"
                message = f"`{key}` is {found}; expected {meaning}. Mend the file."
                raise DataError(message, path, f"{name}[{number}]")
    return {item["id"]: item for item in items}


def segmentation_to_rle(segmentation: Any, height: int, width: int) -> Rle:
    """COCO's three spellings (polygons, uncompressed and compressed RLE) -> compressed RLE of an image of that size.

    Polygons of one annotation are united. DataError where the spelling is broken or an RLE has another size.

    >>> segmentation_to_rle([[0, 0, 3, 0, 3, 2, 0, 2]], 4, 4)
    {'size': [4, 4], 'counts': '0220004'}
    >>> segmentation_to_rle({"size": [4, 4], "counts": [0, 2, 2, 2, 2, 2, 6]}, 4, 4)
    {'size': [4, 4], 'counts': '0220004'}
    """
    if isinstance(segmentation, list):
        return mask_to_rle(polygons_to_mask(segmentation, height, width))
    return mask_to_rle(rle_to_mask(segmentation, height=height, width=width))


def _read_reference(
    reference: dict[str, Any], catalogue: Instances, *, name: str, index: int, kinds: Collection[Kind]
) -> Iterator[Record | Skip]:
    reference_id = f"{name}/#{index}"
    try:
        reference_id = f"{name}/{_ref_id(reference, index)}"
        kind = _kind(reference)
        if kind not in kinds:
            return
        image = _image(reference, catalogue)
        sentences = _sentences(reference)
        regions = () if kind == "no_target" else _regions(reference["ann_id"], image, catalogue)
    except _Unusable as reason:
        yield Skip(reference_id, reason.reason, str(reason))
        return
    size = (image["height"], image["width"])
    for position, sentence in enumerate(sentences):
        yield Record(f"{reference_id}-{position}", image["file_name"], regions, sentence, kind, size)


class _Unusable(Exception):
    """A reference that cannot be used, with the reason that reports count by."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def _ref_id(reference: dict[str, Any], index: int) -> int | str:
    ref_id = reference.get("ref_id", f"#{index}")
    if not is_whole(ref_id) and not is_text(ref_id):
        raise _Unusable("malformed_record", f"ref_id is {shown(ref_id)}; expected a number or a text")
    return ref_id


def _kind(reference: dict[str, Any]) -> Kind:
    ids, declared = reference.get("ann_id"), reference.get("no_target")
    if not isinstance(ids, list) or not ids or not all(is_whole(ann_id) for ann_id in ids):
        raise _Unusable(
            "malformed_record", f"ann_id is {shown(ids)}; expected a list of annotation ids, or [-1] for no target"
        )
    if declared not in (None, True, False):
        raise _Unusable("malformed_record", f"no_target is {shown(declared)}; expected true or false")
    means_nothing = ids == NO_TARGET_IDS
    if (declared is not None and bool(declared) != means_nothing) or (-1 in ids and not means_nothing):
        raise _Unusable("contradictory", f"ann_id is {ids} but no_target is {declared}")
    return "no_target" if means_nothing else "expression"


def _image(reference: dict[str, Any], catalogue: Instances) -> dict[str, Any]:
    image_id = reference.get("image_id")
    if not is_whole(image_id):
        raise _Unusable("malformed_record", f"image_id is {shown(image_id)}; expected a whole number")
    if image_id not in catalogue.images:
        raise _Unusable("image_unknown", f"image_id {image_id} is not in {catalogue.path.name}")
    return catalogue.images[image_id]


def _sentences(reference: dict[str, Any]) -> list[str]:
    """The texts of the reference, `sent` before `raw`; those without text are left out."""
    sentences = reference.get("sentences")
    if sentences is None:
        sentences = []
    if not isinstance(sentences, list):
        raise _Unusable("malformed_record", f"sentences is {shown(sentences)}; expected a list")
    texts = []
    for sentence in sentences:
        text = (sentence.get("sent") or sentence.get("raw") or "") if isinstance(sentence, dict) else None
        if not is_text(text):
            raise _Unusable("malformed_record", f"a sentence is {shown(sentence)}; expected an object with text `sent`")
        texts.append(text.strip())
    if not any(texts):
        raise _Unusable("no_sentence", "the reference has no sentence with text")
    return [text for text in texts if text]


def _regions(ids: list[int], image: dict[str, Any], catalogue: Instances) -> tuple[Region, ...]:
    """The regions of these annotations with their true masks, left to right, then top to bottom."""
    return tuple(
        region for _, region in sorted((_region(ann_id, image, catalogue) for ann_id in ids), key=lambda item: item[0])
    )


def _region(ann_id: int, image: dict[str, Any], catalogue: Instances) -> tuple[tuple[int, int, int], Region]:
    """Sort key (x0, y0, id) and region of one annotation, rasterised once."""
    if ann_id not in catalogue.regions:
        annotation = catalogue.annotations.get(ann_id)
        if annotation is None:
            raise _Unusable("annotation_missing", f"annotation {ann_id} is not in {catalogue.path.name}")
        if annotation.get("image_id") != image["id"]:
            raise _Unusable(
                "contradictory", f"annotation {ann_id} is on image {annotation.get('image_id')}, not {image['id']}"
            )
        try:
            rle = segmentation_to_rle(annotation.get("segmentation"), image["height"], image["width"])
        except DataError as error:
            raise _Unusable("bad_segmentation", f"annotation {ann_id}: {error}") from error
        x0, y0 = (mask_to_box(rle_to_mask(rle)) or (0, 0))[:2]
        catalogue.regions[ann_id] = ((x0, y0, ann_id), Region(rle=rle))
    return catalogue.regions[ann_id]
