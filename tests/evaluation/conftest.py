"""A held-out set of two 8 x 8 images, a tokenizer that knows their two objects, and a policy that answers by rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cyclegrpo.evaluation.heldout import Heldout, HeldoutNoTarget, HeldoutRegion, heldout_in_memory
from cyclegrpo.evaluation.truth import TrueObject, Truth
from cyclegrpo.params import Evaluate
from cyclegrpo.regions.geometry import mask_to_rle

LEFT, RIGHT = 1, 2


def object_mask(code: int) -> np.ndarray:
    """Columns 0-1 (`LEFT`), columns 6-7 (`RIGHT`), nothing for other codes; bool (8, 8)."""
    mask = np.zeros((8, 8), bool)
    if code in (LEFT, RIGHT):
        mask[:, slice(0, 2) if code == LEFT else slice(6, 8)] = True
    return mask


def token(code: int) -> str:
    """The token group of one of the two objects."""
    return f"<|mt_start|><|mt_{code:04d}|><|mt_0256|><|mt_end|>"


class FakeFeatures(list[Any]):
    """Features of a batch of images: the images themselves."""


class FakeTokenizer:
    """Knows the two objects: encodes the left one as code 1, everything else as code 2; counts what it is asked."""

    config = SimpleNamespace(codebook_size=256)

    def __init__(self) -> None:
        self.num_embedded = 0
        self.num_decoded = 0

    def embed_images(self, images: Sequence[Image.Image]) -> FakeFeatures:
        self.num_embedded += len(images)
        return FakeFeatures(images)

    def encode(self, features: Any, masks: Any, image_of_mask: Any = None) -> np.ndarray:
        return np.array([[LEFT if mask[:, 0].all() else RIGHT, 0] for mask in masks])

    def iterate_masks(self, features: Any, codes: np.ndarray, height: int, width: int) -> Iterator[np.ndarray]:
        self.num_decoded += len(codes)
        return (object_mask(int(code)) for code in codes[:, 0])


class FakePolicy:
    """Answers every prompt by a rule and remembers what it was asked: (prompt, number of images, temperature)."""

    def __init__(self, answer: Callable[[str], str]) -> None:
        self.answer = answer
        self.asked: list[tuple[str, int, float]] = []

    def generate(
        self, prompts: Sequence[str], images: Sequence[Sequence[Image.Image]], *, temperature: float = 0.0, **_: Any
    ) -> list[str]:
        self.asked += [(p, len(i), temperature) for p, i in zip(prompts, images, strict=True)]
        return [self.answer(prompt) for prompt in prompts]


@pytest.fixture
def heldout() -> Heldout:
    """The left object of a.jpg and the right one of b.jpg, with true expressions, and what fits neither image."""
    images = {name: Image.new("RGB", (8, 8), "white") for name in ("a.jpg", "b.jpg")}
    regions = [
        HeldoutRegion("r/a", "a.jpg", mask_to_rle(object_mask(LEFT)), LEFT, ("the left bar",)),
        HeldoutRegion("r/b", "b.jpg", mask_to_rle(object_mask(RIGHT)), RIGHT, ("the right bar", "the right one")),
    ]
    no_targets = [HeldoutNoTarget("n/a", "a.jpg", "the dog"), HeldoutNoTarget("n/b", "b.jpg", "the cat")]
    return heldout_in_memory(images, regions, no_targets)


@pytest.fixture
def truth() -> Truth:
    """Both images hold a left and a right bar."""
    objects = (TrueObject(LEFT, frozenset({"left", "bar"})), TrueObject(RIGHT, frozenset({"right", "bar"})))
    return Truth(frozenset({"left", "right", "bar", "dog"}), {"a.jpg": objects, "b.jpg": objects})


@pytest.fixture
def settings() -> Evaluate:
    """Two samples a region; no file is read."""
    return Evaluate(annotations="a.json", instances="i.json", image_root=".", num_samples=2)


def answer_well(prompt: str) -> str:
    """Describes each object by its side and finds it by it; says no to everything else."""
    if "description of the following region" in prompt or "bounding box [" in prompt:
        return "the left bar" if token(LEFT) in prompt.split(" Zoom")[0] else "the right bar"
    if "left" in prompt.split("statement describes:")[-1].split("Ensure")[0]:
        return token(LEFT)
    if "right" in prompt.split("statement describes:")[-1].split("Ensure")[0]:
        return token(RIGHT)
    return "No target."


def answer_vaguely(prompt: str) -> str:
    """Describes everything as a bar, and finds the left bar by every description."""
    return "the bar" if "description of the following region" in prompt else token(LEFT)
