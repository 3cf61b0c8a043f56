"""What the trainer asks in one step: draws, as a pure function of (seed, step), so that a resumed run asks the same.

A row of the dataset holds several regions; every pass over the rows draws ONE of them, with its zoom-in crop if it has
one. The target comes from `seg_answer`, never from the prompt: the public loader draws from the prompt and can pick a
crop's token. Rows of other sources are questions with a known answer and are asked as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from cyclegrpo.dataset.prompts import parse_answer, parse_problem
from cyclegrpo.dataset.schema import CYCLE_SOURCES, NO_TARGET_SOURCE, Row, list_files, read_rows
from cyclegrpo.errors import DataError
from cyclegrpo.params import Prompts
from cyclegrpo.regions.rle import Rle
from cyclegrpo.regions.spaces import RegionSpace

Task = Literal["caption", "no_target", "expression"]
TASKS: tuple[Task, ...] = ("caption", "no_target", "expression")


@dataclass(frozen=True)
class Draw:
    """One question of one step.

    Attributes:
        task: `caption` is described and located again; `expression` and `no_target` are located only.
        prompt: the question, with one `<image>` per entry of `images`.
        images: paths relative to the dataset directory: the whole image, then the target's crop if there is one.
        targets: the regions that count as found, as text (one for `caption`, none for `no_target`).
        target_rle: their true masks, where the row has them.
        record: which row this is, for messages.
    """

    task: Task
    prompt: str
    images: tuple[str, ...]
    targets: tuple[str, ...]
    target_rle: tuple[Rle, ...] | None
    record: str


def task_of(row: Row) -> Task:
    """What a row asks for, by its source."""
    if row.source in CYCLE_SOURCES:
        return "caption"
    return "no_target" if row.source == NO_TARGET_SOURCE else "expression"


def load_rows(dataset_dir: Path) -> dict[Task, list[tuple[str, Row]]]:
    """All rows of the dataset by task, each with its name `file:number`, in the order of file names and rows.

    Raises DataError where there is no parquet file.
    """
    rows: dict[Task, list[tuple[str, Row]]] = {task: [] for task in TASKS}
    for file in list_files(dataset_dir):
        for number, row in enumerate(read_rows(file)):
            rows[task_of(row)].append((f"{file.name}:{number}", row))
    return rows


def draw_target(name: str, row: Row, space: RegionSpace, *, zoom: bool, rng: np.random.Generator) -> Draw:
    """A draw from one row: for a caption row one of its targets at random, for the others the row's own question.

    Raises DataError, naming the row, where its answer is no list of regions of the space, or does not go with its task:
    what cannot be read would count as no target, and an empty answer as right.
    """
    task = task_of(row)
    answer = parse_answer(row.seg_answer)
    if answer is None:
        raise DataError(f"seg_answer is {row.seg_answer!r:.80}; expected <answer>...</answer>", record=name)
    _check_answer(answer, task, row, space, name)
    if task != "caption":
        return Draw(task, row.cap_problem, row.images, answer, row.target_rle, name)
    problem = parse_problem(row.cap_problem)
    if problem is None:
        raise DataError(f"cap_problem is {row.cap_problem!r:.80}; expected a captioning prompt", record=name)
    index = int(rng.integers(len(answer)))
    target = answer[index]
    rle = None if row.target_rle is None else (row.target_rle[index],)
    crops = {z.region or answer[0]: (z.crop, image) for z, image in zip(problem.zooms, row.images[1:], strict=True)}
    if zoom and target in crops:
        crop_region, crop_image = crops[target]
        prompt = space.describe(target, crop_region or "")  # a box space spells no region in the crop
        return Draw(task, prompt, (row.images[0], crop_image), (target,), rle, name)
    return Draw(task, space.describe(target), row.images[:1], (target,), rle, name)


def _check_answer(answer: Sequence[str], task: Task, row: Row, space: RegionSpace, name: str) -> None:
    if bool(answer) == (task == "no_target"):
        expected = "No target." if answer else "at least one region"
        raise DataError(
            f"seg_answer is {row.seg_answer!r:.80} and source is {row.source!r}; expected {expected}. "
            "Mend the row or its source",
            record=name,
        )
    for text in answer:
        parsed = space.parse(text)
        if not parsed.regions or parsed.flags:
            faults = ", ".join(flag.replace("_", " ") for flag in parsed.flags) or "no region"
            raise DataError(
                f"seg_answer holds {text!r:.80} ({faults}); expected a {space.name} of base.region_space and "
                "base.tokenizer. Build the dataset again with these, or set them to those it was built with",
                record=name,
            )
    if row.target_rle is not None and len(row.target_rle) != len(answer):
        raise DataError(
            f"target_rle has {len(row.target_rle)} masks, seg_answer {len(answer)} regions; expected equal numbers. "
            "Build the dataset again",
            record=name,
        )


def draw_steps(
    rows: dict[Task, list[tuple[str, Row]]],
    prompts: Prompts,
    space: RegionSpace,
    *,
    num_steps: int,
    zoom: bool,
    seed: int,
) -> Iterator[list[Draw]]:
    """The draws of every step, in order: `prompts.caption` captions, then no-target questions, then expressions.

    Each task walks through a fresh shuffle of its rows in every pass, and every (seed, pass, row) draws its own target.
    A pure function of its arguments: step k is the same whether or not the run was interrupted before it. Raises
    DataError where a task is asked for and has no rows, or a drawn row is wrong (`draw_target`).
    """
    counts = {task: getattr(prompts, task) for task in TASKS}
    for task, count in counts.items():
        if count and not rows[task]:
            raise DataError(
                f"train.prompts.{task} is {count}, but the dataset has no such rows; set it to 0 or add a source"
            )
    streams = {task: _stream(rows[task], task, space, zoom=zoom, seed=seed) for task, count in counts.items() if count}
    for _ in range(num_steps):
        yield [next(streams[task]) for task in streams for _ in range(counts[task])]


def _stream(
    rows: Sequence[tuple[str, Row]], task: Task, space: RegionSpace, *, zoom: bool, seed: int
) -> Iterator[Draw]:
    epoch = 0
    while True:
        order = np.random.default_rng([seed, epoch, TASKS.index(task)]).permutation(len(rows))
        for index in order:
            name, row = rows[index]
            rng = np.random.default_rng([seed, epoch, TASKS.index(task), int(index)])
            yield draw_target(name, row, space, zoom=zoom, rng=rng)
        epoch += 1
