"""A whole evaluation with a fake policy and a fake tokenizer, against numbers worked out by hand."""

from __future__ import annotations

import pytest

from cyclegrpo.evaluation.blocks import prepare_blocks
from cyclegrpo.evaluation.metrics import summarise
from cyclegrpo.evaluation.run import evaluate_policy, predict_policy
from cyclegrpo.evaluation.scoring import Answer
from cyclegrpo.params import Crop
from cyclegrpo.regions.spaces import BOX, MASK
from cyclegrpo.rewards.grounding import refuses

from .conftest import LEFT, FakePolicy, FakeTokenizer, answer_vaguely, answer_well, token

CROP = Crop(min_side_px=2, enlarge_to_px=4)
NO_CROP = Crop(enabled=False)


def make_blocks(heldout, *, crop=NO_CROP, space=MASK, block_size=256, tokenizer=None):
    tokenizer = None if space is BOX else tokenizer or FakeTokenizer()
    return list(prepare_blocks(heldout, tokenizer, space=space, crop=crop, block_size=block_size))


def test_a_perfect_policy(heldout, truth, settings):
    policy = FakePolicy(answer_well)
    metrics = evaluate_policy(policy, policy, make_blocks(heldout), settings, truth=truth)
    perfect = (
        "cycle_iou",
        "cycle_iou_sampled",
        "cycle_iou_sampled_captions",
        "frozen_cycle_iou",
        "frozen_cycle_iou_sampled",
        "frozen_cycle_iou_sampled_captions",
        "grounding_iou_sampled",
        "unambiguous",
        "true",
        "grounding_iou",
        "question_iou",
    )
    assert {name: metrics[name] for name in perfect} == dict.fromkeys(perfect, 1.0)
    assert metrics["no_target_accuracy"] == metrics["target_accuracy"] == 1.0
    assert metrics["format_errors"] == metrics["leaks"] == 0.0
    assert metrics["caption_words"] == 3.0
    assert metrics["num_expressions"] == 3


def test_a_vague_policy_with_a_better_frozen_one(heldout, truth, settings):
    metrics = evaluate_policy(
        FakePolicy(answer_vaguely), FakePolicy(answer_well), make_blocks(heldout), settings, truth=truth
    )
    assert metrics["cycle_iou"] == 0.5  # `the bar` leads to the left one: right for a.jpg
    assert metrics["frozen_cycle_iou"] == 0.0  # the frozen one says no
    assert metrics["true"] == 1.0
    assert metrics["unambiguous"] == 0.0
    assert metrics["no_target_accuracy"] == 0.0
    assert metrics["grounding_iou"] == pytest.approx(1 / 3, abs=1e-6)  # one of three expressions is about the left bar
    assert metrics["grounding_iou_2_attributes"] == 0.5
    assert metrics["grounding_iou_1_attributes"] == 0.0


@pytest.mark.parametrize(
    ("answer", "iou", "format_error"),
    [
        (token(LEFT), 0.5, 0.0),
        (f"It is {token(LEFT)}{token(2)}", 0.5, 0.0),  # both bars: 16 of 32 pixels, twice
        ("<|mt_start|><|mt_0001|><|mt_end|>", 0.5, 1.0),  # decodes under repair, yet is not well-formed
        ("null", 0.0, 0.0),
        ("", 0.0, 0.0),
        ("somewhere", 0.0, 1.0),
        (token(7), 0.0, 0.0),  # well-formed, decodes to nothing
    ],
)
def test_forms_of_answers(heldout, settings, answer, iou, format_error):
    policy = FakePolicy(lambda prompt: answer)
    metrics = evaluate_policy(policy, None, make_blocks(heldout), settings)
    assert (metrics["cycle_iou"], metrics["format_errors"]) == (iou, format_error)
    assert "frozen_cycle_iou" not in metrics


