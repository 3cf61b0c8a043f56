"""The mask tokenizer as the data stages use it: loaded when first needed, and a digest of its files for resuming."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from cyclegrpo.errors import DataError
from cyclegrpo.files import digest, sha256_file

if TYPE_CHECKING:
    from cyclegrpo.tokenizer import MaskTokenizer

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
    if not (folder / "config.json").is_file():
        raise DataError(
            "holds no config.json; expected a mask tokenizer. Mend base.tokenizer, or make one first.", folder
        )
    import torch

    from cyclegrpo.tokenizer import MaskTokenizer

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return MaskTokenizer.from_pretrained(folder).eval().to(device)


def tokenizer_digest(folder: Path) -> str:
    """Digest of the names and bytes of the tokenizer's files; the same for every missing folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
    return digest([[path.relative_to(folder).as_posix(), sha256_file(path)] for path in files])
