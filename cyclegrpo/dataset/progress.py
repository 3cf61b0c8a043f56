"""Progress on stderr: a bar on a terminal, a plain line every tenth elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

T = TypeVar("T")


def track(items: Iterable[T], total: int, name: str, *, units: str = "shards") -> Iterator[T]:
    """Yield the items, showing how many of `total` have been dealt with; `units` is what they are called."""
    if sys.stderr.isatty():
        yield from tqdm(items, total=total, desc=name, unit=units, leave=False)
        return
    for done, item in enumerate(items, start=1):
        yield item
        if done == total or done * 10 // total > (done - 1) * 10 // total:
            sys.stderr.write(f"{name}: {done} of {total} {units}\n")
