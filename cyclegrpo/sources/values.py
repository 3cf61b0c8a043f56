"""What a value of an annotation file must be before a reader uses it: JSON promises nothing about its types."""

from __future__ import annotations

from typing import Any, TypeGuard


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether the value is a whole number; `true`, `2.0` and `"2"` are none.

    >>> is_whole(2), is_whole(True), is_whole(2.0), is_whole("2")
    (True, False, False, False)
    """
    return isinstance(value, int) and not isinstance(value, bool)


def is_positive(value: Any) -> TypeGuard[int]:
    """Whether the value is a whole number above 0.

    >>> is_positive(2), is_positive(0), is_positive("2")
    (True, False, False)
    """
    return is_whole(value) and value > 0


def is_text(value: Any) -> TypeGuard[str]:
    r"""Whether the value is a text that files can hold: JSON can escape half a character, which UTF-8 cannot spell.

    >>> is_text("a dog"), is_text(5), is_text("\ud83d")
    (True, False, False)
    """
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


def shown(value: Any) -> str:
    """The value in a message, short and in characters that any stream can print.

    >>> shown([1, 2]), shown("x" * 100)[-5:]
    ('[1, 2]', 'xx...')
    """
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."
