"""Stage regions: every source's regions, as tokens and as masks. `python -m pipeline.regions`."""

from __future__ import annotations

from typing import Any

from cyclegrpo.params import Params
from pipeline.stage import run_stage


def run(params: Params) -> Any:
    """The stage's report."""
    from cyclegrpo.dataset.regions import run_regions

    return run_regions(params)


if __name__ == "__main__":
    run_stage("regions", run)
