"""The grounding's side of the reward: is the region found, well spelled, and not just listed again and again?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from cyclegrpo.regions.answers import NO_TARGET, answer_text
from cyclegrpo.regions.boxes import number_groups
from cyclegrpo.regions.tokens import END_TOKEN, START_TOKEN, TOKEN_TRACE

_MOST_REPEATS = 3
_GROUP = re.compile(rf"{re.escape(START_TOKEN)}[^ ]{{0,200}}?{re.escape(END_TOKEN)}")


def no_repeat_regions(answer: str) -> float:
    """1.0, or 0.0 if one and the same region (a token group, or four numbers in brackets) occurs more than three times.

    Counted as written, so that malformed groups are not a way round it.

    >>> group = "<|mt_start|><|mt_0012|><|mt_0268|><|mt_end|>"
    >>> no_repeat_regions(group * 3), no_repeat_regions(group * 4), no_repeat_regions("[1,2,3,4] " * 4)
    (1.0, 0.0, 0.0)
    """
    regions = Counter(_GROUP.findall(answer))
    regions.update(",".join(numbers) for numbers in number_groups(answer) if len(numbers) == 4)
    return float(max(regions.values(), default=0) <= _MOST_REPEATS)


def format_score(regions: Sequence[Any]) -> float:
    """1.0 if the answer holds at least one well-formed region, else 0.0.

    Args:
        regions: what the region space's own parser found, so that format and overlap never disagree.

    >>> format_score([(12, 12)]), format_score([])
    (1.0, 0.0)
    """
    return float(len(regions) > 0)


def grounding_reward(cycle_score: float, overlap: float, no_repeat: float = 0.0, format: float = 0.0) -> float:
    """`10 r s + no_repeat + format`, in [0, 12]: a lucky hit from a vague caption counts little.

    Args:
        cycle_score: r, the mean overlap of all groundings of the same caption, in [0, 1].
        overlap: s, of this grounding with the target, in [0, 1].
        no_repeat: of `no_repeat_regions`; left out, the term is off.
        format: of `format_score`; left out, the term is off.

    >>> grounding_reward(0.5, 0.8, 1.0, 1.0), grounding_reward(0.5, 0.8)
    (6.0, 4.0)
    """
    return 10 * (cycle_score * overlap) + no_repeat + format


def refuses(answer: str) -> bool:
    """Whether an answer names no region, neither whole nor broken, neither as mask tokens nor as a box.

    The one meaning of a refusal, in the training curve and in evaluation: right where nothing fits an expression, wrong
    where something does. Only the part of the answer that counts is read (`answer_text`).

    >>> refuses("null"), refuses("I see no dog"), refuses("No target. <|mt_0012|>"), refuses("[1, 2, 3, 4]")
    (True, True, False, False)
    """
    counted = answer_text(answer)
    has_box = any(len(numbers) == 4 for numbers in number_groups(counted))
    return not has_box and TOKEN_TRACE.search(counted) is None


def no_target_reward(answer: str, no_repeat: float = 0.0) -> float:
    """The score of an answer to an expression that matches nothing, in [0, 2].

    1.0 if it says `No target.` and names no region; 0.2 if it only names none; 0.0 if it names one, whole or broken,
    as mask tokens or as a box; plus `no_repeat`. (The public code looks for boxes only, so there a wrong mask still
    earns 0.2.)

    Args:
        answer: the model's output; only the part that counts is read (`answer_text`).
        no_repeat: of `no_repeat_regions`; left out, the term is off.

    >>> no_target_reward("<answer>No target.</answer>", 1.0), no_target_reward("null"), no_target_reward("<|mt_0012|>")
    (2.0, 0.2, 0.0)
    """
    if not refuses(answer):
        return no_repeat
    return (1.0 if NO_TARGET in answer_text(answer) else 0.2) + no_repeat
