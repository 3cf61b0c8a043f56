"""The training loop on a tiny tokenizer: it is repeatable, its parts are right, its phases come when they should."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState
from pydantic import ValidationError

from cyclegrpo.errors import DataError
from cyclegrpo.tokenizer.params import TokenizerSizes, TokenizerTraining
from cyclegrpo.tokenizer.step import ramp
from cyclegrpo.tokenizer.train import train_mask_tokenizer

TINY = TokenizerSizes(
    image_size=64,
    embed_dim=32,
    stage_dims=(8, 16, 24, 32),
    stage_heads=(1, 1, 2, 2),
    stage_windows=(8, 4, 4, 2),
    position_grid=4,
    decoder_mlp_dim=32,
    iou_head_dim=32,
    codebook_size=8,
)
FEW_STEPS = TokenizerTraining(sizes=TINY, num_steps=6, images_per_step=2, masks_per_image=2)


def draw_square(rng: np.random.Generator, num_masks: int) -> tuple[np.ndarray, np.ndarray]:
    """A noise image of a drawn size, and a square at a drawn place for each mask."""
    side = int(rng.integers(40, 70))
    masks = np.zeros((num_masks, side, side), bool)
    for mask in masks:
        y, x = rng.integers(0, side - 20, size=2)
        mask[y : y + 20, x : x + 20] = True
    return rng.integers(0, 256, (side, side, 3), dtype=np.uint8), masks


def test_training_is_repeatable_and_moves_weights_and_codebooks():
    first, first_curve = train_mask_tokenizer(draw_square, FEW_STEPS, log_every=2)
    second, second_curve = train_mask_tokenizer(draw_square, FEW_STEPS, log_every=2)
    assert not first.training
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name]), name
    assert first_curve == second_curve
    assert [row["step"] for row in first_curve] == [0, 2, 4, 5]
    assert all(np.isfinite(list(row.values())).all() for row in first_curve)
    other, _ = train_mask_tokenizer(draw_square, FEW_STEPS.model_copy(update={"seed": 1}))
    assert not torch.equal(first.codebooks[0], other.codebooks[0])


def test_phases_that_start_at_once_train_too():
    """Quantised, decoded and with the image from the first step on; codebooks then start from the first batch."""
    at_once = dict.fromkeys(("decode_start_ratio", "fade_start_ratio", "fade_end_ratio", "quantize_start_ratio"), 0.0)
    params = FEW_STEPS.model_copy(
        update={**at_once, "quantize_end_ratio": 0.0, "balance_end_ratio": 0.0, "shape_end_ratio": 0.0}
    )
    _, curve = train_mask_tokenizer(draw_square, params, log_every=1)
    assert all(row["commitment"] >= 0 and np.isfinite(row["loss"]) for row in curve)


def test_both_position_codes_are_the_same_after_training():
    tokenizer, _ = train_mask_tokenizer(draw_square, FEW_STEPS.model_copy(update={"num_steps": 1}))
    assert torch.equal(
        tokenizer.sam2.shared_image_embedding.positional_embedding,
        tokenizer.sam2.prompt_encoder.shared_embedding.positional_embedding,
    )


@pytest.mark.parametrize(
    ("progress", "expected"), [(0.0, 0.0), (0.19, 0.0), (0.2, 0.0), (0.3, 0.5), (0.4, 1.0), (0.9, 1.0)]
)
def test_a_phase_is_faded_in(progress, expected):
    assert ramp(progress, 0.2, 0.4) == pytest.approx(expected)


def test_a_phase_without_a_fade_is_whole_from_the_start():
    assert ramp(0.0, 0.0, 0.0) == 1.0


@pytest.mark.parametrize("phase", ["fade", "quantize"])
def test_a_phase_that_ends_before_it_starts_is_refused(phase):
    with pytest.raises(ValidationError, match=rf"{phase}_end_ratio is 0\.1; expected at least {phase}_start_ratio"):
        TokenizerTraining(**{f"{phase}_end_ratio": 0.1})


def test_a_killed_run_ends_as_one_that_was_never_interrupted(tmp_path):
    params = FEW_STEPS.model_copy(update={"num_steps": 8, "save_steps": 3})
    whole, whole_curve = train_mask_tokenizer(draw_square, params, log_every=2)
    calls = 0

    def draw_and_die(rng, num_masks):
        nonlocal calls
        calls += 1
        if calls > 2 * 7:  # in the eighth step; the last state is that of six
            raise KeyboardInterrupt
        return draw_square(rng, num_masks)

    with pytest.raises(KeyboardInterrupt):
        train_mask_tokenizer(draw_and_die, params, log_every=2, checkpoint_dir=tmp_path / "states")
    assert [path.name for path in (tmp_path / "states").glob("step-*")] == ["step-00000006"]
    steps = []
    again, curve = train_mask_tokenizer(
        draw_square,
        params,
        log_every=2,
        checkpoint_dir=tmp_path / "states",
        on_row=lambda row: steps.append(row["step"]),
    )
    assert steps == [6, 7] and curve == whole_curve
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, whole.state_dict()[name]), name
    assert not (tmp_path / "states").exists()


def test_the_state_of_another_run_is_refused(tmp_path):
    params = FEW_STEPS.model_copy(update={"save_steps": 2})

    def die(rng, num_masks, left=[7]):  # noqa: B006 - counts calls
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return draw_square(rng, num_masks)

    with pytest.raises(KeyboardInterrupt):
        train_mask_tokenizer(die, params, checkpoint_dir=tmp_path)
    other = params.model_copy(update={"learning_rate": 1e-4})
    with pytest.raises(DataError, match="holds an unfinished training with other parameters"):
        train_mask_tokenizer(draw_square, other, checkpoint_dir=tmp_path)


def test_the_state_of_a_run_on_other_data_is_refused(tmp_path):
    params = FEW_STEPS.model_copy(update={"save_steps": 2})

    def die(*_):
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        train_mask_tokenizer(draw_square, params, checkpoint_dir=tmp_path, data="a", keep=die)
    with pytest.raises(DataError, match="other parameters, first weights, data, code"):
        train_mask_tokenizer(draw_square, params, checkpoint_dir=tmp_path, data="b")


def test_a_training_that_cannot_be_stored_is_not_lost(tmp_path):
    params = FEW_STEPS.model_copy(update={"save_steps": 2})

    def die(*_):
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        train_mask_tokenizer(draw_square, params, checkpoint_dir=tmp_path / "states", keep=die)
    kept = []

    def refuse(rng, num_masks):
        raise AssertionError("nothing is left to train")

    again, curve = train_mask_tokenizer(
        refuse, params, checkpoint_dir=tmp_path / "states", keep=lambda *done: kept.append(done)
    )
    assert kept == [(again, curve)] and not (tmp_path / "states").exists()
    whole, whole_curve = train_mask_tokenizer(draw_square, params)
    assert curve == whole_curve
    assert all(torch.equal(tensor, whole.state_dict()[name]) for name, tensor in again.state_dict().items())


@pytest.mark.parametrize("damage", ["step-00000002/pytorch_model.bin", "run.json"])
def test_damaged_states_are_told(damage, tmp_path):
    params = FEW_STEPS.model_copy(update={"save_steps": 2, "num_steps": 2})

    def die(*_):
        raise OSError

    with pytest.raises(OSError):
        train_mask_tokenizer(draw_square, params, checkpoint_dir=tmp_path, keep=die)
    (tmp_path / damage).write_bytes(b"x")
    with pytest.raises(DataError, match=r"a damaged state|an unfinished training with other"):
        train_mask_tokenizer(draw_square, params, checkpoint_dir=tmp_path)


def test_a_folder_of_something_else_is_no_folder_for_states(tmp_path):
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(DataError, match=r"holds mine\.txt"):
        train_mask_tokenizer(draw_square, FEW_STEPS, checkpoint_dir=tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "precious"


def test_a_loss_that_is_no_number_ends_the_run():
    params = FEW_STEPS.model_copy(update={"learning_rate": 1e30, "num_steps": 30})
    with pytest.raises(DataError, match=r"the loss is nan at step \d+; lower learning_rate"):
        train_mask_tokenizer(draw_square, params)


def test_weights_that_the_last_step_breaks_are_not_kept(tmp_path):
    """Here the loss of the only step is a number, its gradient takes the weights beyond all numbers."""
    params = FEW_STEPS.model_copy(update={"learning_rate": 1e39, "num_steps": 1, "warmup_ratio": 0.0})
    kept = []
    params = params.model_copy(update={"save_steps": 1})
    with pytest.raises(DataError, match="weights are no numbers any more"):
        train_mask_tokenizer(draw_square, params, checkpoint_dir=tmp_path / "states", keep=lambda *it: kept.append(it))
    assert not kept and not (tmp_path / "states").exists()


def test_bfloat16_goes_through_all_phases(monkeypatch):
    AcceleratorState._reset_state(reset_partial_state=True)  # a process has one precision, once it has been asked for
    monkeypatch.setattr(AcceleratorState, "_shared_state", {})
    params = FEW_STEPS.model_copy(update={"bf16": True})
    trained, curve = train_mask_tokenizer(draw_square, params, log_every=1)
    assert all(np.isfinite(row["loss"]) for row in curve)
    assert {weight.dtype for weight in trained.parameters()} == {torch.float32}


def test_going_on_from_a_tokenizer_keeps_its_sizes_and_codebooks():
    first, _ = train_mask_tokenizer(draw_square, FEW_STEPS)
    weights = {name: tensor.clone() for name, tensor in first.state_dict().items()}
    params = TokenizerTraining(num_steps=1, images_per_step=2, masks_per_image=2, learning_rate=1e-6, restart_ratio=0)
    second, curve = train_mask_tokenizer(draw_square, params, tokenizer=first)
    assert second.config.image_size == TINY.image_size
    assert curve[0]["shape_iou"] == 0 and curve[0]["commitment"] > 0  # no phases
    for name, tensor in second.state_dict().items():
        assert torch.allclose(tensor, weights[name], atol=0.2 if "codebooks" in name else 1e-5), name


def test_the_loss_can_be_taken_on_points():
    params = FEW_STEPS.without_phases().model_copy(update={"num_points": 40})
    _, curve = train_mask_tokenizer(draw_square, params, log_every=1)
    again = train_mask_tokenizer(draw_square, params, log_every=1)[1]
    assert curve == again and all(np.isfinite(row["loss"]) for row in curve)


def test_two_processes_end_with_the_same_weights(tmp_path):
    """Each draws its own images; gradients and codebooks are moved by all of them together."""
    script = tmp_path / "two.py"
    script.write_text(TWO_PROCESSES)
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(script), str(tmp_path)]
    root = str(Path(__file__).parents[2])
    environment = os.environ | {"PYTHONPATH": root, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    assert first["seen"] != second["seen"]
    for name, tensor in first["weights"].items():
        assert torch.equal(tensor, second["weights"][name]), name
    alone, _ = train_mask_tokenizer(draw_square, FEW_STEPS.without_phases())
    assert not torch.equal(alone.codebooks[0], first["weights"]["codebooks.0"])


TWO_PROCESSES = """
import sys
import torch
from accelerate import PartialState
from cyclegrpo.tokenizer.train import train_mask_tokenizer
from tests.tokenizer.test_train import FEW_STEPS, draw_square

seen = []


def draw(rng, num_masks):
    image, masks = draw_square(rng, num_masks)
    seen.append(image.shape[0])
    return image, masks


kept = []
tokenizer, _ = train_mask_tokenizer(draw, FEW_STEPS.without_phases(), cpu=True, keep=lambda *done: kept.append(done))
assert len(kept) == (PartialState().process_index == 0), "the main process alone stores the result"
state = {"weights": tokenizer.state_dict(), "seen": seen}
torch.save(state, f"{sys.argv[1]}/{PartialState().process_index}.pt")
"""
