"""Stage build: rows in the release layout, image lists, dataset card. `python -m pipeline.build`."""

from __future__ import annotations

from typing import Any

from cyclegrpo.params import Params
from pipeline.stage import run_stage


def run(params: Params) -> Any:
    """The stage's report."""
    from cyclegrpo.dataset.build import run_build

    return run_build(params)


if __name__ == "__main__":
    run_stage("build", run)
