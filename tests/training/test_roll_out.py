"""From answers to advantages: one step with given answers, and rewards worked out by hand.

A code (a, b) of the tokenizer of rectangles is the square from a to a + b, so (0, 4) covers a quarter of (0, 8).
"""

from __future__ import annotations

from statistics import mean, stdev

import numpy as np
import pytest
import torch
from PIL import Image

from cyclegrpo.policy import prompt_to_messages
from cyclegrpo.regions.spaces import MASK
from cyclegrpo.regions.tokens import codes_to_token
from cyclegrpo.training.answers import Answers
from cyclegrpo.training.draws import Draw
from tests.training.support import SIDE, make_trainer

G, K = 3, 2
ONE, QUARTER_OF_ONE = codes_to_token(0, 8), codes_to_token(0, 4)
TWO, QUARTER_OF_TWO = codes_to_token(40, 8), codes_to_token(40, 4)
OUTSIDE = codes_to_token(70, 8)

DRAWS = [
    Draw("no_target", "<image>\nWhere is the dog?", ("a.png",), (), None, "0"),
    Draw("caption", "<image>\nWhat is it?", ("a.png",), (ONE,), None, "1"),
    Draw("expression", "<image>\nWhere is the cat?", ("b.png",), (ONE,), None, "2"),
    Draw("caption", "<image>\nWhat is it?", ("b.png",), (TWO,), None, "3"),
]
"""Not in the order of the trainer's draws, so that an answer that goes to the wrong one is seen."""

CAPTIONS = [
    *("No target.", "null", OUTSIDE * 4),
    *("the red square", "a thing", "the square"),
    *(ONE, "null", QUARTER_OF_ONE * 4),
    *("it is at [1, 2, 3, 4]", "blue blue blue blue blue", "the blue one"),
]
GROUNDINGS = [
    *(ONE, QUARTER_OF_ONE),  # the red square: overlaps 1 and 0.25, cycle score 0.625
    *(OUTSIDE, "null"),  # a thing: 0
    *(ONE, ONE),  # the square: 1
    *(TWO, TWO),  # it is at ...: 1
    *(QUARTER_OF_TWO, QUARTER_OF_TWO),  # blue blue ...: 0.25, below 0.3
    *(TWO, "null"),  # the blue one: 0.5
]

# The last terms are the regularisers; the third of each repeats itself.
NO_TARGET_REWARDS = [1 + 1, 0.2 + 1, 0 + 0]
EXPRESSION_REWARDS = [10 + 1 + 1, 0 + 1 + 0, 2.5 + 0 + 1]
CAPTION_REWARDS = [
    [6.25 + 1 + 1, 0 + 1 + 1, 10 + 1 + 1],
    [0, 2.5 + 0 + 1, 5 + 1 + 1],  # the first gives its place away, the second repeats itself
]
GROUNDING_REWARDS = [
    [10 * 0.625 * 1 + 1 + 1, 10 * 0.625 * 0.25 + 1 + 1],
    [0 + 1 + 1, 0 + 1 + 0],
    [10 + 1 + 1, 10 + 1 + 1],
    [10 + 1 + 1, 10 + 1 + 1],
    [10 * 0.25 * 0.25 + 1 + 1, 10 * 0.25 * 0.25 + 1 + 1],
    [10 * 0.5 * 1 + 1 + 1, 0 + 1 + 0],
]
ACTIVE = [True, False, True, True, False, True]


def advantages_of(groups, deviation=None):
    """Rewards of groups as advantages in one list; divided by each group's deviation where none is given."""
    flat = []
    for rewards in groups:
        divisor = (stdev(rewards) if deviation is None else deviation) + 1e-6
        flat += [(reward - mean(rewards)) / divisor for reward in rewards]
    return flat


def caption_advantages():
    return advantages_of([NO_TARGET_REWARDS, CAPTION_REWARDS[0], EXPRESSION_REWARDS, CAPTION_REWARDS[1]])


