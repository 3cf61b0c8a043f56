"""Stage tokenizer: the small mask tokenizer, trained from nothing on scenes drawn in memory.

Run from the repository's root: `python -m miniature.stages.tokenizer [--params FILE]`. The crop rule is read from
params.yaml, because the tokenizer meets the pipeline's zoom-in crops as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cyclegrpo.params_file import load_params
from miniature.stages.stage import run_stage

if TYPE_CHECKING:
    from miniature.params import MiniatureParams
    from miniature.tokenizer import TokenizerReport


def run(params: MiniatureParams) -> TokenizerReport:
    """Train the tokenizer and save it to data/miniature/tokenizer."""
    crop = load_params().crop
    from miniature.tokenizer import run_tokenizer

    return run_tokenizer(params, crop)


if __name__ == "__main__":
    run_stage("tokenizer", run)
