"""Stage crop: zoom-in crops of small regions. `python -m pipeline.crop`."""

from __future__ import annotations

from typing import Any

from cyclegrpo.params import Params
from pipeline.stage import run_stage


def run(params: Params) -> Any:
    """The stage's report."""
    from cyclegrpo.dataset.crops import run_crop

    return run_crop(params)


if __name__ == "__main__":
    run_stage("crop", run)
