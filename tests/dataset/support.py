"""What the tests of the data stages share: params, a tokenizer without weights, and a small world of files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from PIL import Image

from cyclegrpo.params import Params
from cyclegrpo.regions.geometry import mask_to_box
from cyclegrpo.regions.tokens import codes_to_token

GRID = 16


class GridTokenizer:
    """Codes of rectangles on a 16 x 16 grid: code 0 is the cell (row * 16 + column) of the first corner, code 1 the
    size in cells.

    The pair (0, 255) decodes to an empty mask where it would be the whole image. Counts image-encoder passes and
    images.
    """

    def __init__(self) -> None:
        self.config = SimpleNamespace(codebook_size=256)
        self.num_passes = self.num_images = self.num_encoded = self.num_decoded = 0

    def embed_images(self, images: Sequence[Image.Image]) -> list[tuple[int, int]]:
        self.num_passes += 1
        self.num_images += len(images)
        return [image.size for image in images]

    def encode(
        self, features: Any, masks: Iterable[np.ndarray], image_of_mask: Sequence[int] | None = None
    ) -> np.ndarray:
        masks = list(masks)
        self.num_encoded += len(masks)
        sizes = [features] * len(masks) if image_of_mask is None else [features[i] for i in image_of_mask]
        for mask, size in zip(masks, sizes, strict=True):
            assert mask.dtype == np.bool_ and size == mask.shape[::-1]
        return np.array([self._codes(mask) for mask in masks])

    def decode_masks(self, features: tuple[int, int], codes: np.ndarray, height: int, width: int) -> np.ndarray:
        return np.stack(list(self.iterate_masks(features, codes, height, width)))

    def iterate_masks(
        self, features: tuple[int, int], codes: np.ndarray, height: int, width: int
    ) -> Iterator[np.ndarray]:
        self.num_decoded += len(codes)
        assert features == (width, height)
        for corner, size in codes:
            mask = np.zeros((height, width), dtype=bool)
            if (corner, size) != (0, 255):
                (row, column), (rows, columns) = divmod(int(corner), GRID), divmod(int(size), GRID)
                ys = [cell * height // GRID for cell in (row, row + rows + 1)]
                xs = [cell * width // GRID for cell in (column, column + columns + 1)]
                mask[ys[0] : ys[1], xs[0] : xs[1]] = True
            yield mask

    @staticmethod
    def _codes(mask: np.ndarray) -> tuple[int, int]:
        height, width = mask.shape
        box = mask_to_box(mask)
        assert box is not None
        x0, y0, x1, y1 = box
        column, row = x0 * GRID // width, y0 * GRID // height
        last_column, last_row = (x1 - 1) * GRID // width, (y1 - 1) * GRID // height
        return row * GRID + column, (last_row - row) * GRID + last_column - column


def cells(row: int, column: int, rows: int, columns: int) -> str:
    """The token group of a rectangle of grid cells."""
    return codes_to_token(row * GRID + column, (rows - 1) * GRID + columns - 1)


EMPTY = codes_to_token(0, 255)


def make_params(tmp_path: Path, *, sources: Sequence[Mapping[str, Any]], **sections: Mapping[str, Any]) -> Params:
    """Params whose folders lie below `tmp_path`. `sections` are merged over small defaults."""
    base = {
        "dataset_dir": tmp_path / "dataset",
        "work_dir": tmp_path / "work",
        "tokenizer": tmp_path / "tokenizer",
        "policy": tmp_path / "policy",
        "annotation_root": tmp_path / "raw",
        "num_workers": 0,
        "sources": list(sources),
        **sections.pop("base", {}),
    }
    raw = tmp_path / "raw"
    evaluate = {"annotations": raw / "grefs.json", "instances": raw / "instances.json", "image_root": raw / "coco"}
    sections.setdefault("crop", {"min_side_px": 24, "enlarge_to_px": 64})
    return Params.model_validate({"base": base, "evaluate": evaluate, **sections})


def answer(*tokens: str) -> list[dict[str, str]]:
    """DenseWorld conversations whose answer holds these token groups."""
    text = " and ".join(f"a thing {group}" for group in tokens) or "nothing to see"
    return [{"from": "human", "value": "<image>\nDescribe."}, {"from": "gpt", "value": text}]


def write_image(path: Path, width: int, height: int, seed: int = 0) -> None:
    """A noise image; PNG or JPEG by its suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def write_world(tmp_path: Path, num_images: int = 3) -> list[dict[str, Any]]:
    """Raw data below `tmp_path/raw` in both formats; returns the sources.

    DenseWorld image i (96 x 64) has a small region, a region i + 1 cells wide, and a region of the whole image. The
    gRefCOCO image (80 x 60) has two objects, one expression for the left one (two sentences), one for both and one
    for none.
    """
    raw = tmp_path / "raw"
    records = []
    for number in range(num_images):
        name = f"V3Det/images/n{number % 2:08d}/{number}.jpg"
        write_image(raw / name, 96, 64, seed=number)
        regions = (cells(2, 3, 2, 2), cells(8, 1, 3, number % 8 + 1), cells(0, 0, 16, 15))
        records.append({"image": name, "conversations": answer(*regions)})
    write_json(raw / "denseworld.json", records)
    write_image(raw / "coco" / "COCO_train2014_000000000001.jpg", 80, 60, seed=99)
    write_json(raw / "instances.json", COCO_INSTANCES)
    write_json(raw / "grefs.json", GREFS)
    return [
        {
            "name": "v3det",
            "format": "denseworld",
            "annotations": raw / "denseworld.json",
            "image_root": raw,
            "link_as": "v3det",
            "kinds": ["describe"],
        },
        {
            "name": "coco",
            "format": "grefcoco",
            "annotations": raw / "grefs.json",
            "instances": raw / "instances.json",
            "image_root": raw / "coco",
            "link_as": "coco_train2014",
            "split": "train",
            "kinds": ["no_target", "expression"],
        },
    ]


