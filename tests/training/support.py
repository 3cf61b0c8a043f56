"""The settings of a small run, and its trainer in float64 without the stage around it."""

from __future__ import annotations

import torch

from cyclegrpo.params import Train
from cyclegrpo.regions.spaces import MASK
from cyclegrpo.training.draws import draw_steps, load_rows

SIDE = 96
"""Of the images of the tiny dataset, in pixels."""

G, K = 4, 3
BASE = {
    "num_steps": 1,
    "prompts": {"caption": 2, "no_target": 1, "expression": 1},
    "num_captions": G,
    "num_groundings": K,
    "max_caption_tokens": 6,
    "max_grounding_tokens": 6,
    "learning_rate": 0.0,
    "beta": 0.05,
    "min_cycle_score": 0.0,
    "freeze_vision": False,
    "reward": {"resolution": "image"},
}


def make_trainer(policy_dir, dataset_dir, rectangles, tmp_path, **changes):
    """A trainer for all draws of a run; `changes` are settings of the `train` section."""
    # Here, so that the other tests of this folder start without TRL.
    from transformers import AutoModelForImageTextToText

    from cyclegrpo.policy import load_processor
    from cyclegrpo.training.run import draws_dataset, trl_config
    from cyclegrpo.training.scoring import MaskScorer
    from cyclegrpo.training.trainer import CycleGRPOTrainer

    params = Train.model_validate(BASE | changes)
    steps = draw_steps(
        load_rows(dataset_dir), params.prompts, MASK, num_steps=params.num_steps, zoom=params.zoom, seed=0
    )
    return CycleGRPOTrainer(
        model=AutoModelForImageTextToText.from_pretrained(policy_dir, dtype=torch.float64),
        params=params,
        space=MASK,
        scorer=MaskScorer(rectangles, params.reward),
        args=trl_config(params, 0, tmp_path / "checkpoints", use_cpu=True),
        train_dataset=draws_dataset([draw for step in steps for draw in step], dataset_dir),
        processing_class=load_processor(policy_dir),
    )
