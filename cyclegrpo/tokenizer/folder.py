"""The folder of a mask tokenizer: what it holds, loaded only when it is whole, and written for others to read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open

from cyclegrpo.errors import DataError
from cyclegrpo.files import share_weights
from cyclegrpo.loading import bars_on_terminals_only, require_model
from cyclegrpo.tokenizer.config import MaskTokenizerConfig
from cyclegrpo.tokenizer.model import MaskTokenizer

CONVERSION_FILE = "conversion.json"
"""Beside converted weights: what they were made from."""


@dataclass(frozen=True)
class TokenizerInfo:
    """What the folder of a tokenizer holds. Counts are of values; `made_from` is None where it was trained by us."""

    image_size: int
    embed_dim: int
    stage_blocks: str
    stage_heads: str
    decoder_heads: int
    top_down_levels: str
    multimask_output: bool
    codebooks: str
    mask_threshold: float
    compute_dtype: str
    num_values: int
    num_values_encoder: int
    stored_as: str
    megabytes: float
    made_from: str | None


def load_mask_tokenizer(folder: Path) -> MaskTokenizer:
    """The tokenizer in a folder, on the CPU, float32, in eval mode.

    Raises DataError where there is none, or where names and shapes in the weights are not those of its config:
    transformers itself would fill what is missing with random numbers.
    """
    _checked(folder)
    try:
        with bars_on_terminals_only():
            return MaskTokenizer.from_pretrained(folder).eval()
    except (SafetensorError, OSError, RuntimeError) as error:
        reason = _first_line(error)
        raise DataError(f"the weights cannot be read ({reason}); make the folder anew.", file=folder) from error


def save_tokenizer(tokenizer: MaskTokenizer, folder: Path) -> None:
    """Write the folder of a tokenizer; everybody may read it whom the process's umask lets."""
    with bars_on_terminals_only():
        tokenizer.save_pretrained(folder)
    share_weights(folder)


def require_replaceable(out: Path, marker: str, what: str) -> None:
    """DataError where a folder that is to be written holds anything but what it may replace.

    Args:
        marker: the file by which it is known.
        what: what may be replaced, for the message.
    """
    if out.resolve() == Path.cwd():
        raise DataError("the folder that this runs in; expected a new folder.", file=out)
    if out.is_dir() and any(out.iterdir()) and not (out / marker).is_file():
        raise DataError(f"holds other files; expected a new folder, or one of {what}.", file=out)


def read_info(folder: Path) -> TokenizerInfo:
    """What the folder of a tokenizer holds, without loading the weights.

    Raises DataError where there is none, or where names and shapes in the weights are not those of its config.
    """
    config, shapes, dtypes, num_bytes = _checked(folder)
    counts = {name: torch.Size(shape).numel() for name, shape in shapes.items()}
    made = folder / CONVERSION_FILE
    backbone, decoder = config.sam2_config.vision_config.backbone_config, config.sam2_config.mask_decoder_config
    return TokenizerInfo(
        image_size=config.image_size,
        embed_dim=config.embed_dim,
        stage_blocks=_joined(backbone.blocks_per_stage),
        stage_heads=_joined(backbone.num_attention_heads_per_stage),
        decoder_heads=decoder.num_attention_heads,
        top_down_levels=_joined(config.sam2_config.vision_config.fpn_top_down_levels),
        multimask_output=config.multimask_output,
        codebooks=f"{config.codebook_depth} x {config.codebook_size}",
        mask_threshold=config.mask_threshold,
        compute_dtype=config.compute_dtype,
        num_values=sum(counts.values()),
        num_values_encoder=sum(count for name, count in counts.items() if name.startswith("sam2.vision_encoder.")),
        stored_as=", ".join(sorted(dtypes)),
        megabytes=round(num_bytes / 1e6, 2),
        made_from=_made_from(made) if made.is_file() else None,
    )


def _made_from(file: Path) -> str:
    try:
        return ", ".join(json.loads(file.read_text(encoding="utf-8"))["files"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError("does not say what was converted; convert again.", file=file) from error


def read_config(folder: Path) -> MaskTokenizerConfig:
    """The config of the tokenizer in a folder; DataError where there is none, or where it is of another model."""
    require_model(folder, "a mask tokenizer", "Convert one, or train one.")
    file = folder / "config.json"
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        kind = values.get("model_type", "none")
    except (ValueError, AttributeError) as error:
        raise DataError(f"no config of a model ({_first_line(error)}); make the folder anew.", file=file) from error
    if kind != MaskTokenizerConfig.model_type:
        raise DataError(f"holds another model ({kind}); expected a mask tokenizer.", file=folder)
    try:
        return MaskTokenizerConfig.from_pretrained(folder)
    except (TypeError, ValueError, KeyError, StrictDataclassError) as error:
        raise DataError(f"no config of a mask tokenizer ({_first_line(error)}); make it anew.", file=file) from error


def _checked(folder: Path) -> tuple[MaskTokenizerConfig, dict[str, tuple[int, ...]], set[str], int]:
    """The config, and what `_stored` gives; DataError where the two do not fit."""
    config = read_config(folder)
    shapes, dtypes, num_bytes = _stored(folder)
    try:
        with torch.device("meta"):
            expected = {name: tuple(tensor.shape) for name, tensor in MaskTokenizer(config).state_dict().items()}
    except (TypeError, ValueError, RuntimeError, ZeroDivisionError) as error:
        raise DataError(f"sizes that fit no model ({_first_line(error)}).", file=folder / "config.json") from error
    wrong = sorted(name for name in {*expected, *shapes} if expected.get(name) != shapes.get(name))
    if wrong:
        shown = ", ".join(wrong[:5])
        raise DataError(f"{len(wrong)} weights do not fit config.json: {shown}; make the folder anew.", file=folder)
    return config, shapes, dtypes, num_bytes


def _stored(folder: Path) -> tuple[dict[str, tuple[int, ...]], set[str], int]:
    """Shapes by name, the types they are stored in, and bytes, from the headers of the safetensors files."""
    shapes: dict[str, tuple[int, ...]] = {}
    dtypes: set[str] = set()
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise DataError("holds no .safetensors file; expected the weights of a mask tokenizer.", file=folder)
    for file in files:
        try:
            with safe_open(file, framework="pt") as weights:
                for name in weights.keys():  # noqa: SIM118 - no mapping
                    part = weights.get_slice(name)
                    shapes[name] = tuple(part.get_shape())
                    dtypes.add(part.get_dtype())
        except SafetensorError as error:
            raise DataError(f"no whole safetensors file ({error}).", file=file) from error
    return shapes, dtypes, sum(file.stat().st_size for file in files)


def _joined(numbers: Sequence[Any]) -> str:
    return ", ".join(map(str, numbers))


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
