"""The caption's side of the reward: does it lead back to its region, in words and without giving the place away?

The public code's `clean` knows integer boxes and CJK characters only. Region tokens are refused here too, whole or in
part, and so are other spellings that the grounder could copy: a policy that may write them learns to, and describes
nothing.
"""

from __future__ import annotations

import re
from collections import Counter

from cyclegrpo.regions.answers import CHAT_MARKERS

_PUNCTUATION = re.compile(r"[^\w\s]|_")
_MOST_REPEATS = 2

# What stands in a repetition without bound is matched in one way only, or a long list of numbers would take
# exponential time. Between four numbers a minus may be a sign or a separator: eight ways, no more.
_NUMBER = r"[-+]?[0-9]+(?:\.[0-9]+)?(?:\s*(?:%|px|pixels?))?"
_RANGE = rf"{_NUMBER}(?:\s*(?:[-\u2013\u2014]|to)\s*{_NUMBER})?"
_BETWEEN = r"(?:\s*(?:[,;:/|~_x\u2013\u2014-]|\.\s|and|to|by)\s*(?:(?:and|to)\s+)?|\s+)"
_SUFFIX = r"(?:[0-9]|_?(?:min|max))?"
_SIDE = r"(?:left|right|top|bottom|width|height)"
_NEXT = r"(?:\s*[,;/]\s*(?:and\s+)?|\s+(?:and|to|by)\s+)"


def _two_coordinates(first: str, space: str, second: str) -> str:
    """A pattern: two coordinates with a separator; `first` and `second` are the letters of the axes."""
    return rf"\b{first}{_SUFFIX}{space}{_RANGE}{_NEXT}{second}{_SUFFIX}{space}{_RANGE}"


_LEAKS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # Region tokens of the mask space, and the markers around the box tokens of other models, whole or broken.
        r"<\|?\s*(?:mt|box|quad|point)_",
        r"\bmt_(?:[0-9]|start|end)",
        # The codes of region tokens alone: 0010 0276.
        r"(?<![0-9])0[0-9]{3}(?:(?:[\s,;:/|~_.\u2013\u2014-]{0,4}|\s+and\s+)0[0-9]{3})+(?![0-9])",
        # Digits in brackets, of any kind and count: [1, 2, 3, 4], (12,30), <40 50>, {7}, (12-30).
        r"[\[({<]\s*[-+.]?[0-9](?:[\s0-9,;:/|~_x.%+\u2013\u2014-]|px|pixels?|and|to|by)*[\])}>]",
        # Four numbers in a row without brackets: 12 30 400 500, 12,30 to 400,500, 12-30-400-500.
        rf"(?<![0-9])(?<![0-9]\.){_NUMBER}(?:{_BETWEEN}{_NUMBER}){{3}}",
        # Named coordinates: x1=12, y: 40, "w": 7; two with a separator: x 120, y 30; four: x1 120 y1 30 x2 400 y2 500.
        rf"\b(?:c?[xy]|[wh]){_SUFFIX}[\"']?\s*[=:]\s*[\"']?[-+.]?[0-9]",
        _two_coordinates("x", r"\s*", "y"),
        _two_coordinates("y", r"\s*", "x"),
        _two_coordinates("[xy]", r"\s+", "[xy]"),
        rf"\b(?:[xy]{_SUFFIX}|{_SIDE})\s*{_NUMBER}(?:[\s,;/]*(?:and\s+)?(?:[xy]{_SUFFIX}|{_SIDE})\s*{_NUMBER}){{3}}",
        # Named sides: left=120, top: 30; but not `left: 2 dogs`.
        rf"\b{_SIDE}[\"']?\s*=\s*[\"']?[-+.]?[0-9]",
        rf"\b{_SIDE}[\"']?\s*:\s*[\"']?{_NUMBER}(?![0-9.]*\s*[a-z]|[0-9])",
    )
)
_PERCENT = re.compile(r"[0-9]\s*(?:%|percent\b|per cent\b)", re.IGNORECASE)
_FRAME_WORD = re.compile(
    r"\b(?:frame|image|picture|photo|scene|view|width|height|left|right|top|bottom|edge|horizontally|vertically)\b",
    re.IGNORECASE,
)
# Kana, bopomofo, Han with extensions, Hangul, and the full-width forms that come with them.
_CJK = re.compile(
    "[\u1100-\u11ff\u2e80-\u2fdf\u3000-\u30ff\u3100-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]"
)

