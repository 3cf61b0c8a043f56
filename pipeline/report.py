"""Stage report: the result page. `python -m pipeline.report`."""

from __future__ import annotations

from typing import Any

from cyclegrpo.params import Params
from pipeline.stage import run_stage


def run(params: Params) -> Any:
    """The stage's report."""
    from cyclegrpo.explorer.report import run_report

    return run_report(params)


if __name__ == "__main__":
    run_stage("report", run)
