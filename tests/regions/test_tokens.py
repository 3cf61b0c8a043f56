"""Mask tokens: the table of public bug reports, strict and repaired, and the round trip."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyclegrpo.regions.tokens import (
    all_token_strings,
    codes_to_token,
    codes_to_tokens,
    parse_tokens,
)

S, E = "<|mt_start|>", "<|mt_end|>"
GOOD = "<|mt_start|><|mt_0012|><|mt_0268|><|mt_end|>"
pairs = st.tuples(st.integers(0, 255), st.integers(0, 255))


def group(*numbers: int | str) -> str:
    return S + "".join(f"<|mt_{n:04d}|>" if isinstance(n, int) else f"<|mt_{n}|>" for n in numbers) + E


@pytest.mark.parametrize(
    ("text", "strict", "repaired", "flags"),
    [
        (GOOD, [(12, 12)], [(12, 12)], ()),
        (f"Here: {GOOD}, see?<|im_end|>", [(12, 12)], [(12, 12)], ()),
        (f'```json\n[{{"mask_2d": "{GOOD}"}}]\n```', [(12, 12)], [(12, 12)], ()),
        (GOOD[: -len(E)], [], [(12, 12)], ("no_end",)),
        (group(12), [], [(12, None)], ("too_few",)),
        (S + "<|mt_0012|>", [], [(12, None)], ("no_end", "too_few")),
        (group(12, 268, 300), [], [(12, 12)], ("too_many",)),
        (group(12, 13), [], [(12, None)], ("second_code_out_of_range",)),
        (group(300, 268), [], [], ("first_code_out_of_range",)),
        (group(12, 9999), [], [(12, None)], ("second_code_out_of_range",)),
        (group(268, 12), [], [], ("first_code_out_of_range", "second_code_out_of_range")),
        (group(12, 13, 268), [], [(12, None)], ("too_many", "second_code_out_of_range")),
        (group(12) + " and " + group(40, 300, 301), [], [(12, None), (40, 44)], ("too_few", "too_many")),
        (group("12", "268"), [], [], ("not_a_token",)),
        (group(12, "00268"), [], [(12, None)], ("not_a_token",)),
        (GOOD + group(255, 511), [(12, 12), (255, 255)], [(12, 12), (255, 255)], ()),
        (GOOD + GOOD, [(12, 12), (12, 12)], [(12, 12), (12, 12)], ()),
        (GOOD + group(13), [(12, 12)], [(12, 12), (13, None)], ("too_few",)),
        (f"<think>{GOOD}</think><answer>null</answer>", [], [], ()),
        (f"{S} <|mt_0012|>\n<|mt_0268|> {E}", [], [(12, 12)], ("spaced",)),
        (f"{S}<|mt_0012|> or <|mt_0268|>{E}", [], [(12, None)], ("no_end", "too_few", "no_start")),
        (S + GOOD, [(12, 12)], [(12, 12)], ("no_end", "too_few")),
        ("<|mt_0012|><|mt_0268|>", [], [], ("no_start",)),
        ("<|mt_0012|><|mt_0268|><|mt_end|>", [], [], ("no_start",)),
        (S + E, [], [], ("too_few",)),
        (group("\u0660\u0660\u0661\u0662", 268), [], [], None),
        ("No target.", [], [], ()),
        ("a plain sentence", [], [], ()),
        ("", [], [], ()),
        (None, [], [], ()),
    ],
)
def test_parse_tokens(
    text: str | None,
    strict: list[tuple[int, int]],
    repaired: list[tuple[int, int | None]],
    flags: tuple[str, ...] | None,
) -> None:
    parsed = parse_tokens(text)
    assert parsed.codes == strict
    assert parsed.tokens == codes_to_tokens(strict)
    assert parse_tokens(text, repair=True).codes == repaired
    assert parse_tokens(text, repair=True).flags == parsed.flags
    if flags is not None:
        assert set(parsed.flags) == set(flags) and len(parsed.flags) == len(flags)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("null", True), ("No target.", True), ("None", True), ("", True), (None, True), ("no idea", False), (GOOD, False)],
)
def test_an_explicit_empty_answer_is_told_apart(text: str | None, expected: bool) -> None:
    assert parse_tokens(text).explicit_empty is expected


def test_a_vocabulary_holds_start_end_and_the_codes_in_order() -> None:
    tokens = all_token_strings()
    assert tokens[:3] == ["<|mt_start|>", "<|mt_end|>", "<|mt_0000|>"]
    assert len(tokens) == len(set(tokens)) == 514 and tokens[-1] == "<|mt_0511|>"
    assert all_token_strings(4, 2)[2:] == [f"<|mt_{n:04d}|>" for n in range(8)]


def test_a_smaller_codebook_moves_the_second_code() -> None:
    assert codes_to_token(3, 2, codebook_size=4) == "<|mt_start|><|mt_0003|><|mt_0006|><|mt_end|>"
    assert parse_tokens(group(3, 6), codebook_size=4).codes == [(3, 2)]
    assert parse_tokens(group(4, 6), codebook_size=4).codes == []


@pytest.mark.parametrize("codes", [(-1, 0), (256, 0), (0, -1), (0, 256)])
def test_codes_outside_the_codebook_are_refused(codes: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="expected 0 to 255"):
        codes_to_token(*codes)


@given(st.lists(pairs, max_size=5), st.text(alphabet="ab <,.", max_size=5))
def test_codes_to_text_to_codes(codes: list[tuple[int, int]], between: str) -> None:
    text = between.join(["", *codes_to_tokens(codes), ""])
    parsed = parse_tokens(text)
    assert parsed.codes == codes and parsed.flags == ()


pieces = st.sampled_from(
    [
        S,
        E,
        GOOD,
        "<|mt_0012|>",
        "<|mt_0300|>",
        "<|mt_9999|>",
        "<|mt_",
        "<think>",
        "</think>",
        "<answer>",
        "</answer>",
        " ",
        "x",
        "<|im_end|>",
        "|>",
    ]
)


@given(st.text() | st.lists(pieces).map("".join), st.booleans())
def test_any_string_parses_to_codes_in_range(text: str, repair: bool) -> None:
    parsed = parse_tokens(text, repair=repair)
    for code0, code1 in parsed.codes:
        assert 0 <= code0 < 256
        assert (code1 is None and repair) or (code1 is not None and 0 <= code1 < 256)
    assert not (parsed.codes and parsed.explicit_empty)
