"""The result page: one HTML file from what train and evaluate wrote, without any reference to the outside.

It reads `results/train/curves.csv` (column `step`, others if there are any), `results/evaluate/metrics.json` and
`examples.json`, and writes `results/report.html`. Which numbers are shown, and under which words, is the table `ROWS`.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from cyclegrpo.errors import DataError
from cyclegrpo.explorer.charts import boxes_to_svg_path, change_svg, curve_svg, mask_to_svg_path, sparkline_svg
from cyclegrpo.explorer.story import examples_note, make_paragraphs, make_tiles, scenes, table_note
from cyclegrpo.files import write_text
from cyclegrpo.params import Params
from cyclegrpo.regions.geometry import rle_to_mask

RESULTS = Path("results")
FORMS = {"_sampled": "sampled, T = {:g}", "_sampled_captions": "captions sampled, located greedily"}
"""What a metric's name ends with beside its greedy form, and what the table says of it."""
HIT_IOU, MISS_IOU = 0.75, 0.25
PIXELATED_BELOW_PX = 256


@dataclass(frozen=True)
class Row:
    """One line of the table: a metric, its words, and what is good: `up`, `down`, or neither (None).

    `unit` is `iou` (0.123), `share` (12.3 %) or `count` (1.23).
    """

    metric: str
    label: str
    hint: str
    unit: str
    better: str | None


ROWS = (
    Row("cycle_iou", "Cycle IoU", "region \u2192 caption \u2192 region found back", "iou", "up"),
    Row(
        "frozen_cycle_iou",
        "Cycle IoU by the grounder from before",
        "found back by the frozen old policy: no private language if both agree",
        "iou",
        "up",
    ),
    Row("unambiguous", "Unambiguous captions", "fit their target and nothing else in the scene", "share", "up"),
    Row("true", "True captions", "fit their target, perhaps others too", "share", "up"),
    Row("grounding_iou", "Grounding IoU", "on given true expressions", "iou", "up"),
    Row(
        "question_iou",
        "Grounding IoU, as a question",
        "the same expressions in the words of the benchmarks",
        "iou",
        "up",
    ),
    Row("no_target_accuracy", "No-target accuracy", "says so when nothing fits", "share", "up"),
    Row("target_accuracy", "Target accuracy", "does not refuse when something fits", "share", "up"),
    Row("format_errors", "Unreadable answers", "neither a region nor a clear no", "share", "down"),
    Row("leaks", "Leaks", "captions that give a place in numbers or tokens", "share", "down"),
    Row("caption_words", "Caption length", "words", "count", None),
)

SCORE_COLUMNS = ("caption/cycle_score", "cycle_score")
"""The column of the curve file that holds the cycle score; the first of these that is there."""

SPARKS = {
    "caption/num_words": "Caption length, words",
    "expression/overlap": "IoU on given expressions",
    "no_target/accuracy": "No-target accuracy",
    "kl": "KL to the reference",
    "caption/no_signal": "Caption groups without a signal",
    "grounding/unparsable": "Unreadable groundings",
}
"""Columns of the curve file that are drawn small, if they are there."""
ENDS = 10
"""How many of the first and of the last steps the numbers under a small drawing average."""


@dataclass(frozen=True)
class Results:
    """What the page is made of. `curves`: column name -> values by step, nan where a cell is empty."""

    curves: Mapping[str, Sequence[float]]
    metrics: Mapping[str, Any]
    examples: Mapping[str, Any]


@dataclass(frozen=True)
class ReportReport:
    """What the stage wrote."""

    page: str
    num_examples: int
    num_bytes: int


def run_report(params: Params, *, results: Path = RESULTS) -> ReportReport:
    """Write `results/report.html` from the files of train and evaluate below `results`."""
    found = load_results(results)
    page = render_report(found, title=params.report.title)
    path = results / "report.html"
    write_text(path, page)
    return ReportReport(path.as_posix(), len(found.examples["examples"]), len(page.encode()))


def load_results(results: Path = RESULTS) -> Results:
    """The files of train and evaluate below a results folder. DataError names the one that is missing or broken."""
    return Results(
        read_curves(results / "train" / "curves.csv"),
        _read_json(results / "evaluate" / "metrics.json", ("before", "after", "change")),
        _read_json(results / "evaluate" / "examples.json", ("examples",)),
    )


def read_curves(path: Path) -> dict[str, list[float]]:
    """The numeric columns of a CSV file with one line per step; an empty or non-numeric cell is nan."""
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            lines = list(csv.DictReader(stream))
    except FileNotFoundError:
        raise DataError("no such file; run the train stage first", file=path) from None
    columns = list(lines[0]) if lines else []
    if "step" not in columns:
        message = f"columns are {columns}; expected step among them, and at least one line. Run the train stage again."
        raise DataError(message, file=path)
    return {name: [_number(line.get(name)) for line in lines] for name in columns}


def cycle_curve(curves: Mapping[str, Sequence[float]]) -> tuple[list[float], list[float]]:
    """Steps and cycle scores of the curve, without the steps that have no score: none in a run without captions."""
    values = next((curves[name] for name in SCORE_COLUMNS if name in curves), [math.nan] * len(curves["step"]))
    points = [(s, v) for s, v in zip(curves["step"], values, strict=True) if math.isfinite(s + v)]
    return [step for step, _ in points], [score for _, score in points]


