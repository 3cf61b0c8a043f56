"""What the commands share: the options, errors as one line, results as a table or JSON."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cyclegrpo.console import guarded, print_report, report_fields

if TYPE_CHECKING:
    from cyclegrpo.params import Params

PARAMS = Path("params.yaml")
POLICY = Path("models/policy")

ParamsFile = Annotated[Path, typer.Option("--params", metavar="FILE", help="The params file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]

PICTURES = (".png", ".jpg", ".jpeg", ".webp")


def picture_path(path: Path | None) -> Path | None:
    """A picture to write, refused as wrong use where the extension names no format."""
    if path is not None and path.suffix.lower() not in PICTURES:
        raise typer.BadParameter(f"{path} is no picture; expected an extension of {', '.join(PICTURES)}.")
    return path


def picture_option(what: str) -> Any:
    """The option --out of the commands that draw."""
    return typer.Option("--out", metavar="FILE", callback=picture_path, help=what)


def one_line_errors(command: Callable[..., int | None], group: str = "") -> Callable[..., None]:
    """The command (of a group of commands), its errors one line on standard error, its result the exit code."""
    name = " ".join(filter(None, ["cyclegrpo", group, command.__name__]))

    @functools.wraps(command)
    def guarded_command(*args: Any, **kwargs: Any) -> None:
        raise typer.Exit(guarded(name, lambda: command(*args, **kwargs)))

    return guarded_command


def load(path: Path, *, records: int | None = None, steps: int | None = None, regions: int | None = None) -> Params:
    """The checked params of a file, with the smaller loops that --limit asks for."""
    from cyclegrpo.params_file import limited, load_params

    return limited(load_params(path), records=records, steps=steps, regions=regions)


def show_report(name: str, result: Any, as_json: bool, folders: Mapping[str, Path] | None = None) -> int:
    """Print a report, and the folders that are not the usual ones; the exit code."""
    shown = {**report_fields(result), **{key: str(folder) for key, folder in (folders or {}).items()}}
    if as_json:
        print_json(shown)
    else:
        print_report(name, shown)
    return int(getattr(result, "exit_code", 0))


def print_json(value: Any) -> None:
    """A result as JSON on standard output."""
    print(json.dumps(value, indent=2, default=str))
