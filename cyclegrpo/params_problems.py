"""What is wrong with a params file, in words: one line per problem, with the nearest valid name for an unknown one."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

from pydantic import BaseModel
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from cyclegrpo.errors import printable_path

if TYPE_CHECKING:
    from cyclegrpo.params import Params, Train

_PLAIN_WORDS = {
    "greater than or equal to": ">=",
    "less than or equal to": "<=",
    "greater than": ">",
    "less than": "<",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid boolean": "true or false",
    "a valid string": "text",
    "a valid array": "a list",
    "an object": "a mapping",
}
"""pydantic's words -> the user's, longer ones first."""


def iterate_keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """The dotted names of all keys of a section, in order; `sources[].name` stands for that of each entry of a list."""
    for name, field in model.model_fields.items():
        key = prefix + name
        nested = _nested_model(field.annotation)
        if nested is None:
            yield key
        else:
            yield from iterate_keys(nested, key + ("[]." if get_origin(field.annotation) is tuple else "."))


def _nested_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (tuple, Union, UnionType):
        return next((model for model in map(_nested_model, get_args(annotation)) if model is not None), None)
    return None


def describe_yaml_problem(error: YAMLError) -> str:
    """What is wrong with the YAML text, in one line with its line number."""
    if not isinstance(error, MarkedYAMLError):
        return " ".join(str(error).split())
    mark = error.problem_mark or error.context_mark
    problem = " ".join(str(error.problem or error.context).split())
    return problem if mark is None else f"line {mark.line + 1}: {problem}"


def _dotted(location: tuple[int | str, ...]) -> str:
    """A place in the file as the user would write it.

    >>> _dotted(("base", "sources", 0, "format"))
    'base.sources[0].format'
    """
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def describe_problem(item: Mapping[str, Any], file: str, root: type[BaseModel]) -> str:
    """One of pydantic's errors as a line: what was found, what was expected, what to do."""
    key, kind, found = _dotted(item["loc"]), item["type"], _short(item.get("input"))
    if kind == "extra_forbidden":
        nearest = _nearest(item["loc"], root)
        return f"{file}: {key} is unknown; " + (f"did you mean {nearest}?" if nearest else "remove it.")
    if kind == "missing":
        return f"{file}: {key} is missing; add it."
    message = str(item["msg"]).removeprefix("Value error, ")
    if kind == "value_error" and isinstance(item.get("input"), dict):
        return f"{file}: {message}."
    if kind == "too_short":
        return f"{file}: {key} is {found}; expected at least {item['ctx']['min_length']} entry."
    expected = message.removeprefix("Input should be ").removeprefix("expected ")
    for theirs, ours in _PLAIN_WORDS.items():
        expected = expected.replace(theirs, ours)
    close = difflib.get_close_matches(str(item.get("input")), _choices(item), n=1, cutoff=0.7)
    return f"{file}: {key} is {found}; expected {expected}" + (f". Did you mean {close[0]}?" if close else ".")


def _choices(item: Mapping[str, Any]) -> list[str]:
    """The words that would have been right, where there are only some.

    >>> _choices({"type": "literal_error", "ctx": {"expected": "'mask' or 'box'"}})
    ['mask', 'box']
    """
    return re.findall(r"'([^']*)'", item["ctx"]["expected"]) if item["type"] == "literal_error" else []


def _short(value: Any) -> str:
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else " ".join(str(value).split())
    if isinstance(value, str):
        text = f'the text "{text}"'
    return text if len(text) <= 60 else text[:57] + "..."


def _nearest(location: tuple[int | str, ...], root: type[BaseModel]) -> str | None:
    """The known key that an unknown one most likely means: one of its neighbours, else one of that name elsewhere."""
    parent, name = _dotted(location[:-1]), str(location[-1])
    known = list(iterate_keys(root))
    pattern = "".join("[]" if isinstance(part, int) else f".{part}" for part in location[:-1]).lstrip(".")
    prefix = f"{pattern}." if pattern else ""
    neighbours = {key.removeprefix(prefix).split(".")[0].split("[")[0] for key in known if key.startswith(prefix)}
    close = difflib.get_close_matches(name, sorted(neighbours), n=1)
    if close:
        return f"{parent}.{close[0]}" if parent else close[0]
    leaves = {key.rsplit(".", 1)[-1]: key for key in reversed(known)}
    close = difflib.get_close_matches(name, sorted(leaves), n=1, cutoff=0.8)
    return leaves[close[0]] if close else None


_IGNORED = {
    "captions": ("grounding_weight", "scale_groundings"),
    "groundings": ("caption_weight", "reward.shuffle", "reward.clean"),
}
"""`train.optimise` -> the keys of `train` that only the other half of the cycle reads.

`min_cycle_score` is none of them: the shipped file sets it, and a change of `optimise` alone must remain possible."""


