"""Training and measuring the small mask tokenizer on scenes drawn in memory.

Regions are whole objects, their visible parts, and unions of objects, in scenes and in zoom-in crops. Figures
are IoUs of masks after encode and decode, on scenes that no training draws, by the tokenizer exactly as it is stored
(float16).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from cyclegrpo.dataset.crops import cut_crop
from cyclegrpo.files import digest, write_json
from cyclegrpo.params import Crop
from cyclegrpo.regions.geometry import crop_window
from cyclegrpo.tokenizer.evaluate import evaluate_tokenizer
from cyclegrpo.tokenizer.examples import MaskExample
from cyclegrpo.tokenizer.model import MaskTokenizer
from cyclegrpo.tokenizer.run import tell_row, write_curve
from cyclegrpo.tokenizer.train import Row, round_to_half, save_half, train_mask_tokenizer
from miniature.code_state import miniature_code
from miniature.params import MiniatureParams
from miniature.scene import Scene, draw_scene, part_mask, union_mask

TOKENIZER_DIR = Path("data/miniature/tokenizer")
CHECKPOINT_DIR = Path("data/miniature/tokenizer.checkpoints")
RESULTS_DIR = Path("results/miniature/tokenizer")
COMMAND = "python -m miniature.stages.tokenizer"
KIND_RATIOS = {"whole": 0.18, "part": 0.62, "union": 0.20}
"""How often training draws each kind of region."""
CROP_RATIO = 0.15
"""Share of training examples that are zoom-in crops."""
MIN_CROPPED_PX = 12
"""Regions with fewer pixels inside a crop, before it is enlarged, are not drawn in it."""
LARGE_UNION_RATIO = 0.25
"""Share of unions that join three objects instead of two."""
NUM_HELDOUT_UNIONS = 2
"""Held-out unions in each scene, beside all its objects and all their parts."""


@dataclass(frozen=True)
class TokenizerReport:
    """Held-out IoUs by kind of region, how many entries of each codebook occur, and what training took.

    Parts are halves of objects; `iou_crops` is of whole objects in their zoom-in crops.
    """

    iou_whole: float
    iou_parts: float
    iou_unions: float
    iou_crops: float
    num_first_codes: int
    num_second_codes: int
    num_parameters: int
    seconds: float


def draw_region(scene: Scene, rng: np.random.Generator, kind: str) -> np.ndarray:
    """The mask of a region of a scene, bool (H, W), never empty.

    `kind` is whole or part (of one object), or union (of two objects, sometimes three).
    """
    objects = scene.objects
    if kind == "union":
        size = 3 if len(objects) > 2 and rng.random() < LARGE_UNION_RATIO else 2
        return union_mask([objects[i] for i in rng.choice(len(objects), size=size, replace=False)])
    scene_object = objects[int(rng.integers(len(objects)))]
    return scene_object.mask if kind == "whole" else part_mask(scene_object.mask, scene_object.parts[rng.integers(2)])


class RegionExamples:
    """Draws training examples: a scene, or a zoom-in crop of one, with masks of regions in it."""

    def __init__(self, scenes: Sequence[Scene], crop: Crop) -> None:
        self.scenes = scenes
        self.crop = crop

    def __call__(self, rng: np.random.Generator, num_masks: int) -> tuple[np.ndarray, np.ndarray]:
        """An image, uint8 RGB (H, W, 3), and masks of its regions, bool (num_masks, H, W), none empty."""
        scene = self.scenes[int(rng.integers(len(self.scenes)))]
        if rng.random() < CROP_RATIO:
            example = self._draw_crop(scene, rng, num_masks)
            if example is not None:
                return example
        return scene.image, np.stack([self._draw(scene, rng) for _ in range(num_masks)])

    def _draw(self, scene: Scene, rng: np.random.Generator) -> np.ndarray:
        return draw_region(scene, rng, str(rng.choice(list(KIND_RATIOS), p=list(KIND_RATIOS.values()))))

    def _draw_crop(
        self, scene: Scene, rng: np.random.Generator, num_masks: int
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """A crop around one region with what lies in it of others; None where the region is too large for a crop."""
        centre = self._draw(scene, rng)
        window = window_of(centre, self.crop)
        if window is None:
            return None
        image = Image.fromarray(scene.image)
        pixels, cropped = cut_crop(image, centre, window, enlarge_to_px=self.crop.enlarge_to_px)
        masks = [cropped] if cropped.any() else []
        for _ in range(10 * num_masks):
            if len(masks) == num_masks:
                break
            mask = self._draw(scene, rng)
            if mask[window[1] : window[3], window[0] : window[2]].sum() >= MIN_CROPPED_PX:
                masks.append(cut_crop(image, mask, window, enlarge_to_px=self.crop.enlarge_to_px)[1])
        return (np.asarray(pixels), np.stack(masks)) if len(masks) == num_masks else None


def window_of(mask: np.ndarray, crop: Crop) -> tuple[int, int, int, int] | None:
    """The window of the mask's zoom-in crop by the pipeline's rule, or None where there is none."""
    return crop_window(mask, max_area_fraction=crop.max_area_fraction, min_side_px=crop.min_side_px)


def draw_heldout(scene: Scene, rng: np.random.Generator) -> tuple[list[str], np.ndarray]:
    """Kinds and masks, bool (N, H, W), of a scene's held-out regions: objects, their parts, and drawn unions."""
    kinds = ["whole"] * len(scene.objects)
    masks = [scene_object.mask for scene_object in scene.objects]
    for scene_object in scene.objects:
        kinds += ["part"] * len(scene_object.parts)
        masks += [part_mask(scene_object.mask, part) for part in scene_object.parts]
    kinds += ["union"] * NUM_HELDOUT_UNIONS
    masks += [draw_region(scene, rng, "union") for _ in range(NUM_HELDOUT_UNIONS)]
    return kinds, np.stack(masks)


