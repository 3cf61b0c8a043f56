"""Public checkpoint files -> the folder of a MaskTokenizer, and what such a folder holds.

The file is read without running what a pickle may hold (`weights_only`), every name in it is accounted for, and the
folder appears all at once. `conversion.json` beside the weights says what they were made from.
"""

from __future__ import annotations

import json
import pickle
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from cyclegrpo.errors import DataError
from cyclegrpo.files import atomic_path, sha256_file, write_json
from cyclegrpo.loading import require_model
from cyclegrpo.tokenizer.config import SAM2_SIZES, MaskTokenizerConfig, sam2_config
from cyclegrpo.tokenizer.convert import REFERENCE_PREFIX, convert_state_dict, dropped_group
from cyclegrpo.tokenizer.model import MaskTokenizer

CONVERSION_FILE = "conversion.json"
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


@dataclass(frozen=True)
class TokenizerInfo:
    """What the folder of a tokenizer holds. Counts are of values; `made_from` is None where it was trained by us."""

    image_size: int
    embed_dim: int
    codebooks: str
    num_values: int
    num_values_encoder: int
    stored_as: str
    megabytes: float
    made_from: str | None


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
    _refuse_other_folder(out)
    reference = read_checkpoint(mask_tokenizer)
    if sam2 is not None:
        reference = {**_without_prefix(read_checkpoint(sam2)), **_without_prefix(reference)}
    try:
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
        tokenizer.save_pretrained(temporary)
        made = {"files": files, "size": size, "num_kept": report.num_kept, "dropped": report.dropped}
        write_json(temporary / CONVERSION_FILE, made)
    return report


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """The tensors of a `.pth`/`.pt` (read with `weights_only`) or safetensors file by name, on the CPU."""
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
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
    if isinstance(loaded, Mapping):
        for wrapper in WRAPPERS:
            if isinstance(loaded.get(wrapper), Mapping):
                return _tensors(loaded[wrapper], path)
    if not isinstance(loaded, Mapping) or not loaded:
        raise DataError(f"holds {type(loaded).__name__} without tensors; expected names with tensors.", file=path)
    others = [str(key) for key, value in loaded.items() if not isinstance(value, Tensor)]
    if others:
        raise DataError(f"{len(others)} names hold no tensor, the first is {others[0]!r}; expected tensors.", file=path)
    return dict(loaded)


def _without_prefix(reference: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix(REFERENCE_PREFIX): tensor for key, tensor in reference.items()}


def _published_config(reference: Mapping[str, Tensor]) -> tuple[str, MaskTokenizerConfig]:
    """Which published SAM 2.1 the names and shapes are of, and its config."""
    names = _without_prefix(reference)
    bias = names.get("image_encoder.trunk.patch_embed.proj.bias")
    numbers = [name.split(".")[3] for name in names if name.startswith("image_encoder.trunk.blocks.")]
    num_blocks = 1 + max((int(number) for number in numbers if number.isdecimal()), default=-1)
    width = None if bias is None else bias.shape[0]
    for size, arguments in SAM2_SIZES.items():
        if (arguments["stage_dims"][0], sum(arguments["stage_blocks"])) == (width, num_blocks):
            return size, sam2_config(size)
    known = ", ".join(
        f"{size} ({a['stage_dims'][0]} channels, {sum(a['stage_blocks'])} blocks)" for size, a in SAM2_SIZES.items()
    )
    found = "no image encoder" if width is None else f"an image encoder of {width} channels and {num_blocks} blocks"
    raise DataError(f"{found}; expected {known}. Give other sizes with --sizes FILE.")


def _refuse_no_numbers(converted: Mapping[str, Tensor]) -> None:
    names = [name for name, tensor in converted.items() if not bool(torch.isfinite(tensor).all())]
    if names:
        raise DataError(f"NaN or infinity in {len(names)} tensors: {', '.join(names[:5])}; the file is damaged.")


def _refuse_other_folder(out: Path) -> None:
    if out.is_dir() and any(out.iterdir()) and not (out / CONVERSION_FILE).is_file():
        raise DataError("holds other files; expected a new folder, or one of an earlier conversion.", file=out)


def read_info(folder: Path) -> TokenizerInfo:
    """What the folder of a tokenizer holds, without loading the weights.

    Raises DataError where there is none, or where names and shapes in the weights are not those of its config.
    """
    require_model(folder, "a mask tokenizer", "Convert one, or train one.")
    config = MaskTokenizerConfig.from_pretrained(folder)
    shapes, dtypes, num_bytes = _stored(folder)
    with torch.device("meta"):
        expected = {name: tuple(tensor.shape) for name, tensor in MaskTokenizer(config).state_dict().items()}
    wrong = sorted(name for name in {*expected, *shapes} if expected.get(name) != shapes.get(name))
    if wrong:
        raise DataError(f"{len(wrong)} weights do not fit config.json: {', '.join(wrong[:5])}", file=folder)
    counts = {name: torch.Size(shape).numel() for name, shape in shapes.items()}
    made = folder / CONVERSION_FILE
    return TokenizerInfo(
        image_size=config.image_size,
        embed_dim=config.embed_dim,
        codebooks=f"{config.codebook_depth} x {config.codebook_size}",
        num_values=sum(counts.values()),
        num_values_encoder=sum(count for name, count in counts.items() if name.startswith("sam2.vision_encoder.")),
        stored_as=", ".join(sorted(dtypes)),
        megabytes=round(num_bytes / 1e6, 2),
        made_from=", ".join(json.loads(made.read_text())["files"]) if made.is_file() else None,
    )


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
