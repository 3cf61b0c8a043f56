"""What the image encoder knows of images: the maps that masks are encoded and codes decoded on.

Shapes: B images, D channels, M the side of the image map, S = 4 * M the side of the logits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ImageFeatures:
    """What the image encoder gives for a batch of images; `features[i]` is one image, still with a batch axis of 1.

    maps: the two high-resolution maps (B, D // 8, S, S) and (B, D // 4, S / 2, S / 2), then the image map (B, D, M, M).
    """

    maps: tuple[Tensor, Tensor, Tensor]

    def __len__(self) -> int:
        return self.maps[0].shape[0]

    def __iter__(self) -> Iterator[ImageFeatures]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> ImageFeatures:
        if not -len(self) <= index < len(self):
            raise IndexError(f"image {index} of {len(self)}")
        index %= len(self)
        high, middle, low = self.maps
        return ImageFeatures((high[index : index + 1], middle[index : index + 1], low[index : index + 1]))

    @classmethod
    def concatenate(cls, parts: Sequence[ImageFeatures]) -> ImageFeatures:
        """Those of all parts, in order. Raises ValueError where there is no part."""
        if not parts:
            raise ValueError("no images to embed; expected one or more.")
        if len(parts) == 1:
            return parts[0]
        high, middle, low = (torch.cat(maps) for maps in zip(*(part.maps for part in parts), strict=True))
        return cls((high, middle, low))

    def scaled(self, factor: float) -> ImageFeatures:
        """The same features times a factor (training fades the image in)."""
        high, middle, low = self.maps
        return ImageFeatures((high * factor, middle * factor, low * factor))
