"""What the benchmarks share: tokenizers with random weights, made-up images and masks, a clock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

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
    """Rectangles, bool (number, height, width): three of five are small enough for a zoom-in crop."""
    rng = np.random.default_rng(seed)
    masks = np.zeros((number, height, width), bool)
    for index, mask in enumerate(masks):
        share = 0.25 if index % 5 < 3 else 0.8
        rows, columns = int(share * height), int(share * width)
        y, x = int(rng.integers(0, height - rows)), int(rng.integers(0, width - columns))
        mask[y : y + rows, x : x + columns] = True
    return masks


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
