"""The params file: read, checked as a whole, searched for problems and missing inputs, and limited for a quick look.

It is read in one place (`read_sections`), as YAML 1.2 like DVC does, and checked before any model loads: beside what
the models of `params.py` refuse, a setting that has no effect in the chosen mode is an error.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from cyclegrpo.errors import ParamsError, printable_path
from cyclegrpo.params import Params
from cyclegrpo.params_problems import (
    describe_problem,
    describe_yaml_problem,
    ineffective_settings,
    pipeline_problems,
)

ModelT = TypeVar("ModelT", bound=BaseModel)


def load_params(path: str | Path = "params.yaml") -> Params:
    """The checked parameters of the file; ParamsError, in one line with the nearest valid name, if anything is wrong.

    The file is read as `read_sections` says. Paths in it are relative to the folder that the command runs in. Nothing
    is looked up on disk but the file itself.
    """
    params = read_sections(path, Params)
    problems = [f"{printable_path(path)}: {problem}." for problem in ineffective_settings(params)]
    if problems:
        raise ParamsError(problems)
    return params


def read_sections(path: str | Path, model: type[ModelT]) -> ModelT:
    """A YAML file of sections as `model`, checked in every field; ParamsError with one line per problem.

    The file is YAML 1.2 in UTF-8 (`1e-5` is a number, `on` is text) and must be a mapping of sections.
    """
    shown = printable_path(path)
    try:
        data = YAML(typ="safe", pure=True).load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ParamsError(f"{shown}: no such file. Run in the folder that holds it, or give --params FILE.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ParamsError(f"{shown}: cannot be read ({error}); expected a YAML file in UTF-8.") from error
    except YAMLError as error:
        raise ParamsError(f"{shown}: {describe_yaml_problem(error)}; expected YAML 1.2.") from error
    if not isinstance(data, dict):
        found = "empty" if data is None else "no mapping"
        raise ParamsError(f"{shown}: {found}; expected sections {', '.join(model.model_fields)}.")
    try:
        # Through JSON, because pydantic's strict mode takes lists for tuples and text for paths only there.
        return model.model_validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as error:
        # A list that lacks its faulty entries is not "too short" on top of that.
        items = [dict(item) for item in error.errors(include_url=False)]
        items = [item for item in items if item["type"] != "too_short" or item["input"] == []] or items
        raise ParamsError([describe_problem(item, shown, model) for item in items]) from error


def find_problems(path: str | Path) -> list[str]:
    """Everything that is wrong with the file, for the commands or for dvc.yaml, one line each; none if it is fine."""
    try:
        return pipeline_problems(load_params(path), path)
    except ParamsError as error:
        return error.problems


def missing_inputs(params: Params) -> list[str]:
    """The files and folders that the params name as inputs and that are not there, one line each.

    No problem of the file itself: those of the miniature are made by its own stages.
    """
    named: dict[str, Path | None] = {}
    for number, source in enumerate(params.base.sources):
        for key in ("annotations", "instances", "image_root"):
            named[f"base.sources[{number}].{key}"] = getattr(source, key)
    named |= {f"base.{key}": getattr(params.base, key) for key in ("annotation_root", "tokenizer", "policy")}
    named |= {
        f"evaluate.{key}": getattr(params.evaluate, key) for key in ("annotations", "instances", "image_root", "truth")
    }
    return [f"{key}: {path} is not there" for key, path in named.items() if path is not None and not path.exists()]


def limited(
    params: Params, *, records: int | None = None, steps: int | None = None, regions: int | None = None
) -> Params:
    """The params with smaller loops, for a quick look: records of every source, training steps, held-out regions.

    None leaves a number as it is; a limit never raises one.
    """
    sources = params.base.sources
    if records is not None:
        limits = [records if source.limit is None else min(records, source.limit) for source in sources]
        sources = tuple(
            source.model_copy(update={"limit": limit}) for source, limit in zip(sources, limits, strict=True)
        )
    num_steps, num_regions = params.train.num_steps, params.evaluate.num_regions
    return params.model_copy(
        update={
            "base": params.base.model_copy(update={"sources": sources}),
            "train": params.train.model_copy(update={"num_steps": min(steps or num_steps, num_steps)}),
            "evaluate": params.evaluate.model_copy(update={"num_regions": min(regions or num_regions, num_regions)}),
        }
    )
