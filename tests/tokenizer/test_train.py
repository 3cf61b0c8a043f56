"""The training loop on a tiny tokenizer: it is repeatable, its parts are right, its phases come when they should."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from cyclegrpo.tokenizer.params import TokenizerSizes, TokenizerTraining
from cyclegrpo.tokenizer.train import mask_losses, ramp, resize_masks, train_mask_tokenizer

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


def test_mask_losses_of_a_known_case():
    # One of four pixels is inside; all logits are 0, so every probability is a half.
    masks = torch.zeros(1, 1, 2, 2)
    masks[..., 0, 0] = 1
    bce, dice, iou = mask_losses(torch.zeros(1, 1, 2, 2), masks, 0.0)
    assert bce.item() == pytest.approx(np.log(2))
    assert dice.item() == pytest.approx(1 - (2 * 0.5 + 1) / (2 + 1 + 1))
    assert iou.item() == 0.0


def test_balance_gives_both_sides_of_a_mask_the_same_weight():
    masks = torch.zeros(1, 1, 2, 2)
    masks[..., 0, 0] = 1
    logits = torch.full((1, 1, 2, 2), 2.0)
    inside, outside = np.log1p(np.exp(-2.0)), np.log1p(np.exp(2.0))
    assert mask_losses(logits, masks, 0.0)[0].item() == pytest.approx((inside + 3 * outside) / 4, rel=1e-5)
    # Weights 3, 1, 1, 1 with a mean of 1.5.
    assert mask_losses(logits, masks, 1.0)[0].item() == pytest.approx((3 * inside + 3 * outside) / 6, rel=1e-5)


def test_a_right_mask_has_an_iou_of_one():
    masks = torch.zeros(1, 2, 4, 4)
    masks[0, 0, :2] = 1
    masks[0, 1, :, :1] = 1
    _, dice, iou = mask_losses(40 * masks - 20, masks, 0.0)
    assert iou.item() == 1.0
    assert dice.item() == pytest.approx(0.0, abs=1e-6)


def test_masks_are_resized_only_where_their_size_differs():
    masks = torch.rand(2, 4, 4)
    assert resize_masks(masks, 4) is masks
    assert torch.allclose(resize_masks(torch.ones(2, 8, 6), 4), torch.ones(2, 4, 4))


@pytest.mark.parametrize("phase", ["fade", "quantize"])
def test_a_phase_that_ends_before_it_starts_is_refused(phase):
    with pytest.raises(ValidationError, match=rf"{phase}_end_ratio is 0\.1; expected at least {phase}_start_ratio"):
        TokenizerTraining(**{f"{phase}_end_ratio": 0.1})
