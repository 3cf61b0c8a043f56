"""Stage regions: every source's regions in both spellings, tokens and mask, with one image-encoder pass per image.

A region that its source spells as tokens is decoded; one with a true mask is encoded, and the true mask is kept. In
the box space nothing is encoded: a region's text is made from its mask by `build`. Every region and record that drops
out is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cyclegrpo.dataset.report import StageReport
from cyclegrpo.dataset.schema import rle_to_text
from cyclegrpo.dataset.shards import Item, ShardResult, ShardStore
from cyclegrpo.dataset.tokenizers import open_tokenizer, tokenizer_digest
from cyclegrpo.errors import DataError
from cyclegrpo.files import load_image, resolve_below, write_table
from cyclegrpo.params import Base, Params
from cyclegrpo.regions.geometry import Rle, mask_to_rle, rle_to_mask
from cyclegrpo.regions.tokens import ParsedTokens, codes_to_token, parse_tokens
from cyclegrpo.sources import Record, Skip, read_source

if TYPE_CHECKING:
    from PIL import Image

    from cyclegrpo.tokenizer import ImageFeatures, MaskTokenizer

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
own, not decoded."""

OpenTokenizer = Callable[[], "MaskTokenizer"]


def run_regions(params: Params, tokenizer: MaskTokenizer | None = None) -> StageReport:
    """Spell the regions of all records both ways and write `<work_dir>/regions.parquet`.

    Args:
        tokenizer: one that is loaded already; None loads `base.tokenizer` when the first image needs it.
    """
    base, report = params.base, StageReport("regions", read={"record": 0, "region": 0})
    items = _group_by_image(base, report)
    settings = {
        "space": base.region_space,
        "min_area_px": params.regions.min_area_px,
        "max_pixels": params.check.max_pixels,
        "tokenizer": tokenizer_digest(base.tokenizer),
    }
    compute = partial(
        _spell_shard,
        dataset_dir=base.dataset_dir,
        open_tokenizer=open_tokenizer(base.tokenizer, base.device, tokenizer),
        space=base.region_space,
        min_area_px=params.regions.min_area_px,
        max_pixels=params.check.max_pixels,
    )
    result = ShardStore(base.work_dir / "shards" / "regions", settings).run(items, compute)
    report.skips += result.skips
    report.made["records"] = len(result.rows)
    report.made["regions"] = sum(len(row["rles"]) for row in result.rows)
    report.finish(base.work_dir, base.max_skip_ratio)
    write_table(base.work_dir / "regions.parquet", pa.Table.from_pylist(result.rows, schema=SCHEMA))
    return report


def _group_by_image(base: Base, report: StageReport) -> list[Item]:
    """The records of all sources by image and frame, as JSON can hold them, in the order in which the images first
    occur."""
    manifest = pq.read_table(base.work_dir / "images.parquet").to_pylist()
    images = {(row["source"], row["name"]): row for row in manifest}
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


@dataclass(slots=True)
class SpelledRegion:
    """A region in both spellings, or the reason why it is none.

    Attributes:
        tokens: its token group; None in the box space.
        rle: its mask; None where there is a reason.
        reason, message: why the region is dropped, as in `Skip`.
    """

    tokens: str | None = None
    rle: Rle | None = None
    reason: str | None = None
    message: str = ""


class ImageTokens:
    """Masks <-> codes of one image, which is embedded once, when it is first needed."""

    def __init__(self, image: Image.Image, open_tokenizer: OpenTokenizer) -> None:
        self.image = image
        self._open_tokenizer = open_tokenizer

    @cached_property
    def tokenizer(self) -> MaskTokenizer:
        """The tokenizer, loaded when the first image needs it."""
        return self._open_tokenizer()

    @cached_property
    def features(self) -> ImageFeatures:
        """The image's features."""
        return self.tokenizer.embed_images([self.image])[0]

    def parse(self, text: str) -> ParsedTokens:
        """The token groups of a text, checked against the tokenizer's codebooks."""
        return parse_tokens(text, codebook_size=self.tokenizer.config.codebook_size)

    def codes(self, tokens: str) -> tuple[int, int]:
        """The codes of one well-formed token group."""
        code0, code1 = self.parse(tokens).codes[0]
        assert code1 is not None  # strict parsing gives both
        return code0, code1

    def decode(self, codes: Sequence[tuple[int, int]]) -> np.ndarray:
        """The codes' masks, bool (N, H, W) at the image's size."""
        return self.tokenizer.decode_masks(self.features, np.array(codes), self.image.height, self.image.width)

    def encode(self, masks: Sequence[np.ndarray]) -> list[str]:
        """The masks' tokens. Masks are bool (H, W), none of them empty."""
        size = self.tokenizer.config.codebook_size
        codes = self.tokenizer.encode(self.features, np.stack(masks)).tolist()
        return [codes_to_token(code0, code1, codebook_size=size) for code0, code1 in codes]


