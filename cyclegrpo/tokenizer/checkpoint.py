"""Public checkpoint files -> the folder of a MaskTokenizer.

The file is read without running what a pickle may hold (`weights_only`), every name in it is accounted for, and the
folder appears all at once. `conversion.json` beside the weights says what they were made from.
"""

from __future__ import annotations

import pickle
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from cyclegrpo.errors import DataError
from cyclegrpo.files import atomic_path, remove_leftovers, sha256_file, write_json
from cyclegrpo.tokenizer.config import SAM2_SIZES, MaskTokenizerConfig, sam2_config
from cyclegrpo.tokenizer.convert import convert_state_dict, dropped_group, refuse_multi_token, without_prefix
from cyclegrpo.tokenizer.folder import CONVERSION_FILE, require_replaceable, save_tokenizer
from cyclegrpo.tokenizer.model import MaskTokenizer

WRAPPERS = ("state_dict", "model")
"""Keys under which training scripts put the weights."""


@dataclass(frozen=True)
class ConvertReport:
    """What a conversion did: the size found, how many names of the file were kept and left behind, values kept."""

    out: str
    size: str
    num_keys: int
    num_kept: int
    num_dropped: int
    dropped: dict[str, int] = field(default_factory=dict)
    num_values: int = 0


def convert_checkpoint(
    mask_tokenizer: Path, out: Path, *, sam2: Path | None = None, config: MaskTokenizerConfig | None = None
) -> ConvertReport:
    """Write the folder of a MaskTokenizer, float32, from public checkpoint files.

    Args:
        mask_tokenizer: `mask_tokenizer_256x2.pth`, or the same names in safetensors.
        out: a new folder; an earlier conversion there is replaced, anything else refused.
        sam2: a SAM 2.1 checkpoint that gives the weights which `mask_tokenizer` does not hold.
        config: the sizes; None finds out which published SAM 2.1 it is.

    Raises DataError where a file cannot be read, holds names that are not accounted for or values that are no numbers.
    """
    require_replaceable(out, CONVERSION_FILE, "an earlier conversion")
    remove_leftovers(out)
    reference = _named(read_checkpoint(mask_tokenizer), mask_tokenizer)
    if sam2 is not None:
        others = _named(read_checkpoint(sam2), sam2)
        if not any(name not in reference and dropped_group(name) is None for name in others):
            raise DataError(f"holds no weight that {mask_tokenizer} lacks; leave --sam2 out, or mend it.", file=sam2)
        reference = {**others, **reference}
    try:
        refuse_multi_token(reference)
        size, config = ("given", config) if config is not None else _published_config(reference)
        converted = convert_state_dict(reference, config)
        _refuse_no_numbers(converted)
    except DataError as error:
        raise DataError(error.message, file=mask_tokenizer) from error
    dropped = Counter(group for key in reference if (group := dropped_group(key)) is not None)
    report = ConvertReport(
        out=out.as_posix(),
        size=size,
        num_keys=len(reference),
        num_kept=len(reference) - dropped.total(),
        num_dropped=dropped.total(),
        dropped=dict(sorted(dropped.items())),
        num_values=sum(tensor.numel() for tensor in converted.values()),
    )
    files = {path.name: sha256_file(path) for path in (mask_tokenizer, sam2) if path is not None}
    with torch.device("meta"):
        tokenizer = MaskTokenizer(config)
    tokenizer.load_state_dict(converted, assign=True)
    with atomic_path(out) as temporary:
        save_tokenizer(tokenizer, temporary)
        made = {"files": files, "size": size, "num_kept": report.num_kept, "dropped": report.dropped}
        write_json(temporary / CONVERSION_FILE, made)
    return report


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """The tensors of a `.pth`/`.pt` (read with `weights_only`) or safetensors file by name, on the CPU."""
    try:
        if path.suffix == ".safetensors":
            return _tensors(load_file(path), path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's doubts about a pickle that it then refuses
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise DataError("no such file; expected a checkpoint.", file=path) from error
    except IsADirectoryError as error:
        raise DataError("a folder; expected a checkpoint file.", file=path) from error
    except (pickle.UnpicklingError, SafetensorError, RuntimeError, EOFError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split(". ")[0].split())[:200]
        raise DataError(
            f"cannot be read as weights alone ({type(error).__name__}: {reason}); expected a whole .pth or "
            ".safetensors file of tensors. Pickled code is never run.",
            file=path,
        ) from error
    return _tensors(loaded, path)


def _tensors(loaded: Any, path: Path) -> dict[str, Tensor]:
    """The mapping of tensors in what was loaded, or in one of its `WRAPPERS`."""
    wrapped = next((loaded[name] for name in WRAPPERS if name in loaded), None) if isinstance(loaded, Mapping) else None
    if isinstance(wrapped, Mapping):
        loaded = wrapped
    if not isinstance(loaded, Mapping) or not loaded:
        raise DataError(f"holds {type(loaded).__name__} without tensors; expected names with tensors.", file=path)
    others = [key for key, value in loaded.items() if not isinstance(key, str) or not _is_plain(value)]
    if others:
        raise DataError(
            f"{len(others)} names hold no plain tensor of floating-point numbers, the first is {others[0]!r}; expected "
            "names with such tensors.",
            file=path,
        )
    return dict(loaded)


def _is_plain(value: Any) -> bool:
    """Whether something is a dense tensor with values that are real numbers; counters of a training may be whole."""
    return (
        isinstance(value, Tensor)
        and value.layout == torch.strided
        and not value.is_meta
        and not value.is_quantized
        and (value.is_floating_point() or (value.ndim == 0 and not value.is_complex()))
    )


def _named(tensors: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """The tensors without the public prefix; DataError where two names become one."""
    named = {without_prefix(key): tensor for key, tensor in tensors.items()}
    if len(named) < len(tensors):
        twice = next(name for name, count in Counter(map(without_prefix, tensors)).items() if count > 1)
        raise DataError(f"{twice} is there with and without its prefix; expected each weight once.", file=path)
    return named


def _published_config(reference: Mapping[str, Tensor]) -> tuple[str, MaskTokenizerConfig]:
    """Which published SAM 2.1 the names and shapes are of, and its config."""
    bias = reference.get("image_encoder.trunk.patch_embed.proj.bias")
    numbers = [name.split(".")[3] for name in reference if name.startswith("image_encoder.trunk.blocks.")]
    num_blocks = 1 + max((int(number) for number in numbers if number.isdecimal()), default=-1)
    width = None if bias is None or not bias.ndim else bias.shape[0]
    for size, arguments in SAM2_SIZES.items():
        if (arguments["stage_dims"][0], sum(arguments["stage_blocks"])) == (width, num_blocks):
            return size, sam2_config(size)
    known = ", ".join(
        f"{size} ({a['stage_dims'][0]} channels, {sum(a['stage_blocks'])} blocks)" for size, a in SAM2_SIZES.items()
    )
    if width is None:
        raise DataError(f"no image encoder; expected {known}. Give SAM 2's own checkpoint with --sam2 FILE.")
    found = f"an image encoder of {width} channels and {num_blocks} blocks"
    raise DataError(f"{found}; expected {known}. Give other sizes with --sizes FILE.")


def _refuse_no_numbers(converted: Mapping[str, Tensor]) -> None:
    names = [name for name, tensor in converted.items() if not bool(torch.isfinite(tensor).all())]
    if names:
        raise DataError(f"NaN or infinity in {len(names)} tensors: {', '.join(names[:5])}; the file is damaged.")
