"""Stage evaluate: the policy before and after training on held-out regions. `python -m pipeline.evaluate`."""

from __future__ import annotations

from typing import Any

from cyclegrpo.params import Params
from pipeline.stage import run_stage


def run(params: Params) -> Any:
    """The stage's report."""
    from cyclegrpo.evaluation.run import run_evaluate

    return run_evaluate(params)


if __name__ == "__main__":
    run_stage("evaluate", run)
