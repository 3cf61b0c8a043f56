"""A policy's folder that is damaged is one clear error, whichever of its files it is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cyclegrpo.errors import DataError
from cyclegrpo.policy import Policy, save_policy


@pytest.fixture(scope="module")
def policy_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from miniature.coldstart import new_policy
    from miniature.params import load_miniature_params

    path = tmp_path_factory.mktemp("policy") / "policy"
    save_policy(*new_policy(load_miniature_params().coldstart), path)
    return path


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"half"])
def test_a_damaged_file_is_told_with_its_folder(policy_dir: Path, tmp_path: Path, name: str, content: bytes) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(policy_dir, folder)
    (folder / name).write_bytes(content)
    with pytest.raises(DataError, match=r"damaged: holds no whole model \(.+\); make the folder anew") as caught:
        Policy.load(folder, "cpu", codebook_size=256)
    assert "\n" not in str(caught.value)


def test_missing_weights_are_told(policy_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(policy_dir, folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(DataError, match="damaged: holds no whole model"):
        Policy.load(folder, "cpu")
