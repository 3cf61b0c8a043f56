"""A faster vision tower, for Qwen3-VL: it looks at every image of a batch once, and embeds patches by one product.

The G captions of a region and the K groundings of each are about the same image, and so are the sampled captions of an
evaluation; a batch holds the image's patches once for each of them. Two hooks on the tower take equal images out before
it and repeat their features after it: nothing else of the model knows, and gradients add up as they would have.

The tower embeds patches by a 3D convolution whose kernel is a patch. That is a matrix product, and several times faster
as one (transformers issue 45750). transformers' own `fusion_config` does the same, but gives the weights other names
and stays in the saved config; here names, weights and files are as they were.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

# With any other argument (precomputed positions, wishes for more outputs) the batch is left alone.
KNOWN_ARGUMENTS = {"grid_thw", "return_dict", "use_cache"}


def speed_up_vision(model: Any) -> None:
    """From now on the vision tower of a Qwen3-VL encodes equal images of a batch once and embeds patches by a product.

    Features and gradients are those of the untouched tower, up to rounding. Models of other kinds are left as they are.
    """
    tower = getattr(getattr(model, "model", None), "visual", None)
    if not isinstance(tower, Qwen3VLVisionModel):
        return
    hooks = _LookOnce()
    tower.register_forward_pre_hook(hooks.before, with_kwargs=True)
    tower.register_forward_hook(hooks.after)
    projection = tower.patch_embed.proj
    if type(projection) is nn.Conv3d and _is_product(projection):
        projection.__class__ = PatchProjection


class PatchProjection(nn.Conv3d):
    """A convolution that is given single patches of its kernel's size, as the matrix product that it then is."""

    def forward(self, patches: Tensor) -> Tensor:
        """Patches (N, C, T, H, W) to (N, D, 1, 1, 1)."""
        return F.linear(patches.flatten(1), self.weight.flatten(1), self.bias)[..., None, None, None]


def _is_product(convolution: nn.Conv3d) -> bool:
    one, zero = (1, 1, 1), (0, 0, 0)
    plain = convolution.dilation == one and convolution.padding == zero and convolution.groups == 1
    return plain and convolution.stride == convolution.kernel_size


def first_equal(images: list[Tensor]) -> list[int]:
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

    def _repeat(self, features: Tensor) -> Tensor:
        merged = sum(self._sizes) // len(features)  # patches that one row of features stands for
        parts = features.split([size // merged for size in self._sizes])
        assert self._found is not None
        return torch.cat([parts[i] for i in self._found])
