"""Every way to break one value of a JSON document: each field in turn replaced by something else, or taken out."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

OTHERS = (None, 5, "x", [], {}, [None], True, 1.5, -1, 10**400, float("nan"), "\ud83d", [[]], {"x": None})
"""What stands in the place of a value; the number is too large for a float, the text is half a character."""


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The keys and positions that lead to every value inside."""
    if place:
        yield place
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield from places(item, (*place, key))


def broken(document: Any) -> Iterator[Any]:
    """Copies of a document, each with one value replaced by one of `OTHERS`, or without one; then some with two."""
    for place in list(places(document)):
        for other in OTHERS:
            yield _with(document, place, other)
        yield _with(document, place, None, remove=True)
    rng = random.Random(0)
    for _ in range(300):
        once = _with(document, rng.choice(list(places(document))), rng.choice(OTHERS))
        yield _with(once, rng.choice(list(places(once))), rng.choice(OTHERS))


def _with(document: Any, place: tuple[Any, ...], value: Any, *, remove: bool = False) -> Any:
    document = copy.deepcopy(document)
    *parents, last = place
    node = document
    for key in parents:
        node = node[key]
    if remove:
        del node[last]
    else:
        node[last] = value
    return document
