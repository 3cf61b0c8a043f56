"""The states of an unfinished training: what is loaded, what is refused, and what a kill leaves."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import nn

from cyclegrpo.errors import DataError
from cyclegrpo.unfinished import UnfinishedRun, digest_weights, require_finite


class Counted:
    """Something beside the weights that a state holds."""

    def __init__(self, number: int) -> None:
        self.number = number

    def state_dict(self) -> dict[str, Any]:
        return {"number": self.number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.number = state["number"]


def new_run(
    folder: Path, *, weight: float = 0.0, number: int = 0, run: str = "run"
) -> tuple[Any, Counted, UnfinishedRun]:
    accelerator = Accelerator(cpu=True)
    module = nn.Linear(2, 1)
    nn.init.constant_(module.weight, weight)
    counted = Counted(number)
    module = accelerator.prepare(module)
    accelerator.register_for_checkpointing(counted)
    return module, counted, UnfinishedRun(folder, accelerator, run)


def test_the_newest_state_is_loaded_and_no_other_is_kept(tmp_path: Path) -> None:
    module, counted, unfinished = new_run(tmp_path / "states", weight=1.0, number=3)
    unfinished.save(3)
    nn.init.constant_(module.weight, 2.0)
    counted.number = 4
    unfinished.save(4)
    assert sorted(path.name for path in (tmp_path / "states").iterdir()) == ["run.json", "step-00000004"]
    again, counted_again, unfinished = new_run(tmp_path / "states")
    unfinished.resume()
    assert torch.equal(again.weight, torch.full((1, 2), 2.0)) and counted_again.number == 4
    unfinished.clear()
    assert list(tmp_path.iterdir()) == []


def test_another_run_is_refused(tmp_path: Path) -> None:
    new_run(tmp_path)[2].save(1)
    with pytest.raises(DataError, match="with other parameters, first weights, data, code or number of processes"):
        new_run(tmp_path, run="another")[2].resume()


def test_nothing_that_a_state_holds_is_run(tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> tuple[Any, tuple[str, str]]:
            return open, (str(tmp_path / "ran"), "w")

    new_run(tmp_path / "states")[2].save(1)
    (file,) = (tmp_path / "states" / "step-00000001").glob("custom_checkpoint_*.pkl")
    file.write_bytes(pickle.dumps(Payload(), protocol=2))
    with pytest.raises(DataError, match="a damaged state"):
        new_run(tmp_path / "states")[2].resume()
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [[1], {"other": 1}, 3])
def test_a_state_of_something_else_is_told(tmp_path: Path, content: Any) -> None:
    new_run(tmp_path)[2].save(1)
    (file,) = (tmp_path / "step-00000001").glob("custom_checkpoint_*.pkl")
    torch.save(content, file)
    with pytest.raises(DataError, match="a damaged state"):
        new_run(tmp_path)[2].resume()


def test_a_kill_while_states_are_removed_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unfinished = new_run(tmp_path / "states")[2]
    unfinished.save(1)
    with monkeypatch.context() as context:

        def die(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        context.setattr(os, "unlink", die)
        with pytest.raises(KeyboardInterrupt):
            unfinished.clear()
    module, _, again = new_run(tmp_path / "states", weight=5.0)
    again.resume()
    assert module.weight[0, 0] == 5.0
    assert list(tmp_path.iterdir()) == []


def test_weights_are_told_apart_byte_for_byte() -> None:
    module = nn.Linear(2, 1)
    before = digest_weights(module)
    assert digest_weights(module) == before
    with torch.no_grad():
        module.weight[0, 0] = -module.weight[0, 0]
    assert digest_weights(module) != before


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(value: float) -> None:
    module = nn.Linear(2, 1)
    require_finite(module)
    nn.init.constant_(module.bias, value)
    with pytest.raises(DataError, match="no numbers any more"):
        require_finite(module)
