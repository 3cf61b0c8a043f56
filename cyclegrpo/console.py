"""What a process shows: an error as one line and an exit code, a report as a table. Stages and commands share it."""

from __future__ import annotations

import dataclasses
import errno
import io
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel

from cyclegrpo.errors import CycleGrpoError, printable_path

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 + SIGINT."""
SPIN_COUNT = "100000"
"""Rounds that a thread of torch waits awake (GNU OpenMP's own: 300,000, or for ever)."""


def guarded(name: str, function: Callable[[], int | None]) -> int:
    """The exit code of `function()`: what it returns (None is 0), or that of its error, which is told in one line.

    A CycleGrpoError has its own exit code; an error of the operating system (no space left, a missing file) gives 1,
    Ctrl-C 130, also where a library's lazy import turns it into another error. Any other exception is a fault of ours
    and passes with its traceback.
    """
    _let_threads_yield()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name that the terminal cannot spell must not end a run
    with _noted_interrupts() as interrupts:
        try:
            return function() or 0
        except (Exception, KeyboardInterrupt) as error:
            if interrupts or isinstance(error, KeyboardInterrupt):
                return _fail(name, "interrupted; run it again to continue.", INTERRUPTED)
            if isinstance(error, CycleGrpoError):
                return _fail(name, str(error), error.exit_code)
            if isinstance(error, OSError):
                return _fail(name, _explain(error), 1)
            raise


def _let_threads_yield() -> None:
    """Torch's threads on a CPU wait for each other awake, for milliseconds; where another process wants one of the
    cores, that makes a step many times as long. GNU OpenMP reads this when torch is first imported; a value that the
    user has set stays.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)


@contextmanager
def _noted_interrupts() -> Iterator[list[int]]:
    """A list that every Ctrl-C in the block is added to, beside what it does anyway."""
    seen: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield seen
        return

    def note(number: int, frame: Any) -> None:
        seen.append(number)
        before(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)


def print_report(name: str, report: Any) -> None:
    """A short table of the report's numbers and texts on standard output; longer values are left to the files."""
    rows = [(key, value) for key, value in report_items(report).items() if isinstance(value, (int, float, str))]
    print(name)
    width = max((len(key) for key, _ in rows), default=0)
    for key, value in rows:
        print(f"  {key:<{width}}  {value:.4g}" if isinstance(value, float) else f"  {key:<{width}}  {value}")


def report_items(report: Any) -> dict[str, Any]:
    """The report's fields by name; those of a mapping inside become `field.key`; nothing for None.

    Args:
        report: a dataclass, a pydantic model or a mapping.

    >>> report_items({"num_rows": 2, "skipped": {"empty mask": 1}})
    {'num_rows': 2, 'skipped.empty mask': 1}
    """
    flat: dict[str, Any] = {}
    for key, value in report_fields(report).items():
        flat |= {f"{key}.{inner}": count for inner, count in value.items()} if isinstance(value, dict) else {key: value}
    return flat


def report_fields(report: Any) -> dict[str, Any]:
    """The report's fields by name, as they are; nothing for None."""
    if report is None:
        return {}
    if isinstance(report, BaseModel):
        return report.model_dump(mode="json")
    if dataclasses.is_dataclass(report) and not isinstance(report, type):
        return dataclasses.asdict(report)
    items: Mapping[str, Any] = report
    return dict(items)


def _explain(error: OSError) -> str:
    name = error.filename
    place = f"{printable_path(os.fsdecode(name))}: " if isinstance(name, (str, bytes, os.PathLike)) else ""
    if error.errno == errno.ENOSPC:
        return f"{place}no space left on the disk. Free some and run it again; finished parts are kept."
    reason = error.strerror or " ".join(str(error).split()) or type(error).__name__
    return f"{place}{reason[:1].lower()}{reason[1:]}."


def _fail(name: str, message: str, code: int) -> int:
    line = " ".join(message.splitlines())
    print(f"{name}: error: {line}", file=sys.stderr)
    return code
