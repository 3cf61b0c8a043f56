"""Losses of decoded masks: hand-computed cases, and points against pixels."""

import numpy as np
import pytest
import torch

from cyclegrpo.tokenizer.losses import mask_losses, point_losses, resize_masks, sample_points, uncertain_points


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


def test_points_are_sampled_bilinearly_between_pixel_centres():
    maps = torch.arange(6.0).reshape(1, 2, 3)
    centres = torch.tensor([[[(x + 0.5) / 3, (y + 0.5) / 2] for y in range(2) for x in range(3)]])
    torch.testing.assert_close(sample_points(maps, centres), maps.flatten(1))
    torch.testing.assert_close(sample_points(maps, torch.tensor([[[0.5, 0.5]]])), torch.tensor([[2.5]]))


def test_most_points_lie_where_the_logits_are_uncertain():
    logits = torch.full((2, 32, 32), 8.0)
    logits[:, :, 16:18] = 0.0  # a sixteenth of the map
    points = uncertain_points(logits, 80, torch.Generator().manual_seed(0))
    assert points.shape == (2, 80, 2) and (points >= 0).all() and (points <= 1).all()
    near = ((points[..., 0] > 15 / 32) & (points[..., 0] < 19 / 32)).float().mean(1)
    assert (near > 0.25).all()


def test_losses_of_many_points_are_near_those_of_all_pixels_where_no_place_is_uncertain():
    generator = torch.Generator().manual_seed(0)
    masks = torch.zeros(1, 3, 16, 16)
    masks[0, :, :8] = 1
    logits = torch.where(masks > 0, 3.0, -3.0)
    logits[0, 1] = 3.0
    on_pixels = mask_losses(logits, masks, 0.0)
    on_points = point_losses(logits, masks, 0.0, 4000, generator)
    for pixels, points in zip(on_pixels, on_points, strict=True):
        assert points.item() == pytest.approx(pixels.item(), abs=0.15)


def test_points_cost_alike_at_every_size_of_the_mask():
    """The targets of points are looked up in the mask as it is, and not resized to the logits."""
    masks = torch.zeros(1, 1, 64, 64)
    masks[..., :32] = 1
    logits = torch.full((1, 1, 8, 8), -2.0)
    logits[..., :4] = 2.0
    bce, dice, iou = point_losses(logits, masks, 0.0, 500, torch.Generator().manual_seed(1))
    assert bce.item() < 0.6 and dice.item() < 0.4 and iou.item() > 0.9
