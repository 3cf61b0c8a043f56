"""Stage tokenize: the tokens of every region in its zoom-in crop, with one image-encoder pass per distinct crop.

The crop is cut again from the whole image by the same function, because the tokens belong to the pixels before JPEG.
In the box space there is nothing to encode, and the table has no rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from cyclegrpo.dataset.crops import cut_crop
from cyclegrpo.dataset.report import StageReport
from cyclegrpo.dataset.schema import text_to_rle
from cyclegrpo.dataset.shards import Item, ShardResult, ShardStore
from cyclegrpo.dataset.tables import read_work_rows
from cyclegrpo.dataset.tokenizers import OpenTokenizer, masks_to_tokens, open_tokenizer, resolve_dtype, tokenizer_digest
from cyclegrpo.files import table_writer
from cyclegrpo.images import load_image_below
from cyclegrpo.params import Params
from cyclegrpo.regions.geometry import rle_to_mask

if TYPE_CHECKING:
    from PIL import Image

    from cyclegrpo.tokenizer import MaskTokenizer

SCHEMA = pa.schema([("record_id", pa.string()), ("region", pa.int32()), ("tokens", pa.string())])
"""crop_tokens.parquet: one row per row of crops.parquet, in the same order."""


def run_tokenize(params: Params, tokenizer: MaskTokenizer | None = None) -> StageReport:
    """Encode the mask of every crop on its crop and write `<work_dir>/crop_tokens.parquet`.

    Args:
        tokenizer: one that is loaded already; None loads `base.tokenizer` when the first crop needs it.
    """
    base, report = params.base, StageReport("tokenize")
    items = _group_by_image(read_work_rows(base.work_dir, "crops")) if base.region_space == "mask" else []
    dtype = resolve_dtype(base.device, base.tokenizer_dtype)
    settings = {
        "enlarge_to_px": params.crop.enlarge_to_px,
        "batch_size": params.tokenize.batch_size,
        "max_pixels": params.check.max_pixels,
        "tokenizer": tokenizer_digest(base.tokenizer),
        "compute_dtype": dtype,
    }
    compute = partial(
        _tokenize_shard,
        dataset_dir=base.dataset_dir,
        open_tokenizer=open_tokenizer(base, tokenizer),
        enlarge_to_px=params.crop.enlarge_to_px,
        batch_size=params.tokenize.batch_size,
        max_pixels=params.check.max_pixels,
    )
    store = ShardStore(base.work_dir / "shards" / "tokenize", settings, keep_others=base.is_limited)
    report.made["crops"] = 0
    distinct: set[str] = set()
    results = store.run(items, compute)
    with table_writer(base.work_dir / "crop_tokens.parquet", SCHEMA) as write:
        for result in results:
            report.made["crops"] += len(result.rows)
            distinct.update(row["tokens"] for row in result.rows)
            write(result.rows)
        report.made["distinct_tokens"] = len(distinct)
        report.finish(base.work_dir, base.max_skip_ratio)
    return report


def _group_by_image(rows: Sequence[Item]) -> list[Item]:
    """The crops by image and frame, in the order of the table (which has the crops of an image side by side)."""
    items: dict[tuple[object, ...], dict[str, Any]] = {}
    for row in rows:
        frame = {key: row[key] for key in ("image", "num_bytes", "height", "width")}
        item = items.setdefault(tuple(frame.values()), {**frame, "crops": []})
        item["crops"].append({key: row[key] for key in ("record_id", "region", "rle", "window")})
    return list(items.values())


def _tokenize_shard(
    items: Sequence[Item],
    *,
    dataset_dir: Path,
    open_tokenizer: OpenTokenizer,
    enlarge_to_px: int,
    batch_size: int,
    max_pixels: int,
) -> ShardResult:
    """Encode every distinct crop of the shard once, `batch_size` of them in a pass."""
    tokenizer = open_tokenizer()
    token_of: dict[tuple[int, str], str] = {}
    crops = _distinct_crops(items, dataset_dir=dataset_dir, enlarge_to_px=enlarge_to_px, max_pixels=max_pixels)
    while batch := list(islice(crops, batch_size)):
        features = tokenizer.embed_images([pixels for _, pixels, _ in batch])
        tokens = masks_to_tokens(tokenizer, features, [mask for _, _, mask in batch], range(len(batch)))
        token_of |= dict(zip((key for key, _, _ in batch), tokens, strict=True))
    rows = [
        {"record_id": crop["record_id"], "region": crop["region"], "tokens": token_of[number, crop["rle"]]}
        for number, item in enumerate(items)
        for crop in item["crops"]
    ]
    return ShardResult(rows)


def _distinct_crops(
    items: Sequence[Item], *, dataset_dir: Path, enlarge_to_px: int, max_pixels: int
) -> Iterator[tuple[tuple[int, str], Image.Image, np.ndarray]]:
    """Yield ((item number, mask), crop, mask in the crop) for every crop that differs from those before it."""
    for number, item in enumerate(items):
        size = (item["height"], item["width"])
        image = load_image_below(dataset_dir, item["image"], declared_size=size, max_pixels=max_pixels)
        for rle, window in {crop["rle"]: crop["window"] for crop in item["crops"]}.items():
            mask = rle_to_mask(text_to_rle(rle))
            yield (number, rle), *cut_crop(image, mask, tuple(window), enlarge_to_px=enlarge_to_px)
