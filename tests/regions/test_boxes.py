"""Boxes in real answers: the table of public bug reports."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyclegrpo.regions.boxes import box_to_text, parse_boxes
from cyclegrpo.regions.geometry import Box, box_image_to_1000
from cyclegrpo.regions.overlap import box_overlap

B = (12.0, 30.0, 400.0, 500.0)
OTHER = (5.0, 6.0, 70.0, 80.0)


@pytest.mark.parametrize(
    ("text", "boxes", "flags"),
    [
        ("[12, 30, 400, 500]", [B], ()),
        ("[ 12,30 , 400, 500 ]", [B], ()),
        ('```json\n[{"bbox_2d": [12,\n 30,\n 400,\n 500], "label": "cat"}]\n```', [B], ()),
        (
            '<think>maybe [1,1,2,2]</think><answer>{"bbox_2d": [12, 30, 400, 500]}</answer><|im_end|>',
            [B],
            (),
        ),
        ("(12,30),(400,500)", [B], ()),
        ("<|box_start|>(12,30),(400,500)<|box_end|>", [B], ()),
        ("(12, 30, 400, 500)", [B], ()),
        ("[12 30 400 500]", [B], ()),
        ("[12.0, 30.4, 400.6, 500]", [(12.0, 30.4, 400.6, 500.0)], ()),
        ("[[12, 30, 400, 500]]", [B], ()),
        ("It is 100% here: [12, 30, 400, 500]. 3 more?", [B], ()),
        ("[12,30,400,500] and [5,6,70,80]", [B, OTHER], ()),
        ("[12,30,400,500] [12,30,400,500]", [B, B], ()),
        ('[{"bbox_2d": [12, 30, 400, 500], "label": "cat"}, {"bbox_2d": [5, 6', [B], ("truncated",)),
        ("[12, 30, 400]", [], ("malformed",)),
        ("[12, 30, 400, 500, 7]", [], ("malformed",)),
        ("[12,, 30, 400, 500]", [], ()),
        ("(12,30) is where it begins, (400,500) where it ends", [], ("malformed",)),
        ("", [], ()),
        (None, [], ()),
        ("no box here (2)", [], ()),
        ('{"object_name":"a","bbox":[12,30,400,500]; "object_name":"b","bbox":[5,6,70,80]}', [B, OTHER], ()),
        ("[\uff11\uff12\uff0c\uff13\uff10\uff0c\uff14\uff10\uff10\uff0c\uff15\uff10\uff10]", [], ()),
        ("[0.19, 0.14, 0.46, 0.43]", [], ("fraction",)),
        ("[19%, 14%, 46%, 43%]", [], ("percent",)),
        ("[400, 500, 12, 30]", [B], ("swapped",)),
        ("[12, 500, 400, 30]", [B], ("swapped",)),
        ("[12, 30, 400, 5000]", [], ("out_of_range",)),
        ("[-5, 30, 400, 500]", [], ("out_of_range",)),
        ("[10, 10, 10, 50]", [], ("zero_area",)),
        ("[0, 0, 0, 0]", [], ("zero_area",)),
        ("[0, 0, 1000, 1000]", [(0.0, 0.0, 1000.0, 1000.0)], ()),
        ("<think>[12, 30, 400, 500]", [], ()),
    ],
)
def test_parse_boxes(text: str | None, boxes: list[Box], flags: tuple[str, ...]) -> None:
    parsed = parse_boxes(text)
    assert parsed.boxes == boxes
    assert parsed.flags == flags


@pytest.mark.parametrize("tail", ["", "]"])
def test_endless_digits_are_quick_and_no_box(tail: str) -> None:
    begin = time.perf_counter()
    parsed = parse_boxes("[0, 5, 533, " + "9" * 5000 + tail)
    assert time.perf_counter() - begin < 0.05
    assert parsed.boxes == [] and parsed.flags == (("out_of_range",) if tail else ("truncated",))


@pytest.mark.parametrize(("text", "expected"), [("null", True), ("`None`", True), ("", True), ("nothing", False)])
def test_an_explicit_empty_answer_is_told_apart(text: str, expected: bool) -> None:
    assert parse_boxes(text).explicit_empty is expected


@given(st.text() | st.text(alphabet="[]()0123456789.,-%+ \n\u0663", max_size=60))
def test_any_string_parses_to_boxes_in_range(text: str) -> None:
    for box in parse_boxes(text).boxes:
        x0, y0, x1, y1 = box
        assert 0 <= x0 < x1 <= 1000 and 0 <= y0 < y1 <= 1000
        assert 0 <= box_overlap([box], [B]) <= 1


@pytest.mark.parametrize(
    ("box", "expected"),
    [
        (box_image_to_1000((100, 100, 139, 119), height=480, width=640), "[156, 208, 217, 247]"),
        ((0, 0, 1000, 1000), "[0, 0, 1000, 1000]"),
        ((0, 0, 0.4, 0.4), "[0, 0, 1, 1]"),
        ((999.9, 1000, 1000, 1000), "[999, 999, 1000, 1000]"),
    ],
)
def test_box_to_text(box: Box, expected: str) -> None:
    assert box_to_text(box) == expected


@pytest.mark.parametrize("box", [(5, 5, 4, 9), (-1, 0, 5, 5), (0, 0, 5, 1001), (float("nan"), 0, 5, 5)])
def test_a_box_outside_the_frame_has_no_text(box: Box) -> None:
    with pytest.raises(ValueError, match=r"in 0\.\.1000"):
        box_to_text(box)


@given(st.tuples(*[st.integers(0, 1000)] * 4).filter(lambda b: b[0] < b[2] and b[1] < b[3] and max(b) > 1))
def test_box_to_text_to_box(box: Box) -> None:
    assert parse_boxes(box_to_text(box)).boxes == [box]
