"""Stage build: rows in the release layout, that is parquet files, image lists and a dataset card.

    data/denseworld_multi_<rows>.parquet   regions to describe             (source denseworld_multiple)
    data/gres_no_target_<rows>.parquet     expressions that match nothing  (source gres_no_target)
    data/gres_grounding_<rows>.parquet     expressions to locate, with true masks (source gres_grounding, ours)
    image_lists/<link_as>.txt              the linked images that the rows show, one a line
    README.md                              the dataset card, written last

A file name carries its row count; where one kind needs several files, the count follows a part number.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cyclegrpo.dataset.card import dataset_card
from cyclegrpo.dataset.prompts import ask_expression, parse_answer, question_key
from cyclegrpo.dataset.report import StageReport
from cyclegrpo.dataset.schema import SOURCE_OF_KIND, Row, rows_to_table, text_to_rle
from cyclegrpo.dataset.tables import read_work_rows, work_metadata
from cyclegrpo.files import write_json, write_table, write_text
from cyclegrpo.params import Base, Params
from cyclegrpo.regions.geometry import mask_to_prompt_box, rle_to_mask
from cyclegrpo.regions.spaces import RegionSpace, space
from cyclegrpo.sources import Skip

FILE_PREFIX = {"describe": "denseworld_multi", "no_target": "gres_no_target", "expression": "gres_grounding"}
"""Kind of a record -> first part of its files' names."""


def run_build(params: Params) -> StageReport:
    """Write the dataset below `base.dataset_dir` from the tables of the stages before.

    Rows that show the same image with the same regions (and ask the same) are written once. Parquet files of an
    earlier build that are not part of this one are removed; other files in the folder stay.
    """
    base, report = params.base, StageReport("build", read={"record": 0})
    records = read_work_rows(base.work_dir, "regions")
    crops = _crops_by_record(base.work_dir)
    report.read["record"] = len(records)
    rows: dict[str, list[Row]] = {kind: [] for kind in FILE_PREFIX}
    seen: set[tuple[object, ...]] = set()
    for record in records:
        row = record_to_row(record, crops.get(record["record_id"], {}), space(base.region_space))
        key = _identity(row, record)
        if key in seen:
            report.skips.append(Skip(record["record_id"], "duplicate_row", "another record gives the same row", "row"))
            continue
        seen.add(key)
        rows[record["kind"]].append(row)
    report.made = {f"{kind}_rows": len(of_kind) for kind, of_kind in rows.items()}
    report.made["regions"] = sum(
        len(parse_answer(row.seg_answer) or ()) for of_kind in rows.values() for row in of_kind
    )
    report.made["crops"] = sum(len(row.images) - 1 for of_kind in rows.values() for row in of_kind)
    report.finish(base.work_dir, base.max_skip_ratio)
    files = list(_named_tables(rows, params.build.max_rows_per_file))
    shown = {row.images[0] for of_kind in rows.values() for row in of_kind}
    _write(base.dataset_dir, base.work_dir, files, image_lists(base, shown))
    dtype = work_metadata(base.work_dir, "regions").get("compute_dtype")
    write_text(base.dataset_dir / "README.md", dataset_card(files, report.made, base.region_space, dtype))
    return report


def record_to_row(record: Mapping[str, Any], crops: Mapping[int, Mapping[str, Any]], region_space: RegionSpace) -> Row:
    """The row of one record.

    Args:
        record: a row of regions.parquet.
        crops: for each of its regions that has a zoom-in crop, the crop's path and its tokens ("" in the box space).
        region_space: how regions are spelled.
    """
    rles = [text_to_rle(text) for text in record["rles"]]
    texts = record["tokens"]
    if region_space.name == "box":
        texts = [region_space.format(mask_to_prompt_box(rle_to_mask(rle))) for rle in rles]
    with_crops = [crops.get(number) for number in range(len(texts))]
    if record["kind"] == "describe":
        problem = region_space.describe_row(texts, [None if crop is None else crop["tokens"] for crop in with_crops])
    else:
        problem = ask_expression(record["text"], record["record_id"], space=region_space.name)
    return Row(
        images=(record["image"], *(crop["crop"] for crop in with_crops if crop is not None)),
        cap_problem=problem,
        seg_answer=region_space.answer(texts),
        source=SOURCE_OF_KIND[record["kind"]],
        target_rle=tuple(rles) if record["true_masks"] else None,
    )


def _crops_by_record(work_dir: Path) -> dict[str, dict[int, dict[str, Any]]]:
    """Record id -> number of the region -> its crop's path and tokens."""
    crops: dict[str, dict[int, dict[str, Any]]] = {}
    for row in read_work_rows(work_dir, "crops", ["record_id", "region", "crop"]):
        crops.setdefault(row["record_id"], {})[row["region"]] = {"crop": row["crop"], "tokens": ""}
    for row in read_work_rows(work_dir, "crop_tokens"):
        crops[row["record_id"]][row["region"]]["tokens"] = row["tokens"]
    return crops


def _identity(row: Row, record: Mapping[str, Any]) -> tuple[object, ...]:
    """What makes two rows the same: image and regions, and for questions what is asked (whatever the template)."""
    return (row.images[0], row.seg_answer, None if record["kind"] == "describe" else question_key(record["text"]))


def _named_tables(rows: Mapping[str, Sequence[Row]], max_rows: int) -> Iterator[tuple[str, Sequence[Row]]]:
    """Yield (file name, rows) with at most `max_rows` each; kinds without rows have no file, and files mix no true
    masks."""
    for kind, of_kind in rows.items():
        for with_masks in (False, True):
            alike = [row for row in of_kind if (row.target_rle is not None) == with_masks]
            prefix = FILE_PREFIX[kind] + ("_with_masks" if with_masks and len(alike) < len(of_kind) else "")
            parts = [alike[start : start + max_rows] for start in range(0, len(alike), max_rows)]
            for number, part in enumerate(parts, start=1):
                name = f"{prefix}_{len(part)}" if len(parts) == 1 else f"{prefix}_{number:03d}_{len(part)}"
                yield f"{name}.parquet", part


def _write(
    dataset_dir: Path, work_dir: Path, files: Sequence[tuple[str, Sequence[Row]]], lists: Mapping[str, Sequence[str]]
) -> None:
    manifest = work_dir / "build.json"
    earlier = json.loads(manifest.read_text(encoding="utf-8")) if manifest.is_file() else []
    names = sorted([f"data/{name}" for name, _ in files] + [f"image_lists/{name}" for name in lists])
    write_json(manifest, sorted({*earlier, *names}))  # whatever is written now can be removed by the next build
    for name, part in files:
        write_table(dataset_dir / "data" / name, rows_to_table(part))
    for name, images in lists.items():
        write_text(dataset_dir / "image_lists" / name, "".join(f"{image}\n" for image in images))
    for name in set(earlier) - set(names):
        (dataset_dir / name).unlink(missing_ok=True)
    write_json(manifest, names)


def image_lists(base: Base, shown: set[str]) -> dict[str, list[str]]:
    """File name of each source's list, `<link_as>.txt` -> the images of that source that rows show, as it names
    them."""
    lists: dict[str, set[str]] = {}
    link_as = {source.name: source.link_as for source in base.sources}
    for row in read_work_rows(base.work_dir, "images"):
        if row["image"] in shown:
            lists.setdefault(f"{link_as[row['source']].replace('/', '_')}.txt", set()).add(row["name"])
    return {name: sorted(images) for name, images in lists.items()}
