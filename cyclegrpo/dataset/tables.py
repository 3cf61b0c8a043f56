"""The tables that the stages leave for each other in the work folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cyclegrpo.errors import DataError

STAGE_OF_TABLE = {"images": "link", "regions": "regions", "crops": "crop", "crop_tokens": "tokenize"}
"""Name of each table -> the stage that writes it."""


def read_work_rows(work_dir: Path, table: str, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The rows of `<work_dir>/<table>.parquet`; DataError, which names the stage to run, where it is missing or broken.

    Args:
        table: a key of STAGE_OF_TABLE.
        columns: only these; None reads all.
    """
    path = work_dir / f"{table}.parquet"
    stage = STAGE_OF_TABLE[table]
    if not path.is_file():
        raise DataError(f"no such file; expected the table of the {stage} stage. Run the {stage} stage first.", path)
    try:
        return pq.read_table(path, columns=columns).to_pylist()
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        message = f"is not the table of the {stage} stage ({reason}). Remove it and run the {stage} stage again."
        raise DataError(message, path) from error


def work_metadata(work_dir: Path, table: str) -> dict[str, str]:
    """What the schema of `<work_dir>/<table>.parquet` says beside its columns; nothing where there is no such file."""
    path = work_dir / f"{table}.parquet"
    metadata = pq.read_schema(path).metadata if path.is_file() else None
    return {key.decode(): value.decode() for key, value in (metadata or {}).items()}
