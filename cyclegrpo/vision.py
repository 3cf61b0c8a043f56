"""The vision tower looks at every image of a batch once.

The G captions of a region and the K groundings of each are about the same image, and so are the sampled captions of an
evaluation; a batch holds the image's patches once for each of them. Two hooks on the tower take equal images out before
it and repeat their features after it: nothing else of the model knows, and gradients add up as they would have.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

# With any other argument (precomputed positions, wishes for more outputs) the batch is left alone.
KNOWN_ARGUMENTS = {"grid_thw", "return_dict", "use_cache"}


def look_once(model: Any) -> None:
    """From now on the vision tower of a Qwen3-VL encodes equal images of a batch once, with and without gradients.

    Features are those of the whole batch, up to rounding. Models of other kinds are left as they are.
    """
    tower = getattr(getattr(model, "model", None), "visual", None)
    if not isinstance(tower, Qwen3VLVisionModel):
        return
    hooks = _LookOnce()
    tower.register_forward_pre_hook(hooks.before, with_kwargs=True)
    tower.register_forward_hook(hooks.after)


def first_equal(images: list[torch.Tensor]) -> list[int]:
    """For every image the index of the first one that equals it in shape and every value.

    Args:
        images: n x (patches, values), on one device.

    >>> one, two = torch.zeros(2, 3), torch.ones(2, 3)
    >>> first_equal([one, two, one.clone(), two])
    [0, 1, 0, 1]
    """
    if not images:
        return []
    # A quick sum first: only images with the same one are compared value by value.
    sums = torch.stack([image.sum(dtype=torch.float32) for image in images]).tolist()
    alike: dict[tuple[torch.Size, float], list[int]] = {}
    found = []
    for i, (image, total) in enumerate(zip(images, sums, strict=True)):
        earlier = alike.setdefault((image.shape, total), [])
        equal = next((j for j in earlier if torch.equal(images[j], image)), i)
        if equal == i:
            earlier.append(i)
        found.append(equal)
    return found


class _LookOnce:
    """The two hooks; `_found` and `_sizes` are those of the call that is under way, None where it is left alone."""

    def __init__(self) -> None:
        self._found: list[int] | None = None
        self._sizes: list[int] = []

    def before(self, tower: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Take equal images out of `patches` (all images' one after the other) and `grid_thw` (images, 3)."""
        self._found = None
        if len(args) != 1 or not {"grid_thw"} <= set(kwargs) <= KNOWN_ARGUMENTS or not kwargs.get("return_dict"):
            return None
        patches, grids = args[0], kwargs["grid_thw"]
        self._sizes = grids.prod(-1).tolist()
        images = list(patches.split(self._sizes))
        # Patches of one shape may be of another grid: 2 x 8 and 4 x 4.
        keyed = first_equal([image.reshape(*grid, -1) for image, grid in zip(images, grids.tolist(), strict=True)])
        kept = sorted(set(keyed))
        if len(kept) == len(images):
            return None
        self._found = [kept.index(i) for i in keyed]
        self._sizes = [self._sizes[i] for i in kept]
        return (torch.cat([images[i] for i in kept]),), {**kwargs, "grid_thw": grids[kept]}

    def after(self, tower: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """Repeat the features of every image where its equals were."""
        if self._found is None:
            return None
        output.last_hidden_state = self._repeat(output.last_hidden_state)
        output.pooler_output = self._repeat(output.pooler_output)
        output.deepstack_features = [self._repeat(features) for features in output.deepstack_features]
        self._found = None
        return output

    def _repeat(self, features: torch.Tensor) -> torch.Tensor:
        merged = sum(self._sizes) // len(features)  # patches that one row of features stands for
        parts = features.split([size // merged for size in self._sizes])
        assert self._found is not None
        return torch.cat([parts[i] for i in self._found])
