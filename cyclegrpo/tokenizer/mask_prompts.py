"""A mask as the mask encoder is asked for it: at the size of its prompt, and as a box."""

from collections.abc import Iterable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cyclegrpo.regions.geometry import mask_to_box_inclusive


def mask_prompts(
    masks: Iterable[np.ndarray | Tensor], side: tuple[int, int], device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """For each mask (H, W) of any size the prompt, float (1, *side), and the box, float (1, 4), as they are needed.

    Raises ValueError naming the index of a mask without pixels, of another shape, or with fractions.
    """
    for index, mask in enumerate(masks):
        given_1HW = torch.as_tensor(mask)[None]
        if given_1HW.ndim != 3 or not given_1HW.numel():
            expected = "pixels" if given_1HW.ndim == 3 else "(H, W)"
            raise ValueError(f"masks[{index}] has shape {tuple(given_1HW.shape[1:])}; expected {expected}.")
        mask_1HW = given_1HW.bool()
        if given_1HW.is_floating_point() and bool((given_1HW.trunc() != given_1HW).any()):
            raise ValueError(f"masks[{index}] has fractions; expected bool: compare with a threshold first.")
        prompt_1SS = resize_to_prompt(mask_1HW.to(device, torch.float32), side)
        yield prompt_1SS, normalised_boxes(mask_1HW, first_index=index)


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
