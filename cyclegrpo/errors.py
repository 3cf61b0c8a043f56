"""The errors that a user can cause, each with the exit code of the command that meets it.

A message has three parts: what was found, what was expected, what to do. It is one line; the command line prints it as
it is.
"""

from __future__ import annotations

import os
from collections.abc import Sequence


def printable_path(path: str | os.PathLike[str]) -> str:
    r"""The path as text that any stream can print: bytes that are not UTF-8 become escapes, line breaks too.

    >>> printable_path("a b.jpg")
    'a b.jpg'
    >>> printable_path(os.fsdecode(b"\xff.jpg"))
    '\\xff.jpg'
    """
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return text.replace("\n", "\\n").replace("\r", "\\r")


class CycleGrpoError(Exception):
    """Base of every error that is reported as one line, without a traceback. `exit_code` is the command's."""

    exit_code = 1


class ParamsError(CycleGrpoError, ValueError):
    """The parameters, or the way a command was called, are wrong. Exit code 2.

    Args:
        problems: one line each, at least one. The error's text is the first, and says how many others there are.

    >>> str(ParamsError("params.yaml: train.beta is -1; expected >= 0."))
    'params.yaml: train.beta is -1; expected >= 0.'
    >>> str(ParamsError(["a is wrong", "b is wrong"]))
    'a is wrong (and 1 more; `cyclegrpo check config` lists all)'
    """

    exit_code = 2

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems: list[str] = [problems] if isinstance(problems, str) else list(problems)
        others = len(self.problems) - 1
        more = f" (and {others} more; `cyclegrpo check config` lists all)" if others else ""
        super().__init__(self.problems[0] + more)


class DataError(CycleGrpoError, ValueError):
    """Something in the user's data is wrong. Exit code 1.

    Args:
        message: what was found, what was expected, what to do; without the place.
        file: the file it was found in, if one is known.
        record: the record in that file (an id, a row number, `row 3, column images`), if one is known.

    The three stay apart as attributes, so that reports can count by message and list by place.

    >>> str(DataError("0 bytes; expected an image.", file="a.jpg"))
    'a.jpg: 0 bytes; expected an image.'
    >>> str(DataError("no mask.", file="x.json", record=12))
    'x.json, record 12: no mask.'
    """

    exit_code = 1

    def __init__(
        self, message: str, file: str | os.PathLike[str] | None = None, record: str | int | None = None
    ) -> None:
        self.message = message
        self.file = None if file is None else printable_path(file)
        self.record = record
        place = ", ".join(
            part for part in (self.file, None if record is None else f"record {record}") if part is not None
        )
        super().__init__(f"{place}: {message}" if place else message)

    def __reduce__(self) -> tuple[type[DataError], tuple[str, str | None, str | int | None]]:
        """Survives the way back from a worker process with its parts."""
        return type(self), (self.message, self.file, self.record)
