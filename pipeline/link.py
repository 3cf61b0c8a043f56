"""Stage link: the images that the sources name, below the dataset directory. `python -m pipeline.link`."""

from __future__ import annotations

from typing import Any

from cyclegrpo.params import Params
from pipeline.stage import run_stage


def run(params: Params) -> Any:
    """The stage's report."""
    from cyclegrpo.dataset.link import run_link

    return run_link(params)


if __name__ == "__main__":
    run_stage("link", run)
