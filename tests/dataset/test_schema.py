"""Rows through parquet: explicit types, what a reader accepts, and errors that name the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cyclegrpo.dataset.schema import SCHEMA, SCHEMA_WITH_MASKS, Row, read_rows, rle_to_text, rows_to_table, text_to_rle
from cyclegrpo.errors import DataError
from cyclegrpo.files import write_table
from cyclegrpo.regions.geometry import Rle

RLE: Rle = {"size": [3, 5], "counts": "321O103"}
PLAIN = Row(("images/a.jpg", "images/crops/b.jpg"), "<image>\nWhat? <image>", "<answer>t1</answer>", None)
MASKED = Row(("images/a.jpg",), "<image>\nWhere?", "<answer>t1</answer>", "gres_grounding", (RLE,))


@pytest.mark.parametrize(("rows", "schema"), [([PLAIN], SCHEMA), ([MASKED], SCHEMA_WITH_MASKS), ([], SCHEMA)])
def test_types_do_not_depend_on_values(rows: list[Row], schema: pa.Schema) -> None:
    assert rows_to_table(rows).schema.equals(schema)


@pytest.mark.parametrize("row", [PLAIN, MASKED])
def test_round_trip(tmp_path: Path, row: Row) -> None:
    write_table(tmp_path / "a.parquet", rows_to_table([row]))
    assert read_rows(tmp_path / "a.parquet") == [row]


def test_files_join_without_promotion() -> None:
    table = pa.concat_tables([rows_to_table([PLAIN]), rows_to_table([])])
    assert json.dumps(table.to_pylist())[0] == "["


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"images": [["a.jpg"]], "cap_problem": ["p"], "seg_answer": ["a"], "source": pa.nulls(1)}),
        rows_to_table([PLAIN]).select(["source", "seg_answer", "cap_problem", "images"]),
        pa.Table.from_pylist(
            [{"images": ["a.jpg"], "cap_problem": "p", "seg_answer": "a", "source": None, "masks": None}]
        ),
        rows_to_table([PLAIN]).cast(
            pa.schema(
                [
                    (
                        field.name,
                        pa.large_list(pa.large_string()) if field.name in ("images", "masks") else pa.large_string(),
                    )
                    for field in SCHEMA
                ]
            )
        ),
    ],
    ids=["null type", "other order", "naive", "large types"],
)
def test_what_a_reader_accepts(tmp_path: Path, table: pa.Table) -> None:
    pq.write_table(table, tmp_path / "a.parquet")
    (row,) = read_rows(tmp_path / "a.parquet")
    assert isinstance(row.images, tuple) and row.source is None and row.target_rle is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not parquet", "is not a parquet file"),
        (pa.table({"images": [["a"]], "cap_problem": ["p"], "source": ["s"]}), "lacks the column seg_answer"),
        (
            pa.table({"images": [["a"]], "cap_problem": pa.nulls(1), "seg_answer": ["a"], "source": ["s"]}),
            "record row 0: cap_problem is None",
        ),
    ],
)
def test_broken_files_are_named(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "a.parquet"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        pq.write_table(content, path)
    with pytest.raises(DataError, match=message) as caught:
        read_rows(path)
    assert str(path) in str(caught.value)


def test_masks_as_text() -> None:
    assert text_to_rle(rle_to_text(RLE)) == RLE


@pytest.mark.parametrize("text", ["", "321O103", "[]", '{"size": [3, 5]}', '{"size": 3, "counts": ""}'])
def test_other_texts_are_no_masks(text: str) -> None:
    with pytest.raises(DataError, match="expected JSON text with size and counts"):
        text_to_rle(text)
