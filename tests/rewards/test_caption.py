"""Caption scores: repetition, leaks of the place, and what is taken out before the locate prompt."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator
from typing import Any

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
        "a sign that says 24/7",
        "a 2019-2020 calendar",
        "12/30/2019 on a calendar",
        "phone number 555-1234",
        "bus 12 to 40",
        "3.5 to 4.5 metres",
        "a BMW X5, an X6 and an X7",
        "a relay of 4 x 100 m",
        "left: 2 dogs, right: 12 cats",
        "a top, 30 EUR",
        "on the left 2 men, on the right 3",
        "ticket 0010 of room 276",
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
        "object 0010 0276",
        "object 0010,0276",
        "object 0010-0276",
        "object 0010 and 0276",
        "object 00100276",
        "objects 0010 0276 0011 0277",
        "12,30 to 400,500",
        "12 30 to 400 500",
        "12-30-400-500",
        "12 - 30 - 400 - 500",
        "12/30/400/500",
        "12_30_400_500",
        "12x30x400x500",
        "12 \u2013 30 \u2013 400 \u2013 500",
        "No.12 30 400 500",
        "(12-30)",
        "(12 to 30)",
        "[12/30/400/500]",
        "x1 120 y1 30 x2 400 y2 500",
        "x120 y30 x400 y500",
        "x 120, y 30",
        "x120, y30",
        "x1 120 and x2 400",
        "x 120-400, y 30 to 500",
        "xmin 120 ymin 30 xmax 400 ymax 500",
        "left 120 top 30 right 400 bottom 500",
        "left=120 top=30",
        "left: 120, top: 30",
        "left: 120px top: 30px",
        "width = 40",
        '"x": 12, "y": 30',
        '"left": 12',
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


@pytest.fixture
def time_limit() -> Iterator[None]:
    """TimeoutError after ten seconds; `re` looks for signals while it matches."""

    def stop(number: int, frame: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 10)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    "piece",
    [
        "1 ", "1 -", "1 -1 , ", " -1", "1,", "1 , and ", "1-1-1 a ", "1 to ", "[1 -1", "(1 x 1 ", "((", "[ ", "1.1",
        "1", "0", "0010 ", "0010", "0010-0010a", "x1 1 ", "x 1 , x", "x1 1 y1 1 a ", "x1 1-1 ", "left: 1",
        "left 1 top 1 a", " ", "\n", "1%", "<", "<think>", "mt_", "x", "\u2013", "1 px ",
    ],
)  # fmt: skip
@pytest.mark.usefixtures("time_limit")
def test_a_long_caption_takes_no_exponential_time(piece: str) -> None:
    for head, tail in itertools.product(["", "1", "[1", "x1 1"], ["", "!", "a", "1 "]):
        clean(head + piece * 3_000 + tail)


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
