"""Means, errors and metrics against numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from cyclegrpo.evaluation.metrics import (
    Described,
    Given,
    Located,
    NoTargetPrediction,
    Predictions,
    RegionPrediction,
    compare,
    mean_with_se,
    summarise,
)
from cyclegrpo.evaluation.truth import TrueObject, Truth

TOKENS = "<|mt_start|><|mt_0001|><|mt_0257|><|mt_end|>"
VOCABULARY = frozenset({"small", "large", "red", "circle"})
SCENE = (TrueObject(1, frozenset({"small", "red", "circle"})), TrueObject(2, frozenset({"large", "red", "circle"})))


@pytest.mark.parametrize(
    ("values", "clusters", "mean", "error"),
    [
        ([0.0, 1.0], None, 0.5, 0.5),  # s = sqrt(.5), over sqrt(2)
        ([1.0, 2.0, 3.0], None, 2.0, math.sqrt(1 / 3)),  # s = 1, over sqrt(3)
        ([5.0, 5.0, 5.0], None, 5.0, 0.0),
        ([1.0, 1.0, 0.0, 0.0], ["a", "a", "b", "b"], 0.5, 0.5),  # two scenes, not four items
        ([1.0, 0.0, 1.0, 0.0], ["a", "a", "b", "b"], 0.5, 0.0),  # every scene has the same mean
        ([1.0, 2.0, 3.0], ["a", "b", "c"], 2.0, math.sqrt(1 / 3)),
    ],
)
def test_mean_with_se(values, clusters, mean, error):
    assert mean_with_se(values, clusters) == pytest.approx((mean, error))


def test_too_few_values_have_no_error():
    assert all(map(math.isnan, mean_with_se([])))
    mean, error = mean_with_se([0.25])
    assert mean == 0.25
    assert math.isnan(error)


def region(number: int, caption: str, iou: float, **more: object) -> RegionPrediction:
    said = Described(caption, Located(TOKENS, iou, parsed=True))
    return RegionPrediction(f"r{number}", f"{number}.jpg", 1, said, **more)


def test_summarise_two_scenes():
    truth = Truth(VOCABULARY, {"1.jpg": SCENE, "2.jpg": SCENE})
    unreadable = Located("what?", 0.0, parsed=False)
    given = (Given("the small circle", Located(TOKENS, 0.5, parsed=True), Located("null", 0.0, parsed=True)),)
    said = Predictions(
        (
            region(1, "the small circle", 0.8, given=given),
            replace(
                region(2, "the red [1, 2, 3, 4] circle", 0.0),
                greedy=Described("the red [1, 2, 3, 4] circle", unreadable),
            ),
        ),
        (
            NoTargetPrediction("n1", "1.jpg", "the blue circle", "No target.", correct=True),
            NoTargetPrediction("n2", "2.jpg", "the blue circle", TOKENS, correct=False),
        ),
    )
    assert summarise(said, truth) == {
        "cycle_iou": 0.4,
        "cycle_iou_se": 0.4,
        "unambiguous": 0.5,
        "unambiguous_se": 0.5,
        "true": 1.0,
        "true_se": 0.0,
        "leaks": 0.5,
        "leaks_se": 0.5,
        "format_errors": 0.5,
        "format_errors_se": 0.5,
        "caption_words": 5.0,  # 3 and 7
        "caption_words_se": 2.0,
        "grounding_iou": 0.5,
        "grounding_iou_2_attributes": 0.5,
        "question_iou": 0.0,
        "target_accuracy": 0.0,
        "no_target_accuracy": 0.5,
        "no_target_accuracy_se": 0.5,
        "num_regions": 2,
        "num_expressions": 1,
        "num_no_targets": 2,
    }


def test_sampled_and_frozen_have_their_own_names():
    sample = Described("red", Located(TOKENS, 0.5, parsed=True), frozen=Located(TOKENS, 0.25, parsed=True))
    metrics = summarise(Predictions((region(1, "red", 1.0, sampled=(sample, sample)),)))
    assert metrics["cycle_iou"] == 1.0
    assert metrics["cycle_iou_sampled"] == 0.5
    assert metrics["frozen_cycle_iou_sampled"] == 0.25
    assert "frozen_cycle_iou" not in metrics
    assert "true" not in metrics


def test_greedy_answers_to_sampled_captions_and_sampled_answers_to_given_ones_have_their_own_names():
    found = [Located(TOKENS, iou, parsed=True) for iou in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)]
    given = Given("the circle", found[4], found[0], (found[5], found[6]))
    greedily = RegionPrediction(
        "k/1", "1.jpg", 1, Described("red", found[0]), (Described("red", *found[:4]),), (given,)
    )
    metrics = summarise(Predictions((greedily,)))
    assert metrics["cycle_iou_sampled"] == 0.1
    assert metrics["frozen_cycle_iou_sampled"] == 0.2
    assert metrics["cycle_iou_sampled_captions"] == 0.3
    assert metrics["frozen_cycle_iou_sampled_captions"] == 0.4
    assert metrics["grounding_iou"] == 0.5
    assert metrics["grounding_iou_sampled"] == pytest.approx(0.65)


def test_nothing_to_evaluate_gives_counts_only():
    assert summarise(Predictions(())) == {"num_regions": 0, "num_expressions": 0, "num_no_targets": 0}


def test_compare_is_paired():
    before = Predictions((region(1, "red", 0.1), region(2, "red", 0.5)))
    after = Predictions((region(1, "small red", 0.4), region(2, "small red", 0.8)))
    change = compare(before, after)
    assert change["cycle_iou"] == pytest.approx(0.3)
    assert change["cycle_iou_se"] == pytest.approx(0.0, abs=1e-6)  # both rose by .3, though they are far apart
    assert change["caption_words"] == 1.0


def test_compare_refuses_different_items():
    with pytest.raises(ValueError, match="different items"):
        compare(Predictions((region(1, "red", 0.1),)), Predictions((region(2, "red", 0.1),)))
