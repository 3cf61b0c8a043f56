"""The training curve as files: one row per logged step, rewritten as a whole whenever a step is logged.

TRL's trainer state keeps all lines and is part of every checkpoint, so a resumed run's curve has no gap. Seconds are
kept apart (`times.csv`): everything in `curves.csv` is the same when the run is repeated.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
from transformers import TrainerCallback

from cyclegrpo.files import write_text

TIME = "time/"
NOT_REPRODUCIBLE = (TIME, "step_time", "epoch", "num_tokens")
AVERAGED_STEPS = 10


class CurveWriter(TrainerCallback):
    """Writes `curves.csv` and `times.csv` and prints one line per logged step."""

    def __init__(self, results_dir: Path, num_steps: int) -> None:
        self.results_dir, self.num_steps = results_dir, num_steps

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Called by the trainer after every logged step, and once at the end, with times alone."""
        if state.is_world_process_zero and "loss" in (logs or {}):
            rows = training_rows(state.log_history)
            write_curves(self.results_dir, rows)
            sys.stderr.write(progress_line(rows[-1], self.num_steps) + "\n")


def training_rows(log_history: Sequence[dict[str, Any]]) -> list[dict[str, float]]:
    """The lines of the trainer's history that belong to steps, without missing values.

    >>> training_rows([{"step": 1, "loss": 0.5, "reward": None}, {"step": 1, "train_runtime": 3.0}])
    [{'step': 1, 'loss': 0.5}]
    """
    return [{k: v for k, v in line.items() if v is not None} for line in log_history if "loss" in line]


def progress_line(row: dict[str, float], num_steps: int) -> str:
    """One step in one line, for people.

    >>> progress_line({"step": 3, "caption/cycle_score": 0.5, "loss": 0.01}, 36)
    'step 3/36  cycle 0.500'
    """
    shown = {
        "caption/cycle_score": "cycle",
        "expression/overlap": "expression",
        "no_target/accuracy": "no-target",
        "kl": "kl",
        "step_time": "s",
    }
    parts = [f"{name} {row[key]:.3f}" for key, name in shown.items() if key in row]
    return "  ".join([f"step {row['step']}/{num_steps}", *parts])


def write_curves(results_dir: Path, rows: Sequence[dict[str, float]]) -> None:
    """`curves.csv` (reproducible columns) and `times.csv` (seconds), `step` first and the others by name."""
    names = sorted({name for row in rows for name in row} - {"step"})
    timed = [name for name in names if name.startswith(NOT_REPRODUCIBLE) or name.endswith(NOT_REPRODUCIBLE)]
    _write_csv(results_dir / "curves.csv", ["step", *(name for name in names if name not in timed)], rows)
    _write_csv(results_dir / "times.csv", ["step", *timed], rows)


def mean_of(rows: Sequence[dict[str, float]], name: str) -> float | None:
    """The mean of a column over the rows that have it; None if none has."""
    values = [row[name] for row in rows if name in row]
    return sum(values) / len(values) if values else None


def summary(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """Means of the main columns over the first and over the last ten logged steps."""
    columns = ("caption/cycle_score", "grounding/overlap", "expression/overlap", "no_target/accuracy", "kl")
    result = {}
    for label, part in (("first", rows[:AVERAGED_STEPS]), ("last", rows[-AVERAGED_STEPS:])):
        for column in columns:
            if (value := mean_of(part, column)) is not None:
                result[f"{label}.{column.replace('/', '_')}"] = value
    return result


def _write_csv(path: Path, names: Sequence[str], rows: Sequence[dict[str, float]]) -> None:
    table = pl.DataFrame(rows or {"step": []}, infer_schema_length=None).select(names)
    write_text(path, table.write_csv())
