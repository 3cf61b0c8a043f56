"""Reading the held-out set from gRefCOCO's two files."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from cyclegrpo.errors import DataError
from cyclegrpo.evaluation.heldout import (
    HeldoutNoTarget,
    HeldoutRegion,
    heldout_in_memory,
    num_images_in_training,
    read_heldout,
    spread,
)
from cyclegrpo.files import write_table
from cyclegrpo.params import Evaluate

SQUARE = [[1.0, 1.0, 4.0, 1.0, 4.0, 3.0, 1.0, 3.0]]  # columns 1-3, rows 1-2
WIDE = [[0.0, 4.0, 6.0, 4.0, 6.0, 5.0, 0.0, 5.0]]


def ref(ref_id, image_id, ann_id, sentences, split="testA"):
    texts = [{"sent": text, "raw": text} for text in sentences]
    no_target = ann_id == [-1]
    return {
        "ref_id": ref_id,
        "image_id": image_id,
        "ann_id": ann_id,
        "no_target": no_target,
        "split": split,
        "sentences": texts,
    }


REFS = [
    ref(1, 1, [11], ["the square", "that one"]),
    ref(2, 1, [12], ["the wide one"]),
    ref(3, 1, [11, 12], ["both"]),
    ref(4, 1, [-1], ["the dog"]),
    ref(5, 2, [21], ["the only one"]),
    ref(6, 2, [-1], ["the cat"]),
    ref(7, 1, [11], ["the square again"]),
    ref(8, 2, [21], ["seen in training"], split="train"),
]
INSTANCES = {
    "images": [{"id": number, "file_name": f"{number}.png", "height": 6, "width": 8} for number in (1, 2)],
    "annotations": [
        {"id": 11, "image_id": 1, "segmentation": SQUARE},
        {"id": 12, "image_id": 1, "segmentation": WIDE},
        {"id": 21, "image_id": 2, "segmentation": SQUARE},
    ],
}


@pytest.fixture
def settings(tmp_path):
    """Evaluate params whose files lie in tmp_path."""
    (tmp_path / "instances.json").write_text(json.dumps(INSTANCES))
    (tmp_path / "refs.json").write_text(json.dumps(REFS))
    for number in (1, 2):
        Image.new("RGB", (8, 6), "white").save(tmp_path / f"{number}.png")
    return Evaluate(
        annotations=tmp_path / "refs.json", instances=tmp_path / "instances.json", image_root=tmp_path, split="testA"
    )


def test_regions_with_their_expressions(settings):
    heldout = read_heldout(settings)
    assert [(r.key, r.image, r.ann_id, r.expressions) for r in heldout.regions] == [
        ("heldout/1-0", "1.png", 11, ("the square", "that one", "the square again")),
        ("heldout/2-0", "1.png", 12, ("the wide one",)),
        ("heldout/5-0", "2.png", 21, ("the only one",)),
    ]
    expected = np.zeros((6, 8), bool)
    expected[1:3, 1:4] = True
    np.testing.assert_array_equal(heldout.regions[0].mask, expected)
    assert [(n.key, n.image, n.text) for n in heldout.no_targets] == [
        ("heldout/4-0", "1.png", "the dog"),
        ("heldout/6-0", "2.png", "the cat"),
    ]
    assert heldout.open_image("1.png", (6, 8)).size == (8, 6)


def test_few_regions_are_spread_over_images(settings):
    heldout = read_heldout(settings.model_copy(update={"num_regions": 2}))
    assert [region.image for region in heldout.regions] == ["1.png", "2.png"]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (0, []),
        (1, ["a1"]),
        (3, ["a1", "b2", "c1"]),  # b is image number 1, so it starts with its second item
        (4, ["a1", "a2", "b2", "c1"]),
        (9, ["a1", "b1", "a2", "b2", "c1"]),
    ],
)
def test_spread(limit, expected):
    assert spread(["a1", "b1", "a2", "b2", "c1"], lambda item: item[0], limit) == expected


def test_a_split_without_regions(settings):
    with pytest.raises(DataError, match=r"'testB' has no expression with a single target"):
        read_heldout(settings.model_copy(update={"split": "testB"}))


def test_too_many_unusable_references(settings):
    broken = [*REFS, ref(9, 77, [11], ["on an unknown image"])]
    settings.annotations.write_text(json.dumps(broken))
    with pytest.raises(DataError, match=r"1 of 9 records cannot be used .*heldout/9, image_unknown"):
        read_heldout(settings)
    assert read_heldout(settings, max_skip_ratio=0.2).num_skipped == 1


def test_a_missing_image_is_an_error_that_names_it(settings, tmp_path):
    heldout = read_heldout(settings)
    (tmp_path / "2.png").unlink()
    with pytest.raises((DataError, OSError), match=r"2\.png"):
        heldout.open_image("2.png", (6, 8))


def test_an_image_name_cannot_leave_its_root(settings):
    with pytest.raises(DataError):
        read_heldout(settings).open_image("../secret.png", (6, 8))


@pytest.mark.parametrize(
    ("trained", "expected"),
    [
        (["c.png"], 0),
        (["1.png", "1.png", "c.png"], 1),
        (["somewhere/1.png", "x/b/2.png"], 2),  # a bare name is that of any folder's file
        (["x\\a\\2.png", "a/2.png"], 0),
        (["2.png", "a/c.png"], 1),
    ],
)
def test_images_that_training_knows_are_counted(tmp_path, trained, expected):
    rle = {"size": [2, 2], "counts": "04"}
    regions = [HeldoutRegion("r/1", "1.png", rle), HeldoutRegion("r/2", "deep/b/2.png", rle)]
    heldout = heldout_in_memory({}, regions, [HeldoutNoTarget("n/1", "1.png", "a dog")])
    assert num_images_in_training(heldout, tmp_path) is None
    write_table(tmp_path / "images.parquet", pa.table({"name": trained}))
    assert num_images_in_training(heldout, tmp_path) == expected
