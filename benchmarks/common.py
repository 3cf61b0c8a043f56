"""What the benchmarks share: tokenizers with random weights, made-up images, masks and annotations, a clock."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from cyclegrpo.files import write_json
from cyclegrpo.params import Crop, Params, Source
from cyclegrpo.params_file import load_params
from cyclegrpo.regions.tokens import codes_to_token
from cyclegrpo.tokenizer import MaskTokenizer
from cyclegrpo.tokenizer.config import sam2_config


def random_tokenizer(size: str, seed: int = 0) -> MaskTokenizer:
    """A published size with random weights, on the CPU, in float32: it costs what the trained one costs."""
    torch.manual_seed(seed)
    tokenizer = MaskTokenizer(sam2_config(size)).eval()
    for module in tokenizer.modules():
        if isinstance(module, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
            module.reset_parameters()
    return tokenizer


def made_up_image(seed: int, height: int = 600, width: int = 800) -> np.ndarray:
    """Smooth noise, uint8 (height, width, 3)."""
    coarse = np.random.default_rng(seed).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    return np.kron(coarse, np.ones((-(-height // 12), -(-width // 16), 1), np.uint8))[:height, :width]


def made_up_masks(seed: int, number: int, height: int = 600, width: int = 800) -> np.ndarray:
    """Rectangles, bool (number, height, width); of all images' three in five are small enough for a zoom-in crop."""
    rng = np.random.default_rng(seed)
    masks = np.zeros((number, height, width), bool)
    for index, mask in enumerate(masks):
        share = 0.25 if (seed * number + index) % 5 < 3 else 0.8
        rows, columns = int(share * height), int(share * width)
        y, x = int(rng.integers(0, height - rows)), int(rng.integers(0, width - columns))
        mask[y : y + rows, x : x + columns] = True
    return masks


def write_raw(folder: Path, num_masks: Sequence[int], height: int = 600, width: int = 800) -> None:
    """Images, with so many regions each, and their annotations as DenseWorld has them.

    The codes of a region are its number in the image, and the image's number modulo 256.
    """
    folder.mkdir(parents=True)
    samples = []
    for image, number in enumerate(num_masks):
        name = f"{image:05d}.png"
        Image.fromarray(made_up_image(image, height, width)).save(folder / name)
        regions = ", ".join(f"a thing {codes_to_token(mask, image % 256)}" for mask in range(number))
        turns = [{"from": "human", "value": "<image>\nDescribe it."}, {"from": "gpt", "value": f"I see {regions}."}]
        samples.append({"image": name, "conversations": turns})
    write_json(folder / "annotations.json", samples)


def params_of(raw: Path, made: Path) -> Params:
    """The pipeline's params for those files, with the release's crop rule, writing below `made`."""
    params = load_params("params.yaml")
    source = Source(
        name="made_up",
        format="denseworld",
        annotations=raw / "annotations.json",
        image_root=raw,
        link_as="made_up",
        kinds=("describe",),
    )
    changes = {"sources": (source,), "annotation_root": raw, "device": "cpu", "tokenizer_dtype": "float32"}
    folders = {"dataset_dir": made / "dataset", "work_dir": made / "work", "tokenizer": made / "none"}
    return params.model_copy(update={"base": params.base.model_copy(update=changes | folders), "crop": Crop()})


@dataclass
class Clock:
    """Seconds spent in the image encoder, and its passes."""

    seconds: float = 0.0
    num_images: int = 0


@contextmanager
def encoder_clock(tokenizer: MaskTokenizer) -> Iterator[Clock]:
    """Counts the time and the images of `embed_images` inside."""
    clock = Clock()
    embed = tokenizer.embed_images

    def timed(images):  # type: ignore[no-untyped-def]
        start = time.perf_counter()
        try:
            return embed(images)
        finally:
            clock.seconds += time.perf_counter() - start
            clock.num_images += len(images)

    tokenizer.embed_images = timed  # type: ignore[method-assign]
    try:
        yield clock
    finally:
        del tokenizer.embed_images
