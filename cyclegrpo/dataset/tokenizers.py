"""The mask tokenizer as the stages use it: loaded when first needed, masks to tokens, a digest for resuming."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cyclegrpo.files import digest, sha256_file
from cyclegrpo.loading import bars_on_terminals_only, require_model, resolve_device
from cyclegrpo.regions.tokens import codes_to_tokens

if TYPE_CHECKING:
    from PIL import Image

    from cyclegrpo.tokenizer import ImageFeatures, MaskTokenizer

IMAGES_PER_PASS = 16
"""Images in one pass of the image encoder, where no parameter says otherwise: bounds memory."""

OpenTokenizer = Callable[[], "MaskTokenizer"]


def open_tokenizer(folder: Path, device: str, loaded: MaskTokenizer | None = None) -> OpenTokenizer:
    """A function that gives the tokenizer: `loaded`, or the one in `folder`, which it loads the first time it is
    called.

    Args:
        device: as in `base.device`; `auto` takes a GPU where there is one.
    """

    @cache
    def tokenizer() -> MaskTokenizer:
        return loaded if loaded is not None else load_tokenizer(folder, device)

    return tokenizer


def load_tokenizer(folder: Path, device: str) -> MaskTokenizer:
    """The tokenizer in `folder`, ready to encode and decode on `device`. DataError where the folder holds none."""
    require_model(folder, "a mask tokenizer", "Mend base.tokenizer, or make one first.")
    from cyclegrpo.tokenizer import MaskTokenizer

    with bars_on_terminals_only():
        return MaskTokenizer.from_pretrained(folder).eval().to(resolve_device(device))


def embed_each(tokenizer: MaskTokenizer, images: Sequence[Image.Image]) -> list[ImageFeatures]:
    """The features of every image, each of one image, in order; at most `IMAGES_PER_PASS` are encoded at a time."""
    features: list[ImageFeatures] = []
    for start in range(0, len(images), IMAGES_PER_PASS):
        batch = tokenizer.embed_images(images[start : start + IMAGES_PER_PASS])
        features += [batch[i] for i in range(len(batch))]
    return features


def masks_to_tokens(tokenizer: MaskTokenizer, features: ImageFeatures, masks: Sequence[np.ndarray]) -> list[str]:
    """The token group of every mask, in order.

    Args:
        features: of the one image that the masks lie on.
        masks: bool (H, W) in the image's frame, none of them empty; no mask at all gives no token.
    """
    if not masks:
        return []
    codes = tokenizer.encode(features, np.stack(masks)).tolist()
    return codes_to_tokens(codes, codebook_size=tokenizer.config.codebook_size)


def tokenizer_digest(folder: Path) -> str:
    """Digest of the names and bytes of the tokenizer's files; the same for every missing folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
    return digest([[path.relative_to(folder).as_posix(), sha256_file(path)] for path in files])
