"""Stage annotate: the V3Det-like images described in DenseWorld's form, with regions as tokens of `base.tokenizer`.

Run from the repository's root, after the stages world and tokenizer:
`python -m miniature.stages.annotate [--params FILE]`. `base.tokenizer` is read from params.yaml.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cyclegrpo.params_file import load_params
from miniature.stages.stage import run_stage

if TYPE_CHECKING:
    from miniature.annotate import AnnotateReport
    from miniature.params import MiniatureParams


def run(params: MiniatureParams) -> AnnotateReport:
    """Annotate with the tokenizer of the main params file, which is the one that the later stages decode with."""
    tokenizer_dir = load_params().base.tokenizer
    from miniature.annotate import run_annotate

    return run_annotate(params, tokenizer_dir)


if __name__ == "__main__":
    run_stage("annotate", run)
