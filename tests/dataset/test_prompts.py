"""Row texts: written by the region spaces, read back by the parsers; questions about expressions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyclegrpo.dataset.prompts import (
    QUESTIONS,
    ask_expression,
    parse_answer,
    parse_problem,
    parse_question,
    question_key,
    question_prompt,
)
from cyclegrpo.regions.spaces import BOX, MASK, RegionSpace
from cyclegrpo.regions.tokens import codes_to_token

TOKENS = st.tuples(st.integers(0, 255), st.integers(0, 255)).map(lambda codes: codes_to_token(*codes))
BOXES = st.tuples(*[st.integers(0, 400)] * 2, *[st.integers(401, 1000)] * 2).map(lambda box: BOX.format(box))


@given(regions=st.lists(st.tuples(TOKENS, st.none() | TOKENS), min_size=1, max_size=6))
def test_mask_rows_round_trip(regions: list[tuple[str, str | None]]) -> None:
    check_round_trip(MASK, regions)


@given(regions=st.lists(st.tuples(BOXES, st.none() | st.just("")), min_size=1, max_size=6))
def test_box_rows_round_trip(regions: list[tuple[str, str | None]]) -> None:
    check_round_trip(BOX, regions)


def check_round_trip(space: RegionSpace, regions: list[tuple[str, str | None]]) -> None:
    texts = tuple(text for text, _ in regions)
    problem = parse_problem(space.describe_row(texts, [crop for _, crop in regions]))
    assert problem is not None and (problem.space, problem.regions, problem.rest) == (space.name, texts, "")
    expected = [(text, crop or None) for text, crop in regions if crop is not None]
    assert [(zoom.region, zoom.crop) for zoom in problem.zooms] == expected
    assert parse_answer(space.answer(texts)) == texts


@pytest.mark.parametrize("text", ["", "<image>\nWhere is it?", "Describe t1.", "<image>\n" * 3])
def test_other_texts_are_no_captioning_prompts(text: str) -> None:
    assert parse_problem(text) is None


def test_what_the_grammar_does_not_know_is_the_rest() -> None:
    problem = parse_problem(MASK.describe_row(["t1"], [None]) + " And be quick.")
    assert problem is not None and problem.rest == " And be quick."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Where?", "<image>\nWhere?"),
        ("<image>\nWhere?", "<image>\nWhere?"),
        ("Where is it <image>?", "Where is it <image>?"),
        ("Where? A conversation between User and Assistant. Bla", "<image>\nWhere?"),
    ],
)
def test_questions_have_one_image_and_no_chat_instruction(text: str, expected: str) -> None:
    assert question_prompt(text) == expected


def test_every_question_occurs_and_follows_from_the_record() -> None:
    prompts = {ask_expression("zebra", f"refs/{number}") for number in range(200)}
    assert prompts == {question_prompt(question.replace("{description}", "zebra")) for question in QUESTIONS["mask"]}
    assert ask_expression("zebra", "refs/1") == ask_expression("zebra", "refs/1")


@given(expression=st.text(min_size=1), record=st.integers(0, 99), space=st.sampled_from(["mask", "box"]))
def test_a_question_gives_its_expression_back(expression: str, record: int, space: str) -> None:
    found = parse_question(ask_expression(expression, str(record), space=space))
    if "<image>" not in expression and " A conversation between" not in expression:
        assert found is not None and question_key(found) == question_key(expression)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<image>\nPlease segment a dog in this image? in this image.", "a dog in this image?"),
        ("Please segment a dog in this image.", "a dog"),
        ("<image>\nPlease segment a dog in this image", None),
        ("<image>\nWhere is it?", None),
        ("", None),
    ],
)
def test_questions_of_foreign_templates_give_none(text: str, expected: str | None) -> None:
    assert parse_question(text) == expected


@pytest.mark.parametrize("braces", ["{0}", "{description}", "a {dog}"])
def test_braces_in_an_expression_are_text(braces: str) -> None:
    assert braces in ask_expression(braces, "refs/0")