def grounding_advantages(active=ACTIVE):
    deviation = stdev([reward for group in GROUNDING_REWARDS for reward in group])
    flat = advantages_of(GROUNDING_REWARDS, deviation)
    return [value if active[index // K] else 0.0 for index, value in enumerate(flat)]


@pytest.fixture
def roll_out(policy_dir, dataset_dir, rectangles, tmp_path, monkeypatch):
    """A function that runs one step with the answers above; gives its batches by task, the trainer, what was asked."""

    def run(**changes):
        settings = {"num_captions": G, "num_groundings": K, "min_cycle_score": 0.3} | changes
        trainer = make_trainer(policy_dir, dataset_dir, rectangles, tmp_path, **settings)
        asked = {}

        def answer(task, questions, group_size, *, learn=True):
            asked[task] = {"prompts": [q["prompt"] for q in questions], "group_size": group_size, "learn": learn}
            texts = CAPTIONS if task == "captions" else GROUNDINGS
            batch = {
                "advantages": torch.zeros(len(texts)),
                "num_items_in_batch": torch.tensor(12.0),
                "of": [task] * len(texts),
            }
            return Answers(task, group_size, questions, list(texts), batch if learn else None)

        monkeypatch.setattr(trainer, "_answer", answer)
        image = Image.new("RGB", (SIDE, SIDE))
        questions = [
            {"prompt": prompt_to_messages(draw.prompt, [image]), "draw": draw, "whole_image": image}
            for draw in DRAWS
            for _ in range(G)
        ]
        batches = trainer._roll_out(questions)
        return {batch["of"][0]: batch for batch in batches}, trainer, asked

    return run


def close(batch, expected):
    np.testing.assert_allclose(batch["advantages"].numpy(), expected, atol=1e-5)


def test_captions_and_groundings_earn_what_the_formulas_say(roll_out):
    batches, trainer, asked = roll_out(caption_weight=0.75, grounding_weight=0.25)
    assert list(batches) == ["captions", "groundings"]
    close(batches["captions"], caption_advantages())
    close(batches["groundings"], grounding_advantages())
    assert [batch["num_items_in_batch"].item() for batch in batches.values()] == [16.0, 48.0]  # 12 by weight
    # Every caption is asked for K times, about the whole image alone.
    texts = [prompt[0]["content"][-1]["text"] for prompt in asked["groundings"]["prompts"]]
    captions = [caption for caption, draw in zip(CAPTIONS, np.repeat(DRAWS, G), strict=True) if draw.task == "caption"]
    assert [f"<image>\n{text}" for text in texts] == [MASK.locate(text) for text in captions for _ in range(K)]
    assert (asked["captions"]["group_size"], asked["groundings"]["group_size"]) == (G, K)
    logged = trainer._metrics["train"]
    assert logged["caption/cycle_score"] == [0.625, 0, 1, 1, 0.25, 0.5]
    assert logged["no_target/accuracy"] == [1, 1, 0]  # `null` names no region either
    assert logged["expression/overlap"] == [1, 0, 0.25]
    assert logged["no_target/reward"] == [mean(NO_TARGET_REWARDS)]
    assert logged["caption/reward"] == [pytest.approx(mean(rewards)) for rewards in CAPTION_REWARDS]
    assert logged["caption/no_signal"] == [0, 0] and logged["no_target/no_signal"] == [0]
    # The third and the fourth caption's groundings are as good as each other, the second and the fifth lead nowhere.
    assert logged["grounding/no_signal"] == [0, 1, 1, 1, 1, 0]
    assert logged["grounding/unparsable"] == [0] * 12  # `null` can be read


@pytest.mark.parametrize(("lowest", "active"), [(0.0, [True] * 6), (0.6, [True, False, True, True, False, False])])
def test_groundings_of_captions_below_the_lowest_score_carry_no_gradient(roll_out, lowest, active):
    batches, _, _ = roll_out(min_cycle_score=lowest)
    close(batches["groundings"], grounding_advantages(active))
    close(batches["captions"], caption_advantages())


def test_groundings_scaled_within_their_caption(roll_out):
    batches, _, _ = roll_out(scale_groundings="group")
    half = 0.5**0.5  # two that differ are half their difference off the mean, and that is 1 / sqrt(2) deviations
    close(batches["groundings"], [half, -half, 0, 0, 0, 0, 0, 0, 0, 0, half, -half])


@pytest.mark.parametrize("half", ["captions", "groundings"])
def test_only_the_half_that_is_optimised_is_learned_from(roll_out, half):
    batches, _, asked = roll_out(optimise=half)
    assert list(batches) == [half]
    close(batches[half], caption_advantages() if half == "captions" else grounding_advantages())
    assert batches[half]["num_items_in_batch"].item() == 12.0
    assert asked["groundings"]["learn"] == (half == "groundings")


def test_shuffled_rewards_change_places_between_captions_and_nothing_else_changes(roll_out):
    batches, trainer, _ = roll_out(reward={"shuffle": True, "resolution": "image"})
    scores = trainer._metrics["train"]["caption/cycle_score"]
    assert sorted(scores) == [0, 0.25, 0.5, 0.625, 1, 1] and scores != [0.625, 0, 1, 1, 0.25, 0.5]
    a, b, c, _, d, e = (10 * score for score in scores)  # the fourth gives its place away, the fifth repeats itself
    captions = [NO_TARGET_REWARDS, [a + 2, b + 2, c + 2], EXPRESSION_REWARDS, [0, d + 1, e + 2]]
    close(batches["captions"], advantages_of(captions))
    close(batches["groundings"], grounding_advantages())


def test_without_regularisers_overlaps_alone_count(roll_out):
    plain = {"no_repeat": False, "clean": False, "format": False, "resolution": "image"}
    batches, _, _ = roll_out(reward=plain)
    captions = [[1, 0.2, 0], [6.25 + 1, 0 + 1, 10 + 1], [10, 0, 2.5], [10 + 1, 2.5 + 1, 5 + 1]]
    close(batches["captions"], advantages_of(captions))


def test_the_reference_locates_where_it_is_asked_to(policy_dir, dataset_dir, rectangles, tmp_path, monkeypatch):
    settings = {"locate_with": "reference", "optimise": "captions", "num_captions": G, "num_groundings": K}
    trainer = make_trainer(policy_dir, dataset_dir, rectangles, tmp_path, **settings)
    trainer.model.train()  # as in a step
    tokenizer = trainer.processing_class.tokenizer
    asked = []

    def says(name, text):
        def generate(input_ids, **_):
            asked.append((name, len(input_ids)))
            ids = torch.tensor(tokenizer(text)["input_ids"] + [tokenizer.eos_token_id])
            return torch.cat([input_ids, ids.expand(len(input_ids), -1)], 1)

        return generate

    monkeypatch.setattr(trainer.model, "generate", says("policy", "the red square"))
    monkeypatch.setattr(trainer.ref_model, "generate", says("reference", TWO))
    image = Image.new("RGB", (SIDE, SIDE))
    draw = DRAWS[3]
    question = {"prompt": prompt_to_messages(draw.prompt, [image]), "draw": draw, "whole_image": image}
    (batch,) = trainer._roll_out([question] * G)
    assert asked == [("policy", G), ("reference", G * K)]
    assert trainer._metrics["train"]["caption/cycle_score"] == [1.0] * G
    assert batch["advantages"].tolist() == [0.0] * G  # all captions alike
    assert trainer.model_wrapped is trainer.model  # and the policy generates again
