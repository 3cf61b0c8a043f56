"""The commands of the pipeline's stages, and those that look at its data."""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cyclegrpo import __version__
from cyclegrpo.cli.shared import (
    PARAMS,
    POLICY,
    AsJson,
    ParamsFile,
    load,
    one_line_errors,
    picture_option,
    print_json,
    show_report,
)
from cyclegrpo.console import print_report, report_fields

if TYPE_CHECKING:
    from cyclegrpo.params import Params

app = typer.Typer()

LIMITED_MODELS, LIMITED_RESULTS = Path("models/limited"), Path("results/limited")
"""Where `train` and `evaluate` write with --limit, so that a quick look never replaces a run's policy and numbers."""


class DataStage(StrEnum):
    """The stages that make the dataset, in their order."""

    link = "link"
    regions = "regions"
    crop = "crop"
    tokenize = "tokenize"
    build = "build"


class CheckWhat(StrEnum):
    """What can be checked."""

    data = "data"
    config = "config"


@app.command()
@one_line_errors
def prepare(
    stage: Annotated[
        DataStage | None, typer.Argument(help="One stage alone; without it, all of them in order.")
    ] = None,
    params: ParamsFile = PARAMS,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only so many records of every source; the dataset has no others.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make the dataset: link, regions, crop, tokenize, build."""
    settings = load(params, records=limit)
    reports = {}
    for name in [item.value for item in DataStage] if stage is None else [stage.value]:
        reports[name] = _data_stage(name)(settings)
        if not as_json:
            print_report(name, reports[name])
    if as_json:
        print_json({name: report_fields(report) for name, report in reports.items()})


@app.command()
@one_line_errors
def check(
    what: Annotated[CheckWhat, typer.Argument(help="The built dataset, or only the params file.")] = CheckWhat.data,
    params: ParamsFile = PARAMS,
    as_json: AsJson = False,
) -> int:
    """Check every row of the dataset (exit code 1 if one is wrong), or the params file."""
    if what is CheckWhat.config:
        return _check_config(params, as_json)
    settings = load(params)
    from cyclegrpo.dataset.check import run_check
    from cyclegrpo.dataset.checks.terminal import print_problems

    report = run_check(settings)
    if not as_json:
        print_problems(report, settings.check.max_problems)
    return show_report("check", report, as_json)


@app.command()
@one_line_errors
def train(
    params: ParamsFile = PARAMS,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Only so many steps, written to models/limited and results/limited/train."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Train the policy with CycleGRPO, into models/policy. An interrupted run goes on where it was."""
    settings = load(params, steps=limit)
    from cyclegrpo.training.run import run_train

    folders = {
        "policy_dir": LIMITED_MODELS / "policy",
        "checkpoint_dir": LIMITED_MODELS / "checkpoints",
        "results_dir": LIMITED_RESULTS / "train",
    }
    folders = {} if limit is None else folders
    return show_report("train", run_train(settings, **folders), as_json, folders)


@app.command()
@one_line_errors
def evaluate(
    params: ParamsFile = PARAMS,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Only so many held-out regions, written to results/limited/evaluate. The policy is models/policy, or "
            "models/limited/policy where there is no other.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Evaluate the policy from before and the trained one, models/policy, on held-out regions."""
    settings = load(params, regions=limit)
    from cyclegrpo.evaluation.run import run_evaluate

    folders = {} if limit is None else {"trained": _trained(), "results": LIMITED_RESULTS / "evaluate"}
    kept = {} if limit is None else {"kept": settings.base.work_dir / "limited/evaluate"}
    return show_report("evaluate", run_evaluate(settings, **folders, **kept), as_json, folders)


@app.command()
@one_line_errors
def report(params: ParamsFile = PARAMS, as_json: AsJson = False) -> int:
    """Write the result page, results/report.html."""
    settings = load(params)
    from cyclegrpo.explorer.report import run_report

    return show_report("report", run_report(settings), as_json)


@app.command()
@one_line_errors
def show(
    row: Annotated[int, typer.Argument(min=0, help="Number of the row in the dataset, from 0.")],
    params: ParamsFile = PARAMS,
    out: Annotated[Path, picture_option("The picture to write.")] = Path("row.png"),
) -> None:
    """Draw one row of the dataset: its image, regions, crops and texts."""
    settings = load(params)
    from cyclegrpo.dataset.show import draw_row

    draw_row(settings, row, out)
    print(out)


@app.command()
def version() -> None:
    """Print the version."""
    print(__version__)


def _trained() -> Path:
    """The trained policy that a quick look asks: the limited one only where there is no other."""
    limited = LIMITED_MODELS / "policy"
    return limited if limited.is_dir() and not POLICY.is_dir() else POLICY


def _data_stage(name: str) -> Callable[[Params], Any]:
    if name == "link":
        from cyclegrpo.dataset.link import run_link as run
    elif name == "regions":
        from cyclegrpo.dataset.regions import run_regions as run
    elif name == "crop":
        from cyclegrpo.dataset.crops import run_crop as run
    elif name == "tokenize":
        from cyclegrpo.dataset.tokenize import run_tokenize as run
    else:
        from cyclegrpo.dataset.build import run_build as run
    return run


def _check_config(path: Path, as_json: bool) -> int:
    from cyclegrpo.params_file import find_problems, load_params, missing_inputs

    problems = find_problems(path)
    missing = [] if problems else missing_inputs(load_params(path))
    if as_json:
        print_json({"problems": problems, "missing": missing})
        return 2 if problems else 0
    for problem in problems:
        print(problem, file=sys.stderr)
    for line in missing:
        print(f"{path}: {line}; a stage must make it, or its path is wrong.", file=sys.stderr)
    if not problems:
        print(f"{path}: fine" + (f", but {len(missing)} inputs are not there" if missing else ""))
    return 2 if problems else 0