def heldout_examples(params: MiniatureParams, crop: Crop) -> Iterator[MaskExample]:
    """Every held-out scene, each followed by the zoom-in crop of its first object."""
    for seed in params.scenes.tokenizer_heldout.seeds:
        scene = draw_scene(seed)
        kinds, masks = draw_heldout(scene, np.random.default_rng([seed, 1]))
        yield MaskExample(f"scene {seed}", scene.image, masks, tuple(kinds))
        mask = scene.objects[0].mask
        window = window_of(mask, crop)
        if window is not None:
            pixels, cropped = cut_crop(Image.fromarray(scene.image), mask, window, enlarge_to_px=crop.enlarge_to_px)
            yield MaskExample(f"crop of scene {seed}", np.asarray(pixels), cropped[None], ("crop",))


def run_tokenizer(params: MiniatureParams, crop: Crop) -> TokenizerReport:
    """Train, measure and save the tokenizer; write metrics.json and curves.csv."""
    scenes = [draw_scene(seed) for seed in params.scenes.tokenizer.seeds]
    clock = time.monotonic()

    def keep(tokenizer: MaskTokenizer, curve: Sequence[Row]) -> None:
        round_to_half(tokenizer)
        save_half(tokenizer, TOKENIZER_DIR)
        write_curve(curve, RESULTS_DIR / "curves.csv")

    tokenizer, _ = train_mask_tokenizer(
        RegionExamples(scenes, crop),
        params.tokenizer,
        checkpoint_dir=CHECKPOINT_DIR,
        data=digest(params.scenes.tokenizer.model_dump(mode="json"), crop.model_dump(mode="json"), miniature_code()),
        cpu=True,
        on_row=lambda row: tell_row(row, clock),
        keep=keep,
    )
    seconds = time.monotonic() - clock
    evaluate_tokenizer(heldout_examples(params, crop), tokenizer, RESULTS_DIR)
    num_parameters = sum(weight.numel() for weight in tokenizer.parameters())
    metrics = json.loads((RESULTS_DIR / "metrics.json").read_text(encoding="utf-8"))
    settings = {
        "command": COMMAND,
        "num_parameters": num_parameters,
        "params": params.tokenizer.model_dump(mode="json"),
        "seed": params.tokenizer.seed,
    }
    write_json(RESULTS_DIR / "metrics.json", {**metrics, **settings})
    kinds, books = metrics["by_kind"], metrics["codebooks"]
    return TokenizerReport(
        iou_whole=kinds["whole"]["mean"],
        iou_parts=kinds["part"]["mean"],
        iou_unions=kinds["union"]["mean"],
        iou_crops=kinds["crop"]["mean"],
        num_first_codes=books[0]["used"],
        num_second_codes=books[1]["used"],
        num_parameters=num_parameters,
        seconds=round(seconds, 1),
    )
