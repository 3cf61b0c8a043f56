"""What a decoded mask costs: cross-entropy, dice and IoU, on all pixels or on sampled points.

Shapes: B images, N masks of each, S the side of the logits, T the side of the masks, P points.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

OVERSAMPLE = 3
IMPORTANCE_RATIO = 0.75
"""Of three times as many candidates, three quarters of the points are the least certain ones; the others are random
(PointRend, arXiv 1912.08193, section 3.1; Mask2Former's values)."""


def resize_masks(masks_NHW: Tensor, side: int) -> Tensor:
    """Masks (N, H, W) in 0..1 at (N, side, side), bilinear with antialias; the same tensor where the size fits."""
    if masks_NHW.shape[1:] == (side, side):
        return masks_NHW
    size = (side, side)
    return F.interpolate(masks_NHW.unsqueeze(0), size, mode="bilinear", align_corners=False, antialias=True)[0]


def mask_losses(logits_BNSS: Tensor, masks_BNTT: Tensor, balance: float) -> tuple[Tensor, Tensor, Tensor]:
    """Cross-entropy, dice loss and IoU (of logits above 0), each the mean over masks, against masks in 0..1.

    With balance 1 the pixels inside a mask weigh as much as those outside, with 0 every pixel weighs the same.
    """
    targets = resize_masks(masks_BNTT.flatten(0, 1), logits_BNSS.shape[-1])
    return _losses(logits_BNSS.flatten(0, 1).flatten(1), targets.flatten(1), balance)


def point_losses(
    logits_BNSS: Tensor, masks_BNTT: Tensor, balance: float, num_points: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """The same on `num_points` points of each mask, most of them where the logits are least certain.

    Points cost as much for a mask of a thousand pixels as for one of a million. `generator` is on the CPU.
    """
    logits_KSS, masks_KTT = logits_BNSS.flatten(0, 1), masks_BNTT.flatten(0, 1)
    with torch.no_grad():
        points_KP2 = uncertain_points(logits_KSS, num_points, generator)
        targets_KP = sample_points(masks_KTT, points_KP2)
    return _losses(sample_points(logits_KSS, points_KP2), targets_KP, balance)


def uncertain_points(logits_KSS: Tensor, num_points: int, generator: torch.Generator) -> Tensor:
    """Places (K, num_points, 2), x and y in 0..1: mostly those of random candidates whose logits are nearest to 0."""
    num_masks = len(logits_KSS)
    num_certain = int(IMPORTANCE_RATIO * num_points)

    def draw(number: int) -> Tensor:
        return torch.rand((num_masks, number, 2), generator=generator).to(logits_KSS.device)

    candidates_KQ2 = draw(OVERSAMPLE * num_points)
    doubt_KQ = -sample_points(logits_KSS, candidates_KQ2).abs()
    chosen_KP = doubt_KQ.topk(num_certain, dim=1).indices
    chosen_KP2 = candidates_KQ2.gather(1, chosen_KP.unsqueeze(2).expand(-1, -1, 2))
    return torch.cat((chosen_KP2, draw(num_points - num_certain)), dim=1)


def sample_points(maps_KSS: Tensor, points_KP2: Tensor) -> Tensor:
    """Values (K, P) of maps at places x, y in 0..1, bilinear between the centres of pixels.

    >>> sample_points(torch.tensor([[[0.0, 4.0], [0.0, 4.0]]]), torch.tensor([[[0.25, 0.5], [0.5, 0.5]]])).tolist()
    [[0.0, 2.0]]
    """
    grid = (2 * points_KP2 - 1).unsqueeze(2)
    return F.grid_sample(maps_KSS.unsqueeze(1), grid, mode="bilinear", align_corners=False)[:, 0, :, 0]


def _losses(logits_KP: Tensor, targets_KP: Tensor, balance: float) -> tuple[Tensor, Tensor, Tensor]:
    area = targets_KP.mean(1, keepdim=True).clamp(1e-3, 0.999)
    weights = 1 + (((1 - area) / area) ** balance - 1) * targets_KP
    weights = weights / weights.mean(1, keepdim=True)
    bce = F.binary_cross_entropy_with_logits(logits_KP, targets_KP, weight=weights)
    probabilities = logits_KP.sigmoid()
    overlap = (probabilities * targets_KP).sum(1)
    dice = 1 - (2 * overlap + 1) / (probabilities.sum(1) + targets_KP.sum(1) + 1)
    with torch.no_grad():
        predicted, wanted = logits_KP > 0, targets_KP > 0.5
        union = (predicted | wanted).sum(1).clamp(min=1)
        iou = (predicted & wanted).sum(1) / union
    return bce, dice.mean(), iou.mean()
