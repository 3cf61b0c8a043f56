"""SAMTok, the mask tokenizer: masks of an image <-> pairs of codes.

The names are loaded on first use, so that importing a neighbour never imports torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cyclegrpo.tokenizer.config import MaskTokenizerConfig, hiera_config
    from cyclegrpo.tokenizer.features import ImageFeatures
    from cyclegrpo.tokenizer.model import MaskTokenizer

_MODULE_OF_NAME = {
    "ImageFeatures": "features",
    "MaskTokenizer": "model",
    "MaskTokenizerConfig": "config",
    "hiera_config": "config",
}

__all__ = ["ImageFeatures", "MaskTokenizer", "MaskTokenizerConfig", "hiera_config"]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULE_OF_NAME[name]}"), name)
