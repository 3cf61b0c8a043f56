"""What a policy says about the held-out set: describe every region, locate what was said, locate what is given.

The prompts, crops and crop tokens are those of training. Items are worked off in blocks, so that neither images nor
image features of the whole set lie in memory; within a block every image is encoded once and questions of one kind go
to the policy together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from PIL import Image

from cyclegrpo.dataset.prompts import ask_expression
from cyclegrpo.evaluation.blocks import Block
from cyclegrpo.evaluation.heldout import HeldoutRegion
from cyclegrpo.evaluation.metrics import Described, Given, Located, NoTargetPrediction, Predictions, RegionPrediction
from cyclegrpo.evaluation.scoring import Answer
from cyclegrpo.params import Evaluate
from cyclegrpo.regions.spaces import RegionSpace
from cyclegrpo.rewards.caption import strip_markers
from cyclegrpo.rewards.grounding import refuses

# One kind of question has one seed in a block, so that adding a kind changes no other answer.
CAPTION_SEED, LOCATE_SEED, FROZEN_SEED, GIVEN_SEED, SEEDS_PER_BLOCK = 1, 2, 3, 4, 8


class Generates(Protocol):
    """What is asked of a policy; `cyclegrpo.policy.Policy` does it."""

    def generate(
        self,
        prompts: Sequence[str],
        images: Sequence[Sequence[Image.Image]],
        *,
        max_new_tokens: int,
        temperature: float = 0.0,
        seed: int = 0,
        batch_size: int = 32,
    ) -> list[str]:
        """One answer for each prompt, in order; greedy at temperature 0."""


@dataclass(frozen=True)
class Question:
    """One prompt with its images."""

    prompt: str
    images: tuple[Image.Image, ...]


@dataclass(frozen=True)
class LocatedCaptions:
    """The regions found by greedy captions, and by sampled ones with sampled answers and with greedy answers."""

    greedy: Sequence[Located]
    sampled: Sequence[Located]
    sampled_greedily: Sequence[Located]


@dataclass(frozen=True)
class Interview:
    """A policy and how it is asked. `frozen` also locates its captions; it may be the same object."""

    policy: Generates
    frozen: Generates | None
    settings: Evaluate
    space: RegionSpace
    seed: int = 0

    def predict(self, block: Block, progress: Callable[[str], None] = lambda kind: None) -> Predictions:
        """What the policy says about one block; `progress` is told every kind of question before it is asked.

        Sampled captions are located with sampled answers, one each, and with the greedy answer too; greedy ones with
        the greedy answer.
        """
        num_samples = self.settings.num_samples
        progress("describe")
        greedy = self._describe(block, 1, 0.0)
        sampled = self._describe(block, num_samples, self.settings.temperature)
        progress("locate")
        own = self._locate_all(self.policy, block, greedy, sampled, LOCATE_SEED)
        progress("locate given expressions")
        given = self._given(block)
        no_targets = self._no_targets(block)
        frozen = own if self.frozen is self.policy else None
        if self.frozen is not None and frozen is None:
            progress("locate with the frozen policy")
            frozen = self._locate_all(self.frozen, block, greedy, sampled, FROZEN_SEED)
        said = [
            Described(caption, own.greedy[i], None if frozen is None else frozen.greedy[i])
            for i, caption in enumerate(greedy)
        ]
        said_sampled = [
            Described(
                caption,
                own.sampled[i],
                None if frozen is None else frozen.sampled[i],
                own.sampled_greedily[i],
                None if frozen is None else frozen.sampled_greedily[i],
            )
            for i, caption in enumerate(sampled)
        ]
        regions = []
        for i, target in enumerate(block.targets):
            region = target.region
            samples = tuple(said_sampled[i * num_samples : (i + 1) * num_samples])
            found = block.scorer.found(Answer(region.image, own.greedy[i].answer, region))
            regions.append(RegionPrediction(region.key, region.image, region.ann_id, said[i], samples, given[i], found))
        return Predictions(tuple(regions), tuple(no_targets))

    def _describe(self, block: Block, count: int, temperature: float) -> list[str]:
        """`count` captions of every target, a target's captions one after the other."""
        questions = [Question(t.prompt, t.images) for t in block.targets for _ in range(count)]
        return self._ask(self.policy, block, questions, self.settings.max_caption_tokens, temperature, CAPTION_SEED)

    def _locate_all(
        self, policy: Generates, block: Block, greedy: Sequence[str], sampled: Sequence[str], kind: int
    ) -> LocatedCaptions:
        """What `policy` locates by the greedy captions and by the sampled ones."""
        count = self.settings.num_samples
        return LocatedCaptions(
            self._locate(policy, block, greedy, 1, kind, 0.0),
            self._locate(policy, block, sampled, count, kind, self.settings.temperature),
            self._locate(policy, block, sampled, count, kind, 0.0),
        )

    def _locate(
        self, policy: Generates, block: Block, captions: Sequence[str], count: int, kind: int, temperature: float
    ) -> list[Located]:
        """What `policy` locates by captions of the targets (`count` of each), scored against the targets."""
        regions = [target.region for target in block.targets for _ in range(count)]
        prompts = [self.space.locate(strip_markers(caption)) for caption in captions]
        return self._answers(policy, block, regions, prompts, temperature, kind)

    def _answers(
        self,
        policy: Generates,
        block: Block,
        regions: Sequence[HeldoutRegion],
        prompts: Sequence[str],
        temperature: float,
        kind: int,
    ) -> list[Located]:
        """What `policy` answers about the whole images of some regions, each scored against its region."""
        questions = [Question(p, (block.images[r.image],)) for p, r in zip(prompts, regions, strict=True)]
        texts = self._ask(policy, block, questions, self.settings.max_grounding_tokens, temperature, kind)
        return block.scorer.score([Answer(r.image, text, r) for r, text in zip(regions, texts, strict=True)])

    def _given(self, block: Block) -> list[tuple[Given, ...]]:
        """For every target what is located by its given expressions: with the locate prompt, greedily and sampled, and
        asked as a question.
        """
        expressions = [(target.region, text) for target in block.targets for text in target.region.expressions]
        prompts = [self.space.locate(strip_markers(text)) for _, text in expressions]
        questions = [ask_expression(text, region.key, space=self.space.name) for region, text in expressions]
        regions, count = [region for region, _ in expressions], self.settings.num_samples
        greedy = self._answers(self.policy, block, regions * 2, prompts + questions, 0.0, 0)
        sampled = self._answers(
            self.policy,
            block,
            [region for region in regions for _ in range(count)],
            [prompt for prompt in prompts for _ in range(count)],
            self.settings.temperature,
            GIVEN_SEED,
        )
        given = iter(
            Given(text, greedy[i], greedy[i + len(expressions)], tuple(sampled[i * count : (i + 1) * count]))
            for i, (_, text) in enumerate(expressions)
        )
        return [tuple(next(given) for _ in target.region.expressions) for target in block.targets]

    def _no_targets(self, block: Block) -> list[NoTargetPrediction]:
        """Answers to the expressions that fit nothing; right is a refusal."""
        items = block.no_targets
        questions = [
            Question(ask_expression(item.text, item.key, space=self.space.name), (block.images[item.image],))
            for item in items
        ]
        texts = self._ask(self.policy, block, questions, self.settings.max_grounding_tokens, 0.0, 0)
        return [
            NoTargetPrediction(item.key, item.image, item.text, text, correct=refuses(text))
            for item, text in zip(items, texts, strict=True)
        ]

    def _ask(
        self,
        policy: Generates,
        block: Block,
        questions: Sequence[Question],
        max_new_tokens: int,
        temperature: float,
        kind: int,
    ) -> list[str]:
        """The policy's answers in order. Greedy answers are asked for once per distinct question."""
        if not questions:
            return []
        keys: list[tuple[object, ...]] = [(i,) for i in range(len(questions))]
        if temperature == 0:
            keys = [(q.prompt, *map(id, q.images)) for q in questions]
        distinct = dict(zip(keys, questions, strict=True))
        answers = policy.generate(
            [q.prompt for q in distinct.values()],
            [list(q.images) for q in distinct.values()],
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            seed=self.seed + block.number * SEEDS_PER_BLOCK + kind,
            batch_size=self.settings.batch_size,
        )
        by_key = dict(zip(distinct, answers, strict=True))
        return [by_key[key] for key in keys]
