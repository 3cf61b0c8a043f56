"""The held-out set in blocks, each with everything about it that does not depend on a policy.

A block holds its images, their features (every image is encoded once), the describe prompt of every region with its
zoom-in crop as in training, and the scorer for answers about its images.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from cyclegrpo.dataset.crops import encode_jpeg, zoom_crop
from cyclegrpo.dataset.tokenizers import embed_each, masks_to_tokens
from cyclegrpo.evaluation.heldout import Heldout, HeldoutNoTarget, HeldoutRegion
from cyclegrpo.evaluation.scoring import BoxScorer, MaskScorer, Scorer
from cyclegrpo.params import Crop
from cyclegrpo.regions.geometry import mask_to_prompt_box
from cyclegrpo.regions.spaces import RegionSpace

if TYPE_CHECKING:
    from cyclegrpo.tokenizer import MaskTokenizer


@dataclass(frozen=True)
class Cut:
    """A zoom-in crop: its `pixels`, the same as the policy sees them in training (through JPEG), and its mask."""

    pixels: Image.Image
    seen: Image.Image
    mask: np.ndarray


@dataclass(frozen=True)
class Target:
    """One region as it is asked about: the describe prompt and its images (the whole one, then its crop, if any)."""

    region: HeldoutRegion
    prompt: str
    images: tuple[Image.Image, ...]


@dataclass(frozen=True)
class Block:
    """Some items of the held-out set. `images` by name are the whole ones."""

    number: int
    targets: tuple[Target, ...]
    no_targets: tuple[HeldoutNoTarget, ...]
    images: dict[str, Image.Image]
    scorer: Scorer


def prepare_blocks(
    heldout: Heldout,
    tokenizer: MaskTokenizer | None,
    *,
    space: RegionSpace,
    crop: Crop,
    block_size: int,
    first: int = 0,
) -> Iterator[Block]:
    """The held-out set in blocks of at most `block_size` regions and as many no-target expressions, ready to be asked.

    Args:
        heldout: the set.
        tokenizer: encodes and decodes masks; only the box space goes without one.
        space: how regions are spelled.
        crop: the `crop` section of the params; crops are cut as in training, none where it is not enabled.
        block_size: bounds the memory for images and their features.
        first: the number of the block to begin with.

    Keep the blocks in a list to evaluate several policies without preparing them again (if the features fit in memory).
    """
    for number in range(first, num_blocks(heldout, block_size)):
        window = slice(number * block_size, (number + 1) * block_size)
        regions, no_targets = heldout.regions[window], heldout.no_targets[window]
        named = [(item.image, item.size) for item in regions] + [(item.image, item.size) for item in no_targets]
        images = {name: heldout.open_image(name, size) for name, size in named}
        sizes = {name: (image.height, image.width) for name, image in images.items()}
        cuts = [cut_region(images[region.image], region.mask, crop) for region in regions]
        scorer: Scorer
        if tokenizer is None:
            texts = [(space.format(mask_to_prompt_box(region.mask)), "") for region in regions]
            scorer = BoxScorer(sizes)
        else:
            features = dict(zip(images, embed_each(tokenizer, list(images.values())), strict=True))
            texts = _spell(tokenizer, regions, features, cuts)
            scorer = MaskScorer(tokenizer, features, sizes, codebook_size=tokenizer.config.codebook_size)
        targets = []
        for region, cut, (text, crop_text) in zip(regions, cuts, texts, strict=True):
            image = images[region.image]
            shown = (image,) if cut is None else (image, cut.seen)
            targets.append(Target(region, space.describe(text, None if cut is None else crop_text), shown))
        yield Block(number, tuple(targets), no_targets, images, scorer)


def num_blocks(heldout: Heldout, block_size: int) -> int:
    """How many blocks `prepare_blocks` gives."""
    return -(-max(len(heldout.regions), len(heldout.no_targets)) // block_size)


def cut_region(image: Image.Image, mask: np.ndarray, crop: Crop) -> Cut | None:
    """The region's zoom-in crop as the crop stage cuts it; None for a large region, or where no pixel of it is left."""
    if not crop.enabled:
        return None
    cut = zoom_crop(image, mask, crop)
    if cut is None or not cut.mask.any():
        return None
    with Image.open(io.BytesIO(encode_jpeg(cut.pixels, crop.jpeg_quality))) as stored:
        return Cut(cut.pixels, stored.convert("RGB"), cut.mask)


def _spell(
    tokenizer: MaskTokenizer, regions: Sequence[HeldoutRegion], features: dict[str, Any], cuts: Sequence[Cut | None]
) -> list[tuple[str, str]]:
    """Every region as tokens, in the image and in its crop ("" without one), the latter from the uncompressed crop."""
    crop_features = iter(embed_each(tokenizer, [cut.pixels for cut in cuts if cut is not None]))
    return [
        (
            masks_to_tokens(tokenizer, features[region.image], [region.mask])[0],
            "" if cut is None else masks_to_tokens(tokenizer, next(crop_features), [cut.mask])[0],
        )
        for region, cut in zip(regions, cuts, strict=True)
    ]
