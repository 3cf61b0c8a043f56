"""Stage coldstart: the small policy before CycleGRPO, trained from nothing on scenes drawn in memory.

Run from the repository's root, after the stage tokenizer: `python -m miniature.stages.coldstart [--params FILE]`.
Tokenizer and crop rule are read from params.yaml, because the policy must speak the same mask tokens as the pipeline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cyclegrpo.params_file import load_params
from miniature.stages.stage import run_stage

if TYPE_CHECKING:
    from miniature.coldstart import ColdStartReport
    from miniature.params import MiniatureParams


def run(params: MiniatureParams) -> ColdStartReport:
    """Train the policy and save it to data/miniature/policy."""
    main = load_params()
    from miniature.coldstart import run_cold_start

    return run_cold_start(params, main.base.tokenizer, main.crop)


if __name__ == "__main__":
    run_stage("coldstart", run)
