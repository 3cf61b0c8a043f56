"""The command line. Every command parses, loads the params, calls one function and prints a short table (or JSON).

Exit codes: 0 fine, 1 the data or a check failed, 2 wrong use or params, 130 Ctrl-C. Results go to standard output,
progress and log to standard error. Heavy packages are imported inside the commands, so that `--help` is instant.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cyclegrpo import __version__
from cyclegrpo.console import guarded, print_report, report_fields

if TYPE_CHECKING:
    from cyclegrpo.params import Params

app = typer.Typer(
    name="cyclegrpo",
    help="Reinforcement learning of region captions: describe a region, locate it again from the words alone.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
predict_app = typer.Typer(
    no_args_is_help=True, help="Ask a policy about one image: describe a region, or locate a text."
)
app.add_typer(predict_app, name="predict")

ParamsFile = Annotated[Path, typer.Option("--params", metavar="FILE", help="The params file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
ImageFile = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="An image file.")]
PolicyDir = Annotated[Path, typer.Option("--policy", metavar="DIR", help="The policy to ask.")]

PICTURES = (".png", ".jpg", ".jpeg", ".webp")


def picture_path(path: Path | None) -> Path | None:
    """A picture to write, refused as wrong use where the extension names no format."""
    if path is not None and path.suffix.lower() not in PICTURES:
        raise typer.BadParameter(f"{path} is no picture; expected an extension of {', '.join(PICTURES)}.")
    return path


def picture_option(what: str) -> Any:
    """The option --out of the commands that draw."""
    return typer.Option("--out", metavar="FILE", callback=picture_path, help=what)


PARAMS = Path("params.yaml")
POLICY = Path("models/policy")
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


def one_line_errors(command: Callable[..., int | None]) -> Callable[..., None]:
    """The command, with its errors as one line on standard error and its result as the process's exit code."""

    @functools.wraps(command)
    def guarded_command(*args: Any, **kwargs: Any) -> None:
        raise typer.Exit(guarded(f"cyclegrpo {command.__name__}", lambda: command(*args, **kwargs)))

    return guarded_command


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
    settings = _load(params, records=limit)
    reports = {}
    for name in [item.value for item in DataStage] if stage is None else [stage.value]:
        reports[name] = _data_stage(name)(settings)
        if not as_json:
            print_report(name, reports[name])
    if as_json:
        _print_json({name: report_fields(report) for name, report in reports.items()})


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
    settings = _load(params)
    from cyclegrpo.dataset.check import run_check
    from cyclegrpo.dataset.checks.terminal import print_problems

    report = run_check(settings)
    if not as_json:
        print_problems(report, settings.check.max_problems)
    return _show_report("check", report, as_json)


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
    settings = _load(params, steps=limit)
    from cyclegrpo.training.run import run_train

    folders = {
        "policy_dir": LIMITED_MODELS / "policy",
        "checkpoint_dir": LIMITED_MODELS / "checkpoints",
        "results_dir": LIMITED_RESULTS / "train",
    }
    folders = {} if limit is None else folders
    return _show_report("train", run_train(settings, **folders), as_json, folders)


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
    settings = _load(params, regions=limit)
    from cyclegrpo.evaluation.run import run_evaluate

    folders = {} if limit is None else {"trained": _trained(), "results": LIMITED_RESULTS / "evaluate"}
    kept = {} if limit is None else {"kept": settings.base.work_dir / "limited/evaluate"}
    return _show_report("evaluate", run_evaluate(settings, **folders, **kept), as_json, folders)


@app.command()
@one_line_errors
def report(params: ParamsFile = PARAMS, as_json: AsJson = False) -> int:
    """Write the result page, results/report.html."""
    settings = _load(params)
    from cyclegrpo.explorer.report import run_report

    return _show_report("report", run_report(settings), as_json)


@app.command()
@one_line_errors
def show(
    row: Annotated[int, typer.Argument(min=0, help="Number of the row in the dataset, from 0.")],
    params: ParamsFile = PARAMS,
    out: Annotated[Path, picture_option("The picture to write.")] = Path("row.png"),
) -> None:
    """Draw one row of the dataset: its image, regions, crops and texts."""
    settings = _load(params)
    from cyclegrpo.dataset.show import draw_row

    draw_row(settings, row, out)
    print(out)


@predict_app.command()
@one_line_errors
def describe(
    image: ImageFile,
    box: Annotated[
        str | None, typer.Option(metavar="X0,Y0,X1,Y1", help="In pixels of the upright image, half-open.")
    ] = None,
    mask: Annotated[
        Path | None,
        typer.Option(metavar="FILE", exists=True, dir_okay=False, help="The region as mask image, not black inside."),
    ] = None,
    policy: PolicyDir = POLICY,
    params: ParamsFile = PARAMS,
    as_json: AsJson = False,
) -> int:
    """What the policy says of a region."""
    if (box is None) == (mask is None):
        raise typer.BadParameter("give the region once, with either --box X0,Y0,X1,Y1 or --mask FILE.")
    settings = _load(params)
    from cyclegrpo.predict import describe_region, parse_box

    found = describe_region(settings, policy, image, box=parse_box(box) if box else None, mask_path=mask)
    return _show_report("describe", found, as_json)


@predict_app.command()
@one_line_errors
def locate(
    image: ImageFile,
    text: Annotated[str, typer.Argument(help="What to find in it.")],
    out: Annotated[Path | None, picture_option("Draw the image with what was found.")] = None,
    policy: PolicyDir = POLICY,
    params: ParamsFile = PARAMS,
    as_json: AsJson = False,
) -> int:
    """Where the policy finds what a text describes."""
    settings = _load(params)
    from cyclegrpo.predict import locate_text

    return _show_report("locate", locate_text(settings, policy, image, text, picture=out), as_json)


@app.command()
def version() -> None:
    """Print the version."""
    print(__version__)


def _load(path: Path, *, records: int | None = None, steps: int | None = None, regions: int | None = None) -> Params:
    from cyclegrpo.params_file import limited, load_params

    return limited(load_params(path), records=records, steps=steps, regions=regions)


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
        _print_json({"problems": problems, "missing": missing})
        return 2 if problems else 0
    for problem in problems:
        print(problem, file=sys.stderr)
    for line in missing:
        print(f"{path}: {line}; a stage must make it, or its path is wrong.", file=sys.stderr)
    if not problems:
        print(f"{path}: fine" + (f", but {len(missing)} inputs are not there" if missing else ""))
    return 2 if problems else 0


def _show_report(name: str, result: Any, as_json: bool, folders: Mapping[str, Path] | None = None) -> int:
    """Print a report, and the folders that are not the usual ones; the exit code."""
    shown = {**report_fields(result), **{key: str(folder) for key, folder in (folders or {}).items()}}
    if as_json:
        _print_json(shown)
    else:
        print_report(name, shown)
    return int(getattr(result, "exit_code", 0))


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, default=str))


def main() -> None:
    """The entry point."""
    app()


if __name__ == "__main__":
    main()
