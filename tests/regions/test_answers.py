"""Which part of an answer counts, and when it says that there is nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyclegrpo.regions.answers import answer_text, is_explicitly_empty


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", "a"),
        (" a <|im_end|>\n", "a"),
        ("<think>\n\n</think>\n\na", "a"),
        ("thought</think>a", "a"),
        ("<think>x</think>y<think>z</think>a", "a"),
        ("a<think>never finished", "a"),
        ("<think>a", ""),
        ("<answer>a</answer> and more", "a"),
        ("b <answer>a", "a"),
        ("<answer>a</answer><answer>b</answer>", "a"),
        ("<think><answer>b</answer></think><answer> a </answer>", "a"),
        ("<answer></answer>", ""),
        (None, ""),
    ],
)
def test_answer_text(text: str | None, expected: str) -> None:
    assert answer_text(text) == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("null", True),
        (" Null. ", True),
        ("NONE", True),
        ("No target.", True),
        ("no target", True),
        ('"null"', True),
        ("```json\nnull\n```", True),
        ("", True),
        ("This is nullified", False),
        ("No target. It is a dog.", False),
        ("nothing", False),
        ("null" + " " * 100, False),
    ],
)
def test_is_explicitly_empty(answer: str, expected: bool) -> None:
    assert is_explicitly_empty(answer) is expected


@given(st.text())
def test_any_string_has_a_counted_part(text: str) -> None:
    assert is_explicitly_empty(answer_text(text)) in (True, False)
