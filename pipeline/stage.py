"""What every script in pipeline/ shares: `python -m pipeline.<stage> [--params FILE]`.

It checks the params before anything heavy loads, runs the stage, prints its report and leaves with the exit code. A
script is one call `run_stage("link", run)`, where `run(params)` imports the stage's function inside and returns its report.
"""

from __future__ import annotations

import argparse
import dataclasses
import errno
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from cyclegrpo.errors import CycleGrpoError, ParamsError, printable_path
from cyclegrpo.params import STAGES, Base, Params, load_params

INTERRUPTED = 130


def run_stage(name: str, function: Callable[[Params], Any], arguments: Sequence[str] | None = None) -> None:
    """Runs one stage as a process and exits: 0 fine, 1 data, disk or check failed, 2 params, 130 Ctrl-C.

    Args:
        name: the stage, which is also its section of the params file.
        function: takes the checked params and returns the stage's report (a dataclass, a pydantic model or a mapping;
            an attribute `exit_code` becomes the process's).
        arguments: the command line without the program; None takes the process's own.

    What goes wrong is one line on standard error, without a traceback, whenever the user can mend it.
    """
    parser = argparse.ArgumentParser(prog=f"python -m pipeline.{name}", description=f"Stage {name} of dvc.yaml.")
    parser.add_argument("--params", default="params.yaml", metavar="FILE", help="default: params.yaml")
    options = parser.parse_args(arguments)
    sys.exit(guarded(name, lambda: _run(name, function, options.params)))


def guarded(name: str, function: Callable[[], int | None]) -> int:
    """The exit code of `function()`: what it returns (None is 0), or that of its error, which is told in one line."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    try:
        return function() or 0
    except CycleGrpoError as error:
        return _fail(name, str(error), error.exit_code)
    except OSError as error:
        return _fail(name, _explain(error), 1)
    except KeyboardInterrupt:
        return _fail(name, "interrupted; run it again to continue.", INTERRUPTED)


def _run(name: str, function: Callable[[Params], Any], path: str) -> int:
    params = load_params(path)
    _require_complete(params, path)
    report = function(params)
    print_report(name, report)
    return int(getattr(report, "exit_code", 0))


def _require_complete(params: Params, path: str) -> None:
    """A missing key is found in the first second: DVC looks for what dvc.yaml names only after a stage has run."""
    missing = [f"base.{key}" for key in Base.model_fields if key not in params.base.model_fields_set]
    missing += [stage for stage in STAGES if stage not in params.model_fields_set]
    if missing:
        shown = printable_path(path)
        raise ParamsError([f"{shown}: {key} is missing, and dvc.yaml depends on it; add it." for key in missing])


def print_report(name: str, report: Any) -> None:
    """A short table of the report's numbers and texts on standard output; longer values are left to the files."""
    rows = [(key, value) for key, value in report_items(report).items() if isinstance(value, (int, float, str))]
    print(name)
    width = max((len(key) for key, _ in rows), default=0)
    for key, value in rows:
        print(f"  {key:<{width}}  {value:.4g}" if isinstance(value, float) else f"  {key:<{width}}  {value}")


def report_items(report: Any) -> dict[str, Any]:
    """The report's fields by name; those of a mapping inside become `field.key`; nothing for None.

    >>> report_items({"num_rows": 2, "skipped": {"empty mask": 1}})
    {'num_rows': 2, 'skipped.empty mask': 1}
    """
    items: Mapping[str, Any]
    if report is None:
        return {}
    if isinstance(report, BaseModel):
        items = report.model_dump(mode="json")
    elif dataclasses.is_dataclass(report) and not isinstance(report, type):
        items = dataclasses.asdict(report)
    else:
        items = report
    flat: dict[str, Any] = {}
    for key, value in items.items():
        flat |= {f"{key}.{inner}": count for inner, count in value.items()} if isinstance(value, dict) else {key: value}
    return flat


def _explain(error: OSError) -> str:
    name = error.filename
    place = f"{printable_path(os.fsdecode(name))}: " if isinstance(name, (str, bytes, os.PathLike)) else ""
    if error.errno == errno.ENOSPC:
        return f"{place}no space left on the disk. Free some and run it again; finished parts are kept."
    reason = error.strerror or " ".join(str(error).split()) or type(error).__name__
    return f"{place}{reason[:1].lower()}{reason[1:]}."


def _fail(name: str, message: str, code: int) -> int:
    line = " ".join(message.splitlines())
    print(f"{name}: error: {line}", file=sys.stderr)
    return code