def write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


COCO_INSTANCES = {
    "images": [{"id": 1, "file_name": "COCO_train2014_000000000001.jpg", "height": 60, "width": 80}],
    "annotations": [
        {"id": 12, "image_id": 1, "category_id": 1, "iscrowd": 0, "segmentation": [[40, 30, 60, 30, 60, 45, 40, 45]]},
        {"id": 11, "image_id": 1, "category_id": 1, "iscrowd": 0, "segmentation": [[5, 15, 20, 15, 20, 30, 5, 30]]},
    ],
    "categories": [{"id": 1, "name": "person"}],
}

GREFS = [
    {
        "ref_id": 0,
        "image_id": 1,
        "file_name": "COCO_train2014_000000000001_7.jpg",
        "ann_id": [11],
        "no_target": False,
        "split": "train",
        "sentences": [{"sent_id": 0, "sent": "left man"}, {"sent_id": 1, "sent": "man in red"}],
    },
    {
        "ref_id": 1,
        "image_id": 1,
        "file_name": "COCO_train2014_000000000001_7.jpg",
        "ann_id": [-1],
        "no_target": True,
        "split": "train",
        "sentences": [{"sent_id": 2, "sent": "a zebra"}],
    },
    {
        "ref_id": 2,
        "image_id": 1,
        "file_name": "COCO_train2014_000000000001_7.jpg",
        "ann_id": [12, 11],
        "no_target": False,
        "split": "train",
        "sentences": [{"sent_id": 3, "sent": "both men"}],
    },
    {
        "ref_id": 3,
        "image_id": 1,
        "file_name": "COCO_train2014_000000000001_7.jpg",
        "ann_id": [12],
        "no_target": False,
        "split": "val",
        "sentences": [{"sent_id": 4, "sent": "right man"}],
    },
]
