"""A world of a few scenes, in a folder of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from miniature.params import MiniatureParams, load_miniature_params

ROOT = Path(__file__).parents[2]
NUM_SCENES = {"v3det": 8, "train": 6, "val": 4, "testA": 3}


@pytest.fixture
def make_params(tmp_path: Path) -> Callable[..., MiniatureParams]:
    """The shipped params with few scenes and the raw folder in `tmp_path`; keyword arguments change section `world`."""

    def make(num_scenes: dict[str, int] = NUM_SCENES, **world: Any) -> MiniatureParams:
        shipped = load_miniature_params(ROOT / "miniature" / "params.yaml").model_dump()
        for split, count in num_scenes.items():
            shipped["scenes"][split]["num_scenes"] = count
        shipped["world"] |= {"raw_dir": tmp_path / "raw", **world}
        return MiniatureParams.model_validate(shipped)

    return make


@pytest.fixture
def params(make_params: Callable[..., MiniatureParams]) -> MiniatureParams:
    return make_params()
