"""The answers to the questions of one task, and their tensors as micro-batches for TRL's loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from PIL import Image
from trl.trainer.utils import split_pixel_values_by_grid, split_tensor_dict, unsplit_pixel_values_by_grid

from cyclegrpo.training.draws import Draw

Batch = dict[str, Any]
"""What TRL's loss reads: tensors with one row per answer, images in patches."""

Question = dict[str, Any]
"""`prompt` (messages with their images), `draw`, and `whole_image`, as the dataset gives them."""


@dataclass
class Answers:
    """What was answered to the questions of one task; the copies of a question (its group) side by side.

    Attributes:
        task: `captions` (G answers to every draw, also to those that are no captions) or `groundings` (K per caption).
        group_size: G or K.
        questions: one per answer.
        texts: one per answer.
        batch: TRL's tensors of the answers; None where nothing is to be learned from them.
    """

    task: str
    group_size: int
    questions: list[Question]
    texts: list[str]
    batch: Batch | None = None

    @property
    def draws(self) -> list[Draw]:
        """What every answer is about."""
        return [question["draw"] for question in self.questions]

    @property
    def kinds(self) -> list[str]:
        """What the answers of every group are: `grounding` (of a caption), or answers to the task of their draw."""
        if self.task == "groundings":
            return ["grounding"] * (len(self.questions) // self.group_size)
        return [draw.task for draw in self.draws[:: self.group_size]]

    @property
    def images(self) -> list[Image.Image]:
        """The whole image of every answer."""
        return [question["whole_image"] for question in self.questions]


def micro_batches(batch: Batch, weight: float, num_parts: int) -> list[Batch]:
    """A task's batch in equal parts whose losses add up to `weight` times the task's token mean.

    TRL's `dapo` loss divides each part's sum over tokens by `num_items_in_batch`; dividing that by the weight
    multiplies the task, its KL included. The rows must divide evenly (`trl_config` sees to it), or TRL would drop the
    rest silently.
    """
    assert len(batch["advantages"]) % num_parts == 0
    batch = {**batch, "num_items_in_batch": batch["num_items_in_batch"] / weight}
    return [
        unsplit_pixel_values_by_grid(part) for part in split_tensor_dict(split_pixel_values_by_grid(batch), num_parts)
    ]
