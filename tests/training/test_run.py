"""The stage train: resumed runs, other runs in the way, what is left behind."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from PIL import Image

from cyclegrpo.errors import DataError, ParamsError
from cyclegrpo.policy import Policy
from cyclegrpo.training import run as run_module
from cyclegrpo.training.curve import CurveWriter
from cyclegrpo.training.run import run_train, trl_config


def train_into(params, root):
    return run_train(
        params, policy_dir=root / "policy", checkpoint_dir=root / "checkpoints", results_dir=root / "results"
    )


def test_a_resumed_run_is_the_uninterrupted_run(params, tmp_path, monkeypatch):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train_into(params, whole)
    write = CurveWriter.on_log

    def stop_after_three(self, args, state, control, **kwargs):
        if state.global_step == 3:
            raise KeyboardInterrupt
        write(self, args, state, control, **kwargs)

    monkeypatch.setattr(CurveWriter, "on_log", stop_after_three)
    with pytest.raises(KeyboardInterrupt):
        train_into(params, parts)
    assert not (parts / "policy").exists()
    monkeypatch.setattr(CurveWriter, "on_log", write)
    train_into(params, parts)
    for name in ("results/curves.csv", "results/metrics.json", "policy/model.safetensors"):
        assert (parts / name).read_bytes() == (whole / name).read_bytes(), name
    assert [path.name for path in (parts / "checkpoints").iterdir()] == ["run.json"]


def test_a_run_that_could_not_save_its_policy_goes_on_from_its_last_step(params, tmp_path, monkeypatch):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train_into(params, whole)

    def no_space(*_):
        raise OSError("no space left")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="no space left"):
        patch.setattr(run_module, "save_policy", no_space)
        train_into(params, parts)
    shutil.rmtree(parts / "results")  # as DVC does before a stage begins
    train_into(params, parts)
    for name in ("results/curves.csv", "results/metrics.json", "policy/model.safetensors"):
        assert (parts / name).read_bytes() == (whole / name).read_bytes(), name


def test_a_run_that_logs_no_step_leaves_a_curve_without_lines(params, tmp_path):
    train = params.train.model_copy(update={"logging_steps": 50})
    train_into(params.model_copy(update={"train": train}), tmp_path)
    assert (tmp_path / "results" / "curves.csv").read_text() == "step\n"


@pytest.mark.filterwarnings("error::FutureWarning")
def test_the_stage_says_one_line_a_step_on_standard_error(params, tmp_path, capfd):
    train_into(params, tmp_path)
    said = capfd.readouterr()
    assert said.out == ""
    assert [line.split("  ")[0] for line in said.err.splitlines()] == [f"step {number}/4" for number in range(1, 5)]


@pytest.mark.parametrize("state", [None, "", '{"global_step": 3,'])
def test_a_checkpoint_that_a_kill_cut_off_is_left_out(tmp_path, state):
    whole, cut = tmp_path / "checkpoint-2", tmp_path / "checkpoint-10"
    for folder, text in ((whole, '{"global_step": 2}'), (cut, state)):
        folder.mkdir()
        (folder / "config.json").touch()
        if text is not None:
            (folder / "trainer_state.json").write_text(text)
    assert run_module.last_whole_checkpoint(tmp_path) == whole
    assert not cut.exists()
    assert run_module.last_whole_checkpoint(tmp_path / "nowhere") is None


def test_an_unfinished_run_with_other_params_is_not_overwritten(params, tmp_path, monkeypatch):
    root = tmp_path / "root"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(CurveWriter, "on_log", _interrupt_at(3))
        train_into(params, root)
    kept = sorted(path.name for path in (root / "checkpoints").iterdir())
    other = params.model_copy(update={"train": params.train.model_copy(update={"beta": 0.5})})
    with pytest.raises(DataError, match="unfinished run with other parameters"):
        train_into(other, root)
    assert sorted(path.name for path in (root / "checkpoints").iterdir()) == kept
    assert "checkpoint-2" in kept


def test_the_trained_policy_is_a_model_of_its_own_that_has_learned(params, tmp_path):
    train_into(params, tmp_path)
    policies = [Policy.load(folder, "cpu") for folder in (params.base.policy, tmp_path / "policy")]
    before, after = (policy.model.state_dict() for policy in policies)
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    frozen = {name for name in before if ".visual." in name}
    assert frozen and not changed & frozen
    assert changed == before.keys() - frozen  # every other weight
    prompt, image = "<image>\nWhat is it?", Image.new("RGB", (96, 96))
    ids = [policy.encode([prompt], [[image]])["input_ids"] for policy in policies]
    assert torch.equal(*ids)  # the processor is the same
    metrics = json.loads((tmp_path / "results" / "metrics.json").read_text())
    assert metrics["num_steps"] == 4


def test_a_dataset_of_another_region_space_is_refused_before_a_run_begins(params, tmp_path):
    boxes = params.model_copy(update={"base": params.base.model_copy(update={"region_space": "box"})})
    with pytest.raises(DataError, match=r"\(no region\); expected a box of base\.region_space"):
        train_into(boxes, tmp_path)
    assert not (tmp_path / "checkpoints").exists()


def test_a_missing_policy_is_named(params, tmp_path):
    missing = params.model_copy(update={"base": params.base.model_copy(update={"policy": tmp_path / "nowhere"})})
    with pytest.raises(DataError, match=r"nowhere: config\.json is missing"):
        train_into(missing, tmp_path)


def test_prompts_that_do_not_divide_into_micro_batches_are_refused(params, tmp_path):
    train = params.train.model_copy(update={"micro_batches": 3})
    with pytest.raises(ParamsError, match="do not divide into 6 equal"):
        trl_config(train, 0, tmp_path, use_cpu=True)


def _interrupt_at(step):
    def on_log(self, args, state, control, **kwargs):
        if state.global_step == step:
            raise KeyboardInterrupt

    return on_log
