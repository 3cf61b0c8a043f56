"""Findings in a parquet file as a whole: can it be read, and has it the columns and types of the release?"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from cyclegrpo.dataset.checks.findings import Finding
from cyclegrpo.dataset.schema import SCHEMA, SCHEMA_WITH_MASKS

_MAGIC = b"PAR1"


def read_checked(path: Path, name: str) -> tuple[pa.Table | None, list[Finding]]:
    """The file's table and what is wrong with it; None where it cannot be read or lacks a column.

    Args:
        name: the file's name in findings.

    The order of columns does not matter. Null-typed columns are read, with a warning: two such files may not join.
    """
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        return None, [_unreadable(path, name, error)]
    findings = []
    if table.num_rows == 0:
        findings.append(Finding(name, None, None, "empty_file", "the file has no rows; expected at least one"))
    for field in SCHEMA_WITH_MASKS:
        findings += _check_column(table.schema, field, name)
    for column in table.column_names:
        if column not in SCHEMA_WITH_MASKS.names:
            message = f"the file has the extra column {column}; expected {', '.join(SCHEMA.names)}"
            findings.append(Finding(name, None, column, "extra_column", message))
    broken = any(finding.kind in ("missing_column", "wrong_type") for finding in findings)
    return (None if broken else table), findings


def _unreadable(path: Path, name: str, error: Exception) -> Finding:
    if path.is_dir():
        return Finding(name, None, None, "not_parquet", "this is a folder; expected a parquet file")
    with path.open("rb") as stream:
        head = stream.read(len(_MAGIC))
    if not head:
        return Finding(name, None, None, "empty_file", "the file has 0 bytes; expected a parquet file")
    if head == _MAGIC:
        return Finding(name, None, None, "truncated_file", f"the parquet file is cut short or damaged: {_line(error)}")
    return Finding(name, None, None, "not_parquet", f"the file is no parquet: it begins with {head!r}")


def _line(error: Exception) -> str:
    return str(error).splitlines()[0][:200]


def _check_column(schema: pa.Schema, expected: pa.Field, name: str) -> list[Finding]:
    column = expected.name
    if column not in schema.names:
        if column not in SCHEMA.names:
            return []
        message = f"the file has no column {column}; expected {', '.join(SCHEMA.names)}"
        return [Finding(name, None, column, "missing_column", message)]
    actual = schema.field(column).type
    if pa.types.is_null(actual):
        message = f"{column} has the type null; expected {expected.type}, or files may not join"
        return [Finding(name, None, column, "null_type", message, "warning")]
    if column == "masks" or _fits(actual, expected.type):
        return []
    return [Finding(name, None, column, "wrong_type", f"{column} has the type {actual}; expected {expected.type}")]


def _fits(actual: pa.DataType, expected: pa.DataType) -> bool:
    """Whether a reader takes one type for the other: large and dictionary types are as good as plain ones."""
    if pa.types.is_dictionary(actual):
        actual = actual.value_type
    if pa.types.is_string(expected):
        return pa.types.is_string(actual) or pa.types.is_large_string(actual) or pa.types.is_string_view(actual)
    is_list = pa.types.is_list(actual) or pa.types.is_large_list(actual)
    return is_list and (pa.types.is_null(actual.value_type) or _fits(actual.value_type, expected.value_type))
