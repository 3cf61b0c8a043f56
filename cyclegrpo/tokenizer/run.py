"""Training a tokenizer on the sources of the params: examples, training, and what is left on disk."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from cyclegrpo.errors import DataError
from cyclegrpo.files import atomic_path, write_text
from cyclegrpo.loading import bars_on_terminals_only, require_model
from cyclegrpo.params import Params
from cyclegrpo.tokenizer.examples import SourceExamples
from cyclegrpo.tokenizer.model import MaskTokenizer
from cyclegrpo.tokenizer.params import TokenizerTraining
from cyclegrpo.tokenizer.train import Row, train_mask_tokenizer


@dataclass(frozen=True)
class TrainTokenizerReport:
    """What a training did; loss and IoU are of the last step."""

    num_images: int
    num_steps: int
    seconds: float
    loss: float
    iou: float
    out: str


def run_train_tokenizer(
    params: Params,
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

    An unfinished run is kept in `<out>.checkpoints`. Raises DataError where `out` holds anything but a tokenizer.
    """
    if out.is_dir() and any(out.iterdir()) and not (out / "config.json").is_file():
        raise DataError("holds other files; expected a new folder, or one of an earlier tokenizer.", file=out)
    examples = SourceExamples(params, names=names, limit=limit)
    tokenizer = None
    if start is not None:
        require_model(start, "a mask tokenizer", "Mend --from.")
        with bars_on_terminals_only():
            tokenizer = MaskTokenizer.from_pretrained(start)
    clock = time.monotonic()
    trained, curve = train_mask_tokenizer(
        examples.draw,
        training,
        tokenizer=tokenizer,
        checkpoint_dir=out.with_name(f"{out.name}.checkpoints"),
        cpu=params.base.device == "cpu",
        on_row=lambda row: tell_row(row, clock),
    )
    seconds = time.monotonic() - clock
    write_curve(curve, results / "curves.csv")
    with atomic_path(out) as temporary, bars_on_terminals_only():
        trained.save_pretrained(temporary)
    last = curve[-1]
    return TrainTokenizerReport(
        len(examples), training.num_steps, round(seconds, 1), last["loss"], last["iou"], out.as_posix()
    )


def tell_row(row: Row, clock: float) -> None:
    """One line of progress on standard error; `clock` is when training began, as time.monotonic gives it."""
    seconds = time.monotonic() - clock
    sys.stderr.write(f"step {row['step']}  loss {row['loss']:.3f}  iou {row['iou']:.3f}  {seconds:.0f} s\n")


def write_curve(curve: Sequence[Row], path: Path) -> None:
    """The training curve as CSV, one line a row, six digits."""
    columns = {name: [round(row[name], 6) for row in curve] for name in curve[0]}
    write_text(path, pl.DataFrame(columns).write_csv())
