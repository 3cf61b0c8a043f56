"""Stage train: CycleGRPO, from the base policy to a better one. `python -m pipeline.train`."""

from __future__ import annotations

from typing import Any

from cyclegrpo.params import Params
from pipeline.stage import run_stage


def run(params: Params) -> Any:
    """The stage's report."""
    from cyclegrpo.training.run import run_train

    return run_train(params)


if __name__ == "__main__":
    run_stage("train", run)
