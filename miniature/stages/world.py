"""Stage world: images, masks and expressions of the miniature, in the sources' own formats.

Run from the repository's root: `python -m miniature.stages.world [--params FILE]`.
"""

from __future__ import annotations

from miniature.stages.stage import run_stage
from miniature.world import run_world

if __name__ == "__main__":
    run_stage("world", run_world)
