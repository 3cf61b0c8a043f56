"""Stage crop: zoom-in crops of the regions that are to be described, as JPEG files below `images/crops`.

The box, the size and the mask of a crop are the release's (`regions.geometry.crop_window`, `crop_size`, `cut_crop`).
Different from the public script: names are derived from what the crop shows, so that a re-run writes the same files;
JPEG quality is a parameter and colours are not subsampled.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from cyclegrpo.dataset.report import StageReport
from cyclegrpo.dataset.schema import text_to_rle
from cyclegrpo.dataset.shards import Item, ShardResult, ShardStore
from cyclegrpo.dataset.tables import read_work_rows
from cyclegrpo.files import digest, table_writer, write_bytes
from cyclegrpo.images import load_image_below
from cyclegrpo.params import Crop, Params
from cyclegrpo.regions.geometry import crop_size, crop_window, mask_to_box_inclusive, rle_to_mask
from cyclegrpo.sources import Skip

CROPS_FOLDER = "images/crops"
CROP_NAME = re.compile(r"[0-9a-f]{20}\.jpg")

Window = tuple[int, int, int, int]

SCHEMA = pa.schema(
    [
        ("record_id", pa.string()),
        ("region", pa.int32()),
        ("image", pa.string()),
        ("num_bytes", pa.int64()),
        ("height", pa.int32()),
        ("width", pa.int32()),
        ("rle", pa.string()),
        ("window", pa.list_(pa.int32(), 4)),
        ("crop", pa.string()),
        ("crop_num_bytes", pa.int64()),
        ("crop_height", pa.int32()),
        ("crop_width", pa.int32()),
    ]
)
"""crops.parquet, one row per region with a crop. `region` counts within the record's row of regions.parquet; `image`
to `rle` are taken from there; `window` is x0, y0, x1, y1 in the image, half-open; `crop` is relative to the dataset
directory."""


def cut_crop(
    image: Image.Image, mask: np.ndarray, window: Window, *, enlarge_to_px: int = 280
) -> tuple[Image.Image, np.ndarray]:
    """A region's zoom-in crop: the pixels of the window, enlarged where it is small, and the mask in the crop's
    frame.

    Args:
        image: RGB, the whole image.
        mask: bool (H, W) in the image's frame.
        window: x0, y0, x1, y1 in pixels of the image, half-open, at least one pixel.
        enlarge_to_px: as in `regions.geometry.crop_size`.

    Pixels are enlarged with Lanczos, the mask bilinearly and cut at 0.5; a mask of a few pixels may be empty
    afterwards.

    >>> crop, mask = cut_crop(Image.new("RGB", (8, 8)), np.ones((8, 8), bool), (2, 2, 6, 4), enlarge_to_px=8)
    >>> crop.size, mask.shape, int(mask.sum())
    ((16, 8), (8, 16), 128)
    """
    x0, y0, x1, y1 = window
    crop, crop_mask = image.crop(window), np.asarray(mask, dtype=bool)[y0:y1, x0:x1]
    size = crop_size(crop.width, crop.height, enlarge_to_px)
    if size == crop.size:
        return crop, crop_mask
    share = Image.fromarray(crop_mask.astype(np.float32)).resize(size, Image.Resampling.BILINEAR)
    return crop.resize(size, Image.Resampling.LANCZOS), np.asarray(share) > 0.5


@dataclass(frozen=True, slots=True)
class ZoomCrop:
    """A region's zoom-in crop before JPEG.

    Attributes:
        window: x0, y0, x1, y1 in pixels of the image, half-open.
        pixels: RGB, enlarged where the window is small.
        mask: bool (H, W) in the crop's frame; may be empty, where no pixel of the region is left.
    """

    window: Window
    pixels: Image.Image
    mask: np.ndarray


def zoom_crop(image: Image.Image, mask: np.ndarray, crop: Crop) -> ZoomCrop | None:
    """The zoom-in crop of a region by the rule of the `crop` section; None where the region is too large for one.

    Args:
        image: RGB, the whole image.
        mask: bool (H, W) in the image's frame, not empty.
        crop: whether crops are enabled is for the caller to ask.
    """
    window = crop_window(mask, max_area_fraction=crop.max_area_fraction, min_side_px=crop.min_side_px)
    if window is None:
        return None
    return ZoomCrop(window, *cut_crop(image, mask, window, enlarge_to_px=crop.enlarge_to_px))


def encode_jpeg(image: Image.Image, quality: int) -> bytes:
    """The image as JPEG without colour subsampling (4:4:4); the same bytes for the same pixels."""
    stream = io.BytesIO()
    image.save(stream, format="JPEG", quality=quality, subsampling=0)
    return stream.getvalue()


def run_crop(params: Params) -> StageReport:
    """Cut the crops of all `describe` records and write `<work_dir>/crops.parquet`.

    Files in `images/crops` that carry this stage's names and are not in the table are removed. With `crop.enabled`
    false there are no crops, and the table has no rows.
    """
    base, report = params.base, StageReport("crop", read={"crop": 0})
    items = _group_by_image(read_work_rows(base.work_dir, "regions")) if params.crop.enabled else []
    report.read["crop"] = sum(len(item["regions"]) for item in items)
    store = ShardStore(
        base.work_dir / "shards" / "crop",
        {"crop": params.crop.model_dump(mode="json"), "max_pixels": params.check.max_pixels},
        still_valid=partial(_files_are_there, dataset_dir=base.dataset_dir),
        keep_others=base.is_limited,
    )
    compute = partial(_crop_shard, dataset_dir=base.dataset_dir, crop=params.crop, max_pixels=params.check.max_pixels)
    report.made |= {"regions": report.read["crop"], "crops": 0}
    names: set[str] = set()
    results = store.run(items, compute, num_workers=base.num_workers)
    with table_writer(base.work_dir / "crops.parquet", SCHEMA) as write:
        for result in results:
            report.skips += result.skips
            report.made["crops"] += len(result.rows)
            names.update(Path(row["crop"]).name for row in result.rows)
            write(result.rows)
        report.finish(base.work_dir, base.max_skip_ratio)
    _remove_other_crops(base.dataset_dir / CROPS_FOLDER, names)
    return report


def _group_by_image(records: Sequence[Item]) -> list[Item]:
    """The regions to crop, by image and frame, in the order of the table."""
    items: dict[tuple[object, ...], dict[str, Any]] = {}
    for record in records:
        if record["kind"] != "describe":
            continue
        frame = {key: record[key] for key in ("image", "num_bytes", "height", "width")}
        item = items.setdefault(tuple(frame.values()), {**frame, "regions": []})
        for number, rle in enumerate(record["rles"]):
            item["regions"].append({"record_id": record["record_id"], "region": number, "rle": rle})
    return list(items.values())


def _crop_shard(items: Sequence[Item], *, dataset_dir: Path, crop: Crop, max_pixels: int) -> ShardResult:
    result = ShardResult()
    for item in items:
        size = (item["height"], item["width"])
        image = load_image_below(dataset_dir, item["image"], declared_size=size, max_pixels=max_pixels)
        for region in item["regions"]:
            row = _crop_region(image, item, region, dataset_dir, crop)
            if isinstance(row, Skip):
                result.skips.append(row)
            elif row is not None:
                result.rows.append(row)
    return result


def _crop_region(
    image: Image.Image, item: Item, region: Item, dataset_dir: Path, crop: Crop
) -> dict[str, Any] | Skip | None:
    """The region's row, with its file written; None where the region is too large for a crop."""
    mask = rle_to_mask(text_to_rle(region["rle"]))
    cut = zoom_crop(image, mask, crop)
    if cut is None:
        return None
    if not cut.mask.any():
        message = f"no pixel of the mask (box {mask_to_box_inclusive(mask)}) is left in the crop {cut.window}"
        return Skip(f"{region['record_id']}#{region['region']}", "empty_crop_mask", message, "crop")
    frame = {key: item[key] for key in ("image", "num_bytes", "height", "width")}
    name = f"{CROPS_FOLDER}/{crop_id(region['record_id'], frame, region['rle'], crop)}.jpg"
    data = encode_jpeg(cut.pixels, crop.jpeg_quality)
    write_bytes(dataset_dir / name, data)
    made = {"window": list(cut.window), "crop": name, "crop_num_bytes": len(data)}
    return {**region, **frame, **made, "crop_height": cut.pixels.height, "crop_width": cut.pixels.width}


def crop_id(record_id: str, frame: Item, rle: str, crop: Crop) -> str:
    """20 hex digits that follow from what the crop shows: its record, image, region and settings.

    Equal regions of one record share a crop; two records never do, so that rows can be moved apart.
    """
    return digest(record_id, dict(frame), rle, crop.model_dump(mode="json"))[:20]


def _files_are_there(result: ShardResult, dataset_dir: Path) -> bool:
    """Whether the crops of a stored shard still lie in the dataset directory, complete."""
    files = ((dataset_dir / row["crop"], row["crop_num_bytes"]) for row in result.rows)
    return all(path.is_file() and path.stat().st_size == num_bytes for path, num_bytes in files)


def _remove_other_crops(folder: Path, names: set[str]) -> None:
    if folder.is_dir():
        for path in folder.iterdir():
            if CROP_NAME.fullmatch(path.name) and path.name not in names:
                path.unlink()
