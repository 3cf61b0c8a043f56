"""One function over many items, in worker processes where that is worth their start; results in order."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

WORTH_PROCESSES_S = 10.0
"""Work that this process would finish sooner stays here: a worker takes about a second to start."""


def map_ordered(
    function: Callable[[ItemT], ResultT], items: Sequence[ItemT], *, num_workers: int = 0
) -> Iterator[ResultT]:
    """Yield `function(item)` for all items, in their order; the results do not depend on where they are computed.

    Args:
        function: picklable where `num_workers` is above 1.
        items: each some seconds of work or less; the first is always computed here, to see how long one takes.
        num_workers: processes; 0 and 1 compute in this one.

    An error in a worker is raised here, and what has not begun is dropped.
    """
    start = time.monotonic()
    for item in items[:1]:
        yield function(item)
    rest = items[1:]
    if num_workers < 2 or not rest or (time.monotonic() - start) * len(rest) < WORTH_PROCESSES_S:
        yield from map(function, rest)
        return
    # Spawned, not forked: a fork copies the locks of threads that pyarrow has running.
    executor = ProcessPoolExecutor(min(num_workers, len(rest)), get_context("spawn"), initializer=_ignore_interrupt)
    try:
        yield from executor.map(function, rest)
    finally:
        executor.shutdown(cancel_futures=True)


def _ignore_interrupt() -> None:
    """Ctrl-C reaches the whole process group; only the main process shall answer it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
