"""From predictions to numbers: means with standard errors, pure functions without models or files.

One prediction is what one policy said about one held-out item; `summarise` turns a policy's predictions into metrics
and `compare` sets two policies side by side. Standard errors are over scenes: items of one image count as one
cluster.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from cyclegrpo.evaluation.truth import Truth
from cyclegrpo.rewards.caption import clean
from cyclegrpo.rewards.grounding import refuses

DIGITS = 6


@dataclass(frozen=True)
class Located:
    """One answer to the locate prompt: its text, overlap with the target in [0, 1], and whether it could be parsed.

    `parsed` is True for an answer with a region and for one that says clearly that there is none.
    """

    answer: str
    iou: float
    parsed: bool


@dataclass(frozen=True)
class Described:
    """One caption of a region and the region found back by it: by the policy itself and, if asked, by a frozen one.

    `located` and `frozen` are answers of the caption's own kind: greedy, or sampled. For a sampled caption `greedily`
    and `frozen_greedily` are greedy ones: how good the caption is, apart from the noise of sampled groundings.
    """

    caption: str
    located: Located
    frozen: Located | None = None
    greedily: Located | None = None
    frozen_greedily: Located | None = None


@dataclass(frozen=True)
class Given:
    """A given true expression and what the policy located by it: `located` with the cycle's own prompt, `asked` with a
    question of the benchmarks' form; `sampled` as `located`, but sampled answers.
    """

    text: str
    located: Located
    asked: Located
    sampled: tuple[Located, ...] = ()


@dataclass(frozen=True)
class RegionPrediction:
    """What one policy says about one held-out region.

    `ann_id` is the region's annotation (0 if unknown); `found` the greedily located region as drawn on the page:
    a COCO RLE (mask space), a list of boxes in 0..1000 (box space), or None for an empty answer.
    """

    key: str
    image: str
    ann_id: int
    greedy: Described
    sampled: tuple[Described, ...] = ()
    given: tuple[Given, ...] = ()
    found: object = None


@dataclass(frozen=True)
class NoTargetPrediction:
    """What one policy answers to an expression that nothing in the image fits; `correct` if it names no region."""

    key: str
    image: str
    text: str
    answer: str
    correct: bool


@dataclass(frozen=True)
class Predictions:
    """All predictions of one policy, in the order of the held-out set."""

    regions: tuple[RegionPrediction, ...]
    no_targets: tuple[NoTargetPrediction, ...] = ()


def join_predictions(parts: Sequence[Predictions]) -> Predictions:
    """The predictions about consecutive parts of the held-out set as those about the whole."""
    return Predictions(
        tuple(region for part in parts for region in part.regions),
        tuple(item for part in parts for item in part.no_targets),
    )


def mean_with_se(values: Sequence[float], clusters: Sequence[str] | None = None) -> tuple[float, float]:
    """The mean and its standard error over clusters (every value its own cluster if None).

    With one value per cluster the error is the usual s / sqrt(n) with the sample deviation; with several, residuals are
    summed within a cluster first (cluster-robust). Fewer than two clusters: the error is nan; no values: both are nan.

    >>> mean_with_se([0.0, 1.0, 0.0, 1.0])[0]
    0.5
    >>> [round(x, 4) for x in mean_with_se([1.0, 1.0, 0.0, 0.0], ["a", "a", "b", "b"])]
    [0.5, 0.5]
    """
    if not values:
        return math.nan, math.nan
    mean = sum(values) / len(values)
    sums: dict[str, float] = defaultdict(float)
    for index, value in enumerate(values):
        sums[clusters[index] if clusters is not None else str(index)] += value - mean
    num_clusters = len(sums)
    if num_clusters < 2:
        return mean, math.nan
    variance = sum(s * s for s in sums.values()) * num_clusters / (num_clusters - 1)
    return mean, math.sqrt(variance) / len(values)


def caption_length(caption: str) -> int:
    """The number of words of a caption, split at white space.

    >>> caption_length("the small red circle")
    4
    """
    return len(caption.split())


Values = list[tuple[str, float]]
"""The values of one metric, item by item, each with its cluster (the image)."""


def summarise(predictions: Predictions, truth: Truth | None = None) -> dict[str, float]:
    """The metrics of one policy, each with its standard error over scenes under `<name>_se`.

    For the greedy caption, and under `<name>_sampled` for the sampled ones: `cycle_iou`, `unambiguous` and `true`
    (with a truth file), `leaks`, `format_errors`, `caption_words`, `frozen_cycle_iou` (if a frozen policy located
    too); sampled captions are located by sampled answers, and under `cycle_iou_sampled_captions` and
    `frozen_cycle_iou_sampled_captions` by greedy ones. Beside them `grounding_iou` on given expressions with the locate
    prompt (`grounding_iou_sampled` by sampled answers; `grounding_iou_<n>_attributes` by the number of known words),
    `question_iou` on the same ones asked as a question, `target_accuracy` (those that are
    not refused) and `no_target_accuracy` (expressions that fit nothing and are refused). A metric without any item is
    left out. `num_regions`, `num_expressions` and `num_no_targets` say how many items there were.
    """
    metrics: dict[str, float] = {}
    for name, values in metric_values(predictions, truth).items():
        _put(metrics, name, values)
    metrics["num_regions"] = len(predictions.regions)
    metrics["num_expressions"] = sum(len(region.given) for region in predictions.regions)
    metrics["num_no_targets"] = len(predictions.no_targets)
    return metrics


def compare(before: Predictions, after: Predictions, truth: Truth | None = None) -> dict[str, float]:
    """The change of every metric from `before` to `after`, with the standard error of the paired difference.

    The error is that of the differences item by item: smaller than what the two errors apart suggest, because a hard
    scene is hard for both. ValueError unless both hold the same items in the same order.
    """
    old, new = metric_values(before, truth), metric_values(after, truth)
    change: dict[str, float] = {}
    for name in old:
        if name not in new:
            continue
        if [image for image, _ in old[name]] != [image for image, _ in new[name]]:
            raise ValueError(f"{name}: the two policies answered different items; evaluate both on one held-out set")
        _put(change, name, [(image, b - a) for (image, a), (_, b) in zip(old[name], new[name], strict=True)])
    return change


def metric_values(predictions: Predictions, truth: Truth | None = None) -> dict[str, Values]:
    """Every metric of `summarise` as its values item by item; metrics without items are left out."""
    regions = predictions.regions
    table = _caption_values([(region, region.greedy) for region in regions], truth)
    sampled = _caption_values([(region, sample) for region in regions for sample in region.sampled], truth)
    table.update({f"{name}_sampled": values for name, values in sampled.items()})
    table.update(_located_greedily(regions))
    table.update(_given_values(regions, truth))
    table["no_target_accuracy"] = [(item.image, float(item.correct)) for item in predictions.no_targets]
    return {name: values for name, values in table.items() if values}


def _caption_values(pairs: Sequence[tuple[RegionPrediction, Described]], truth: Truth | None) -> dict[str, Values]:
    table: dict[str, Values] = defaultdict(list)
    for region, said in pairs:
        values = {
            "cycle_iou": said.located.iou,
            "leaks": 1.0 - clean(said.caption),
            "format_errors": float(not said.located.parsed),
            "caption_words": float(caption_length(said.caption)),
        }
        if said.frozen is not None:
            values["frozen_cycle_iou"] = said.frozen.iou
        judgement = truth.judge(said.caption, region.image, region.ann_id) if truth else None
        if judgement is not None:
            values |= {"unambiguous": float(judgement.unambiguous), "true": float(judgement.true)}
        for name, value in values.items():
            table[name].append((region.image, value))
    return dict(table)


def _located_greedily(regions: Sequence[RegionPrediction]) -> dict[str, Values]:
    """The overlaps of greedy answers to the sampled captions."""
    table: dict[str, Values] = defaultdict(list)
    for region in regions:
        for said in region.sampled:
            for name, located in (("cycle_iou", said.greedily), ("frozen_cycle_iou", said.frozen_greedily)):
                if located is not None:
                    table[f"{name}_sampled_captions"].append((region.image, located.iou))
    return dict(table)


def _given_values(regions: Sequence[RegionPrediction], truth: Truth | None) -> dict[str, Values]:
    table: dict[str, Values] = defaultdict(list)
    for region in regions:
        for given in region.given:
            table["grounding_iou"].append((region.image, given.located.iou))
            table["grounding_iou_sampled"] += [(region.image, located.iou) for located in given.sampled]
            table["question_iou"].append((region.image, given.asked.iou))
            table["target_accuracy"].append((region.image, float(not refuses(given.asked.answer))))
            if truth:
                name = f"grounding_iou_{truth.num_attributes(given.text)}_attributes"
                table[name].append((region.image, given.located.iou))
    return dict(sorted(table.items()))


def _put(metrics: dict[str, float], name: str, values: Values) -> None:
    mean, error = mean_with_se([value for _, value in values], [image for image, _ in values])
    metrics[name] = round(mean, DIGITS)
    if not math.isnan(error):
        metrics[f"{name}_se"] = round(error, DIGITS)
