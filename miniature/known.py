"""Scenes with what the cold start may tell about them: every object's tokens, its zoom-in crop and its tokens there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from cyclegrpo.dataset.crops import zoom_crop
from cyclegrpo.dataset.progress import track
from cyclegrpo.dataset.tokenizers import masks_to_tokens
from cyclegrpo.params import Crop
from miniature.scene import Scene, draw_scene

SCENES_PER_PASS = 64


@dataclass(frozen=True)
class KnownObject:
    """One object as the policy is told of it: its token in the scene, its crop, and its token in the crop."""

    token: str
    crop: Image.Image | None
    crop_token: str | None


@dataclass(frozen=True)
class KnownScene:
    """A scene, its picture, and its objects in the order of `scene.objects`."""

    scene: Scene
    image: Image.Image
    objects: tuple[KnownObject, ...]


def know_scenes(seeds: Iterable[int], tokenizer: Any, crop: Crop) -> list[KnownScene]:
    """The scenes of the seeds, with tokens by the mask tokenizer and crops by the pipeline's own rule."""
    todo = list(seeds)
    batches = [todo[start : start + SCENES_PER_PASS] for start in range(0, len(todo), SCENES_PER_PASS)]
    known = (_know([draw_scene(seed) for seed in batch], tokenizer, crop) for batch in batches)
    return [scene for batch in track(known, len(batches), "scenes to learn from", units="batches") for scene in batch]


def _know(scenes: list[Scene], tokenizer: Any, crop: Crop) -> list[KnownScene]:
    pictures = [Image.fromarray(scene.image) for scene in scenes]
    owners = [(index, number) for index, scene in enumerate(scenes) for number in range(len(scene.objects))]
    masks = {owner: scenes[owner[0]].objects[owner[1]].mask for owner in owners}
    tokens = _tokens(tokenizer, pictures, list(masks.values()), [index for index, _ in owners])
    token_of = dict(zip(owners, tokens, strict=True))
    cuts = {(index, number): zoom_crop(pictures[index], mask, crop) for (index, number), mask in masks.items()}
    crops = {owner: cut for owner, cut in cuts.items() if cut is not None}
    crop_tokens = _tokens(
        tokenizer, [c.pixels for c in crops.values()], [c.mask for c in crops.values()], range(len(crops))
    )
    crop_of = {owner: (cut.pixels, token) for (owner, cut), token in zip(crops.items(), crop_tokens, strict=True)}
    return [
        KnownScene(
            scene,
            picture,
            tuple(KnownObject(token_of[i, n], *crop_of.get((i, n), (None, None))) for n in range(len(scene.objects))),
        )
        for i, (scene, picture) in enumerate(zip(scenes, pictures, strict=True))
    ]


def _tokens(
    tokenizer: Any, pictures: list[Image.Image], masks: list[np.ndarray], picture_of_mask: Sequence[int]
) -> list[str]:
    return masks_to_tokens(tokenizer, tokenizer.embed_images(pictures), masks, picture_of_mask) if pictures else []
