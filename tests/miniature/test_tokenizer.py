"""The tokenizer stage on a tiny tokenizer: what it draws, what it measures, what it leaves on disk."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from cyclegrpo.params import Crop
from cyclegrpo.tokenizer import MaskTokenizer
from cyclegrpo.tokenizer.params import TokenizerSizes, TokenizerTraining
from cyclegrpo.tokenizer.quality import score_masks, summarise
from miniature import tokenizer as stage
from miniature.params import MiniatureParams, load_miniature_params
from miniature.scene import draw_scene

CROP = Crop(min_side_px=32, enlarge_to_px=96)
PARAMS_FILE = Path(__file__).resolve().parents[2] / "miniature" / "params.yaml"


@pytest.fixture(scope="module")
def params() -> MiniatureParams:
    params = load_miniature_params(PARAMS_FILE)
    few = {
        name: params.scenes.range_of(name).model_copy(update={"num_scenes": number})
        for name, number in (("tokenizer", 4), ("tokenizer_heldout", 2))
    }
    sizes = TokenizerSizes(
        image_size=64,
        embed_dim=32,
        stage_dims=(8, 16, 24, 32),
        stage_heads=(1, 1, 2, 2),
        stage_windows=(8, 4, 4, 2),
        position_grid=4,
        codebook_size=8,
    )
    training = TokenizerTraining(sizes=sizes, num_steps=5, images_per_step=2, masks_per_image=2)
    return params.model_copy(
        update={"scenes": params.scenes.model_copy(update=few), "tokenizer": training},
    )


@pytest.mark.parametrize("kind", list(stage.KIND_RATIOS))
def test_regions_of_every_kind_lie_in_objects_and_are_not_empty(kind):
    rng = np.random.default_rng(0)
    for seed in range(20):
        scene = draw_scene(seed)
        objects = [scene_object.mask for scene_object in scene.objects]
        region = stage.draw_region(scene, rng, kind)
        assert region.any() and not (region & ~np.logical_or.reduce(objects)).any()
        touched = sum((region & mask).any() for mask in objects)
        assert touched in ((2, 3) if kind == "union" else (1,))
        assert any(np.array_equal(region, mask) for mask in objects) == (kind == "whole")


def test_examples_hold_the_asked_number_of_masks_of_their_image_none_empty():
    draw = stage.RegionExamples([draw_scene(seed) for seed in range(10)], CROP)
    rng = np.random.default_rng(0)
    sides = set()
    for _ in range(40):
        image, masks = draw(rng, 4)
        assert masks.shape == (4, *image.shape[:2]) and masks.any(axis=(1, 2)).all()
        assert image.dtype == np.uint8 and masks.dtype == bool
        sides.add(image.shape[:2])
    assert (96, 96) in sides


def test_the_stage_leaves_a_tokenizer_that_gives_the_measured_figures(params, tmp_path, monkeypatch):
    monkeypatch.setattr(stage, "TOKENIZER_DIR", tmp_path / "tokenizer")
    monkeypatch.setattr(stage, "RESULTS_DIR", tmp_path / "results")
    monkeypatch.setattr(stage, "CHECKPOINT_DIR", tmp_path / "checkpoints")
    report = stage.run_tokenizer(params, CROP)
    loaded = MaskTokenizer.from_pretrained(tmp_path / "tokenizer").eval()
    assert loaded.dtype == torch.float32
    metrics = json.loads((tmp_path / "results" / "metrics.json").read_text())
    scores = [score for example in stage.heldout_examples(params, CROP) for score in score_masks(loaded, example)]
    measured = summarise(scores, 8)
    assert measured == {name: metrics[name] for name in measured}
    assert metrics["seed"] == 0 and metrics["command"] == "python -m miniature.stages.tokenizer"
    assert report.iou_whole == metrics["by_kind"]["whole"]["mean"]
    assert set(metrics["by_kind"]) == {"whole", "part", "union", "crop"}
    assert (tmp_path / "results" / "worst.png").is_file()
    curve = (tmp_path / "results" / "curves.csv").read_text().splitlines()
    assert curve[0].startswith("step,learning_rate,loss") and len(curve) == 3
