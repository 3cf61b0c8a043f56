"""The benchmarks run and say what they are asked, here with a tokenizer so small that it takes no time."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from benchmarks import memory, prepare, reward
from cyclegrpo.tokenizer import MaskTokenizer
from cyclegrpo.tokenizer.config import config_of
from tests.tokenizer.test_train import TINY


@pytest.fixture(autouse=True)
def small_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(TINY.model_copy(update={"codebook_size": 256}))

    def random_tokenizer(size: str, seed: int = 0) -> MaskTokenizer:
        torch.manual_seed(seed)
        return MaskTokenizer(config).eval()

    for module in (memory, prepare, reward):
        monkeypatch.setattr(module, "random_tokenizer", random_tokenizer)


def test_both_orders_of_work_give_the_same_codes(capsys: Any) -> None:
    prepare.main(["--rounds", "1", "--images", "2", "--masks", "4"])
    told = capsys.readouterr().out
    # Three of four regions of the first two images have a crop: 4 + 3 passes for each image, or 1 + 3.
    assert re.search(r"public_order .* 14 images embedded", told)
    assert re.search(r"our_stages .* 8 images embedded", told)
    assert "100% of the crops have the same codes" in told


def test_the_memory_of_the_stage_is_measured(capsys: Any) -> None:
    memory.main(["--stage", "--one", "128"])
    assert re.search(r"128 regions: \d\.\d\d GB above", capsys.readouterr().out)


def test_the_memory_of_one_image_is_measured(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "HEIGHT", 60)
    monkeypatch.setattr(memory, "WIDTH", 80)
    memory.main(["--one", "4"])
    assert re.search(r"4 regions \(\d kept\): \d\.\d\d GB above", capsys.readouterr().out)


def test_the_reward_is_measured_against_a_pass_of_the_encoder(capsys: Any) -> None:
    reward.main(["--distinct", "2", "6"])
    assert len(re.findall(r"\d of 36 distinct: encoder .* ratio \d", capsys.readouterr().out)) == 2