def spell_regions(
    regions: Sequence[Mapping[str, Any]], tokens: ImageTokens, *, space: str, min_area_px: int = 1
) -> list[SpelledRegion]:
    """Regions of one image -> the same regions in both spellings, in the same order.

    Args:
        regions: as fields of `sources.Region`.
        tokens: the image's masks <-> codes.
        space: `mask`, or `box`, in which tokens are decoded but nothing is encoded.
        min_area_px: masks with fewer pixels are dropped (`below_min_area`).

    Equal regions are decoded and encoded once. Dropped are also: `bad_tokens` (malformed, or a code out of range),
    `empty_mask`, `bad_rle`, `box_without_mask` (a box in the mask space: the tokenizer needs a mask).
    """
    spelled = [_read_region(region, tokens, space) for region in regions]
    codes = {region.tokens: tokens.codes(region.tokens) for region in spelled if region.tokens is not None}
    masks: dict[str, np.ndarray] = {}
    if codes:
        masks = dict(zip(codes, tokens.decode(list(codes.values())), strict=True))
    for region in spelled:
        if region.tokens is not None:
            region.rle = mask_to_rle(masks[region.tokens])
        if region.rle is not None:
            _drop_small(region, min_area_px)
    if space == "mask":
        _encode_missing([region for region in spelled if region.rle is not None and region.tokens is None], tokens)
    else:
        for region in spelled:
            region.tokens = None
    return spelled


def _read_region(region: Mapping[str, Any], tokens: ImageTokens, space: str) -> SpelledRegion:
    """The region as its source spells it: `tokens` or `rle` filled in, or a reason."""
    height, width = tokens.image.height, tokens.image.width
    if region["tokens"] is not None:
        parsed = tokens.parse(region["tokens"])
        if parsed.flags or len(parsed.tokens) != 1:
            flags = ", ".join(parsed.flags) or f"{len(parsed.tokens)} groups"
            return SpelledRegion(reason="bad_tokens", message=f"{region['tokens']!r:.120}: {flags}")
        return SpelledRegion(tokens=parsed.tokens[0])
    if region["rle"] is not None:
        try:
            return SpelledRegion(rle=mask_to_rle(rle_to_mask(region["rle"], height=height, width=width)))
        except DataError as error:
            return SpelledRegion(reason="bad_rle", message=str(error))
    if space == "mask":
        return SpelledRegion(
            reason="box_without_mask", message="the mask space needs a mask; set base.region_space to box"
        )
    x0, y0, x1, y1 = (max(0, round(value)) for value in region["box"])
    mask = np.zeros((height, width), dtype=bool)
    mask[y0:y1, x0:x1] = True
    return SpelledRegion(rle=mask_to_rle(mask))


def _drop_small(region: SpelledRegion, min_area_px: int) -> None:
    assert region.rle is not None
    area = int(rle_to_mask(region.rle).sum())
    if area == 0:
        region.reason, region.message = "empty_mask", "the mask has no pixel"
    elif area < min_area_px:
        region.reason, region.message = "below_min_area", f"{area} pixels; regions.min_area_px is {min_area_px}"
    if region.reason is not None:
        region.rle = None


def _encode_missing(regions: Sequence[SpelledRegion], tokens: ImageTokens) -> None:
    """Fill in the tokens of regions with true masks; equal masks are encoded once."""
    distinct = {rle_to_text(region.rle): region.rle for region in regions if region.rle is not None}
    if not distinct:
        return
    encoded = tokens.encode([rle_to_mask(rle) for rle in distinct.values()])
    token_of = dict(zip(distinct, encoded, strict=True))
    for region in regions:
        if region.rle is not None:
            region.tokens = token_of[rle_to_text(region.rle)]


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
            path = resolve_below(dataset_dir, item["image"], allow_links=True)
            image = load_image(path, declared_size=item["size"], max_pixels=max_pixels)
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
