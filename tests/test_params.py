"""The models of the params: the list of their keys, their bounds and defaults, and what the shipped file says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML

from cyclegrpo.params import STAGES, Base, Params, Train
from cyclegrpo.params_file import find_problems, load_params
from cyclegrpo.params_problems import iterate_keys

ROOT = Path(__file__).parent.parent
SHIPPED = ROOT / "params.yaml"

# A new key is a decision: it is listed here, in params.yaml with a value, and in cyclegrpo/params.py with a meaning.
KEYS = """
base.seed base.region_space base.dataset_dir base.work_dir base.tokenizer base.policy base.device base.tokenizer_dtype
base.num_workers base.max_skip_ratio base.annotation_root base.sources[].name base.sources[].format
base.sources[].annotations base.sources[].instances base.sources[].image_root base.sources[].link_as
base.sources[].split base.sources[].kinds
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


def test_params_do_not_change() -> None:
    with pytest.raises(ValidationError):
        load_params(SHIPPED).train.beta = 1.0  # type: ignore[misc]


def test_a_base_needs_only_what_has_no_default() -> None:
    source = {"name": "a", "format": "denseworld", "annotations": Path("a"), "image_root": Path("b"), "link_as": "a"}
    base = Base.model_validate(
        {"tokenizer": Path("t"), "policy": Path("p"), "sources": ({**source, "kinds": ("describe",)},)}
    )
    assert base.device == "auto" and base.sources[0].limit is None
