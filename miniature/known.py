"""Scenes with what the cold start may tell about them: every object's tokens, its zoom-in crop and its tokens there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from PIL import Image

from cyclegrpo.dataset.crops import zoom_crop
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
    known: list[KnownScene] = []
    pending: list[Scene] = []
    for seed in seeds:
        pending.append(draw_scene(seed))
        if len(pending) == SCENES_PER_PASS:
            known += _know(pending, tokenizer, crop)
            pending = []
    return known + _know(pending, tokenizer, crop)


def _know(scenes: list[Scene], tokenizer: Any, crop: Crop) -> list[KnownScene]:
    if not scenes:
        return []
    pictures = [Image.fromarray(scene.image) for scene in scenes]
    features = tokenizer.embed_images(pictures)
    tokens = [masks_to_tokens(tokenizer, features[i], [o.mask for o in s.objects]) for i, s in enumerate(scenes)]
    owners, crops, masks = [], [], []
    for index, (scene, picture) in enumerate(zip(scenes, pictures, strict=True)):
        for number, scene_object in enumerate(scene.objects):
            cut = zoom_crop(picture, scene_object.mask, crop)
            if cut is not None:
                owners.append((index, number))
                crops.append(cut.pixels)
                masks.append(cut.mask)
    crop_features = tokenizer.embed_images(crops)
    crop_of = {
        owner: (pixels, masks_to_tokens(tokenizer, crop_features[i], [mask])[0])
        for i, (owner, pixels, mask) in enumerate(zip(owners, crops, masks, strict=True))
    }
    return [
        KnownScene(
            scene,
            picture,
            tuple(KnownObject(token, *crop_of.get((i, n), (None, None))) for n, token in enumerate(tokens[i])),
        )
        for i, (scene, picture) in enumerate(zip(scenes, pictures, strict=True))
    ]
