"""CycleGRPO: the loop. Describe a region, locate it again from the description, and let the overlap be the reward.

    draws      regions (and given expressions, and expressions that match nothing)           draws.py
    describe   G answers per draw, by the policy                                             TRL's generation
    locate     K groundings per caption, by the same policy, from the whole image alone      TRL's generation
    reward     s_ik overlap with the region, r_i mean over k                                 scoring.py, rewards/
    advantage  normalised within the G captions; within the K groundings over the batch      rewards/advantages.py
    loss       0.5 * token mean over captions + 0.5 * token mean over groundings, with KL    TRL's loss

Source: arXiv 2607.11581; where we differ is in docs/decisions.md. Follows TRL 1.16: `_prepare_inputs` (one rollout per
optimizer step, dealt out in micro-batches) and `_generate_and_score_completions` (called once per phase; it generates,
takes the reference's log-probabilities, and calls our reward function).

The two tasks stay two batches, dealt out one after the other: padding, images and prompts never mix, and TRL's `dapo`
loss divides each task by its own number of tokens (`num_items_in_batch`), which gives exact task means for any
micro-batching.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import split_pixel_values_by_grid, split_tensor_dict, unsplit_pixel_values_by_grid

from cyclegrpo.params import Train
from cyclegrpo.policy import prompt_to_messages
from cyclegrpo.regions.spaces import RegionSpace
from cyclegrpo.rewards.advantages import group_advantages
from cyclegrpo.rewards.caption import caption_reward, clean, no_repeat_words, strip_markers
from cyclegrpo.rewards.grounding import format_score, grounding_reward, no_repeat_regions, no_target_reward
from cyclegrpo.training.draws import Draw
from cyclegrpo.training.scoring import AnswerScore, Scorer

Batch = dict[str, Any]
Question = dict[str, Any]


@dataclass
class Phase:
    """What TRL's generate-and-score is busy with.

    Attributes:
        name: `captions` (every draw's G answers) or `groundings` (every caption's K answers).
        group_size: G or K.
        rewards: of every answer, once known.
        cycle_scores: r_i of the caption of every grounding; only in phase `groundings`.
    """

    name: str
    group_size: int
    rewards: np.ndarray | None = None
    cycle_scores: np.ndarray | None = None


class CycleGRPOTrainer(GRPOTrainer):
    """GRPO whose reward for a caption is the policy's own grounding of it.

    The dataset gives one example per draw: `prompt` (messages with their images), `draw`, and `whole_image`.
    """

    # Set by TRL and transformers, which do not declare them.
    model_wrapped: Any
    num_generations: int
    _buffered_inputs: list[Batch] | None
    _metrics: dict[str, defaultdict[str, list[float]]]

    def __init__(self, *, params: Train, space: RegionSpace, scorer: Scorer, args: GRPOConfig, **kwargs: Any) -> None:
        self.cycle, self.space, self.scorer = params, space, scorer
        self.learns_to_locate = params.optimise != "captions" and params.locate_with == "policy"
        self._groundings: Batch | None = None
        self._phase = Phase("captions", params.num_captions)
        super().__init__(reward_funcs=[self.reward], args=args, **kwargs)

    # The loop, one optimizer step: sample -> describe -> locate -> reward -> advantage -> loss (TRL's `_compute_loss`)

    def _prepare_inputs(self, generation_batch: Any) -> Batch:
        """The micro-batch of this sub-step; a new rollout at the first. Follows the method of TRL 1.16."""
        position = self._step % self.args.steps_per_generation
        if position == 0 or self._buffered_inputs is None:
            self._buffered_inputs = self._roll_out(generation_batch)
        return self._buffered_inputs[position]

    def _roll_out(self, draws: list[Question]) -> list[Batch]:
        """Both phases for the draws of a step (each given G times), as micro-batches that alternate between tasks."""
        self.scorer.start_step()
        captions = self._answer(Phase("captions", self.cycle.num_captions), draws)  # `reward` locates them meanwhile
        tasks = [
            ("captions", captions, self.cycle.caption_weight),
            ("groundings", self._groundings, self.cycle.grounding_weight),
        ]
        if self.cycle.optimise != "both":
            tasks = [(name, batch, 1.0) for name, batch, _ in tasks if name == self.cycle.optimise]
        num_micro = self.args.steps_per_generation // len(tasks)
        dealt = [micro_batches(batch, weight, num_micro) for _, batch, weight in tasks if batch is not None]
        return [micro_batch for group in zip(*dealt, strict=True) for micro_batch in group]

    def _answer(self, phase: Phase, questions: list[Question]) -> Batch:
        """Sampled answers to the questions (a group's copies side by side), their rewards turned into advantages."""
        start = time.perf_counter()
        with self._in_phase(phase):
            batch = self._generate_and_score_completions(questions)
        batch["advantages"] = self._advantages(phase)
        self._record(f"time/{phase.name}_s", time.perf_counter() - start)
        return batch

    def reward(self, completions: list[Any], draw: list[Draw], whole_image: list[Image.Image], **_: Any) -> list[float]:
        """The rewards of the phase's answers; TRL calls it. Captions are located here: that is the second phase."""
        answers = [completion[0]["content"] for completion in completions]
        score = self._reward_captions if self._phase.name == "captions" else self._reward_groundings
        self._phase.rewards = score(answers, draw, whole_image)
        return [float(reward) for reward in self._phase.rewards]

    def _reward_captions(self, answers: list[str], draws: list[Draw], images: list[Image.Image]) -> np.ndarray:
        """Captions earn their cycle score, given expressions their overlap, no-target answers their words."""
        captions = [i for i, draw in enumerate(draws) if draw.task == "caption"]
        cycle_scores = self._locate(
            [answers[i] for i in captions], [draws[i] for i in captions], [images[i] for i in captions]
        )
        if self.cycle.reward.shuffle:  # the control run: a reward that says nothing about its caption
            cycle_scores = np.random.default_rng([self.args.seed, self.state.global_step]).permutation(cycle_scores)
        rewards = np.zeros(len(answers))
        rewards[captions] = [
            self._caption_reward(answers[i], draws[i], r) for i, r in zip(captions, cycle_scores, strict=True)
        ]
        others = [i for i, draw in enumerate(draws) if draw.task != "caption"]
        scores = self.scorer.score(
            [answers[i] for i in others], [draws[i] for i in others], [images[i] for i in others]
        )
        rewards[others] = [self._answer_reward(answers[i], draws[i], s) for i, s in zip(others, scores, strict=True)]
        return rewards

    def _locate(self, captions: list[str], draws: list[Draw], images: list[Image.Image]) -> np.ndarray:
        """The cycle score r_i of every caption (captions,): the mean overlap of its K groundings with the target."""
        self._groundings = None
        if not captions:
            return np.zeros(0)
        k = self.cycle.num_groundings
        asked = [
            self._locate_question(c, d, i) for c, d, i in zip(captions, draws, images, strict=True) for _ in range(k)
        ]
        if self.learns_to_locate:
            phase = Phase("groundings", k)
            self._groundings = self._answer(phase, asked)
            assert phase.cycle_scores is not None
            return phase.cycle_scores[::k]
        with self._in_phase(Phase("groundings", k)), self._grounder():
            completions = self._generate([question["prompt"] for question in asked])[3]
        answers = [completion[0]["content"] for completion in completions]
        scores = self._score_groundings(answers, [q["draw"] for q in asked], [q["whole_image"] for q in asked])
        return np.array([score.overlap for score in scores]).reshape(-1, k).mean(1)

    def _reward_groundings(self, answers: list[str], draws: list[Draw], images: list[Image.Image]) -> np.ndarray:
        """10 * r_i * s_ik and the regularisers: a lucky hit from a vague caption counts little."""
        scores = self._score_groundings(answers, draws, images)
        overlaps = np.array([score.overlap for score in scores])
        per_caption = overlaps.reshape(-1, self._phase.group_size).mean(1)
        self._phase.cycle_scores = per_caption.repeat(self._phase.group_size)
        return np.array(
            [self._grounding_reward(a, r, s) for a, r, s in zip(answers, self._phase.cycle_scores, scores, strict=True)]
        )

    def _advantages(self, phase: Phase) -> torch.Tensor:
        """Group-normalised rewards of this process's answers, float32 (answers,).

        Groundings are divided by the batch's deviation: within one caption r_i is constant, so the group's own would
        cancel it.
        """
        assert phase.rewards is not None
        device = self.accelerator.device
        rewards = self.accelerator.gather(torch.tensor(phase.rewards, dtype=torch.float64, device=device).float())
        scale = "group" if phase.name == "captions" else self.cycle.scale_groundings
        groups = rewards.cpu().numpy().astype(np.float64).reshape(-1, phase.group_size)
        advantages = group_advantages(groups, scale=scale).reshape(-1)
        self._record(f"{phase.name}/zero_variance", float((np.ptp(groups, axis=1) == 0).mean()))
        first = self.accelerator.process_index * len(phase.rewards)
        local = advantages[first : first + len(phase.rewards)]
        if phase.cycle_scores is not None:
            local = np.where(phase.cycle_scores >= self.cycle.min_cycle_score, local, 0.0)
        return torch.tensor(local, dtype=torch.float32, device=device)

    # Rewards of single answers; the formulas are in `cyclegrpo.rewards`

    def _caption_reward(self, answer: str, draw: Draw, cycle_score: float) -> float:
        switches = self.cycle.reward
        no_repeat, is_clean = no_repeat_words(answer), clean(answer, prompt=draw.prompt)
        self._record("caption/cycle_score", float(cycle_score))
        self._record("caption/clean", is_clean)
        self._record("caption/no_repeat", no_repeat)
        self._record("caption/num_words", len(answer.split()))
        return caption_reward(
            float(cycle_score), no_repeat if switches.no_repeat else 0.0, is_clean if switches.clean else 1.0
        )

    def _grounding_reward(self, answer: str, cycle_score: float, score: AnswerScore) -> float:
        switches = self.cycle.reward
        return grounding_reward(
            cycle_score,
            score.overlap,
            no_repeat_regions(answer) if switches.no_repeat else 0.0,
            format_score(score.regions) if switches.format else 0.0,
        )

    def _answer_reward(self, answer: str, draw: Draw, score: AnswerScore) -> float:
        """A question with a known answer: a given expression (true, so r = 1), or one that matches nothing."""
        if draw.task == "expression":
            self._record("expression/overlap", score.overlap)
            return self._grounding_reward(answer, 1.0, score)
        self._record("no_target/accuracy", float("No target." in answer and not score.regions))
        return no_target_reward(answer, no_repeat=no_repeat_regions(answer) if self.cycle.reward.no_repeat else 0.0)

    def _score_groundings(self, answers: list[str], draws: list[Draw], images: list[Image.Image]) -> list[AnswerScore]:
        scores = self.scorer.score(answers, draws, images)
        for score in scores:
            self._record("grounding/overlap", score.overlap)
            self._record("grounding/unparsable", float(not score.regions))
        return scores

    # Plumbing

    def _locate_question(self, caption: str, draw: Draw, image: Image.Image) -> Question:
        prompt = self.space.locate(strip_markers(caption))
        return {"prompt": prompt_to_messages(prompt, [image]), "draw": draw, "whole_image": image}

    @contextmanager
    def _in_phase(self, phase: Phase) -> Iterator[None]:
        """TRL's group size and metrics are the phase's own inside; its metrics get the phase's name in front."""
        outer, outer_size, outer_metrics = self._phase, self.num_generations, self._metrics
        self._phase, self.num_generations = phase, phase.group_size
        self._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
        try:
            yield
        finally:
            inner = self._metrics["train"]
            self._phase, self.num_generations, self._metrics = outer, outer_size, outer_metrics
            for name, values in inner.items():
                kept = name if "/" in name and not name.startswith("completions/") else f"{phase.name}/{name}"
                self._metrics["train"][kept.replace("completions/", "")].extend(values)

    @contextmanager
    def _grounder(self) -> Iterator[None]:
        """The model that generates inside: the reference where it locates (`locate_with`), else the policy."""
        policy = self.model_wrapped
        if self.cycle.locate_with == "reference":
            self.model_wrapped = self.ref_model
        try:
            yield
        finally:
            self.model_wrapped = policy

    def _record(self, name: str, value: float) -> None:
        """A value for the curve; TRL averages all values since the last line."""
        self._metrics["train"][name].append(float(value))


def micro_batches(batch: Batch, weight: float, num_parts: int) -> list[Batch]:
    """A task's batch in equal parts whose losses add up to `weight` times the task's token mean.

    TRL's `dapo` loss divides each part's sum over tokens by `num_items_in_batch`; dividing that by the weight
    multiplies the task, its KL included. Raises ValueError where the rows do not divide evenly (TRL would drop the rest
    silently).
    """
    num_rows = len(batch["advantages"])
    if num_rows % num_parts:
        raise ValueError(
            f"{num_rows} answers do not divide into {num_parts} micro-batches; change train.prompts, G or K"
        )
    batch = {**batch, "num_items_in_batch": batch["num_items_in_batch"] / weight}
    return [
        unsplit_pixel_values_by_grid(part) for part in split_tensor_dict(split_pixel_values_by_grid(batch), num_parts)
    ]
