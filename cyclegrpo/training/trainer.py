"""CycleGRPO: the loop. Describe a region, locate it again from the description, and let the overlap be the reward.

    draw       regions to describe; given expressions; expressions that match nothing        draws.py
    describe   G captions o_i per region, sampled from the policy                            `_answer`
    locate     K groundings per caption, from the whole image and o_i alone                  `_answer`
    reward     s_ik: overlap of a grounding with the region; r_i = mean over k of s_ik       scoring.py
               a caption earns about 10 r_i, a grounding about 10 r_i s_ik                   rewards/
    advantage  A = (reward - mean of the group) / deviation, where a group is the G captions of a region (its own
               deviation) or the K groundings of a caption (the batch's)                     `_set_advantages`
    loss       per token  -min(q A, clip(q) A) + beta (exp(d) - d - 1), with q = policy / policy before the step
               and d = log(reference / policy); then 0.5 * mean over all tokens of captions
               + 0.5 * mean over all tokens of groundings                                    TRL's `_compute_loss`

Given expressions and those that match nothing are answered G times beside the captions, in one batch with them and
under the same limit of length: plain GRPO.

Source: arXiv 2607.11581; where we differ is in docs/decisions.md. Two methods follow TRL 1.16: `_prepare_inputs` is
overridden (one rollout per optimizer step, dealt out in micro-batches), and `_generate_and_score_completions` is called
once per task (it generates, and takes the reference's log-probabilities).

The two tasks stay two batches, dealt out one after the other: padding, images and prompts never mix, and TRL's `dapo`
loss divides each task by its own number of tokens (`num_items_in_batch`), which gives exact task means for any
micro-batching.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from trl import GRPOConfig, GRPOTrainer

from cyclegrpo.params import Train
from cyclegrpo.policy import prompt_to_messages
from cyclegrpo.regions.spaces import RegionSpace
from cyclegrpo.rewards.advantages import group_advantages
from cyclegrpo.rewards.caption import caption_reward, clean, no_repeat_words, strip_markers
from cyclegrpo.rewards.grounding import format_score, grounding_reward, no_repeat_regions, no_target_reward, refuses
from cyclegrpo.training.answers import Answers, Batch, Question, micro_batches
from cyclegrpo.training.draws import Draw
from cyclegrpo.training.scoring import AnswerScore, Scorer
from cyclegrpo.vision import speed_up_vision


class CycleGRPOTrainer(GRPOTrainer):
    """GRPO whose reward for a caption is the policy's own grounding of it.

    The dataset gives one example per draw: `prompt` (messages with their images), `draw`, and `whole_image`.
    """

    # Set by TRL and transformers, which do not declare them.
    model_wrapped: Any
    num_generations: int
    max_completion_length: int
    generation_config: Any
    generation_kwargs: dict[str, Any]
    _buffered_inputs: list[Batch] | None
    _metrics: dict[str, defaultdict[str, list[float]]]

    def __init__(self, *, params: Train, space: RegionSpace, scorer: Scorer, args: GRPOConfig, **kwargs: Any) -> None:
        self.cycle, self.space, self.scorer = params, space, scorer
        self.learns_to_locate = params.optimise != "captions" and params.locate_with == "policy"
        self._texts: list[str] = []
        super().__init__(reward_funcs=[self._keep_texts], args=args, **kwargs)
        if self.ref_model is not None:  # TRL loads it itself
            speed_up_vision(self.accelerator.unwrap_model(self.ref_model))

    # The loop: one optimizer step

    def _prepare_inputs(self, generation_batch: Any) -> Batch:
        """The micro-batch of this sub-step; a new rollout at the first. Follows the method of TRL 1.16."""
        position = self._step % self.args.steps_per_generation
        if position == 0 or self._buffered_inputs is None:
            self._buffered_inputs = self._roll_out(generation_batch)
        return self._buffered_inputs[position]

    def _roll_out(self, questions: list[Question]) -> list[Batch]:
        """Both tasks of a step with their advantages, as micro-batches whose losses TRL adds up.

        Args:
            questions: the draws of the step, each G times.
        """
        g, k = self.cycle.num_captions, self.cycle.num_groundings
        self.scorer.start_step()

        # describe: G captions of every region
        captions = self._answer("captions", questions, g)

        # locate: K groundings of every caption
        groundings = self._answer("groundings", self._locate_questions(captions), k, learn=self.learns_to_locate)

        # reward: the overlaps s_ik of the groundings, and their means r_i, the cycle scores of the captions
        scores = self._score_groundings(groundings)
        cycle_scores = np.array([score.overlap for score in scores]).reshape(-1, k).mean(axis=1)
        caption_rewards = self._caption_rewards(captions, cycle_scores)
        grounding_rewards = self._grounding_rewards(groundings, cycle_scores.repeat(k), scores)
        self._record_seconds()

        # advantage: groundings of captions that lead nowhere say more about the caption, and are left out
        active = cycle_scores >= self.cycle.min_cycle_score
        self._set_advantages(captions, caption_rewards, scale="group")
        self._set_advantages(groundings, grounding_rewards, scale=self.cycle.scale_groundings, active=active)

        # loss: TRL's, of each micro-batch
        return self._deal(captions, groundings)

    def _deal(self, captions: Answers, groundings: Answers) -> list[Batch]:
        """The weighted micro-batches of the tasks that are optimised, one task's after the other's in turn."""
        tasks = [(captions, self.cycle.caption_weight), (groundings, self.cycle.grounding_weight)]
        if self.cycle.optimise != "both":
            tasks = [(answers, 1.0) for answers, _ in tasks if answers.task == self.cycle.optimise]
        num_parts = self.args.steps_per_generation // len(tasks)
        dealt = [micro_batches(answers.batch, weight, num_parts) for answers, weight in tasks if answers.batch]
        return [part for parts in zip(*dealt, strict=True) for part in parts]

    # describe, locate

    def _answer(self, task: str, questions: list[Question], group_size: int, *, learn: bool = True) -> Answers:
        """Sampled answers to the questions, with TRL's tensors if they are to be learned from."""
        start = time.perf_counter()
        answers = Answers(task, group_size, questions, [])
        with self._in_task(answers):
            if questions and learn:
                answers.batch = self._generate_and_score_completions(questions)
                answers.texts = self._texts
            elif questions:
                with self._grounder():
                    completions = self._generate([question["prompt"] for question in questions])[3]
                answers.texts = [completion[0]["content"] for completion in completions]
        self._record(f"time/{task}_s", time.perf_counter() - start)
        return answers

    def _keep_texts(self, completions: list[Any], **_: Any) -> list[float]:
        """TRL's reward function: keeps the answers. What they earn is not known before the captions are located."""
        self._texts = [completion[0]["content"] for completion in completions]
        return [0.0] * len(completions)

    def _locate_questions(self, captions: Answers) -> list[Question]:
        """Every caption K times as a question for its region, about the whole image alone."""
        questions = []
        for caption, draw, image in zip(captions.texts, captions.draws, captions.images, strict=True):
            if draw.task == "caption":
                prompt = prompt_to_messages(self.space.locate(strip_markers(caption)), [image])
                questions += [{"prompt": prompt, "draw": draw, "whole_image": image}] * self.cycle.num_groundings
        return questions

    def _score_groundings(self, groundings: Answers) -> list[AnswerScore]:
        """The overlap s_ik of every grounding with its region, and what was parsed."""
        scores = self.scorer.score(groundings.texts, groundings.draws, groundings.images)
        for score in scores:
            self._record("grounding/overlap", score.overlap)
            self._record("grounding/unparsable", float(not score.parsed))
        return scores

    # reward; the formulas are in `cyclegrpo.rewards`

    def _caption_rewards(self, captions: Answers, cycle_scores: np.ndarray) -> np.ndarray:
        """Captions earn their cycle score r_i, given expressions their overlap, no-target answers their words."""
        texts, draws, images = captions.texts, captions.draws, captions.images
        if self.cycle.reward.shuffle:  # the control run: a reward that says nothing about its caption
            cycle_scores = np.random.default_rng([self.args.seed, self.state.global_step]).permutation(cycle_scores)
        described = [i for i, draw in enumerate(draws) if draw.task == "caption"]
        given = [i for i, draw in enumerate(draws) if draw.task == "expression"]
        absent = [i for i, draw in enumerate(draws) if draw.task == "no_target"]
        scores = self.scorer.score([texts[i] for i in given], [draws[i] for i in given], [images[i] for i in given])
        rewards = np.zeros(len(texts))
        rewards[described] = [
            self._caption_reward(texts[i], draws[i], r) for i, r in zip(described, cycle_scores, strict=True)
        ]
        rewards[given] = [self._expression_reward(texts[i], s) for i, s in zip(given, scores, strict=True)]
        rewards[absent] = [self._no_target_reward(texts[i]) for i in absent]
        return rewards

    def _grounding_rewards(
        self, groundings: Answers, cycle_scores: np.ndarray, scores: list[AnswerScore]
    ) -> np.ndarray:
        """10 r_i s_ik and the regularisers: a lucky hit from a vague caption counts little."""
        rows = zip(groundings.texts, cycle_scores, scores, strict=True)
        return np.array([self._grounding_reward(text, r, score) for text, r, score in rows])

    def _caption_reward(self, caption: str, draw: Draw, cycle_score: float) -> float:
        switches = self.cycle.reward
        no_repeat, is_clean = no_repeat_words(caption), clean(caption, prompt=draw.prompt)
        self._record("caption/cycle_score", float(cycle_score))
        self._record("caption/clean", is_clean)
        self._record("caption/no_repeat", no_repeat)
        self._record("caption/num_words", len(caption.split()))
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

    def _expression_reward(self, answer: str, score: AnswerScore) -> float:
        """A given expression is true, so its r is 1."""
        self._record("expression/overlap", score.overlap)
        return self._grounding_reward(answer, 1.0, score)

    def _no_target_reward(self, answer: str) -> float:
        self._record("no_target/accuracy", float(refuses(answer)))
        return no_target_reward(answer, no_repeat=no_repeat_regions(answer) if self.cycle.reward.no_repeat else 0.0)

    # advantage

    def _set_advantages(
        self,
        answers: Answers,
        rewards: np.ndarray,
        *,
        scale: Literal["group", "batch"],
        active: np.ndarray | None = None,
    ) -> None:
        """Put the group-normalised rewards of the answers into their batch, float32 (answers,).

        Args:
            rewards: (answers,).
            scale: whose deviation divides. For groundings the batch's: within one caption r_i is constant, so the
                group's own would cancel it.
            active: (groups,) bool; the others get 0 (but keep their KL). None: all are.
        """
        if answers.batch is None:
            return
        groups = rewards.reshape(-1, answers.group_size)
        advantages = group_advantages(groups, scale=scale)
        silent = np.ptp(groups, axis=1) == 0
        if active is not None:
            advantages, silent = np.where(active[:, None], advantages, 0.0), silent | ~active
        for kind, reward, is_silent in zip(answers.kinds, groups.mean(axis=1), silent, strict=True):
            self._record(f"{kind}/reward", reward)
            self._record(f"{kind}/no_signal", is_silent)
        answers.batch["advantages"] = torch.tensor(
            advantages.reshape(-1), dtype=torch.float32, device=self.accelerator.device
        )

    # Plumbing

    @contextmanager
    def _in_task(self, answers: Answers) -> Iterator[None]:
        """TRL's group size, length limit and metrics are the task's own inside; metrics get the task's name in front.

        TRL's metrics of rewards are dropped: it has seen none.
        """
        outer_size, outer_length, outer_metrics = self.num_generations, self.max_completion_length, self._metrics
        self.num_generations = answers.group_size
        params = self.cycle
        self._limit_answers(params.max_caption_tokens if answers.task == "captions" else params.max_grounding_tokens)
        self._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
        try:
            yield
        finally:
            inner = self._metrics["train"]
            self.num_generations, self._metrics = outer_size, outer_metrics
            self._limit_answers(outer_length)
            for name, values in inner.items():
                if not name.startswith(("reward", "frac_reward")):
                    kept = f"{answers.task}/{name.removeprefix('completions/')}"
                    self._metrics["train"][kept].extend(values)

    def _limit_answers(self, num_tokens: int) -> None:
        """Answers have at most so many tokens from now on: the three places that TRL 1.16 keeps the number in."""
        self.max_completion_length = num_tokens
        self.generation_config.max_new_tokens = self.generation_kwargs["max_new_tokens"] = num_tokens

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

    def _record_seconds(self) -> None:
        for name, seconds in self.scorer.seconds.items():
            self._record(f"time/{name}", seconds)

    def _record(self, name: str, value: float) -> None:
        """A value for the curve; TRL averages all values since the last line."""
        self._metrics["train"][name].append(float(value))
