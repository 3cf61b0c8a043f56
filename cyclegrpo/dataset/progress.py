"""Progress on stderr: a bar on a terminal, a plain line every tenth elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

T = TypeVar("T")


def track(items: Iterable[T], total: int, name: str, *, unit: str = "shard") -> Iterator[T]:
    """Yield the items, showing how many of `total` have been dealt with; `unit` is what an item is called."""
    if sys.stderr.isatty():
        yield from tqdm(items, total=total, desc=name, unit=unit, leave=False)
        return
    for done, item in enumerate(items, start=1):
        yield item
        if done == total or done * 10 // total > (done - 1) * 10 // total:
            sys.stderr.write(f"{name}: {done} of {total} {unit}{'es' if unit.endswith('ch') else 's'}\n")
