"""Segmentations that decode to the identical mask, in both forms of a COCO file."""

from __future__ import annotations

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from miniature.coco import GrefCoco, mask_to_segmentation
from miniature.expressions import EXPRESSION_PROBABILITIES
from miniature.scene import draw_scene

# pycocotools decodes with NumPy 1's protocol.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def rectangle(height: int, width: int, y0: int, x0: int, y1: int, x1: int) -> np.ndarray:
    mask = np.zeros((height, width), bool)
    mask[y0:y1, x0:x1] = True
    return mask


RING = rectangle(8, 8, 1, 1, 7, 7) & ~rectangle(8, 8, 3, 3, 5, 5)


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        # right side downwards, then left side upwards
        (rectangle(4, 4, 0, 0, 2, 3), [[3.0, 0.0, 3.0, 2.0, 0.0, 2.0, 0.0, 0.0]]),
        (rectangle(4, 4, 3, 3, 4, 4), [[4.0, 3.0, 4.0, 4.0, 3.0, 4.0, 3.0, 3.0]]),
        (np.zeros((4, 4), bool), {"size": [4, 4], "counts": "`0"}),
    ],
)
def test_segmentation_by_hand(mask: np.ndarray, expected: object) -> None:
    assert mask_to_segmentation(mask) == expected


@pytest.mark.parametrize(
    "mask", [RING, ~rectangle(8, 8, 2, 2, 8, 5), rectangle(8, 8, 0, 0, 1, 1) | rectangle(8, 8, 7, 7, 8, 8)]
)
def test_a_mask_that_no_outline_gives_becomes_run_lengths(mask: np.ndarray) -> None:
    segmentation = mask_to_segmentation(mask)
    assert isinstance(segmentation, dict)
    assert np.array_equal(coco_mask.decode(segmentation).astype(bool), mask)


def test_drawn_objects_decode_to_the_identical_mask() -> None:
    forms = set()
    for seed in range(100):
        for scene_object in draw_scene(seed).objects:
            segmentation = mask_to_segmentation(scene_object.mask)
            if isinstance(segmentation, list):
                rle = coco_mask.merge(coco_mask.frPyObjects(segmentation, *scene_object.mask.shape))
            else:
                rle = segmentation
            assert np.array_equal(coco_mask.decode(rle).astype(bool), scene_object.mask)
            forms.add(type(segmentation))
    assert forms == {list, dict}


def test_expressions_of_a_scene_do_not_depend_on_the_scenes_before_it() -> None:
    alone, later = (GrefCoco(EXPRESSION_PROBABILITIES, 0.5, 0) for _ in range(2))
    later.add(draw_scene(1), 1, "train")
    num_before = len(later.refs)
    for gref in (alone, later):
        gref.add(draw_scene(2), 2, "train")
    assert [r["sentences"][0]["sent"] for r in alone.refs] == [
        r["sentences"][0]["sent"] for r in later.refs[num_before:]
    ]
