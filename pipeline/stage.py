"""What every script in pipeline/ shares: `python -m pipeline.<stage> [--params FILE]`.

It checks the params before anything heavy loads, runs the stage, prints its report and leaves with the exit code. A
script is one call `run_stage("link", run)`, where `run(params)` imports the stage's function inside and returns its
report.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

from cyclegrpo.console import guarded, print_report
from cyclegrpo.errors import ParamsError
from cyclegrpo.params import Params
from cyclegrpo.params_file import load_params
from cyclegrpo.params_problems import pipeline_problems

__all__ = ["guarded", "print_report", "run_stage"]


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


def _run(name: str, function: Callable[[Params], Any], path: str) -> int:
    params = load_params(path)
    problems = pipeline_problems(params, path)
    if problems:
        raise ParamsError(problems)
    report = function(params)
    print_report(name, report)
    return int(getattr(report, "exit_code", 0))
