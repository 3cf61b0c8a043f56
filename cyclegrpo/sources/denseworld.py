"""DenseWorld mask-generation JSON: a list of {image, conversations}, with the regions as mask tokens in the answer.

{"image": "V3Det/images/n07745046/21_371.jpg",
 "conversations": [{"from": "human", "value": "<image>\\n..."},
                   {"from": "gpt", "value": "... <|mt_start|><|mt_0010|><|mt_0276|><|mt_end|> ..."}]}
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cyclegrpo.sources.json_list import iter_json_list
from cyclegrpo.sources.records import Record, Region, Skip
from cyclegrpo.sources.values import is_text, shown

JSON_FENCE = re.compile(r"```json\s*(.*?)```", re.DOTALL)
_GROUP = r"<\|mt_start\|>(?:<\|mt_[0-9]+\|>)*<\|mt_end\|>"
ANY_GROUP = re.compile(rf"{_GROUP}|(?:(?!{_GROUP})<\|mt_(?:start|end|[0-9]+)\|>)+")
"""A group with any number of codes, or what is left of a torn one: the `regions` stage counts those that are no region,
so they must not vanish here."""


def read_denseworld(annotations: Path, *, name: str) -> Iterator[Record | Skip]:
    """Yield one `describe` record, or one Skip, for every entry of a DenseWorld file.

    `image` may be a list: its first entry counts. Regions come from the second turn (`find_regions`), duplicates and
    all. Skips: `malformed_record` (no image, no second turn), `no_regions`.
    """
    for index, entry in enumerate(iter_json_list(annotations)):
        record_id = f"{name}/{index}"
        try:
            image, answer = _image_and_answer(entry)
        except ValueError as error:
            yield Skip(record_id, "malformed_record", str(error))
            continue
        regions = find_regions(answer)
        if regions:
            yield Record(record_id, image, regions, None, "describe")
        else:
            yield Skip(record_id, "no_regions", "the answer holds no region tokens")


def find_regions(answer: str) -> tuple[Region, ...]:
    """The regions of an answer in their order, as the source spells them.

    (a) a ```json fence with a list of objects that all have a `mask_2d` string; (b) else, and where (a) breaks in any
    item, every token group of the text, torn ones too. Groups are not checked here, neither for their form nor
    against a codebook.

    >>> t = "<|mt_start|><|mt_0010|><|mt_0276|><|mt_end|>"
    >>> [r.label for r in find_regions('```json\\n[{"mask_2d": "' + t + '", "label": "dog"}]\\n```')]
    ['dog']
    >>> len(find_regions(f"a dog {t} and a dog {t}"))
    2
    >>> find_regions("no masks in this answer")
    ()
    """
    fenced = _fenced_regions(answer)
    if fenced is not None:
        return fenced
    return tuple(Region(tokens=match.group()) for match in ANY_GROUP.finditer(answer))


def _fenced_regions(answer: str) -> tuple[Region, ...] | None:
    """The regions of the json fence; None where there is none or an item lacks `mask_2d`."""
    fence = JSON_FENCE.search(answer)
    if fence is None:
        return None
    try:
        items = json.loads(fence.group(1))
    except (ValueError, RecursionError):  # not JSON, a number of thousands of digits, or lists in lists without end
        return None
    if not isinstance(items, list):
        return None
    regions = []
    for item in items:
        if not isinstance(item, dict) or not isinstance(item.get("mask_2d"), str):
            return None
        label = item.get("label")
        regions.append(Region(tokens=item["mask_2d"], label=label if is_text(label) else None))
    return tuple(regions)


def _image_and_answer(entry: Any) -> tuple[str, str]:
    """The image path and the text of the second turn. ValueError where the entry has another shape."""
    if not isinstance(entry, dict):
        raise ValueError(f"expected an object, found {type(entry).__name__}")
    image = entry.get("image")
    if isinstance(image, list) and image:
        image = image[0]
    if not is_text(image) or not image:
        raise ValueError(f"`image` is {shown(image)}; expected a path or a list that starts with one")
    turns = entry.get("conversations")
    if not isinstance(turns, list) or len(turns) < 2:
        raise ValueError("`conversations` has no second turn, which holds the regions")
    answer = turns[1].get("value") if isinstance(turns[1], dict) else None
    if not isinstance(answer, str):
        raise ValueError("the second turn of `conversations` has no text in `value`")
    return image, answer
