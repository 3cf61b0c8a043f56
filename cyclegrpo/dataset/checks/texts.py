"""Findings in a row's texts: do prompt, answer and images tell the same story?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cyclegrpo.dataset.prompts import Problem, Zoom, parse_answer, parse_problem
from cyclegrpo.dataset.schema import CYCLE_SOURCES, GRPO_SOURCES, NO_TARGET_SOURCE, UNUSED_COLUMNS
from cyclegrpo.errors import DataError
from cyclegrpo.regions.boxes import parse_boxes
from cyclegrpo.regions.geometry import rle_to_mask
from cyclegrpo.regions.spaces import IMAGE
from cyclegrpo.regions.tokens import TOKEN_TRACE, parse_tokens

Problems = Iterator[tuple[str, str, str]]
"""(column, kind, message); all of them are errors."""


def check_values(row: Mapping[str, Any]) -> Problems:
    """Values that must be there and are not, or are there and must not be."""
    for column in ("cap_problem", "seg_answer"):
        if not row[column]:
            yield column, "no_value", f"{column} is {row[column]!r}; expected a text"
    if not row["images"] or not all(row["images"]):
        yield "images", "no_value", f"images is {row['images']!r}; expected at least one path"
    for column in UNUSED_COLUMNS:
        if row[column] is not None:
            yield column, "unused_not_null", f"{column} holds {row[column]!r:.60}; expected null, nothing reads it"
    if row["source"] not in CYCLE_SOURCES | GRPO_SOURCES:
        known = ", ".join(sorted(source for source in CYCLE_SOURCES | GRPO_SOURCES if source))
        yield "source", "unknown_source", f"source is {row['source']!r}; expected one of {known}"


def check_texts(row: Mapping[str, Any]) -> Problems:
    """Tokens, prompt grammar, answer, zoom clauses and images against each other, in a row that has all its
    values."""
    for column in ("cap_problem", "seg_answer"):
        yield from _check_spelling(row[column], column)
    num_marks = row["cap_problem"].count(IMAGE)
    if num_marks != len(row["images"]):
        message = f"the prompt has {num_marks} {IMAGE}, the row {len(row['images'])} images; expected equal numbers"
        yield "cap_problem", "image_count", message
    answer = parse_answer(row["seg_answer"])
    if answer is None:
        message = f"seg_answer is {row['seg_answer']!r:.120}; expected <answer>...</answer>"
        yield "seg_answer", "bad_answer", message
        return
    if answer == () or row["source"] == NO_TARGET_SOURCE:
        yield from _check_no_target(row, answer)
    elif row["source"] in CYCLE_SOURCES:
        yield from _check_problem(parse_problem(row["cap_problem"]), answer, row["images"])
    if row.get("target_rle") is not None:
        yield from _check_true_masks(row["target_rle"], len(answer))


def answer_codes(seg_answer: str) -> list[tuple[int, int]]:
    """The well-formed code pairs of an answer, for statistics."""
    return [(code0, code1) for code0, code1 in parse_tokens(seg_answer).codes if code1 is not None]


def _check_spelling(text: str, column: str) -> Problems:
    if TOKEN_TRACE.search(text):
        for flag in parse_tokens(text).flags:
            message = f"{column} holds mask tokens that are not well-formed ({flag.replace('_', ' ')}): {text!r:.160}"
            yield column, "malformed_token", message
    elif column == "seg_answer":
        for flag in parse_boxes(text).flags:
            yield column, "malformed_box", f"seg_answer holds a bad box ({flag.replace('_', ' ')}): {text!r:.160}"


def _check_no_target(row: Mapping[str, Any], answer: Sequence[str]) -> Problems:
    if row["source"] != NO_TARGET_SOURCE:
        message = f"the answer is No target. but source is {row['source']!r}; expected {NO_TARGET_SOURCE}"
        yield "source", "no_target_source", message
    if answer or TOKEN_TRACE.search(row["cap_problem"]):
        message = "a No target. row holds regions; expected none in prompt and answer"
        yield "seg_answer" if answer else "cap_problem", "no_target_with_regions", message
    if len(row["images"]) > 1:
        message = f"a No target. row has {len(row['images'])} images; expected 1"
        yield "images", "no_target_with_crops", message


def _check_problem(problem: Problem | None, answer: Sequence[str], images: Sequence[str]) -> Problems:
    if problem is None or problem.rest:
        message = (
            "the prompt has another form than the release's" if problem is None else f"left over: {problem.rest!r:.120}"
        )
        yield "cap_problem", "bad_prompt", f"{message}; expected a question about regions, then zoom clauses"
        return
    if problem.regions != tuple(answer):
        numbers = f"{len(answer)} regions, the prompt {len(problem.regions)}"
        message = f"the answer has {numbers}, and they are not the same; expected equal regions in the same order"
        yield "seg_answer", "answer_differs", message
    yield from _check_zooms(problem.zooms, problem.regions)
    if len(problem.zooms) > len(images) - 1:
        message = f"{len(problem.zooms)} zoom clauses but {len(images) - 1} crops; each clause needs its image"
        yield "images", "zoom_without_image", message
    if len(problem.zooms) < len(images) - 1:
        message = f"{len(images) - 1} crops but {len(problem.zooms)} zoom clauses; no clause speaks of the others"
        yield "images", "image_left_over", message


def _check_zooms(zooms: Sequence[Zoom], regions: Sequence[str]) -> Problems:
    targets = Counter(regions)
    named = [zoom.region or regions[0] for zoom in zooms]
    clauses = Counter(named)
    for region, number in clauses.items():
        if region not in targets:
            yield "cap_problem", "zoom_of_no_target", f"a zoom clause names {region}, which is no target"
        elif number > targets[region]:
            message = f"{number} zoom clauses for {region}, which is a target {targets[region]} times"
            yield "cap_problem", "zoom_twice", message
            return
    remaining = iter(regions)
    if not all(region in remaining for region in named if region in targets):
        yield "cap_problem", "zoom_order", "the zoom clauses do not follow the order of the targets"


def _check_true_masks(texts: Sequence[str], num_regions: int) -> Problems:
    if len(texts) != num_regions:
        message = f"target_rle has {len(texts)} masks, the answer {num_regions} regions; expected equal numbers"
        yield "target_rle", "mask_count", message
    for text in texts:
        try:
            mask = rle_to_mask(text)
        except DataError as error:
            yield "target_rle", "bad_mask", str(error)
            continue
        if not mask.any():
            yield "target_rle", "empty_mask", "a true mask has no pixel"
