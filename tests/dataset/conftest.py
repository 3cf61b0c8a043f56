"""A built dataset for the tests of the data stages."""

from __future__ import annotations

from pathlib import Path

import pytest

from cyclegrpo.dataset.build import run_build
from cyclegrpo.dataset.crops import run_crop
from cyclegrpo.dataset.link import run_link
from cyclegrpo.dataset.regions import run_regions
from cyclegrpo.dataset.tokenize import run_tokenize
from cyclegrpo.params import Params
from tests.dataset.support import GridTokenizer, make_params, write_world


def run_all(params: Params, tokenizer: GridTokenizer) -> None:
    """All data stages before `check`."""
    run_link(params)
    run_regions(params, tokenizer)
    run_crop(params)
    run_tokenize(params, tokenizer)
    run_build(params)


@pytest.fixture
def built(tmp_path: Path) -> Params:
    """The params of a dataset made of the small world."""
    params = make_params(tmp_path, sources=write_world(tmp_path))
    run_all(params, GridTokenizer())
    return params
