"""What every parser shares: which part of an answer counts, and when an answer says that there is nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Generic, TypeVar

RegionT = TypeVar("RegionT")

NO_TARGET = "No target."
"""The words with which a policy says that an expression matches nothing."""

CHAT_MARKERS = re.compile(r"<\|(?:im_end|im_start|endoftext)\|>")
"""What the chat template puts around a turn."""

_NOTHING = frozenset({"", "null", "none", "no target"})


@dataclass(frozen=True)
class Parsed(Generic[RegionT]):
    """What was found in an answer.

    Attributes:
        regions: in the order of the text, duplicates kept.
        flags: kinds of fault, each once, in order of appearance; empty for a clean answer.
        explicit_empty: the answer says in words, or by being empty, that there is no region.
    """

    regions: list[RegionT]
    flags: tuple[str, ...] = ()
    explicit_empty: bool = False


def answer_text(text: str | None) -> str:
    """The part of a model's output that counts, without end-of-turn markers and outer spaces.

    Only what follows the last `</think>`, and of that only the inside of the first `<answer>` if there is one (up to
    the end where it is not closed). Thinking that was never finished leaves nothing. No text at all (None) counts as
    empty.

    >>> answer_text("<think>[1, 1, 2, 2]?</think><answer>[3, 3, 4, 4]</answer><|im_end|>")
    '[3, 3, 4, 4]'
    >>> answer_text("<think>[1, 1, 2, 2]")
    ''
    """
    if text is None:
        return ""
    text = text.rpartition("</think>")[2]
    text = text.partition("<think>")[0]
    before, tag, inside = text.partition("<answer>")
    counted = inside.partition("</answer>")[0] if tag else before
    return CHAT_MARKERS.sub("", counted).strip()


def is_explicitly_empty(answer: str) -> bool:
    """Whether the counted part of an answer is nothing but `null`, `none`, `No target.` or no text at all.

    Case, a code fence, quotes and a full stop at the end do not matter; a longer sentence is not an explicit empty
    answer.

    >>> [is_explicitly_empty(text) for text in ("null", "```json\\nNone\\n```", "This is nullified")]
    [True, True, False]
    """
    if len(answer) > 64:
        return False
    bare = re.sub(r"^```[a-z]*|```$", "", answer.strip().lower())
    return bare.strip(" \t\r\n\"'`.") in _NOTHING
