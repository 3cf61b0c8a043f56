"""The stage: files, reuse of kept predictions, errors. Models are fakes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from PIL import Image

from cyclegrpo.errors import DataError
from cyclegrpo.evaluation import run as run_module
from cyclegrpo.evaluation.examples import picture_to_uri
from cyclegrpo.evaluation.predict import Interview
from cyclegrpo.evaluation.run import run_evaluate
from cyclegrpo.files import write_table
from cyclegrpo.params import Params
from cyclegrpo.regions.geometry import mask_to_rle

from .conftest import LEFT, RIGHT, FakePolicy, FakeTokenizer, answer_vaguely, answer_well, object_mask
from .test_heldout import ref

REFS = [
    ref(1, 1, [LEFT], ["the left bar"]),
    ref(2, 2, [RIGHT], ["the right bar"]),
    ref(3, 1, [-1], ["the dog"]),
]
WORDS = [{"ann_id": LEFT, "words": ["left", "bar"]}, {"ann_id": RIGHT, "words": ["right", "bar"]}]
TRUTH = {"vocabulary": {"side": ["left", "right"], "shape": ["bar"]}, "images": {"1.png": WORDS, "2.png": WORDS}}


@pytest.fixture
def params(tmp_path, monkeypatch):
    """Params in a folder that holds data and three empty model folders."""
    monkeypatch.chdir(tmp_path)
    images = [{"id": number, "file_name": f"{number}.png", "height": 8, "width": 8} for number in (1, 2)]
    annotations = [
        {"id": code, "image_id": number, "segmentation": mask_to_rle(object_mask(code))}
        for number, code in ((1, LEFT), (2, RIGHT))
    ]
    files = {
        "refs.json": REFS,
        "instances.json": {"images": images, "annotations": annotations},
        "truth.json": TRUTH,
        "before/config.json": {},
        "models/policy/config.json": {},
        "tokenizer/config.json": {},
    }
    for name, content in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(json.dumps(content))
    for image in images:
        Image.new("RGB", (8, 8), "white").save(image["file_name"])
    source = {"name": "s", "format": "denseworld", "annotations": "a.json", "image_root": ".", "link_as": "s"}
    return Params.model_validate(
        {
            "base": {
                "tokenizer": "tokenizer",
                "policy": "before",
                "device": "cpu",
                "work_dir": "work",
                "sources": [{**source, "kinds": ["describe"]}],
            },
            "crop": {"enabled": False},
            "train": {"zoom": False},
            "evaluate": {
                "annotations": "refs.json",
                "instances": "instances.json",
                "image_root": ".",
                "truth": "truth.json",
                "num_samples": 1,
                "num_examples": 1,
            },
        }
    )


@pytest.fixture
def loaded(monkeypatch):
    """The names of the models that were loaded."""
    names = []

    def load_policy(path, device, codebook_size):
        assert codebook_size == 256  # the tokenizer's, so that missing tokens are found
        names.append(Path(path).as_posix())
        return FakePolicy(answer_vaguely if str(path) == "before" else answer_well)

    monkeypatch.setattr(run_module, "load_policy", load_policy)
    monkeypatch.setattr(run_module, "load_tokenizer", lambda path, device, dtype: FakeTokenizer())
    return names


def read(name):
    return json.loads(Path("results/evaluate", name).read_text())


def test_files(params, loaded):
    report = run_evaluate(params)
    metrics = read("metrics.json")
    assert metrics["before"]["cycle_iou"] == 0.5
    assert metrics["after"]["cycle_iou"] == 1.0
    assert metrics["change"]["unambiguous"] == 1.0
    assert metrics["after"]["frozen_cycle_iou"] == 0.5  # the old one finds the left bar by any words
    assert report.after["cycle_iou"] == 1.0
    assert "cycle_iou_se" not in report.after

    lines = [json.loads(line) for line in Path("results/evaluate/predictions.jsonl").read_text().splitlines()]
    assert [(line["model"], line["kind"], line["key"]) for line in lines] == [
        ("before", "region", "heldout/1-0"),
        ("before", "region", "heldout/2-0"),
        ("before", "no_target", "heldout/3-0"),
        ("after", "region", "heldout/1-0"),
        ("after", "region", "heldout/2-0"),
        ("after", "no_target", "heldout/3-0"),
    ]
    assert lines[3]["greedy"]["caption"] == "the left bar"
    assert lines[3]["unambiguous"] is True

    example = read("examples.json")["examples"][0]
    assert example["picture"].startswith("data:image/png;base64,")
    assert example["target"] == example["after"]["found"] == mask_to_rle(object_mask(LEFT))


def test_images_that_training_knows_are_counted_where_it_left_a_table(params, loaded):
    assert run_evaluate(params).num_images_in_training is None
    assert "num_images_in_training" not in read("metrics.json")
    write_table(Path("work/images.parquet"), pa.table({"name": ["train/1.png", "3.png"]}))
    assert run_evaluate(params).num_images_in_training == 1
    assert read("metrics.json")["num_images_in_training"] == 1


def test_a_second_run_loads_no_model_and_writes_the_same_bytes(params, loaded):
    run_evaluate(params)
    first = {path.name: path.read_bytes() for path in Path("results/evaluate").iterdir()}
    assert loaded == ["before", "models/policy"]
    run_evaluate(params)
    assert loaded == ["before", "models/policy"]
    assert {path.name: path.read_bytes() for path in Path("results/evaluate").iterdir()} == first


def test_a_run_elsewhere_leaves_results_and_kept_predictions_alone(params, loaded):
    run_evaluate(params)
    before = {path: path.read_bytes() for path in Path().rglob("evaluate/**/*") if path.is_file()}
    few = params.model_copy(update={"evaluate": params.evaluate.model_copy(update={"num_regions": 1})})
    run_evaluate(few, results=Path("elsewhere"), kept=Path("kept"))
    assert {path.as_posix() for path in Path("kept").glob("*/*")} == {"kept/before/00000.json", "kept/after/00000.json"}
    assert len(json.loads(Path("elsewhere/examples.json").read_text())["examples"]) == 1
    assert {path: path.read_bytes() for path in before} == before


def test_a_new_policy_is_asked_again_and_the_old_one_is_not(params, loaded):
    run_evaluate(params)
    Path("models/policy/config.json").write_text('{"trained": "longer"}')
    loaded.clear()
    run_evaluate(params)
    assert loaded == ["models/policy", "before"]  # the old one locates again, but describes nothing


def test_other_pixels_or_another_dtype_ask_both_again(params, loaded):
    """Kept answers are about the very images, as the very tokenizer encodes them."""
    run_evaluate(params)
    loaded.clear()
    Image.new("RGB", (8, 8), "black").save("1.png")
    run_evaluate(params)
    assert loaded == ["before", "models/policy"]
    loaded.clear()
    run_evaluate(params.model_copy(update={"base": params.base.model_copy(update={"tokenizer_dtype": "bfloat16"})}))
    assert loaded == ["before", "models/policy"]


@pytest.mark.parametrize("damage", ["", "{", '{"key": 1}', '{"key": "k", "predictions": {"regions": [{}]}}'])
def test_damaged_kept_predictions_are_made_again(params, loaded, damage):
    run_evaluate(params)
    Path("work/evaluate/after/00000.json").write_text(damage)
    assert run_evaluate(params).after["cycle_iou"] == 1.0


def test_a_killed_run_goes_on_from_the_last_block(params, loaded, monkeypatch):
    params = params.model_copy(update={"evaluate": params.evaluate.model_copy(update={"batch_size": 1})})
    run_evaluate(params)
    whole = {path.name: path.read_bytes() for path in Path("results/evaluate").iterdir()}
    shutil.rmtree("work/evaluate")
    asked = []
    predict = Interview.predict

    def die_at_the_fourth(self, block, progress):
        if len(asked) == 3:
            raise KeyboardInterrupt
        asked.append(block.number)
        return predict(self, block, progress)

    monkeypatch.setattr(Interview, "predict", die_at_the_fourth)
    with pytest.raises(KeyboardInterrupt):
        run_evaluate(params)
    assert asked == [0, 1, 0]  # both blocks of the old policy, one of the new
    asked.clear()
    run_evaluate(params)
    assert asked == [1]
    assert {path.name: path.read_bytes() for path in Path("results/evaluate").iterdir()} == whole


def test_kept_blocks_of_a_larger_run_are_removed(params, loaded):
    run_evaluate(params.model_copy(update={"evaluate": params.evaluate.model_copy(update={"batch_size": 1})}))
    assert len(list(Path("work/evaluate").glob("*/*.json"))) == 4
    run_evaluate(params)
    assert len(list(Path("work/evaluate").glob("*/*.json"))) == 2


def test_a_missing_trained_policy_is_one_clear_error(params):
    Path("models/policy/config.json").unlink()
    with pytest.raises(DataError, match=r"models/policy.*config\.json is missing"):
        run_evaluate(params)
    assert not Path("results").exists()


@pytest.mark.parametrize(("side", "kind", "long_side"), [(96, "png", 96), (300, "jpeg", 300), (2000, "jpeg", 512)])
def test_pictures_are_small(side, kind, long_side):
    import base64
    import io

    head, data = picture_to_uri(Image.new("RGB", (side, side // 2))).split(";base64,")
    assert head == f"data:image/{kind}"
    assert max(Image.open(io.BytesIO(base64.b64decode(data))).size) == long_side


@pytest.mark.parametrize("name", ["results/evaluate", "work/evaluate"])
def test_a_place_that_cannot_be_written_is_told_before_a_model_is_asked(params, loaded, name):
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text("in the way")
    with pytest.raises(OSError):
        run_evaluate(params)
    assert loaded == []
