"""Caption scores: repetition, leaks of the place, and what is taken out before the locate prompt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyclegrpo.rewards.caption import caption_reward, clean, no_repeat_words, strip_markers


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("", 1.0),
        ("red red", 1.0),
        ("a b c", 1.0),
        ("a b c a b c", 1.0),
        ("a b c a b c a b c", 0.0),
        ("A b, c! a B c; a b c.", 0.0),
        ("a_b_c a b c a-b-c", 0.0),
        ("a b c d a b c e a b c f", 0.0),
        ("go go go go", 1.0),  # the same phrase twice
        ("go go go go go", 0.0),
    ],
)
def test_no_repeat_words(caption: str, expected: float) -> None:
    assert no_repeat_words(caption) == expected


@pytest.mark.parametrize(
    "caption",
    [
        "the small red circle at the top left",
        "two dogs, one (the larger) asleep",
        "a bus with number 12 and a sign that reads 1984",
        "a mug, 50% full",
        "a clock that shows 10:10",
        "a box of 4x4 tiles, 3 rows, 2 columns",
        "an item [partly hidden] behind a {blue} mug",
        "costs $5, $6 and $7",
        "empty ().",
        "",
    ],
)
def test_clean_captions(caption: str) -> None:
    assert clean(caption) == 1.0


@pytest.mark.parametrize(
    "caption",
    [
        "the cat at [12, 30, 400, 500]",
        "the cat at [12.5,30.0 400 500]",
        "the cat at (12,30),(400,500)",
        "the cat at {12; 30}",
        "the cat at <12 30>",
        "the cat [7] [9]",
        "between 12, 30, 400 and 500",
        "12 30 400 500",
        "x1=12, y1=30",
        "x: 12",
        "30% from the left",
        "at 30%, 40%",
        "occupies 20 percent of the image",
        "<|mt_start|><|mt_0012|><|mt_0268|><|mt_end|>",
        "a <|mt_0012|> dog",
        "a <|mt_",
        "a mt_0012 dog",
        "a MT_START dog",
        "<mt_0012>",
        "a <|box_start|> dog",
        "\u4e00\u53ea\u732b",
        "a \u30cd\u30b3",
        "a \uace0\uc591\uc774",
        "\uff3b\uff11\uff12\uff3d",
    ],
)
def test_captions_that_leak_a_place_or_change_the_script(caption: str) -> None:
    assert clean(caption) == 0.0


def test_cjk_is_a_fault_only_where_the_prompt_has_none() -> None:
    assert clean("\u4e00\u53ea\u732b", prompt="\u63cf\u8ff0") == 1.0
    assert clean("\u4e00\u53ea\u732b [1, 2, 3, 4]", prompt="\u63cf\u8ff0") == 0.0
    assert clean("\u4e00\u53ea\u732b", prompt="Describe it.") == 0.0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((0.5, 1.0, 1.0), 7.0),
        ((1.0, 1.0, 1.0), 12.0),
        ((0.0, 0.0, 1.0), 1.0),
        ((1.0, 1.0, 0.0), 0.0),
        ((0.5,), 6.0),
    ],
)
def test_caption_reward(arguments: tuple[float, ...], expected: float) -> None:
    assert caption_reward(*arguments) == expected


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("a dog", "a dog"),
        ("<think>it is\na dog</think>a cat", "a cat"),
        ("it is a dog</think>a cat", "a cat"),
        ("a cat<think>or a dog", "a cat"),
        ("<image>a <video>cat<|image_pad|><|video_pad|><|vision_start|><|vision_end|>", "a cat"),
        ("a cat<|im_end|>\n<|endoftext|>", "a cat"),
        ("a <im<im<image>age>age>cat", "a cat"),
        ("<|im_st<image>art|>cat", "cat"),
        ("<im<think></think>age>cat", "cat"),
    ],
)
def test_strip_markers(caption: str, expected: str) -> None:
    assert strip_markers(caption) == expected


pieces = st.sampled_from(
    ["<image>", "<im", "age>", "<think>", "</think>", "<|im_end|>", "<|", "|>", "a ", "[1, 2]", "5%"]
)


@given(st.text() | st.lists(pieces).map("".join))
def test_any_caption_is_scored_and_stripped_for_good(caption: str) -> None:
    assert no_repeat_words(caption) in (0.0, 1.0)
    assert clean(caption) in (0.0, 1.0)
    stripped = strip_markers(caption)
    assert strip_markers(stripped) == stripped
    assert "<image>" not in stripped and "<think>" not in stripped and "<|im_end|>" not in stripped