@pytest.mark.parametrize(
    ("answer", "correct"),
    [
        ("No target.", True),
        ("null", True),
        ("I see no dog", True),
        (token(7), False),  # names a region, although an empty one
        ("<|mt_start|><|mt_0001|>", False),
        (f"No target. {token(LEFT)}", False),
        (token(LEFT), False),
    ],
)
def test_a_refusal_is_right_where_nothing_fits_and_wrong_where_something_does(heldout, settings, answer, correct):
    policy = FakePolicy(lambda prompt: answer)
    said = predict_policy(policy, None, make_blocks(heldout), settings)
    assert [item.correct for item in said.no_targets] == [correct, correct]
    assert refuses(answer) is correct  # what training counts
    assert summarise(said)["target_accuracy"] == float(not correct)


def test_block_size_changes_nothing(heldout, settings):
    policy = FakePolicy(answer_well)
    whole = predict_policy(policy, None, make_blocks(heldout), settings)
    assert predict_policy(policy, None, make_blocks(heldout, block_size=1), settings) == whole


def test_every_image_is_encoded_once_and_every_pair_decoded_once(heldout, settings):
    tokenizer = FakeTokenizer()
    blocks = make_blocks(heldout, tokenizer=tokenizer)
    assert tokenizer.num_embedded == 2
    for _ in range(2):
        predict_policy(FakePolicy(answer_well), None, blocks, settings)
    assert (tokenizer.num_embedded, tokenizer.num_decoded) == (2, 2)


def test_prompts_are_those_of_training(heldout, settings):
    policy = FakePolicy(answer_well)
    predict_policy(policy, policy, make_blocks(heldout, crop=CROP), settings)
    describe = [asked for asked in policy.asked if "detailed description" in asked[0]]
    assert [(images, temperature) for _, images, temperature in describe] == [(2, 0.0)] * 2 + [(2, 1.0)] * 4
    assert describe[0][0] == (
        "<image>\nCould you please give me a detailed description of the following region? "
        f"{token(LEFT)}. Zoom in on {token(LEFT)} with the perspective as <image>, {token(LEFT)}."
    )
    locate = [asked for asked in policy.asked if "spatial relationships" in asked[0]]
    assert locate[0] == (MASK.locate("the left bar"), 1, 0.0)
    # Two greedy captions; four sampled ones, and greedily the two that differ; three given expressions, and two samples
    # of each. The frozen policy is the same, so not asked again.
    assert [temperature for *_, temperature in locate] == [0.0] * 2 + [1.0] * 4 + [0.0] * 2 + [0.0] * 3 + [1.0] * 6


def test_markers_in_a_caption_do_not_break_the_locate_prompt(heldout, settings):
    policy = FakePolicy(lambda prompt: "<image>the left bar" if "detailed description" in prompt else "null")
    said = predict_policy(policy, None, make_blocks(heldout), settings)
    assert said.regions[0].greedy.caption == "<image>the left bar"
    assert MASK.locate("the left bar") in [prompt for prompt, *_ in policy.asked]


def test_box_space(heldout, settings):
    def answer(prompt: str) -> str:
        return (
            "a bar"
            if "bounding box [0, 0, 250, 1000]" in prompt or "bounding box [750" in prompt
            else "[0, 0, 250, 500]"
        )

    said = predict_policy(FakePolicy(answer), None, make_blocks(heldout, space=BOX), settings, region_space=BOX)
    # Half of the left bar, and nothing of the right one.
    assert [region.greedy.located.iou for region in said.regions] == [0.5, 0.0]
    assert said.regions[0].found == [[0, 0, 250, 500]]


def test_a_box_is_asked_about_as_rows_spell_it_and_scored_against_what_is_there(heldout):
    """Columns 0-1 of 8: the last column of the prompt's box is 1, the region itself ends at 2."""
    (block,) = make_blocks(heldout, space=BOX)
    target = block.targets[0]
    assert target.prompt == BOX.describe("[0, 0, 125, 875]")
    answer = Answer(target.region.image, "[0, 0, 250, 1000]", target.region)
    assert block.scorer.score([answer])[0].iou == 1.0