def ineffective_settings(params: Params) -> Iterator[str]:
    """One line for each setting that the chosen mode would silently ignore, or that cannot work in it."""
    train, base = params.train, params.base
    if train.locate_with == "reference" and train.optimise != "captions":
        yield (
            f"train.optimise is {train.optimise}, but train.locate_with: reference takes the groundings "
            "from the reference, so that they cannot train the policy; set optimise: captions"
        )
    if train.reward.overlap == "tokens" and base.region_space != "mask":
        yield f"train.reward.overlap is tokens, which a {base.region_space} region does not have; set overlap: iou"
    if train.locate_with == "reference" and train.beta == 0:
        yield (
            "train.beta is 0, so that no reference is loaded, but train.locate_with is reference; "
            "set beta above 0, or locate_with: policy"
        )
    if train.num_captions < 2:
        reason = "TRL takes no group of one" if train.optimise == "groundings" else "a group of one has no advantage"
        yield f"train.num_captions is 1, and {reason}; expected >= 2"
    if train.num_groundings < 2 and train.optimise != "captions":
        yield "train.num_groundings is 1, and a group of one has no advantage; expected >= 2, or optimise: captions"
    if train.prompts.caption == 0 and train.optimise != "captions":
        yield "train.prompts.caption is 0, so that there are no groundings to optimise; set optimise: captions"
    if params.check.deep:
        yield "check.deep is true, but there is no deep check yet; set it to false"
    yield from _prompts_without_source(params)
    yield from _settings_of_the_other_half(train)
    yield from _trained_on_what_is_evaluated(params)


def _settings_of_the_other_half(train: Train) -> Iterator[str]:
    """Settings that only the half of the cycle reads which `train.optimise` leaves out."""
    half, defaults = train.optimise, type(train)()
    for key in _IGNORED.get(half, ()):
        value_of = attrgetter(key)
        if value_of(train) != value_of(defaults):
            yield f"train.{key} has no effect where train.optimise is {half}; remove it, or set optimise: both"
    for name, number in train.prompts:
        if half == "groundings" and name != "caption" and number:
            yield (
                f"train.prompts.{name} is {number}, but train.optimise is groundings, and such questions are learned "
                "with the captions; set it to 0, or optimise: both"
            )


def _trained_on_what_is_evaluated(params: Params) -> Iterator[str]:
    evaluate = params.evaluate
    for number, source in enumerate(params.base.sources):
        same_file = os.path.normpath(source.annotations) == os.path.normpath(evaluate.annotations)
        if same_file and source.split == evaluate.split:
            yield (
                f"evaluate.split is {evaluate.split} of {evaluate.annotations}, which base.sources[{number}] trains "
                "on; set another split for one of them"
            )


def _prompts_without_source(params: Params) -> Iterator[str]:
    prompts = params.train.prompts
    given = {kind for source in params.base.sources for kind in source.kinds}
    for number, name, kind in (
        (prompts.caption, "caption", "describe"),
        (prompts.no_target, "no_target", "no_target"),
        (prompts.expression, "expression", "expression"),
    ):
        if number and kind not in given:
            yield f"train.prompts.{name} is {number}, but no source has the kind {kind}; set it to 0"
    if prompts.caption + prompts.no_target + prompts.expression == 0:
        yield "train.prompts are all 0; expected at least one prompt per step"


DVC_KEYS = (("check", "max_pixels"), ("train", "zoom"))
"""What dvc.yaml names besides whole sections and the keys of `base`."""


def pipeline_problems(params: Params, path: str | Path) -> list[str]:
    """What keeps dvc.yaml from working with these params, one line each; a command outside DVC does not mind.

    DVC looks for the keys that dvc.yaml names only after a stage has run, so a missing one is found here. It sees
    changes of annotation files only below `base.annotation_root`, and does not look into linked folders.
    """
    shown, base = printable_path(path), params.base
    missing = [f"base.{key}" for key in type(base).model_fields if key not in base.model_fields_set]
    missing += [section for section in type(params).model_fields if section not in params.model_fields_set]
    missing += [f"{section}.{key}" for section, key in DVC_KEYS if key not in getattr(params, section).model_fields_set]
    problems = [f"{shown}: {key} is missing, and dvc.yaml depends on it; add it." for key in missing]
    return problems + [f"{shown}: {problem}." for problem in _unwatched_annotations(params)]


def _unwatched_annotations(params: Params) -> Iterator[str]:
    root, evaluate = params.base.annotation_root, params.evaluate
    files = {
        f"base.sources[{number}].{key}": getattr(source, key)
        for number, source in enumerate(params.base.sources)
        for key in ("annotations", "instances")
    }
    files |= {f"evaluate.{key}": getattr(evaluate, key) for key in ("annotations", "instances", "truth")}
    for key, file in ((key, file) for key, file in files.items() if file is not None):
        if not file.is_relative_to(root):
            yield f"{key} is {file}; expected a file below base.annotation_root ({root}). Move or link it there"
        else:
            folders = (root / part for part in file.relative_to(root).parents if part.parts)
            linked = next((folder for folder in folders if folder.is_symlink()), None)
            if linked is not None:
                yield f"{key} is {file}, but DVC does not look into {linked}, a linked folder. Link the file alone"
