"""What is wrong with a params file, in words: one line per problem, with the nearest valid name for an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

from pydantic import BaseModel
from ruamel.yaml.error import MarkedYAMLError, YAMLError

if TYPE_CHECKING:
    from cyclegrpo.params import Params


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
    """
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
    expected = message.removeprefix("Input should be ").replace("greater than or equal to", ">=")
    expected = expected.replace("less than or equal to", "<=").replace("greater than", ">").replace("less than", "<")
    return f"{file}: {key} is {found}; expected {expected.removeprefix('expected ')}."


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


def ineffective_settings(params: Params) -> Iterator[str]:
    """One line for each setting that the chosen mode would silently ignore, or that cannot work in it."""
    train, base = params.train, params.base
    defaults = type(train)()
    if train.optimise == "captions" and train.grounding_weight != defaults.grounding_weight:
        yield "train.grounding_weight has no effect where train.optimise is captions; remove it, or set optimise: both"
    if train.optimise == "groundings" and train.caption_weight != defaults.caption_weight:
        yield "train.caption_weight has no effect where train.optimise is groundings; remove it, or set optimise: both"
    if train.locate_with == "reference" and train.optimise != "captions":
        yield (
            f"train.optimise is {train.optimise}, but train.locate_with: reference takes the groundings "
            "from the reference, so that they cannot train the policy; set optimise: captions"
        )
    if train.reward.overlap == "tokens" and train.reward.resolution != defaults.reward.resolution:
        yield "train.reward.resolution has no effect where train.reward.overlap is tokens; set overlap: iou"
    if train.reward.overlap == "tokens" and base.region_space != "mask":
        yield f"train.reward.overlap is tokens, which a {base.region_space} region does not have; set overlap: iou"
    if train.num_captions < 2 and train.optimise != "groundings":
        yield "train.num_captions is 1, and a group of one has no advantage; expected >= 2"
    if train.num_groundings < 2 and train.optimise != "captions":
        yield "train.num_groundings is 1, and a group of one has no advantage; expected >= 2, or optimise: captions"
    yield from _prompts_without_source(params)


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
