"""The mask tokenizer as the stages use it: loaded when first needed, masks to tokens, a digest for resuming."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cyclegrpo.files import digest, sha256_file
from cyclegrpo.loading import require_model, resolve_device
from cyclegrpo.regions.tokens import codes_to_tokens

if TYPE_CHECKING:
    from PIL import Image

    from cyclegrpo.params import Base
    from cyclegrpo.tokenizer import ImageFeatures, MaskTokenizer

OpenTokenizer = Callable[[], "MaskTokenizer"]


def open_tokenizer(base: Base, loaded: MaskTokenizer | None = None) -> OpenTokenizer:
    """A function that gives the tokenizer: `loaded`, or `base.tokenizer`, loaded the first time it is called."""

    @cache
    def tokenizer() -> MaskTokenizer:
        return loaded if loaded is not None else load_tokenizer(base.tokenizer, base.device, base.tokenizer_dtype)

    return tokenizer


def load_tokenizer(folder: Path, device: str, dtype: str = "auto") -> MaskTokenizer:
    """The tokenizer in `folder`, ready to encode and decode. DataError where the folder holds none, or not all of it.

    Args:
        device, dtype: as `base.device` and `base.tokenizer_dtype`.
    """
    require_model(folder, "a mask tokenizer", "Mend base.tokenizer, or make one first.")
    from cyclegrpo.tokenizer.folder import load_mask_tokenizer

    tokenizer = load_mask_tokenizer(folder).to(resolve_device(device))
    tokenizer.config.compute_dtype = resolve_dtype(device, dtype)
    return tokenizer


def resolve_dtype(device: str, dtype: str) -> str:
    """`auto` becomes bfloat16 on a GPU and float32 elsewhere; other names are kept.

    >>> resolve_dtype("cuda:1", "auto"), resolve_dtype("cpu", "auto"), resolve_dtype("cuda", "float32")
    ('bfloat16', 'float32', 'float32')
    """
    if dtype != "auto":
        return dtype
    found = resolve_device(device) if device == "auto" else device
    return "bfloat16" if found.startswith("cuda") else "float32"


def embed_each(tokenizer: MaskTokenizer, images: Sequence[Image.Image]) -> list[ImageFeatures]:
    """The features of every image, each of one image, in order; none of none."""
    return list(tokenizer.embed_images(images)) if images else []


def masks_to_tokens(
    tokenizer: MaskTokenizer,
    features: ImageFeatures,
    masks: Iterable[np.ndarray],
    image_of_mask: Sequence[int] | None = None,
) -> list[str]:
    """The token group of every mask, in order.

    Args:
        features, masks, image_of_mask: as `MaskTokenizer.encode` takes them; none of the masks is empty.
    """
    codes = tokenizer.encode(features, masks, image_of_mask).tolist()
    return codes_to_tokens(codes, codebook_size=tokenizer.config.codebook_size) if codes else []


def tokenizer_digest(folder: Path) -> str:
    """Digest of the names and bytes of the tokenizer's files; the same for every missing folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
    return digest([[path.relative_to(folder).as_posix(), sha256_file(path)] for path in files])
