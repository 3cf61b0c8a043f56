"""What the scripts `python -m miniature.stages.<stage> [--params FILE]` share: they check the params, run, print, exit.

Exit codes and one-line errors are those of the main pipeline's stages (`pipeline/stage.py`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

from miniature.params import PARAMS_FILE, MiniatureParams, load_miniature_params
from pipeline.stage import guarded, print_report


def run_stage(name: str, function: Callable[[MiniatureParams], Any], arguments: Sequence[str] | None = None) -> None:
    """Run one of the miniature's stages as a process and leave with its exit code.

    Args:
        name: the stage, which is also its section of the params file.
        function: takes the checked params and returns the stage's report (a dataclass or a mapping).
        arguments: the command line without the program; None takes the process's own.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m miniature.stages.{name}", description=f"Stage {name} of miniature/dvc.yaml."
    )
    parser.add_argument("--params", default=PARAMS_FILE, metavar="FILE", help="the params file (default: %(default)s)")
    options = parser.parse_args(arguments)
    sys.exit(guarded(name, lambda: print_report(name, function(load_miniature_params(options.params)))))
