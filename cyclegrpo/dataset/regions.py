"""Stage regions: every source's regions in both spellings, tokens and mask, with one image-encoder pass per image.

A region that its source spells as tokens is decoded; one with a true mask is encoded, and the true mask is kept. In
the box space nothing is encoded: a region's text is made from its mask by `build`. Every region and record that drops
out is counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cyclegrpo.dataset.report import StageReport
from cyclegrpo.dataset.schema import rle_to_text
from cyclegrpo.dataset.shards import Item, ShardResult, ShardStore
from cyclegrpo.dataset.spelling import ImageTokens, SpelledRegion, spell_regions
from cyclegrpo.dataset.tables import read_work_rows
from cyclegrpo.dataset.tokenizers import OpenTokenizer, open_tokenizer, resolve_dtype, tokenizer_digest
from cyclegrpo.errors import DataError
from cyclegrpo.files import table_writer
from cyclegrpo.images import load_image_below
from cyclegrpo.params import Base, Params
from cyclegrpo.sources import Record, Skip, read_source

if TYPE_CHECKING:
    from cyclegrpo.tokenizer import MaskTokenizer

SCHEMA = pa.schema(
    [
        ("record_id", pa.string()),
        ("source", pa.string()),
        ("kind", pa.string()),
        ("image", pa.string()),
        ("num_bytes", pa.int64()),
        ("height", pa.int32()),
        ("width", pa.int32()),
        ("text", pa.string()),
        ("tokens", pa.list_(pa.string())),
        ("rles", pa.list_(pa.string())),
        ("labels", pa.list_(pa.string())),
        ("true_masks", pa.bool_()),
    ]
)
"""regions.parquet, one row per record. `tokens` (empty in the box space), `rles` and `labels` run in parallel;
`height` and `width` are those of the frame that the masks lie in; `true_masks` says that the masks are the source's
own, not decoded. The schema's metadata has `compute_dtype`, of the tokenizer."""


def run_regions(params: Params, tokenizer: MaskTokenizer | None = None) -> StageReport:
    """Spell the regions of all records both ways and write `<work_dir>/regions.parquet`.

    Args:
        tokenizer: one that is loaded already; None loads `base.tokenizer` when the first image needs it.
    """
    base, report = params.base, StageReport("regions", read={"record": 0, "region": 0})
    items = _group_by_image(base, report)
    dtype = resolve_dtype(base.device, base.tokenizer_dtype)
    settings = {
        "space": base.region_space,
        "min_area_px": params.regions.min_area_px,
        "max_pixels": params.check.max_pixels,
        "tokenizer": tokenizer_digest(base.tokenizer),
        "compute_dtype": dtype,
    }
    compute = partial(
        _spell_shard,
        dataset_dir=base.dataset_dir,
        open_tokenizer=open_tokenizer(base, tokenizer),
        space=base.region_space,
        min_area_px=params.regions.min_area_px,
        max_pixels=params.check.max_pixels,
    )
    store = ShardStore(base.work_dir / "shards" / "regions", settings, keep_others=base.is_limited)
    report.made |= {"records": 0, "regions": 0}
    results = store.run(items, compute)
    with table_writer(base.work_dir / "regions.parquet", SCHEMA.with_metadata({"compute_dtype": dtype})) as write:
        for result in results:
            report.skips += result.skips
            report.made["records"] += len(result.rows)
            report.made["regions"] += sum(len(row["rles"]) for row in result.rows)
            write(result.rows)
        report.finish(base.work_dir, base.max_skip_ratio)
    return report


def _group_by_image(base: Base, report: StageReport) -> list[Item]:
    """The records of all sources by image and frame, as JSON can hold them, in the order in which the images first
    occur."""
    images = {(row["source"], row["name"]): row for row in read_work_rows(base.work_dir, "images")}
    items: dict[tuple[str, tuple[int, int] | None], dict[str, Any]] = {}
    for source in base.sources:
        for record in read_source(source):
            if isinstance(record, Skip):
                report.skips.append(record)
                report.read["record"] += 1
                continue
            report.read["record"] += 1
            report.read["region"] += len(record.regions)
            image = images.get((source.name, record.image))
            if image is None:
                report.skips.append(
                    Skip(record.record_id, "image_not_linked", f"{record.image} is not in images.parquet")
                )
                continue
            item = items.setdefault(
                (image["image"], record.size),
                {"image": image["image"], "num_bytes": image["num_bytes"], "size": record.size, "records": []},
            )
            item["records"].append({**_record_json(record), "source": source.name})
    return list(items.values())


def _record_json(record: Record) -> dict[str, Any]:
    regions = [asdict(region) for region in record.regions]
    return {"record_id": record.record_id, "kind": record.kind, "text": record.text, "regions": regions}


def _spell_shard(
    items: Sequence[Item],
    *,
    dataset_dir: Path,
    open_tokenizer: OpenTokenizer,
    space: str,
    min_area_px: int,
    max_pixels: int,
) -> ShardResult:
    result = ShardResult()
    for item in items:
        try:
            image = load_image_below(dataset_dir, item["image"], declared_size=item["size"], max_pixels=max_pixels)
        except DataError as error:
            result.skips += [Skip(record["record_id"], "image_unusable", str(error)) for record in item["records"]]
            continue
        regions = [region for record in item["records"] for region in record["regions"]]
        spelled = iter(spell_regions(regions, ImageTokens(image, open_tokenizer), space=space, min_area_px=min_area_px))
        for record in item["records"]:
            row, skips = _record_row(record, spelled)
            result.skips += skips
            if row is not None:
                frame = {"num_bytes": item["num_bytes"], "height": image.height, "width": image.width}
                result.rows.append({"image": item["image"], **frame, **row})
    return result


def _record_row(
    record: Mapping[str, Any], spelled: Iterator[SpelledRegion]
) -> tuple[dict[str, Any] | None, list[Skip]]:
    """The record's row (None where it drops out) and what was skipped; takes its regions from the front of
    `spelled`."""
    record_id = record["record_id"]
    kept, skips = [], []
    for number, source_region in enumerate(record["regions"]):
        region = next(spelled)
        if region.rle is None:
            assert region.reason is not None
            skips.append(Skip(f"{record_id}#{number}", region.reason, region.message, "region"))
        else:
            kept.append((source_region, region))
    if skips and record["kind"] == "expression":
        # What an expression means is all of its regions; without one of them the row would teach something wrong.
        return None, [*skips, Skip(record_id, "target_lost", f"{len(skips)} of its regions dropped out")]
    if record["regions"] and not kept:
        return None, [*skips, Skip(record_id, "no_regions_left", "all of its regions dropped out")]
    row = {key: record[key] for key in ("record_id", "source", "kind", "text")}
    row["tokens"] = [region.tokens for _, region in kept if region.tokens is not None]
    row["rles"] = [rle_to_text(region.rle) for _, region in kept if region.rle is not None]
    row["labels"] = [source_region["label"] for source_region, _ in kept]
    row["true_masks"] = bool(kept) and all(source_region["tokens"] is None for source_region, _ in kept)
    return row, skips
