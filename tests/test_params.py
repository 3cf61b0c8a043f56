"""The params file: the list of its keys, what is refused and in which words, and what the shipped file says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML

from cyclegrpo.errors import ParamsError
from cyclegrpo.params import STAGES, Base, Params, Train, find_problems, limited, load_params
from cyclegrpo.params_problems import iterate_keys

ROOT = Path(__file__).parent.parent
SHIPPED = ROOT / "params.yaml"

# A new key is a decision: it is listed here, in params.yaml with a value, and in cyclegrpo/params.py with a meaning.
KEYS = """
base.seed base.region_space base.dataset_dir base.work_dir base.tokenizer base.policy base.device base.num_workers
base.max_skip_ratio base.annotation_root base.sources[].name base.sources[].format base.sources[].annotations
base.sources[].instances base.sources[].image_root base.sources[].link_as base.sources[].split base.sources[].kinds
base.sources[].limit
link.copy
regions.min_area_px
crop.enabled crop.max_area_fraction crop.min_side_px crop.enlarge_to_px crop.jpeg_quality
tokenize.batch_size
build.max_rows_per_file
check.max_problems check.deep check.max_pixels
train.num_steps train.prompts.caption train.prompts.no_target train.prompts.expression train.num_captions
train.num_groundings train.temperature train.top_p train.micro_batches train.learning_rate train.lr_schedule
train.weight_decay train.warmup_steps train.beta train.epsilon_low train.epsilon_high train.max_grad_norm
train.optimise train.caption_weight train.grounding_weight train.locate_with train.scale_groundings
train.min_cycle_score train.zoom train.freeze_vision train.bf16 train.gradient_checkpointing train.max_caption_tokens
train.max_grounding_tokens train.save_steps train.logging_steps train.reward.overlap train.reward.resolution
train.reward.no_repeat train.reward.clean train.reward.format train.reward.shuffle
evaluate.annotations evaluate.instances evaluate.image_root evaluate.split evaluate.truth evaluate.num_regions
evaluate.num_samples evaluate.temperature evaluate.batch_size evaluate.max_caption_tokens
evaluate.max_grounding_tokens evaluate.frozen_grounder evaluate.num_examples
report.title
""".split()


def write_params(folder: Path, changes: dict[str, Any] | None = None, *, remove: str | None = None) -> Path:
    """The shipped file with values changed (or added) at dotted keys, or a key removed."""
    yaml = YAML()
    data = yaml.load(SHIPPED)

    def parent_of(key: str) -> tuple[Any, Any]:
        *parents, last = key.replace("[", ".").replace("]", "").split(".")
        node = data
        for part in parents:
            node = node[int(part) if part.isdigit() else part]
        return node, last

    for key, value in (changes or {}).items():
        node, last = parent_of(key)
        node[last] = value
    if remove is not None:
        node, last = parent_of(remove)
        del node[last]
    path = folder / "params.yaml"
    yaml.dump(data, path)
    return path


def test_the_list_of_keys() -> None:
    assert list(iterate_keys(Params)) == KEYS


def test_sections_are_the_stages() -> None:
    assert STAGES == ("link", "regions", "crop", "tokenize", "build", "check", "train", "evaluate", "report")


def test_the_shipped_file_is_complete_and_fine() -> None:
    data = YAML(typ="safe", pure=True).load(SHIPPED)
    given = {key for source in data["base"].pop("sources") for key in (f"base.sources[].{name}" for name in source)}
    for section, values in data.items():
        for key, value in values.items():
            nested = [f"{section}.{key}.{name}" for name in value] if isinstance(value, dict) else [f"{section}.{key}"]
            given |= set(nested)
    optional = {"base.sources[].limit"}
    assert given == set(KEYS) - optional
    assert find_problems(SHIPPED) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"train.reward.overlap": "tokens"},
        {"base.region_space": "box"},
        {"train.optimise": "captions", "train.locate_with": "reference"},
        {"train.optimise": "groundings", "train.prompts.no_target": 0, "train.prompts.expression": 0},
    ],
)
def test_a_variant_that_the_documentation_names_needs_no_more_keys(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert find_problems(write_params(tmp_path, changes)) == []


def test_the_defaults_are_the_papers() -> None:
    train = Train()
    assert (train.num_captions, train.num_groundings, train.temperature, train.top_p) == (6, 6, 1.0, 1.0)
    assert (train.learning_rate, train.lr_schedule, train.weight_decay, train.warmup_steps) == (
        1e-6,
        "constant",
        0.01,
        0,
    )
    assert (train.beta, train.epsilon_low, train.epsilon_high, train.max_grad_norm) == (0.01, 0.2, 0.3, 1.0)
    assert (train.caption_weight, train.grounding_weight, train.min_cycle_score) == (0.5, 0.5, 0.3)
    assert sum(dict(train.prompts).values()) == 128 and train.num_steps == (19_655 + 1_000) // 128


def every_model(model: type[BaseModel]) -> list[type[BaseModel]]:
    from cyclegrpo.params_problems import _nested_model

    nested = [_nested_model(field.annotation) for field in model.model_fields.values()]
    return [model] + [inner for item in nested if item is not None for inner in every_model(item)]


def test_numbers_have_bounds_and_sections_are_closed() -> None:
    for model in every_model(Params):
        assert model.model_config["extra"] == "forbid" and model.model_config["frozen"]
        for name, field in model.model_fields.items():
            if field.annotation in (int, float):
                assert field.metadata, f"{model.__name__}.{name} has no bounds"


def test_values_survive_a_round_trip(tmp_path: Path) -> None:
    params = load_params(SHIPPED)
    YAML(typ="safe").dump(params.model_dump(mode="json"), tmp_path / "again.yaml")
    assert load_params(tmp_path / "again.yaml") == params


def test_params_do_not_change() -> None:
    with pytest.raises(ValidationError):
        load_params(SHIPPED).train.beta = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train.betta": 0.1}, "train.betta is unknown; did you mean train.beta?"),
        ({"train.overlap": "iou"}, "train.overlap is unknown; did you mean train.reward.overlap?"),
        ({"tain": {}}, "tain is unknown; did you mean train?"),
        ({"train.zzz": 1}, "train.zzz is unknown; remove it."),
        ({"base.sources[0].anotations": "a"}, "base.sources[0].anotations is unknown; did you mean base.sources[0].annotations?"),
        ({"train.beta": -1}, "train.beta is -1; expected >= 0."),
        ({"train.beta": "0.1"}, 'train.beta is the text "0.1"; expected a number.'),
        ({"train.num_steps": 2.5}, "train.num_steps is 2.5; expected a whole number."),
        ({"train.num_steps": True}, "train.num_steps is true; expected a whole number."),
        ({"train.bf16": 1}, "train.bf16 is 1; expected true or false."),
        ({"train.beta": float("nan")}, "train.beta is nan; expected a finite number."),
        ({"train.epsilon_low": 1.0}, "train.epsilon_low is 1.0; expected < 1."),
        ({"crop.min_side_px": 0}, "crop.min_side_px is 0; expected >= 1."),
        ({"base.seed": None}, "base.seed is null; expected a whole number."),
        ({"base.tokenizer": 3}, "base.tokenizer is 3; expected text."),
        ({"train": None}, "train is null; expected a mapping."),
        ({"base.sources": {}}, "base.sources is {}; expected a list."),
        ({"base.sources": []}, "base.sources is []; expected at least 1 entry."),
        ({"base.sources[0].format": "coco"}, "base.sources[0].format is the text \"coco\"; expected 'denseworld' or 'grefcoco'."),
        ({"base.sources[0].format": "densworld"}, "base.sources[0].format is the text \"densworld\"; expected 'denseworld' or 'grefcoco'. Did you mean denseworld?"),
        ({"base.sources[0].link_as": "../x"}, 'base.sources[0].link_as is the text "../x"; expected a relative folder without `..`, other than `crops`.'),
        ({"base.sources[1].name": "v3det"}, "two sources have the name v3det; each needs its own."),
        ({"base.sources[1].instances": None}, "source coco_train2014: format grefcoco needs both `instances` and `split`."),
        ({"base.sources[0].kinds": ["no_target"]}, "source v3det: format denseworld takes no `instances` and no `split`, and gives [describe]."),
        ({"train.reward.overlap": "tokens", "base.region_space": "box"}, "train.reward.overlap is tokens, which a box region does not have; set overlap: iou."),
        ({"train.optimise": "captions", "train.grounding_weight": 0.7}, "train.grounding_weight has no effect where train.optimise is captions; remove it, or set optimise: both."),
        ({"train.optimise": "groundings", "train.caption_weight": 0.7}, "train.caption_weight has no effect where train.optimise is groundings; remove it, or set optimise: both."),
        ({"train.optimise": "groundings", "train.locate_with": "reference"}, "train.optimise is groundings, but train.locate_with: reference takes the groundings from the reference, so that they cannot train the policy; set optimise: captions."),
        ({"train.optimise": "captions", "train.locate_with": "reference", "train.beta": 0}, "train.beta is 0, so that no reference is loaded, but train.locate_with is reference; set beta above 0, or locate_with: policy."),
        ({"train.optimise": "captions", "train.num_captions": 1}, "train.num_captions is 1, and a group of one has no advantage; expected >= 2."),
        ({"train.optimise": "groundings", "train.num_captions": 1}, "train.num_captions is 1, and TRL takes no group of one; expected >= 2."),
        ({"train.optimise": "captions", "train.min_cycle_score": 0.1}, "train.min_cycle_score has no effect where train.optimise is captions; remove it, or set optimise: both."),
        ({"train.optimise": "captions", "train.scale_groundings": "group"}, "train.scale_groundings has no effect where train.optimise is captions; remove it, or set optimise: both."),
        ({"train.optimise": "groundings", "train.reward.shuffle": True}, "train.reward.shuffle has no effect where train.optimise is groundings; remove it, or set optimise: both."),
        ({"train.optimise": "groundings", "train.reward.clean": False}, "train.reward.clean has no effect where train.optimise is groundings; remove it, or set optimise: both."),
        ({"train.optimise": "groundings"}, "train.prompts.no_target is 3, but train.optimise is groundings, and such questions are learned with the captions; set it to 0, or optimise: both."),
        ({"train.optimise": "groundings", "train.prompts.no_target": 0}, "train.prompts.expression is 3, but train.optimise is groundings, and such questions are learned with the captions; set it to 0, or optimise: both."),
        ({"check.deep": True}, "check.deep is true, but there is no deep check yet; set it to false."),
        ({"evaluate.split": "train"}, "evaluate.split is train of data/miniature/raw/grefcoco/grefs(unc).json, which base.sources[1] trains on; set another split for one of them."),
        ({"evaluate.split": "train", "base.sources[1].annotations": "data/miniature/raw/x/../grefcoco/grefs(unc).json"}, "evaluate.split is train of data/miniature/raw/grefcoco/grefs(unc).json, which base.sources[1] trains on; set another split for one of them."),
        ({"train.prompts.caption": 0}, "train.prompts.caption is 0, so that there are no groundings to optimise; set optimise: captions."),
        ({"base.sources[1].kinds": ["no_target"]}, "train.prompts.expression is 3, but no source has the kind expression; set it to 0."),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = write_params(tmp_path, changes)
    with pytest.raises(ParamsError) as caught:
        load_params(path)
    assert caught.value.problems[0] == f"{path}: {message}"
    assert "\n" not in str(caught.value) and caught.value.exit_code == 2


def test_several_problems_are_all_kept(tmp_path: Path) -> None:
    path = write_params(tmp_path, {"train.beta": -1, "train.betta": 1, "crop.min_side_px": 0})
    with pytest.raises(ParamsError, match=r"and 2 more; `cyclegrpo check config` lists all"):
        load_params(path)
    assert len(find_problems(path)) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty; expected sections base, link"),
        ("- a\n- b\n", "no mapping; expected sections base, link"),
        ("base: {a: 1\nlink: 2\n", "line 2: "),
        ("base: 1\nbase: 2\n", 'line 2: found duplicate key "base"'),
        ("base: {}\n", "base.tokenizer is missing; add it."),
    ],
)
def test_a_broken_file_is_said_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "p.yaml").write_text(text)
    with pytest.raises(ParamsError) as caught:
        load_params(tmp_path / "p.yaml")
    assert message in caught.value.problems[0] and "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"base: \xe9\n")
    for name, message in [("no.yaml", "no such file"), (".", "cannot be read"), ("latin.yaml", "UTF-8")]:
        with pytest.raises(ParamsError, match=message):
            load_params(tmp_path / name)


def test_numbers_are_read_as_yaml_1_2(tmp_path: Path) -> None:
    text = SHIPPED.read_text()
    assert "  learning_rate: " in text
    lines = ["  learning_rate: 1e-5" if line.startswith("  learning_rate: ") else line for line in text.splitlines()]
    lines = ["  title: on" if line.startswith("  title: ") else line for line in lines]
    (tmp_path / "p.yaml").write_text("\n".join(lines))
    params = load_params(tmp_path / "p.yaml")
    assert params.train.learning_rate == 0.00001 and params.report.title == "on"


@pytest.mark.parametrize("key", ["base.seed", "base.annotation_root", "crop"])
def test_dvc_needs_every_key(tmp_path: Path, key: str) -> None:
    path = write_params(tmp_path, remove=key)
    load_params(path)
    assert find_problems(path)[0] == f"{path}: {key} is missing, and dvc.yaml depends on it; add it."


def test_dvc_needs_annotations_where_it_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_params(tmp_path, {"evaluate.truth": "elsewhere/truth.json"})
    (problem,) = find_problems(path)
    assert "evaluate.truth is elsewhere/truth.json; expected a file below base.annotation_root" in problem
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data/miniature/raw").mkdir(parents=True)
    (tmp_path / "data/miniature/raw/denseworld").symlink_to("/somewhere")
    (problem,) = find_problems(write_params(tmp_path))
    assert "base.sources[0].annotations" in problem and "a linked folder. Link the file alone" in problem


def test_limits_only_lower() -> None:
    params = load_params(SHIPPED)
    small = limited(params, records=3, steps=2, regions=5)
    assert [source.limit for source in small.base.sources] == [3, 3]
    assert (small.train.num_steps, small.evaluate.num_regions) == (2, 5)
    assert limited(small, records=10, steps=100, regions=1000) == small
    assert limited(params) == params


def test_a_base_needs_only_what_has_no_default() -> None:
    source = {"name": "a", "format": "denseworld", "annotations": Path("a"), "image_root": Path("b"), "link_as": "a"}
    base = Base.model_validate(
        {"tokenizer": Path("t"), "policy": Path("p"), "sources": ({**source, "kinds": ("describe",)},)}
    )
    assert base.device == "auto" and base.sources[0].limit is None