_THOUGHT = re.compile(r"<think>.*?</think>", re.DOTALL)
_MARKERS = re.compile(
    r"<image>|<video>|<\|(?:image_pad|video_pad|vision_start|vision_end|vision_pad)\|>|" + CHAT_MARKERS.pattern
)


def no_repeat_words(caption: str) -> float:
    """1.0, or 0.0 if any three words in a row occur more than twice (lower-cased, punctuation counts as space).

    >>> no_repeat_words("a b c. A b c, d"), no_repeat_words("a b c a b c a b c"), no_repeat_words("go go")
    (1.0, 0.0, 1.0)
    """
    words = _PUNCTUATION.sub(" ", caption.lower()).split()
    phrases = Counter(zip(words, words[1:], words[2:], strict=False))
    return float(max(phrases.values(), default=0) <= _MOST_REPEATS)


def clean(caption: str, *, prompt: str = "") -> float:
    """1.0, or 0.0 if the caption gives the region's place away or changes the script.

    Args:
        caption: the model's own words.
        prompt: what was asked; CJK characters are a fault only if it has none.

    The place is given away by region tokens or parts of them, their codes alone, digits in brackets, four numbers in a
    row, named coordinates or sides, and percentages of the frame (two in one caption, or one beside a word such as
    `left` or `image`). Times are a location only for intervals and tracks, so a clock that shows 10:10 is fine; opening
    hours (9:00-17:00) are four numbers in a row, and refused.

    >>> clean("a red mug, 50% full"), clean("the thing at [12, 30, 400, 500]"), clean("mt_0012 it is")
    (1.0, 0.0, 0.0)
    """
    if any(pattern.search(caption) for pattern in _LEAKS):
        return 0.0
    percentages = len(_PERCENT.findall(caption))
    if percentages > 1 or (percentages == 1 and _FRAME_WORD.search(caption)):
        return 0.0
    return float(_CJK.search(caption) is None or _CJK.search(prompt) is not None)


def caption_reward(cycle_score: float, no_repeat: float = 0.0, clean: float = 1.0) -> float:
    """`(10 r + no_repeat) clean + clean`, in [0, 12]: a caption that leaks its place earns nothing.

    Args:
        cycle_score: r, the mean overlap of the caption's groundings with its target, in [0, 1].
        no_repeat: of `no_repeat_words`; left out, the term is off.
        clean: of `clean`; left out, the gate is off.

    >>> caption_reward(0.5, 1.0, 1.0), caption_reward(0.5, 1.0, 0.0), caption_reward(0.5)
    (7.0, 0.0, 6.0)
    """
    return (10 * cycle_score + no_repeat) * clean + clean


def strip_markers(caption: str) -> str:
    """The caption without what would break the locate prompt: thoughts, image and video markers, chat markers.

    A thought that is not closed takes the rest with it, one that was opened in the prompt everything before its end.

    >>> strip_markers("<think>hm</think> a <image>dog<|im_end|>")
    'a dog'
    >>> strip_markers("a <im<image>age>dog")
    'a dog'
    """
    before = None
    while caption != before:  # taking a marker out can bring the halves of another together
        before = caption
        caption = _MARKERS.sub("", _THOUGHT.sub("", caption))
        caption = caption.rpartition("</think>")[2].partition("<think>")[0]
    return caption.strip()
