"""gRefCOCO: samples per sentence, suffixes in file names, references that cannot be used, and the masks they mean."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cyclegrpo.errors import DataError
from cyclegrpo.files import write_table
from cyclegrpo.params import Source
from cyclegrpo.regions.geometry import rle_to_mask
from cyclegrpo.sources import Record, Skip, read_source
from cyclegrpo.sources.grefcoco import read_grefcoco, segmentation_to_rle
from tests.sources.broken import broken

IMAGE = "COCO_train2014_000000123456.jpg"
SUFFIXED = "COCO_train2014_000000123456_16.jpg"


def square(ann_id: int, x: float, y: float, side: float, **more: Any) -> dict[str, Any]:
    polygon = [x, y, x + side, y, x + side, y + side, x, y + side]
    return {"id": ann_id, "image_id": 123456, "iscrowd": 0, "segmentation": [polygon], **more}


INSTANCES: dict[str, Any] = {
    "images": [{"id": 123456, "file_name": IMAGE, "height": 10, "width": 10}],
    "annotations": [square(11, 6, 6, 2), square(12, 0, 0, 3)],
}


def reference(ref_id: int, ann_id: Any, no_target: bool | None, *sentences: str, **more: Any) -> dict[str, Any]:
    return {
        "ref_id": ref_id,
        "image_id": 123456,
        "file_name": SUFFIXED,
        "ann_id": ann_id,
        "no_target": no_target,
        "split": "train",
        "sentences": [{"sent_id": number, "sent": sentence} for number, sentence in enumerate(sentences)],
        **more,
    }


REFERENCES = [
    reference(0, [11], False, "left man", "man in red"),
    reference(1, [-1], True, "a zebra"),
    reference(2, [11, 12], False, "both men"),
    reference(3, [12], False),
    reference(4, [-1], False, "red hat"),
    reference(5, [99], False, "dog"),
]


def read(
    tmp_path: Path,
    references: list[Any],
    instances: dict[str, Any] = INSTANCES,
    kinds: tuple[Any, ...] = ("expression", "no_target"),
    split: str | None = "train",
) -> list[Record | Skip]:
    (tmp_path / "grefs.json").write_text(json.dumps(references))
    (tmp_path / "instances.json").write_text(json.dumps(instances))
    return list(
        read_grefcoco(tmp_path / "grefs.json", tmp_path / "instances.json", name="gres", split=split, kinds=kinds)
    )


def test_the_six_reported_kinds_of_reference(tmp_path: Path) -> None:
    items = read(tmp_path, REFERENCES)
    records = [item for item in items if isinstance(item, Record)]
    skips = [item for item in items if isinstance(item, Skip)]
    assert [(record.record_id, record.text, record.kind, len(record.regions)) for record in records] == [
        ("gres/0-0", "left man", "expression", 1),
        ("gres/0-1", "man in red", "expression", 1),
        ("gres/1-0", "a zebra", "no_target", 0),
        ("gres/2-0", "both men", "expression", 2),
    ]
    assert {record.image for record in records} == {IMAGE}  # through image_id; the suffix does not matter
    assert {record.size for record in records} == {(10, 10)}
    assert [(skip.record_id, skip.reason) for skip in skips] == [
        ("gres/3", "no_sentence"),
        ("gres/4", "contradictory"),
        ("gres/5", "annotation_missing"),
    ]
    assert "99" in skips[2].message


def test_several_targets_are_ordered_left_to_right_and_unite_to_the_true_mask(tmp_path: Path) -> None:
    (record,) = read(tmp_path, [reference(2, [11, 12], False, "both")])
    assert isinstance(record, Record)
    masks = [rle_to_mask(region.rle) for region in record.regions if region.rle is not None]
    assert [int(mask.sum()) for mask in masks] == [9, 4]  # 12 lies left of 11
    assert int(np.logical_or(*masks).sum()) == 13


def test_kinds_and_split_choose(tmp_path: Path) -> None:
    references = [*REFERENCES[:2], reference(7, [-1], True, "a lion", split="val")]
    assert [item.record_id for item in read(tmp_path, references, kinds=("no_target",))] == ["gres/1-0"]
    assert [item.record_id for item in read(tmp_path, references, split="val")] == ["gres/7-0"]
    assert len(read(tmp_path, references, split=None)) == 4


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (reference(0, [11], None, "fine without the flag"), None),
        (reference(0, [-1], None, "none"), None),
        (reference(0, [11, -1], False, "mixed"), "contradictory"),
        (reference(0, [], False, "no ids"), "malformed_record"),
        (reference(0, 11, False, "an id, not a list"), "malformed_record"),
        (reference(0, [11], False, "  "), "no_sentence"),
        (reference(0, [11], False, "x", image_id=5), "image_unknown"),
        ({"ref_id": 0, "split": "train"}, "malformed_record"),
        (reference(0, [11], False, "x", sentences=["a dog"]), "malformed_record"),
        (reference(0, [11], False, "x", sentences=[{"sent": 5}]), "malformed_record"),
        (reference(0, [11], False, "x", sentences={"sent": "x"}), "malformed_record"),
        (reference(0, [11], False, "x", sentences=None), "no_sentence"),
        (reference(0, [11], False, "x", image_id=[1]), "malformed_record"),
        (reference(0, ["11"], False, "an id as text"), "malformed_record"),
        (reference(0, [True], False, "no id"), "malformed_record"),
        (reference(0, [11], "no", "x"), "malformed_record"),  # type: ignore[arg-type]
        (reference(0, [11], False, "half a character \ud83d"), "malformed_record"),
        (reference(None, [11], False, "no reference id"), "malformed_record"),  # type: ignore[arg-type]
    ],
)
def test_references_that_cannot_be_used(tmp_path: Path, broken: dict[str, Any], reason: str | None) -> None:
    (item,) = read(tmp_path, [broken])
    assert (item.reason if isinstance(item, Skip) else None) == reason


@pytest.mark.parametrize(
    ("annotation", "reason"),
    [
        (square(11, 0, 0, 2, image_id=7), "contradictory"),
        (square(11, 0, 0, 2, iscrowd=1), "annotation_missing"),
        (square(11, 0, 0, 2, segmentation=[[1, 1, 5, 1, 5]]), "bad_segmentation"),
        (square(11, 0, 0, 2, segmentation={"size": [5, 10], "counts": [50]}), "bad_segmentation"),
        (square(11, 0, 0, 2, segmentation=None), "bad_segmentation"),
    ],
)
def test_annotations_that_cannot_be_used(tmp_path: Path, annotation: dict[str, Any], reason: str) -> None:
    (item,) = read(tmp_path, [REFERENCES[0]], {**INSTANCES, "annotations": [annotation]})
    assert isinstance(item, Skip) and item.reason == reason and "11" in item.message


def test_three_spellings_of_one_mask() -> None:
    polygon = segmentation_to_rle([[0, 0, 3, 0, 3, 2, 0, 2]], 4, 4)
    assert polygon == segmentation_to_rle({"size": [4, 4], "counts": [0, 2, 2, 2, 2, 2, 6]}, 4, 4)
    assert polygon == segmentation_to_rle({"size": [4, 4], "counts": "0220004"}, 4, 4)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"images": [], "annotations": []}'])
def test_broken_instances_name_the_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "grefs.json").write_text("[]")
    (tmp_path / "instances.json").write_text(content)
    with pytest.raises(DataError, match=r"instances\.json"):
        list(
            read_grefcoco(
                tmp_path / "grefs.json", tmp_path / "instances.json", name="g", split=None, kinds=("no_target",)
            )
        )


@pytest.mark.parametrize(
    ("place", "change", "message"),
    [
        ("annotations", {"id": None}, r"record annotations\[0\]: `id` is None; expected a whole number"),
        ("annotations", {"image_id": "1"}, r"record annotations\[0\]: `image_id` is '1'; expected a whole number"),
        ("images", {"height": "10"}, r"record images\[0\]: `height` is '10'; expected a whole number >= 1"),
        ("images", {"width": 0}, r"record images\[0\]: `width` is 0; expected a whole number >= 1"),
        ("images", {"file_name": None}, r"record images\[0\]: `file_name` is None; expected a text"),
        ("images", {"id": [1]}, r"record images\[0\]: `id` is \[1\]; expected a whole number"),
    ],
)
def test_broken_instances_name_file_and_record(
    tmp_path: Path, place: str, change: dict[str, Any], message: str
) -> None:
    instances = copy.deepcopy(INSTANCES)
    instances[place][0] |= change
    with pytest.raises(DataError, match=rf"instances\.json, {message}"):
        read(tmp_path, REFERENCES, instances)


def test_instances_without_an_id_or_without_a_list(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"annotations\[1\]: `id` is missing; expected a whole number"):
        read(tmp_path, REFERENCES, {**INSTANCES, "annotations": [square(11, 6, 6, 2), {}]})
    with pytest.raises(DataError, match=r"annotations\[0\]: is 'x'; expected an object"):
        read(tmp_path, REFERENCES, {**INSTANCES, "annotations": ["x"]})
    with pytest.raises(DataError, match=r"instances\.json: `images` is 5; expected a list"):
        read(tmp_path, REFERENCES, {**INSTANCES, "images": 5})


def test_whatever_is_broken_gives_records_skips_or_a_data_error(tmp_path: Path) -> None:
    good = {"references": REFERENCES[:3], "instances": INSTANCES}
    num_errors = 0
    for files in broken(good):
        if not isinstance(files.get("references"), list) or "instances" not in files:
            continue
        try:
            items = read(tmp_path, files["references"], files["instances"])
        except DataError as error:
            num_errors += 1
            assert str(tmp_path) in str(error)
            continue
        assert all(isinstance(item, Record | Skip) for item in items)
        write_table(tmp_path / "texts.parquet", pa.Table.from_pylist([texts_of(item) for item in items]))
    assert num_errors > 50


def texts_of(item: Record | Skip) -> dict[str, Any]:
    return {name: getattr(item, name, None) for name in ("record_id", "image", "text", "message", "reason")}


def source(tmp_path: Path, **more: Any) -> Source:
    return Source.model_validate(
        {
            "name": "gres",
            "format": "grefcoco",
            "annotations": tmp_path / "grefs.json",
            "instances": tmp_path / "instances.json",
            "image_root": tmp_path,
            "link_as": "coco",
            "split": "train",
            "kinds": ("expression", "no_target"),
            **more,
        }
    )


def test_limit_counts_records_and_skips(tmp_path: Path) -> None:
    read(tmp_path, REFERENCES)
    assert len(list(read_source(source(tmp_path)))) == 7
    assert len(list(read_source(source(tmp_path, limit=5)))) == 5


def test_nothing_to_read_is_an_error_that_names_the_source(tmp_path: Path) -> None:
    read(tmp_path, REFERENCES)
    with pytest.raises(DataError, match=r"holds no expression, no_target records of split val"):
        list(read_source(source(tmp_path, split="val")))
