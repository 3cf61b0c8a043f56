"""Stage tokenize: the tokens of every crop's mask. `python -m pipeline.tokenize`."""

from __future__ import annotations

from typing import Any

from cyclegrpo.params import Params
from pipeline.stage import run_stage


def run(params: Params) -> Any:
    """The stage's report."""
    from cyclegrpo.dataset.tokenize import run_tokenize

    return run_tokenize(params)


if __name__ == "__main__":
    run_stage("tokenize", run)
