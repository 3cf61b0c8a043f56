"""A tiny dataset, a policy with random weights, and a tokenizer whose codes are rectangles."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from cyclegrpo.dataset.prompts import ask_expression
from cyclegrpo.dataset.schema import Row, rows_to_table
from cyclegrpo.params import Params
from cyclegrpo.regions.spaces import MASK
from cyclegrpo.regions.tokens import codes_to_token
from cyclegrpo.training.scoring import AnswerScore
from tests.training.support import BASE, SIDE


class RectangleTokenizer:
    """Decodes (a, b) to the rectangle from (a, a) to (a + b, a + b), and counts its passes.

    A logit stands for four by four pixels, as of a real tokenizer.
    """

    def __init__(self) -> None:
        self.config = SimpleNamespace(image_size=SIDE, codebook_size=256, codebook_depth=2, mask_threshold=0.0)
        self.num_encoded = self.num_decoded = 0

    def embed_images(self, images):
        self.num_encoded += len(images)
        return list(range(len(images)))

    def decode_masks(self, features, codes, height, width):
        self.num_decoded += len(codes)
        masks = np.zeros((len(codes), height, width), bool)
        for mask, (a, b) in zip(masks, codes, strict=True):
            mask[a : a + b, a : a + b] = True
        return masks

    def decode(self, features, codes):
        import torch

        inside = self.decode_masks(features, codes, SIDE, SIDE)[:, ::4, ::4]
        return torch.where(torch.from_numpy(inside), 5.0, -5.0)


@pytest.fixture
def rectangles() -> RectangleTokenizer:
    return RectangleTokenizer()


@pytest.fixture
def dataset_dir(tmp_path: Path) -> Path:
    """Two images to describe (the first with a crop), one no-target question and one expression."""
    root = tmp_path / "dataset"
    rng = np.random.default_rng(0)
    for name in ("a.png", "b.png", "crop.png"):
        (root / "images").mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (SIDE, SIDE, 3), dtype=np.uint8)).save(root / "images" / name)
    one, two, zoomed = codes_to_token(10, 20), codes_to_token(40, 30), codes_to_token(5, 80)
    rows = {
        "denseworld_multi_2": [
            Row(
                ("images/a.png", "images/crop.png"),
                MASK.describe_row([one, two], [zoomed, None]),
                MASK.answer([one, two]),
                "denseworld_multiple",
            ),
            Row(("images/b.png",), MASK.describe_row([two], [None]), MASK.answer([two]), "denseworld_multiple"),
        ],
        "gres_no_target_1": [
            Row(("images/a.png",), ask_expression("blue dog", "r/1"), MASK.answer([]), "gres_no_target")
        ],
        "gres_grounding_1": [
            Row(("images/b.png",), ask_expression("red cat", "r/2"), MASK.answer([one]), "gres_grounding")
        ],
    }
    (root / "data").mkdir()
    for name, content in rows.items():
        pq.write_table(rows_to_table(content), root / "data" / f"{name}.parquet")
    return root


@pytest.fixture(scope="session")
def policy_dir(tmp_path_factory):
    from cyclegrpo.policy import save_policy
    from miniature.coldstart import new_policy
    from miniature.params import load_miniature_params

    path = tmp_path_factory.mktemp("policy") / "policy"
    save_policy(*new_policy(load_miniature_params().coldstart), path)
    return path


@pytest.fixture
def params(policy_dir, dataset_dir, tmp_path, rectangles, monkeypatch):
    """The whole params of a run of four steps on the tiny dataset, with the tokenizer of rectangles.

    A random policy never finds a region, so that there would be nothing to learn: overlaps are made up from the text.
    """
    from cyclegrpo.training import run as run_module

    def made_up_score(self, answers, draws, images):
        digests = [hashlib.sha256(answer.encode()).digest()[0] for answer in answers]
        return [AnswerScore(digest / 255, [], parsed=False) for digest in digests]

    monkeypatch.setattr(run_module.MaskScorer, "score", made_up_score)
    monkeypatch.setattr(run_module, "load_tokenizer", lambda folder, device, dtype: rectangles)
    source = {"name": "s", "format": "denseworld", "annotations": "a.json", "image_root": "i", "link_as": "s"}
    base = {
        "dataset_dir": dataset_dir,
        "work_dir": tmp_path / "work",
        "tokenizer": tmp_path / "tokenizer",
        "policy": policy_dir,
        "device": "cpu",
        "annotation_root": tmp_path,
        "sources": [source | {"kinds": ["describe"]}],
    }
    evaluate = {"annotations": "a", "instances": "b", "image_root": "c"}
    # Without weight decay, so that weights change by what is learned alone.
    train = BASE | {"num_steps": 4, "save_steps": 2, "learning_rate": 1e-4, "weight_decay": 0.0, "freeze_vision": True}
    return Params.model_validate({"base": base, "train": train, "evaluate": evaluate})
