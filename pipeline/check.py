"""Stage check: every row validated; exit code 1 if there is an error. `python -m pipeline.check`."""

from __future__ import annotations

from typing import Any

from cyclegrpo.params import Params
from pipeline.stage import run_stage


def run(params: Params) -> Any:
    """The stage's report, with its problems printed."""
    from cyclegrpo.dataset.check import run_check
    from cyclegrpo.dataset.checks.terminal import print_problems

    report = run_check(params)
    print_problems(report, params.check.max_problems)
    return report


if __name__ == "__main__":
    run_stage("check", run)
