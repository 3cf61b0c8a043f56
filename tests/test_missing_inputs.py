"""A stage whose input is not there says so, and says which stage makes it."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from cyclegrpo.errors import DataError
from cyclegrpo.params import STAGES
from cyclegrpo.params_file import load_params
from tests.test_params import SHIPPED

MESSAGES = {
    "link": r"denseworld/annotations\.json: cannot be read: No such file",
    "regions": r"work/images\.parquet: no such file.* Run the link stage first",
    "crop": r"work/regions\.parquet: no such file.* Run the regions stage first",
    "tokenize": r"work/crops\.parquet: no such file.* Run the crop stage first",
    "build": r"work/regions\.parquet: no such file.* Run the regions stage first",
    "check": r"dataset/data: holds no parquet file.* Run the build stage first",
    "train": r"dataset/data: holds no parquet file.* Run the build stage first",
    "evaluate": r"models/policy: config\.json is missing.* Run the train stage first",
    "report": r"train/curves\.csv: no such file.* run the train stage first",
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_missing_input_is_named_with_its_maker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    params = load_params(SHIPPED)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=MESSAGES[stage]):
        importlib.import_module(f"pipeline.{stage}").run(params)
    assert list(tmp_path.iterdir()) == []
