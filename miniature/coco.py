"""gRefCOCO's two files for drawn scenes: `instances.json` in COCO's form, and `grefs(unc).json` with its refs.

One annotation per object (whole objects only). A segmentation is a polygon where that rasterises to exactly the mask
and has at most `MAX_CORNERS` corners, else compressed RLE, so that a reader meets both forms of the real files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cyclegrpo.regions.geometry import Rle, mask_to_box, mask_to_rle, polygons_to_mask
from miniature.expressions import draw_expression, draw_multi_target, draw_no_target
from miniature.scene import SHAPES, SIDE_PX, VOCABULARY, Scene, SceneObject, caption_of

MAX_CORNERS = 48
CATEGORY_IDS = {"circle": 1, "square": 3, "triangle": 7}
"""Not contiguous, as in COCO."""
DATE = "2026-01-01 00:00:00"


class GrefCoco:
    """The content of the two files and of the truth file, filled scene by scene with `add`.

    Args:
        probabilities: how often an expression names each attribute.
        multi_target_ratio: share of images with a third ref, of several targets.
        seed: seed of the expressions, beside the scene's own seed.
    """

    def __init__(self, probabilities: Mapping[str, float], multi_target_ratio: float, seed: int) -> None:
        self.refs: list[dict[str, Any]] = []
        self.true_words: dict[str, list[dict[str, Any]]] = {}
        self._probabilities = probabilities
        self._multi_target_ratio = multi_target_ratio
        self._seed = seed
        self._images: list[dict[str, Any]] = []
        self._annotations: list[dict[str, Any]] = []

    def add(self, scene: Scene, scene_seed: int, split: str) -> str:
        """Add one scene as the next image of a split and return its file name.

        Its refs: a single-target one whose expression fits its target alone, a no-target one that is true of nothing
        but differs in one word from a true one, and for some images a multi-target one.
        """
        image_id = len(self._images) + 1
        file_name = f"COCO_train2014_{image_id:012d}.jpg"
        self._images.append(_image_entry(image_id, file_name))
        ann_ids = [image_id * 10 + i for i in range(len(scene.objects))]
        for ann_id, scene_object in zip(ann_ids, scene.objects, strict=True):
            self._annotations.append(_annotation_entry(ann_id, image_id, scene_object))
        self.true_words[file_name] = [
            {"ann_id": ann_id, "words": [o.word(a) for a in VOCABULARY]}
            for ann_id, o in zip(ann_ids, scene.objects, strict=True)
        ]
        for number, (targets, text) in enumerate(self._draw_expressions(scene, scene_seed)):
            self.refs.append(
                {
                    "ref_id": len(self.refs) + 1,
                    "image_id": image_id,
                    "split": split,
                    "file_name": file_name.replace(".jpg", f"_{number}.jpg"),
                    "ann_id": [ann_ids[i] for i in targets] or [-1],
                    "category_id": [CATEGORY_IDS[scene.objects[i].shape] for i in targets] or [-1],
                    "no_target": not targets,
                    **_sentence_fields(len(self.refs) + 1, text),
                }
            )
        return file_name

    def instances(self) -> dict[str, Any]:
        """The object of `instances.json`: info, licenses, images, annotations, categories."""
        return {
            "info": {"description": "drawn scenes in COCO's form", "version": "1.0", "date_created": DATE},
            "licenses": [{"id": 1, "name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"}],
            "images": self._images,
            "annotations": self._annotations,
            "categories": [{"id": CATEGORY_IDS[s], "name": s, "supercategory": "shape"} for s in SHAPES],
        }

    def truth(self) -> dict[str, Any]:
        """The object of `truth.json`: every annotation's true words, by file name, and the words by attribute."""
        return {"vocabulary": {a: list(words) for a, words in VOCABULARY.items()}, "images": self.true_words}

    def _draw_expressions(self, scene: Scene, scene_seed: int) -> list[tuple[list[int], str]]:
        """Target indices (empty: no target) and text of every ref of one scene."""
        rng = np.random.default_rng([self._seed, scene_seed])
        target, words = draw_expression(scene, rng, self._probabilities, True)
        expressions = [([target], caption_of(words))]
        expressions.append(([], caption_of(draw_no_target(scene, rng, self._probabilities))))
        if rng.random() < self._multi_target_ratio:
            expressions.append(draw_multi_target(scene, rng, self._probabilities))
        return expressions


def mask_to_segmentation(mask: np.ndarray) -> list[list[float]] | Rle:
    """COCO's segmentation of a mask (H, W) bool that decodes to the identical mask: a list of one polygon, or RLE."""
    polygon = _outline(mask)
    height, width = mask.shape
    if 8 <= len(polygon) <= 2 * MAX_CORNERS and np.array_equal(polygons_to_mask([polygon], height, width), mask):
        return [polygon]
    return mask_to_rle(mask)


def _outline(mask: np.ndarray) -> list[float]:
    """The outline along the pixel edges, flat x, y, ...; right only if the set pixels of each row are one run."""
    left, right = mask.argmax(axis=1), mask.shape[1] - mask[:, ::-1].argmax(axis=1)
    sides: list[list[tuple[int, int]]] = []
    for edge in (right, left):
        side: list[tuple[int, int]] = []
        for y in np.flatnonzero(mask.any(axis=1)).tolist():
            x = int(edge[y])
            if side and side[-1][0] == x:
                side[-1] = (x, y + 1)
            else:
                side += [(x, y), (x, y + 1)]
        sides.append(side)
    return [float(value) for corner in sides[0] + sides[1][::-1] for value in corner]


def _image_entry(image_id: int, file_name: str) -> dict[str, Any]:
    return {
        "id": image_id,
        "file_name": file_name,
        "height": SIDE_PX,
        "width": SIDE_PX,
        "license": 1,
        "coco_url": "",
        "flickr_url": "",
        "date_captured": DATE,
    }


def _annotation_entry(ann_id: int, image_id: int, scene_object: SceneObject) -> dict[str, Any]:
    box = mask_to_box(scene_object.mask)
    assert box is not None, "a drawn object has pixels"
    x0, y0, x1, y1 = box
    return {
        "id": ann_id,
        "image_id": image_id,
        "category_id": CATEGORY_IDS[scene_object.shape],
        "segmentation": mask_to_segmentation(scene_object.mask),
        "area": int(scene_object.mask.sum()),
        "bbox": [float(x0), float(y0), float(x1 - x0), float(y1 - y0)],
        "iscrowd": 0,
    }


def _sentence_fields(sent_id: int, text: str) -> dict[str, Any]:
    """One sentence: `sent` cleaned, `raw` as somebody might have typed it, `tokens` its words."""
    sentence = {"sent_id": sent_id, "sent": text, "raw": text.capitalize(), "tokens": text.split()}
    return {"sent_ids": [sent_id], "sentences": [sentence]}
