"""A mask as the mask encoder is asked for it: at the size of its prompt, and as a box."""

import torch
import torch.nn.functional as F
from torch import Tensor

from cyclegrpo.regions.geometry import mask_to_box_inclusive


def resize_to_prompt(masks_NHW: Tensor, side: tuple[int, int]) -> Tensor:
    """Masks (N, H, W), float, at the size of the mask prompt: bilinear with antialias, as the release does."""
    if masks_NHW.shape[1:] == side:
        return masks_NHW
    resized = F.interpolate(masks_NHW.unsqueeze(1), side, mode="bilinear", align_corners=False, antialias=True)
    return resized[:, 0]


def normalised_boxes(masks_NHW: Tensor, *, first_index: int = 0) -> Tensor:
    """Box of each mask as x0, y0, x1, y1 in [0, 1): inclusive pixel extremes over width and height, float (N, 4).

    Raises ValueError naming the index, counted from `first_index`, of an empty mask, which has no box.

    >>> normalised_boxes(torch.tensor([[[False, False], [False, True]]])).tolist()
    [[0.5, 0.5, 0.5, 0.5]]
    """
    height, width = masks_NHW.shape[1:]
    boxes = []
    for index, mask in enumerate(masks_NHW.cpu().numpy(), first_index):
        box = mask_to_box_inclusive(mask)
        if box is None:
            raise ValueError(f"masks[{index}] is empty; an empty mask has no codes: leave it out.")
        boxes.append(box)
    size = torch.tensor([width, height, width, height], dtype=torch.float32)
    return torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4) / size
