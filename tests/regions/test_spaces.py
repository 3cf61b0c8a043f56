"""The prompts, byte for byte, and the spaces behind one interface."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np
import pytest

from cyclegrpo.regions.spaces import BOX, MASK, RegionSpace, join_regions, space

T1, T2, T3 = (MASK.format((code, code)) for code in (1, 2, 3))
Z1, Z3 = (MASK.format((code, 0)) for code in (101, 103))


def test_mask_row_of_three_regions_two_of_them_with_a_crop() -> None:
    assert MASK.describe_row([T1, T2, T3], [Z1, None, Z3]) == (
        f"<image>\nCould you please give me a detailed description of the following regions? {T1}, {T2}, and {T3}. "
        "Please respond with interleaved segmentation masks for the corresponding parts of the answer."
        f" Zoom in on {T1} with the perspective as <image>, {Z1}."
        f" Zoom in on {T3} with the perspective as <image>, {Z3}."
    )


def test_mask_rows_of_one_and_two_regions() -> None:
    assert f"regions? {T1}. Please" in MASK.describe_row([T1], [None])
    assert f"regions? {T1} and {T2}. Please" in MASK.describe_row([T1, T2], [None, None])


def test_mask_single_row_and_drawn_target() -> None:
    assert MASK.describe_single(T1) == f"<image>\nProvide a detailed description of this region {T1}."
    assert MASK.describe_single(T1, Z1).endswith(f"region {T1}. Zoom in with the perspective as <image>, {Z1}.")
    drawn = f"<image>\nCould you please give me a detailed description of the following region? {T1}."
    assert MASK.describe(T1) == drawn
    assert MASK.describe(T1, Z1) == f"{drawn} Zoom in on {T1} with the perspective as <image>, {Z1}."


def test_box_prompts() -> None:
    asked = "<image>\nGiven a detailed description of the region at bounding box [1, 2, 3, 4]."
    assert BOX.describe("[1, 2, 3, 4]") == asked
    assert BOX.describe("[1, 2, 3, 4]", "") == (
        asked + " Zoom in with the perspective as<image>, give a detailed description of this cropped region."
    )


@pytest.mark.parametrize(
    ("region_space", "digest"),
    [
        (MASK, "405da8b850ee9f55"),
        (BOX, "44d084899f1a8ac4"),
    ],
)
def test_locate_templates_are_the_public_ones(region_space: RegionSpace, digest: str) -> None:
    """Compared once with the published text; the digest holds line breaks and the eight leading spaces."""
    template = region_space.locate_template
    assert hashlib.sha256(template.encode()).hexdigest()[:16] == digest
    assert template.split("\n")[2] == "        {description}"


def test_locate_takes_any_text_as_it_is() -> None:
    text = "a {region} of {description} and {0}"
    assert f"\n        {text}\n" in MASK.locate(text)
    assert BOX.locate("a dog").count("<image>") == 1


def test_answers() -> None:
    assert MASK.answer([T1, T2]) == f"<answer>{T1}, {T2}</answer>"
    assert MASK.answer([]) == "<answer>No target.</answer>"
    assert MASK.parse(MASK.answer([T1, T2])).regions == [(1, 1), (2, 2)]
    assert MASK.parse(MASK.answer([])).explicit_empty


def test_format_parse_and_overlap_of_both_spaces() -> None:
    assert MASK.parse(MASK.format((12, 44))).regions == [(12, 44)]
    assert BOX.parse(BOX.format((12.7, 30, 400, 500))).regions == [(12, 30, 400, 500)]
    assert BOX.parse("[1, 2, 3]").flags == ("malformed",)
    assert BOX.overlap([(0, 0, 4, 2)], [(0, 0, 4, 4)]) == 0.5
    assert MASK.overlap([np.ones((2, 2), bool)], [np.eye(2, dtype=bool)]) == 0.5


@pytest.mark.parametrize(
    ("field", "template", "message"),
    [
        ("locate_template", "<image>\nFind it.", "0 times"),
        ("locate_template", "<image>{description}{description}", "2 times"),
        ("locate_template", "{description}", "<image> exactly once"),
        ("describe_template", "<image>\nWhat is {description}?", "0 times"),
        ("row_template", "<image><image>{region}", "<image> exactly once"),
        ("single_template", "{region}", "<image> exactly once"),
        ("zoom_template", " {region} {crop}.", "<image> exactly once"),
        ("row_zoom_template", " <image> {crop} {crop}", "twice"),
    ],
)
def test_templates_are_checked(field: str, template: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        dataclasses.replace(MASK, **{field: template})  # type: ignore[arg-type]
    assert field in str(caught.value) and "mask" in str(caught.value)


def test_a_template_can_be_overridden() -> None:
    short = dataclasses.replace(MASK, locate_template="<image>\nWhere is {description}?")
    assert short.locate("a dog") == "<image>\nWhere is a dog?"


def test_spaces_by_name() -> None:
    assert space("mask") is MASK and space("box") is BOX
    with pytest.raises(ValueError, match="expected one of mask, box"):
        space("masks")
    with pytest.raises(ValueError, match="at least one"):
        join_regions([])