def render_report(found: Results, *, title: str) -> str:
    """The page as HTML text."""
    environment = Environment(
        loader=PackageLoader("cyclegrpo.explorer", "."), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    curve, curve_note = _curve(found.curves)
    num_steps = int(max(filter(math.isfinite, found.curves["step"]), default=0))
    return environment.get_template("report.html.j2").render(
        title=title,
        scenes=scenes(found.metrics),
        paragraphs=make_paragraphs(found.metrics, num_steps, with_captions=curve is not None),
        tiles=make_tiles(found.metrics),
        curve=curve,
        curve_note=curve_note,
        sparks=_sparks(found.curves),
        rows=[row for spec in ROWS for row in _table_rows(spec, found.metrics)],
        table_note=table_note(found.metrics),
        examples=[_example(f"picture-{i}", example) for i, example in enumerate(found.examples["examples"])],
        examples_note=examples_note(found.examples),
        footer="Made by cyclegrpo from results/train and results/evaluate; all numbers: results/evaluate/metrics.json.",
    )


def _curve(curves: Mapping[str, Sequence[float]]) -> tuple[Markup | None, str]:
    """The drawing and what it shows; nothing where no step has a cycle score."""
    steps, scores = cycle_curve(curves)
    if not steps:
        return None, ""
    label = f"Cycle score over {len(steps)} steps, from {scores[0]:.2f} to {scores[-1]:.2f}"
    note = (
        "Mean overlap of the regions located from sampled captions with the regions described, on each step's training "
        "batch: dots are steps, the line is their moving average."
    )
    return Markup(curve_svg(steps, scores, label=label)), note


def _sparks(curves: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    sparks = []
    for column, label in SPARKS.items():
        values = [v for v in curves.get(column, ()) if math.isfinite(v)]
        if len(values) > 1:
            num_ends = max(1, min(ENDS, len(values) // 2))
            ends = " to ".join(f"{sum(part) / num_ends:.3g}" for part in (values[:num_ends], values[-num_ends:]))
            drawing = Markup(sparkline_svg(values, label=f"{label}: {ends}"))
            of = f" (means of {num_ends} steps)" if num_ends > 1 else ""
            sparks.append({"label": label, "drawing": drawing, "range": ends + of})
    return sparks


def _table_rows(spec: Row, metrics: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The line of a metric, and those of its other forms if there are any; none where the metric is missing."""
    rows = []
    for suffix, label in ("", spec.label), *FORMS.items():
        name = spec.metric + suffix
        before, after = metrics["before"].get(name), metrics["after"].get(name)
        if before is None or after is None:
            continue
        row = {
            "label": label.format(metrics.get("temperature", 1.0)),
            "hint": "" if suffix else spec.hint,
            "sub": bool(suffix),
            "drawing": ""
            if spec.unit == "count"
            else Markup(change_svg(before, after, label=f"{before:.2f} to {after:.2f}")),
            "verdict": _verdict(spec, metrics["change"].get(name), metrics["change"].get(f"{name}_se")),
        }
        for column in ("before", "after", "change"):
            numbers = metrics[column]
            row[column] = _shown(numbers.get(name), spec.unit, signed=column == "change")
            row[f"{column}_se"] = _shown(numbers.get(f"{name}_se"), spec.unit, error=True)
        rows.append(row)
    return rows


def _verdict(spec: Row, change: float | None, error: float | None) -> str:
    """`good` or `bad` where the change is beyond two standard errors, else nothing."""
    if spec.better is None or change is None or error is None or abs(change) <= 2 * error:
        return ""
    return "good" if (change > 0) == (spec.better == "up") else "bad"


def _shown(value: float | None, unit: str, *, signed: bool = False, error: bool = False) -> str:
    """The number as the table shows it, with a true minus sign; "" for None."""
    if value is None:
        return ""
    sign = "+" if signed else ""
    if unit == "share":
        text = f"{100 * value:{sign}.1f}" + ("" if error else " pt" if signed else " %")
    else:
        text = f"{value:{sign}.{3 if unit == 'iou' else 2}f}"
    return text.replace("-", "\u2212")


def _example(element_id: str, example: Mapping[str, Any]) -> dict[str, Any]:
    height, width = example["height"], example["width"]
    policies = []
    for role, title in (("before", "before"), ("after", "after")):
        said = example[role]
        iou = said["iou"]
        policies.append(
            {
                "role": role,
                "title": title,
                "caption": said["caption"],
                "iou": f"{iou:.2f}",
                "grade": "hit" if iou >= HIT_IOU else "miss" if iou < MISS_IOU else "part",
                "path": region_to_svg_path(said["found"], height, width),
                "aria": f"{title}: {said['caption']}; IoU {iou:.2f}",
            }
        )
    return {
        "id": element_id,
        "picture": example["picture"],
        "height": height,
        "width": width,
        "pixelated": max(height, width) < PIXELATED_BELOW_PX,
        "target_path": region_to_svg_path(example["target"], height, width),
        "policies": policies,
    }


def region_to_svg_path(region: Any, height: int, width: int) -> str:
    """The outline of a region as examples.json holds it (an RLE, boxes in 0..1000, or None) as SVG path data."""
    if region is None:
        return ""
    if isinstance(region, Mapping):
        return mask_to_svg_path(rle_to_mask(region))
    return boxes_to_svg_path(region, height, width)


def _read_json(path: Path, keys: Sequence[str]) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError("no such file; run the evaluate stage first", file=path) from None
    except ValueError as error:
        raise DataError(f"is not JSON: {error}; run the evaluate stage again", file=path) from error
    missing = [key for key in keys if key not in content]
    if missing:
        raise DataError(f"has no {', '.join(missing)}; run the evaluate stage again", file=path)
    return dict(content)


def _number(cell: str | None) -> float:
    try:
        return float(cell) if cell else math.nan
    except ValueError:
        return math.nan
