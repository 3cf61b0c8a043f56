"""Stage world: images, masks and expressions of the miniature, in the sources' own formats.

Run from the repository's root: `python -m miniature.stages.world [--params FILE]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cyclegrpo.params_file import load_params
from miniature.stages.stage import run_stage

if TYPE_CHECKING:
    from miniature.params import MiniatureParams
    from miniature.world import WorldReport


def run(params: MiniatureParams) -> WorldReport:
    """Bring the raw folder to the world of the params."""
    load_params()  # a mistake in the pipeline's own params is told before anything is made, not after
    from miniature.world import run_world

    return run_world(params)


if __name__ == "__main__":
    run_stage("world", run)
