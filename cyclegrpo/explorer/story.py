"""The words of the result page: what happened, said as the numbers allow. Pure functions of the metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Metrics = Mapping[str, Any]


def make_paragraphs(metrics: Metrics, num_steps: int, *, with_captions: bool = True) -> list[str]:
    """What is trained, what came of the cycle and of everything else; then a warning, where training saw the images.

    Args:
        num_steps: of the training; 0 where unknown.
        with_captions: whether captions were trained at all.
    """
    before, after = metrics["before"], metrics["after"]
    sentences = [
        "One model describes a region of a picture in words, then finds the region back from these words alone. "
        + (
            "How well it comes back is what the words are rewarded for; training gives no caption to imitate."
            if with_captions
            else "It was trained on questions with a known answer; no caption was rewarded."
        )
    ]
    steps = f" after {num_steps} steps" if num_steps else ""
    sentences.append(
        f"On {before['num_regions']:,} regions of {scenes(metrics)} the overlap of the region found back with the one "
        f"described {_moved(metrics, 'cycle_iou')} from {_mean(before, 'cycle_iou')} to "
        f"{_mean(after, 'cycle_iou')}{steps}."
    )
    if "unambiguous" in before:
        sentences.append(
            f"Captions that fit their target and nothing else in the scene {_moved(metrics, 'unambiguous')} from "
            f"{_share(before, 'unambiguous')} to {_share(after, 'unambiguous')}; {_share(after, 'true')} are true of "
            f"their target ({_share(before, 'true')} before)."
        )
    if "frozen_cycle_iou" in after:
        gap = abs(after["frozen_cycle_iou"] - after["cycle_iou"])
        agree = (
            "so the words mean what they meant"
            if gap <= 0.03
            else "which hints at words that only the new model understands"
        )
        sentences.append(
            "Read by the model from before, the new captions find their regions with "
            f"{after['frozen_cycle_iou']:.2f}, {agree}."
        )
    others = []
    if "grounding_iou" in before:
        means = f"{_mean(before, 'grounding_iou')} to {_mean(after, 'grounding_iou')}"
        others.append(f"the overlap on given expressions {_moved(metrics, 'grounding_iou')} from {means}")
    if "no_target_accuracy" in before:
        shares = f"{_share(before, 'no_target_accuracy')} to {_share(after, 'no_target_accuracy')}"
        others.append(f"right refusals where nothing fits {_moved(metrics, 'no_target_accuracy')} from {shares}")
    if others:
        sentences.append(f"Beside the cycle, {' and '.join(others)}.")
    paragraphs = [" ".join(sentences)]
    if num_known := metrics.get("num_images_in_training"):
        paragraphs.append(
            f"Beware: {num_known:,} of the evaluated images stand in the training data too, so that these numbers do "
            "not say what comes of new images."
        )
    return paragraphs


def scenes(metrics: Metrics) -> str:
    """What the numbers were taken on: `held-out scenes` only where it is known that training named none of them."""
    return "held-out scenes" if metrics.get("num_images_in_training") == 0 else "the evaluated scenes"


TILES = (
    ("cycle_iou", "Cycle IoU", "the region found back from its caption", False),
    ("unambiguous", "Unambiguous captions", "fit their target and nothing else", True),
    ("true", "True captions", "fit their target", True),
    ("grounding_iou", "Grounding IoU", "on given true expressions", False),
    ("no_target_accuracy", "No-target accuracy", "says so when nothing fits", True),
)


def make_tiles(metrics: Metrics) -> list[dict[str, str]]:
    """The four most telling numbers that there are, before and after, as texts."""
    tiles = []
    for name, label, hint, is_share in TILES:
        before, after = metrics["before"].get(name), metrics["after"].get(name)
        if before is not None and after is not None:
            form = "{:.0%}" if is_share else "{:.2f}"
            tiles.append({"label": label, "hint": hint, "before": form.format(before), "after": form.format(after)})
    return tiles[:4]


def table_note(metrics: Metrics) -> str:
    """What the table's numbers stand on."""
    before = metrics["before"]
    samples = int(metrics.get("num_samples", 0))
    plural = "s" if samples > 1 else ""
    num_known = metrics.get("num_images_in_training")
    where = "" if num_known is None else f"; {num_known:,} of their images stand in the training data too"
    if num_known == 0:
        where = ", all of scenes that no training step saw"
    sampled = f"; sampled lines draw {samples} caption{plural} per region and locate each once" if samples else ""
    return (
        f"{before['num_regions']:,} regions, {before['num_expressions']:,} given expressions and "
        f"{before['num_no_targets']:,} expressions that fit nothing{where}. \u00b1 "
        "is one standard error over scenes, of the paired difference in the last column, which is coloured beyond two "
        f"of them. Answers are greedy{sampled}."
    )


def examples_note(examples: Mapping[str, Any]) -> str:
    """How the examples were chosen."""
    return f"{examples.get('rule', '')} Captions and regions are the greedy answers.".strip()


def _moved(metrics: Metrics, name: str) -> str:
    """`rose`, `fell`, or `stayed, within two standard errors,`."""
    change, error = metrics["change"][name], metrics["change"].get(f"{name}_se", 0.0)
    if abs(change) <= 2 * error:
        return "stayed within two standard errors,"
    return "rose" if change > 0 else "fell"


def _mean(numbers: Metrics, name: str) -> str:
    error = numbers.get(f"{name}_se")
    return f"{numbers[name]:.2f}" + (f" \u00b1 {error:.2f}" if error is not None else "")


def _share(numbers: Metrics, name: str) -> str:
    return f"{100 * numbers[name]:.0f}\u00a0%"
