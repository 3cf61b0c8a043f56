"""Loading models: is one there, on which device, and with progress bars only where somebody can see them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cyclegrpo.errors import DataError, ParamsError


def require_model(folder: Path, what: str, remedy: str) -> None:
    """DataError where a folder holds no model as `save_pretrained` writes it.

    Args:
        what: the model that is expected, for the message.
        remedy: what to do, for the message.

    >>> require_model(Path("nowhere"), "a policy", "Set base.policy.")
    Traceback (most recent call last):
    ...
    cyclegrpo.errors.DataError: nowhere: config.json is missing; expected the folder of a policy. Set base.policy.
    """
    if not (folder / "config.json").is_file():
        raise DataError(f"config.json is missing; expected the folder of {what}. {remedy}", file=folder)


@contextmanager
def told_as_data(folder: Path) -> Iterator[None]:
    """Inside, whatever reading a model's files may raise becomes a DataError in one line that names the folder."""
    from safetensors import SafetensorError

    try:
        yield
    except (SafetensorError, OSError, RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, DataError):
            raise
        reason = " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
        raise DataError(f"holds no whole model ({reason}); make the folder anew.", file=folder) from error


def resolve_device(device: str) -> str:
    """`auto` becomes `cuda` where there is one, else `cpu`; every other name is kept.

    Raises ParamsError where it names a GPU that is not there.

    >>> resolve_device("cpu")
    'cpu'
    """
    if device in ("cpu", "mps"):
        return device
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    num_gpus = torch.cuda.device_count()
    if int(device.partition(":")[2] or 0) >= num_gpus:
        raise ParamsError(
            f"base.device is {device}, but {num_gpus} GPUs are visible; expected one of them, counted from 0. "
            "Set CUDA_VISIBLE_DEVICES, or base.device: auto"
        )
    return device


@contextmanager
def bars_on_terminals_only() -> Iterator[None]:
    """Inside, transformers draws the bars of loading and saving on terminals only, and not into logs."""
    from transformers.utils import logging

    # tqdm itself looks whether there is a terminal where `disable` is None.
    before = logging.set_tqdm_hook(lambda factory, args, kwargs: factory(*args, **{**kwargs, "disable": None}))
    try:
        yield
    finally:
        logging.set_tqdm_hook(before)
