"""The row: what every parquet file of the dataset holds, one prompt a row.

A row that asks about two regions, as it is stored. `<T1>` stands for the tokens of a region in the image, such as
`<|mt_start|><|mt_0010|><|mt_0276|><|mt_end|>`, `<Z1>` for those of the same region in its zoom-in crop.

    images       ["images/v3det/n07745046/21_371.jpg",           the whole image
                  "images/crops/5f0c9c1d2e3a4b5c6d7e.jpg"]       the crop of <T1>; <T2> is too large for one
    cap_problem  "<image>\\nCould you please give me a detailed description of the following regions? <T1> and <T2>.
                  Please respond with interleaved segmentation masks for the corresponding parts of the answer.
                  Zoom in on <T1> with the perspective as <image>, <Z1>."                       (one line, as stored)
    seg_answer   "<answer><T1>, <T2></answer>"
    source       "denseworld_multiple"
    target_rle   ['{"counts":"321O103","size":[3,5]}', ...]      one true mask per region of seg_answer
    cap_answer, seg_problem, masks                               null, always

- `cap_problem` holds one `<image>` per entry of `images`; the crops come in the order of the zoom clauses.
- Paths are relative to the dataset directory.
- `target_rle` is a column of those files only whose sources gave true masks; the others were spelled as tokens.
- The three columns that nothing reads have an explicit type, so that files concatenate.

`prompts.py` and `regions/spaces.py` write and read the texts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cyclegrpo.errors import DataError
from cyclegrpo.regions.geometry import Rle

SCHEMA = pa.schema(
    [
        ("images", pa.list_(pa.string())),
        ("cap_problem", pa.string()),
        ("cap_answer", pa.string()),
        ("seg_problem", pa.string()),
        ("seg_answer", pa.string()),
        ("masks", pa.list_(pa.string())),
        ("source", pa.string()),
    ]
)
"""The seven columns of every file."""

SCHEMA_WITH_MASKS = SCHEMA.append(pa.field("target_rle", pa.list_(pa.string())))
"""The columns of files whose regions have true masks: one RLE as JSON text per region of `seg_answer`."""

UNUSED_COLUMNS = ("cap_answer", "seg_problem", "masks")

CYCLE_SOURCES = frozenset(
    {"denseworld_single", "denseworld_multiple", "dam_cyclegrpo", "groundingme", "tg_multi_merged", None}
)
"""Rows of these sources are described and located again."""

NO_TARGET_SOURCE = "gres_no_target"
GROUNDING_SOURCE = "gres_grounding"
GRPO_SOURCES = frozenset({NO_TARGET_SOURCE, GROUNDING_SOURCE, "gcg", "tg_grounding", "dam_grounding"})
"""Rows of these sources are questions with a known answer (plain GRPO). `gres_grounding` is ours, the others the
release's."""

SOURCE_OF_KIND = {"describe": "denseworld_multiple", "no_target": NO_TARGET_SOURCE, "expression": GROUNDING_SOURCE}
"""Kind of a record -> `source` of the row made of it."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row, without its unused columns. See the module's example.

    Attributes:
        images: paths relative to the dataset directory, the whole image first.
        cap_problem: the prompt, with one `<image>` per entry of `images`.
        seg_answer: the regions asked for, as `<answer>...</answer>`.
        source: which rows the trainer treats alike (`CYCLE_SOURCES`, `GRPO_SOURCES`); None counts as a cycle source.
        target_rle: the true mask of each region in `seg_answer`, or None where the source gave tokens only.
    """

    images: tuple[str, ...]
    cap_problem: str
    seg_answer: str
    source: str | None
    target_rle: tuple[Rle, ...] | None = None


def rle_to_text(rle: Rle) -> str:
    """An RLE as the JSON text that tables hold.

    >>> rle_to_text({"size": [3, 5], "counts": "321O103"})
    '{"counts":"321O103","size":[3,5]}'
    """
    return json.dumps({"size": list(rle["size"]), "counts": rle["counts"]}, sort_keys=True, separators=(",", ":"))


def text_to_rle(text: str) -> Rle:
    """The RLE of `rle_to_text`. DataError where the text is something else."""
    try:
        rle = json.loads(text)
        return {"size": [int(side) for side in rle["size"]], "counts": str(rle["counts"])}
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"a mask is {text!r:.60}; expected JSON text with size and counts") from error


def frame_of(target_rle: Sequence[Rle] | None) -> tuple[int, int] | None:
    """(height, width) of the frame in which the true masks lie; None where there is none.

    The whole image is loaded with it as declared size, so that pixels and masks share a frame.
    """
    if not target_rle:
        return None
    height, width = target_rle[0]["size"]
    return height, width


def rows_to_table(rows: Sequence[Row]) -> pa.Table:
    """Rows as a table of `SCHEMA`, or of `SCHEMA_WITH_MASKS` where the first row has true masks (then all must)."""
    with_masks = bool(rows) and rows[0].target_rle is not None
    columns: dict[str, list[Any]] = {
        "images": [list(row.images) for row in rows],
        "cap_problem": [row.cap_problem for row in rows],
        "seg_answer": [row.seg_answer for row in rows],
        "source": [row.source for row in rows],
    }
    columns |= {name: [None] * len(rows) for name in UNUSED_COLUMNS}
    if with_masks:
        columns["target_rle"] = [[rle_to_text(rle) for rle in row.target_rle or ()] for row in rows]
    return pa.Table.from_pydict(columns, schema=SCHEMA_WITH_MASKS if with_masks else SCHEMA)


def list_files(dataset_dir: Path) -> list[Path]:
    """The parquet files of a dataset, by name. DataError, which names the stage to run, where there is none."""
    folder = dataset_dir / "data"
    files = sorted(folder.glob("*.parquet"))
    if not files:
        raise DataError("holds no parquet file; expected at least one. Run the build stage first.", folder)
    return files


def read_rows(path: Path) -> list[Row]:
    """The rows of one parquet file, released or ours.

    Accepts null-typed, large and dictionary columns in any order; further columns are left unread. DataError, naming
    the file, where it is no parquet, lacks a column, or a needed value is null.
    """
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"is not a parquet file: {error}", file=path) from error
    names = [name for name in ("images", "cap_problem", "seg_answer", "source") if name not in table.column_names]
    if names:
        raise DataError(f"lacks the column {names[0]}; expected {', '.join(SCHEMA.names)}", file=path)
    kept = [
        name for name in ("images", "cap_problem", "seg_answer", "source", "target_rle") if name in table.column_names
    ]
    return [_row(values, path, number) for number, values in enumerate(table.select(kept).to_pylist())]


def _row(values: Mapping[str, Any], path: Path, number: int) -> Row:
    for name in ("images", "cap_problem", "seg_answer"):
        if not values[name]:
            raise DataError(f"{name} is {values[name]!r}; expected a value", file=path, record=f"row {number}")
    rles = values.get("target_rle")
    return Row(
        tuple(values["images"]),
        values["cap_problem"],
        values["seg_answer"],
        values["source"],
        None if rles is None else tuple(text_to_rle(text) for text in rles),
    )
