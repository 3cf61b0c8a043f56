"""Boxes in text: `[x1, y1, x2, y2]` in thousandths of the image's sides, and back.

The unit is fixed and never guessed from an answer: fractions, percentages and values outside 0..1000 are flagged and
are no region. Only ASCII digits count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from cyclegrpo.regions.answers import answer_text, is_explicitly_empty
from cyclegrpo.regions.geometry import Box

_BRACKETS = re.compile(r"[\[(]([^\[\]()]*)[\])]")
_NUMBER = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)")
_SEPARATOR = re.compile(r"\s*,\s*|\s+")
_LIST_OF_NUMBERS = re.compile(r"[-+0-9.,\s]+")
_LARGEST = 1000.0


@dataclass(frozen=True)
class ParsedBoxes:
    """The boxes of an answer.

    Attributes:
        boxes: `x0, y0, x1, y1` in 0..1000 with x0 < x1 and y0 < y1; in the order of the text, duplicates kept.
        flags: kinds of fault, each once, in order of appearance: `malformed` (another count of numbers), `percent`,
            `fraction`, `out_of_range`, `swapped` (the corners were exchanged; the box counts), `zero_area`,
            `truncated`.
        explicit_empty: the answer says that there is no region (`null`, `none`, `No target.` or nothing).
    """

    boxes: list[Box] = field(default_factory=list)
    flags: tuple[str, ...] = ()
    explicit_empty: bool = False


def box_to_text(box_1000: Box) -> str:
    """A box as it stands in prompts and answers: whole thousandths, truncated as the public code does.

    Args:
        box_1000: `x0, y0, x1, y1` in 0..1000, x0 <= x1 and y0 <= y1.

    A side that truncation makes zero is widened by one, within 0..1000, so that the text names a box with an area.

    Raises:
        ValueError: the box is not in 0..1000 or its corners are exchanged.

    >>> box_to_text((156.25, 208.3, 217.2, 247.9)), box_to_text((1000, 5.2, 1000, 5.9))
    ('[156, 208, 217, 247]', '[999, 5, 1000, 6]')
    """
    x0, y0, x1, y1 = box_1000
    if not (0 <= x0 <= x1 <= _LARGEST and 0 <= y0 <= y1 <= _LARGEST):
        raise ValueError(f"a box is {tuple(box_1000)}; expected corners in order, in 0..1000.")
    left, right = _widened(int(x0), int(x1))
    top, bottom = _widened(int(y0), int(y1))
    return f"[{left}, {top}, {right}, {bottom}]"


def _widened(low: int, high: int) -> tuple[int, int]:
    if low < high:
        return low, high
    return (low, low + 1) if low < _LARGEST else (low - 1, low)


def parse_boxes(text: str | None) -> ParsedBoxes:
    """The boxes that an answer names. Never raises.

    A box is four numbers in brackets or parentheses, separated by commas and/or white space, or two such pairs side
    by side, `(x1,y1),(x2,y2)`. Exchanged corners are put in order. Only the text after `</think>` and inside
    `<answer>` counts, if there is such a part.

    >>> parse_boxes('[{"bbox_2d": [12, 30, 400, 500]}, {"bbox_2d": [5, 6')
    ParsedBoxes(boxes=[(12.0, 30.0, 400.0, 500.0)], flags=('truncated',), explicit_empty=False)
    >>> parse_boxes("[0.19, 0.14, 0.46, 0.43]")
    ParsedBoxes(boxes=[], flags=('fraction',), explicit_empty=False)
    """
    answer = answer_text(text)
    boxes: list[Box] = []
    flags: list[str] = []
    for numbers in number_groups(answer):
        box, flag = _read([part.rstrip("%") for part in numbers], any(part.endswith("%") for part in numbers))
        if box is not None:
            boxes.append(box)
        if flag is not None:
            flags.append(flag)
    if _is_cut_off(answer):
        flags.append("truncated")
    return ParsedBoxes(boxes, tuple(dict.fromkeys(flags)), is_explicitly_empty(answer))


def number_groups(text: str) -> Iterator[list[str]]:
    """Every group of two or more numbers in brackets or parentheses, as written; neighbouring pairs are joined.

    A number may end in a per cent sign.

    >>> list(number_groups("(12,30),(400,500) and [1 2 3], [7]"))
    [['12', '30', '400', '500'], ['1', '2', '3']]
    """
    waiting: list[str] = []
    waiting_end = 0
    for match in _BRACKETS.finditer(text):
        numbers = _SEPARATOR.split(match.group(1).strip())
        if not all(_NUMBER.fullmatch(part.removesuffix("%")) for part in numbers):
            continue
        if waiting and len(numbers) == 2 and text[waiting_end : match.start()].strip() in ("", ","):
            yield waiting + numbers
            waiting = []
            continue
        if waiting:
            yield waiting
        waiting = numbers if len(numbers) == 2 else []
        waiting_end = match.end()
        if len(numbers) > 2:
            yield numbers
    if waiting:
        yield waiting


def _is_cut_off(answer: str) -> bool:
    """Whether the answer ends within brackets that hold numbers."""
    tail = answer[max(answer.rfind("["), answer.rfind("(")) + 1 :]
    return tail != answer and _LIST_OF_NUMBERS.fullmatch(tail) is not None and any(map(str.isdecimal, tail))


def _read(numbers: list[str], has_percent: bool) -> tuple[Box | None, str | None]:
    """The box that numbers spell (None: no box) and what is wrong with it."""
    if len(numbers) != 4:
        return None, "malformed"
    if has_percent:
        return None, "percent"
    # float, not int: Python refuses to read integers of thousands of digits, and 5.0 is as good as 5.
    a, b, c, d = (float(number) for number in numbers)
    x0, x1 = sorted((a, c))
    y0, y1 = sorted((b, d))
    if not 0 <= x0 <= x1 <= _LARGEST or not 0 <= y0 <= y1 <= _LARGEST:
        return None, "out_of_range"
    if x0 == x1 or y0 == y1:
        return None, "zero_area"
    if max(x1, y1) <= 1:
        return None, "fraction"
    return (x0, y0, x1, y1), "swapped" if (x0, y0) != (a, b) else None
