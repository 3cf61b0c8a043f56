"""Training a tokenizer on the sources of the params: examples, training, and what is left on disk."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from cyclegrpo.errors import ParamsError
from cyclegrpo.files import atomic_path, remove_leftovers, require_writable, write_text
from cyclegrpo.loading import resolve_device
from cyclegrpo.params import Params, SourceParams
from cyclegrpo.tokenizer.examples import SourceExamples
from cyclegrpo.tokenizer.folder import load_mask_tokenizer, read_config, require_replaceable, save_tokenizer
from cyclegrpo.tokenizer.model import MaskTokenizer
from cyclegrpo.tokenizer.params import FROM_NOTHING, TokenizerTraining
from cyclegrpo.tokenizer.train import Row, train_mask_tokenizer


@dataclass(frozen=True)
class TrainTokenizerReport:
    """What a training did; loss and IoU are of the last step, `num_unusable` counts unusable images and masks."""

    num_images: int
    num_unusable: int
    num_steps: int
    seconds: float
    loss: float
    iou: float
    out: str


def run_train_tokenizer(
    params: Params | SourceParams,
    training: TokenizerTraining,
    out: Path,
    *,
    start: Path | None = None,
    results: Path,
    names: Sequence[str] | None = None,
    limit: int | None = None,
) -> TrainTokenizerReport:
    """Train on images of the sources (see `SourceExamples`) and write the tokenizer to `out`, the curve to `results`.

    Args:
        start: the folder of a tokenizer to go on from.

    An unfinished run is kept in `<out>.checkpoints` until all is written, by the main process alone. Raises DataError
    where `out` holds anything but a tokenizer, and, after all is written, where more images or masks than
    `base.max_skip_ratio` could not be used.
    """
    device = _training_device(params.base.device)
    _require_outputs(out, results)
    given = [name for name in FROM_NOTHING if name in training.model_fields_set]
    if start is not None and given:
        raise ParamsError(
            f"{', '.join(given)}: says how a new tokenizer begins, but --from names an old one; give one of the two."
        )
    examples = SourceExamples(params, names=names, limit=limit)
    tokenizer = None if start is None else load_mask_tokenizer(start)
    clock = time.monotonic()

    def keep(trained: MaskTokenizer, curve: Sequence[Row]) -> None:
        with atomic_path(out) as temporary:
            save_tokenizer(trained, temporary)
        write_curve(curve, results / "curves.csv")

    _, curve = train_mask_tokenizer(
        examples.draw,
        training,
        tokenizer=tokenizer,
        checkpoint_dir=out.with_name(f"{out.name}.checkpoints"),
        data=examples.digest,
        cpu=device == "cpu",
        kept=[examples],
        on_row=lambda row: tell_row(row, clock),
        keep=keep,
    )
    seconds = time.monotonic() - clock
    examples.require_usable(params.base.max_skip_ratio, f"The tokenizer in {out} was trained on the others.")
    last = curve[-1]
    return TrainTokenizerReport(
        num_images=len(examples),
        num_unusable=len(examples.problems),
        num_steps=training.num_steps,
        seconds=round(seconds, 1),
        loss=last["loss"],
        iou=last["iou"],
        out=out.as_posix(),
    )


def _training_device(device: str) -> str:
    """The device of `base.device`; ParamsError where it is not there, or names one GPU of several.

    accelerate gives each process a GPU of its own, from the first one on.
    """
    kind, _, number = resolve_device(device).partition(":")
    if number not in ("", "0"):
        raise ParamsError(
            f"base.device is {device}, but training begins with the first GPU that is visible; set "
            f"CUDA_VISIBLE_DEVICES={number} and base.device: cuda"
        )
    return kind


def _require_outputs(out: Path, results: Path) -> None:
    """An error now, not after the training, where the tokenizer or the curve could not be written."""
    require_replaceable(out, "config.json", "an earlier tokenizer")
    if (out / "config.json").is_file():
        read_config(out)
    remove_leftovers(out)
    # A tokenizer takes the place of the folder that a link leads to.
    for folder in (out.parent, out.resolve().parent, results):
        require_writable(folder)


def tell_row(row: Row, clock: float) -> None:
    """One line of progress on standard error; `clock` is when training began, as time.monotonic gives it."""
    seconds = time.monotonic() - clock
    sys.stderr.write(f"step {row['step']}  loss {row['loss']:.3f}  iou {row['iou']:.3f}  {seconds:.0f} s\n")


def write_curve(curve: Sequence[Row], path: Path) -> None:
    """The training curve as CSV, one line a row, six digits."""
    columns = {name: [round(row[name], 6) for row in curve] for name in curve[0]}
    write_text(path, pl.DataFrame(columns).write_csv())
