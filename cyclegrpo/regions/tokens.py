"""Mask tokens: a mask as text, `<|mt_start|><|mt_AAAA|><|mt_BBBB|><|mt_end|>`, and back.

AAAA is the code in codebook 0, BBBB is the codebook's size plus the code in the residual codebook 1, four digits
each. In general, code i of depth d is written `d * codebook_size + i`. Parsing is strict by default (rewards, format
score, data files); `repair=True` (prediction, benchmarks) keeps what can be kept of a malformed group. The public
evaluation scripts pair codes across groups and turn a missing second code into entry 0; neither is repeated here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from cyclegrpo.regions.answers import answer_text, is_explicitly_empty

START_TOKEN = "<|mt_start|>"
END_TOKEN = "<|mt_end|>"

TOKEN_TRACE = re.compile(r"<\|mt_")
"""The beginning of any mask token, whole or broken."""

_TOKEN = re.compile(r"<\|mt_(?:(start)|(end)|([0-9]{4}))\|>|<\|mt_[0-9A-Za-z_]*\|?>?")
_DEPTH = 2
_MISSING = -1

Code = tuple[int, int | None]
"""Indices into the two codebooks; None is a missing second code (only `repair=True` gives it)."""


@dataclass(frozen=True)
class ParsedTokens:
    """The mask tokens of an answer.

    Attributes:
        codes: one pair of indices per region, both 0..codebook_size-1; in the order of the text, duplicates kept.
        tokens: the same regions in their canonical spelling.
        flags: kinds of fault, each once, in order of appearance: `no_start`, `no_end`, `too_few`, `too_many`,
            `not_a_token`, `spaced`, `first_code_out_of_range`, `second_code_out_of_range`.
        explicit_empty: the answer says that there is no region (`null`, `none`, `No target.` or nothing).
    """

    codes: list[Code] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    flags: tuple[str, ...] = ()
    explicit_empty: bool = False


def codes_to_token(code0: int, code1: int | None, *, codebook_size: int = 256) -> str:
    """The token group of one mask.

    Args:
        code0, code1: indices into the two codebooks, 0..codebook_size-1. None as second code leaves its token out.

    Raises:
        ValueError: an index is outside its codebook.

    >>> codes_to_token(12, 44)
    '<|mt_start|><|mt_0012|><|mt_0300|><|mt_end|>'
    """
    parts = [START_TOKEN]
    for depth, code in enumerate((code0,) if code1 is None else (code0, code1)):
        if not 0 <= code < codebook_size:
            raise ValueError(f"code {depth} of a mask is {code}; expected 0 to {codebook_size - 1}.")
        parts.append(f"<|mt_{depth * codebook_size + code:04d}|>")
    return "".join([*parts, END_TOKEN])


def codes_to_tokens(codes: Iterable[tuple[int, int | None]], *, codebook_size: int = 256) -> list[str]:
    """The token groups of several masks, one string each, in order.

    >>> codes_to_tokens([(1, 2)])
    ['<|mt_start|><|mt_0001|><|mt_0258|><|mt_end|>']
    """
    return [
        codes_to_token(int(code0), None if code1 is None else int(code1), codebook_size=codebook_size)
        for code0, code1 in codes
    ]


def codes_to_array(codes: Sequence[Code]) -> np.ndarray:
    """Codes as the mask tokenizer decodes them: int64 (N, 2), with -1 for a missing second code.

    >>> codes_to_array([(1, 2), (3, None)]).tolist()
    [[1, 2], [3, -1]]
    """
    rows = [(code0, _MISSING if code1 is None else code1) for code0, code1 in codes]
    return np.array(rows, dtype=np.int64).reshape(len(rows), _DEPTH)


def all_token_strings(codebook_size: int = 256, depth: int = 2) -> list[str]:
    """Every token that a vocabulary needs: start, end, then the codes in ascending order.

    >>> len(all_token_strings()), all_token_strings()[:3], all_token_strings()[-1]
    (514, ['<|mt_start|>', '<|mt_end|>', '<|mt_0000|>'], '<|mt_0511|>')
    """
    return [START_TOKEN, END_TOKEN, *(f"<|mt_{number:04d}|>" for number in range(depth * codebook_size))]


def parse_tokens(text: str | None, *, codebook_size: int = 256, repair: bool = False) -> ParsedTokens:
    """The masks that an answer names. Never raises.

    Only the text after `</think>` and inside `<answer>` counts, if there is such a part. Strict (the default): a
    group is a region if it is spelled exactly so, without anything between its tokens, and both codes are in range;
    every other is flagged and no region. Codes are never paired across groups.

    With `repair`, a group that has a start token is a region if its first code is in range: of more than two codes
    the first two count; a missing second code, or one out of range, becomes None. White space between tokens is then
    allowed. The flags stay.

    >>> parse_tokens("It is <|mt_start|><|mt_0012|><|mt_0268|><|mt_end|>.").codes
    [(12, 12)]
    >>> parse_tokens("<|mt_start|><|mt_0012|><|mt_end|>")
    ParsedTokens(codes=[], tokens=[], flags=('too_few',), explicit_empty=False)
    >>> parse_tokens("<|mt_start|><|mt_0012|><|mt_end|>", repair=True).codes
    [(12, None)]
    """
    answer = answer_text(text)
    codes: list[Code] = []
    flags: list[str] = []
    for group in _groups(answer):
        code, faults = _read(group, codebook_size)
        flags.extend(faults)
        if code is not None and (repair or not faults):
            codes.append(code)
    tokens = codes_to_tokens(codes, codebook_size=codebook_size)
    return ParsedTokens(codes, tokens, tuple(dict.fromkeys(flags)), is_explicitly_empty(answer))


@dataclass
class _Group:
    """Tokens that belong together: `numbers` as written, None for something that only looks like a token."""

    has_start: bool
    has_end: bool = False
    has_spaces: bool = False
    numbers: list[int | None] = field(default_factory=list)


def _groups(text: str) -> Iterator[_Group]:
    """Groups in text order. A group ends at its end token, before the next start token, and before other text."""
    group: _Group | None = None
    last = 0
    for match in _TOKEN.finditer(text):
        start, end, digits = match.groups()
        between = text[last : match.start()]
        last = match.end()
        if group is not None and (start or between.strip()):
            yield group
            group = None
        if group is None:
            group = _Group(has_start=start is not None)
        elif between:
            group.has_spaces = True
        if end:
            group.has_end = True
            yield group
            group = None
        elif not start:
            group.numbers.append(int(digits) if digits else None)
    if group is not None:
        yield group


def _read(group: _Group, codebook_size: int) -> tuple[Code | None, list[str]]:
    """The codes of a group as far as they are in range (None: not even the first), and every fault."""
    if not group.has_start:
        return None, ["no_start"]
    faults = []
    if not group.has_end:
        faults.append("no_end")
    if group.has_spaces:
        faults.append("spaced")
    if None in group.numbers:
        faults.append("not_a_token")
    if len(group.numbers) != _DEPTH:
        faults.append("too_few" if len(group.numbers) < _DEPTH else "too_many")
    indices: list[int | None] = []
    for depth, name in enumerate(("first", "second")):
        number = group.numbers[depth] if depth < len(group.numbers) else None
        index = None if number is None else number - depth * codebook_size
        if index is not None and not 0 <= index < codebook_size:
            faults.append(f"{name}_code_out_of_range")
            index = None
        indices.append(index)
    return (None if indices[0] is None else (indices[0], indices[1])), faults
