"""A finding: one thing that is wrong with the dataset, and where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem.

    Attributes:
        file: the parquet file or list, relative to the dataset directory.
        row: row number in the file, from 0; None where the whole file is meant.
        column: the column, or None.
        kind: a short fixed word to count by, such as `image_missing`.
        message: one sentence with what was found and what was expected.
        severity: an `error` makes the check fail, a `warning` does not.
    """

    file: str
    row: int | None
    column: str | None
    kind: str
    message: str
    severity: Severity = "error"

    def place(self) -> str:
        """Where it is, in short.

        >>> Finding("data/a.parquet", 3, "images", "image_missing", "...").place()
        'data/a.parquet, row 3, images'
        """
        row = None if self.row is None else f"row {self.row}"
        return ", ".join(part for part in (self.file, row, self.column) if part is not None)
