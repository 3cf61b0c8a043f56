"""Grounding scores: repetition, format, and answers to expressions that match nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyclegrpo.regions.spaces import BOX, MASK
from cyclegrpo.rewards.grounding import format_score, grounding_reward, no_repeat_regions, no_target_reward

GOOD = "<|mt_start|><|mt_0012|><|mt_0268|><|mt_end|>"
OTHER = "<|mt_start|><|mt_0012|><|mt_0269|><|mt_end|>"
BROKEN = "<|mt_start|><|mt_0012|><|mt_end|>"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("", 1.0),
        (GOOD * 3, 1.0),
        (GOOD * 4, 0.0),
        ((GOOD + OTHER) * 3, 1.0),
        (f"{GOOD}, then {GOOD} and {GOOD} or {GOOD}", 0.0),
        (BROKEN * 4, 0.0),
        ("[1, 2, 3, 4] [1,2,3,4] [1 2 3 4] (1, 2, 3, 4)", 0.0),
        ("[1, 2, 3, 4] [1, 2, 3, 4] [1, 2, 3, 4] [1, 2, 3, 5]", 1.0),
    ],
)
def test_no_repeat_regions(answer: str, expected: float) -> None:
    assert no_repeat_regions(answer) == expected


@pytest.mark.parametrize(
    ("answer", "mask", "box"),
    [(GOOD, 1.0, 0.0), (BROKEN, 0.0, 0.0), ("[1, 2, 3, 4]", 0.0, 1.0), ("[1, 2, 3]", 0.0, 0.0), ("null", 0.0, 0.0)],
)
def test_format_score(answer: str, mask: float, box: float) -> None:
    assert format_score(MASK.parse(answer).regions) == mask
    assert format_score(BOX.parse(answer).regions) == box


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [((0.5, 0.8, 1.0, 1.0), 6.0), ((0.5, 0.8, 0.0, 1.0), 5.0), ((0.0, 1.0, 1.0, 1.0), 2.0), ((1.0, 1.0), 10.0)],
)
def test_grounding_reward(arguments: tuple[float, ...], expected: float) -> None:
    assert grounding_reward(*arguments) == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("No target.", 1.0),
        ("<answer>No target.</answer><|im_end|>", 1.0),
        ("There is none: No target.", 1.0),
        ("null", 0.2),
        ("", 0.2),
        ("no target", 0.2),
        ("There is nothing.", 0.2),
        ("<think>No target.</think>maybe", 0.2),
        (GOOD, 0.0),
        (f"No target. {GOOD}", 0.0),
        (f"This is nullified {GOOD}", 0.0),
        ("No target. <|mt_0012|>", 0.0),
        ("No target. <|mt_", 0.0),
        ("No target. [1, 2, 3, 4]", 0.0),
        ("(1,2),(3,4)", 0.0),
    ],
)
def test_no_target_reward(answer: str, expected: float) -> None:
    assert no_target_reward(answer) == expected
    assert no_target_reward(answer, 1.0) == expected + 1.0


@given(st.text() | st.lists(st.sampled_from([GOOD, "<|mt_", "[1,2,3,4]", "(1,2)", "No target.", " "])).map("".join))
def test_any_answer_is_scored(answer: str) -> None:
    assert no_repeat_regions(answer) in (0.0, 1.0)
    assert no_target_reward(answer) in (0.0, 0.2, 1.0)
