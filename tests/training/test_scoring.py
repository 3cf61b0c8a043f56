"""From answers to overlaps, by hand. A code (a, b) of the tokenizer of rectangles is the square from a to a + b."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from cyclegrpo.errors import DataError
from cyclegrpo.params import Reward
from cyclegrpo.regions.rle import mask_to_rle
from cyclegrpo.regions.tokens import codes_to_token
from cyclegrpo.training.draws import Draw
from cyclegrpo.training.scoring import BoxScorer, MaskScorer
from tests.training.support import SIDE


def draw_of(*targets, masks=None, image="a.png", task="caption"):
    rles = None if masks is None else tuple(mask_to_rle(mask) for mask in masks)
    return Draw(task, "<image>", (image,), targets, rles, "data.parquet:0")


def rows(*slices):
    """A mask of whole rows of the image, bool (SIDE, SIDE)."""
    mask = np.zeros((SIDE, SIDE), bool)
    for part in slices:
        mask[part] = True
    return mask


def overlaps(scorer, answers, draws, side=SIDE):
    images = [Image.new("RGB", (side, side)) for _ in draws]
    return [score.overlap for score in scorer.score(answers, draws, images)]


SQUARE, QUARTER, ELSEWHERE = codes_to_token(0, 8), codes_to_token(0, 4), codes_to_token(50, 8)
NOWHERE = codes_to_token(200, 8)  # outside the image: a mask without pixels
FIRST_HALF = "<|mt_start|><|mt_0000|><|mt_end|>"


@pytest.mark.parametrize(
    ("answer", "targets", "iou", "tokens", "num_regions"),
    [
        (SQUARE, [SQUARE], 1.0, 1.0, 1),
        (f"<answer>{SQUARE}</answer>", [SQUARE], 1.0, 1.0, 1),
        (QUARTER, [SQUARE], 16 / 64, 0.4, 1),  # the same first code
        (ELSEWHERE, [SQUARE], 0.0, 0.0, 1),
        (SQUARE + ELSEWHERE, [SQUARE], 64 / 128, 0.5, 2),
        (SQUARE + SQUARE, [SQUARE], 1.0, 0.5, 2),
        (SQUARE, [SQUARE, ELSEWHERE], 64 / 128, 0.5, 1),
        (NOWHERE, [SQUARE], 0.0, 0.0, 1),
        (FIRST_HALF, [SQUARE], 0.0, 0.0, 0),  # nothing is repaired in training
        ("null", [SQUARE], 0.0, 0.0, 0),
        ("[0, 0, 80, 80]", [SQUARE], 0.0, 0.0, 0),
        ("No target.", [], 1.0, 1.0, 0),
        ("", [], 1.0, 1.0, 0),
        (SQUARE, [], 0.0, 0.0, 1),
        (NOWHERE, [], 0.0, 0.0, 1),
    ],
)
def test_mask_answers(rectangles, answer, targets, iou, tokens, num_regions):
    draw, image = draw_of(*targets), Image.new("RGB", (SIDE, SIDE))
    for resolution in ("image", "logits"):
        (score,) = MaskScorer(rectangles, Reward(resolution=resolution)).score([answer], [draw], [image])
        assert (score.overlap, len(score.regions)) == (iou, num_regions)
        assert score.parsed == (answer not in (FIRST_HALF, "[0, 0, 80, 80]"))
    num_decoded = rectangles.num_decoded
    (score,) = MaskScorer(rectangles, Reward(overlap="tokens")).score([answer], [draw], [image])
    assert (score.overlap, len(score.regions)) == (tokens, num_regions)
    assert rectangles.num_decoded == num_decoded  # tokens are compared as they are


def test_a_true_mask_goes_before_what_its_token_decodes_to(rectangles):
    # Rows 0..3: 384 pixels, of which the square's first four rows have 32.
    true = draw_of(SQUARE, masks=[rows(slice(0, 4))])
    decoded = draw_of(SQUARE)
    scorer = MaskScorer(rectangles, Reward(resolution="image"))
    assert overlaps(scorer, [SQUARE, SQUARE], [true, decoded]) == [32 / (384 + 64 - 32), 1.0]


def test_every_answer_is_scored_on_its_own_image(rectangles):
    """The second image is smaller, so that the square covers other shares of it."""
    small, large = draw_of(QUARTER, image="small.png"), draw_of(SQUARE, image="large.png")
    images = [Image.new("RGB", (side, side)) for side in (6, SIDE, 6)]
    scorer = MaskScorer(rectangles, Reward(resolution="image"))
    scores = scorer.score([SQUARE, QUARTER, QUARTER], [small, large, small], images)
    assert [score.overlap for score in scores] == [16 / 36, 16 / 64, 1.0]


@pytest.mark.parametrize(
    ("answer", "targets", "expected", "num_regions", "parsed"),
    [
        ("[0, 0, 100, 100]", ["[0, 0, 100, 100]"], 1.0, 1, True),
        ("[0, 0, 100, 50]", ["[0, 0, 100, 100]"], 0.5, 1, True),
        ("[0, 0, 100, 100], [200, 0, 300, 100]", ["[0, 0, 100, 100]"], 0.5, 2, True),
        ("[0, 0, 100, 100]", ["[0, 0, 100, 100]", "[200, 0, 300, 100]"], 0.5, 1, True),
        ("[100, 100, 0, 0]", ["[0, 0, 100, 100]"], 1.0, 1, True),
        ("[0.0, 0.0, 0.1, 0.1]", ["[0, 0, 100, 100]"], 0.0, 0, False),
        ("[0, 0, 100]", ["[0, 0, 100, 100]"], 0.0, 0, False),
        (SQUARE, ["[0, 0, 100, 100]"], 0.0, 0, False),
        ("null", ["[0, 0, 100, 100]"], 0.0, 0, True),
        ("No target.", [], 1.0, 0, True),
        ("[0, 0, 100, 100]", [], 0.0, 1, True),
    ],
)
def test_box_answers(answer, targets, expected, num_regions, parsed):
    (score,) = BoxScorer().score([answer], [draw_of(*targets)], [Image.new("RGB", (SIDE, SIDE))])
    assert (score.overlap, len(score.regions), score.parsed) == (expected, num_regions, parsed)


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        # One pixel high, between the centres of the cells: it covers a quarter of each of the 24 cells of cell row 1.
        # The answer is the cells 0..1 x 0..1, of which two are on the line.
        (rows(slice(5, 6)), 2 / (24 + 4 - 2)),
        # Rows 4..6 cover three quarters of the same cells, row 7 and 8 a quarter of two rows of them.
        (rows(slice(4, 7)), 2 / (24 + 4 - 2)),
        (rows(slice(7, 9)), 2 / (48 + 4 - 2)),
        # A thick region and a line: only the former fills cells.
        (rows(slice(0, 8), slice(13, 14)), 4 / 48),
        # Rows 0..5 fill the first row of cells and cover half of the second, which is not more than half.
        (rows(slice(0, 6)), 2 / (24 + 4 - 2)),
    ],
)
def test_a_true_mask_at_the_size_of_the_logits(rectangles, mask, expected):
    scorer = MaskScorer(rectangles, Reward(resolution="logits"))
    answer = codes_to_token(0, 8)
    assert overlaps(scorer, [answer], [draw_of(answer, masks=[mask])]) == [pytest.approx(expected)]


def test_images_are_encoded_once(rectangles):
    scorer = MaskScorer(rectangles, Reward(resolution="image"))
    token = codes_to_token(0, 8)
    draws = [draw_of(token, image=f"{number}.png") for number in range(40)]
    assert overlaps(scorer, [token] * 40, draws, side=9) == [1.0] * 40
    assert overlaps(scorer, [token] * 40, draws, side=9) == [1.0] * 40
    assert (rectangles.num_encoded, rectangles.num_decoded) == (40, 40)
    scorer.start_step()
    assert overlaps(scorer, [token], draws[:1], side=9) == [1.0]
    assert rectangles.num_encoded == 41  # the images of the last step are forgotten


def test_only_what_is_needed_is_encoded_and_decoded(rectangles):
    """Neither an image that no answer names a region of, nor a target whose true mask is known."""
    scorer = MaskScorer(rectangles, Reward(resolution="image"))
    true = draw_of(SQUARE, masks=[rows(slice(0, 4))])
    assert overlaps(scorer, ["null"], [true]) == [0.0]
    assert (rectangles.num_encoded, rectangles.num_decoded) == (0, 0)
    overlaps(scorer, [QUARTER], [true])
    assert (rectangles.num_encoded, rectangles.num_decoded) == (1, 1)


def test_answers_are_read_with_the_codebooks_of_the_tokenizer(rectangles):
    rectangles.config.codebook_size = 64
    scorer = MaskScorer(rectangles, Reward(resolution="image"))
    in_64, in_256 = codes_to_token(10, 20, codebook_size=64), codes_to_token(10, 20)
    ours, theirs = scorer.score([in_64, in_256], [draw_of(in_64)] * 2, [Image.new("RGB", (SIDE, SIDE))] * 2)
    assert (ours.overlap, ours.regions, ours.parsed) == (1.0, [(10, 20)], True)
    assert (theirs.overlap, theirs.regions, theirs.parsed) == (0.0, [], False)


def test_a_box_is_scored_against_the_true_mask_not_against_the_text_of_the_row():
    # Columns 1..2 of 8 and rows 2..3 of 4: 125..375 and 500..1000. The row's text has inclusive maxima.
    mask = np.zeros((4, 8), bool)
    mask[2:4, 1:3] = True
    text = "[125, 500, 250, 750]"
    known, unknown = draw_of(text, masks=[mask]), draw_of(text)
    assert overlaps(BoxScorer(), ["[125, 500, 375, 1000]", text], [known] * 2) == [1.0, 0.25]
    assert overlaps(BoxScorer(), ["[125, 500, 375, 1000]", text], [unknown] * 2) == [0.25, 1.0]


@pytest.mark.parametrize("scorer", [BoxScorer, MaskScorer])
def test_a_true_mask_without_a_pixel_is_refused_by_name(rectangles, scorer):
    scorer = scorer() if scorer is BoxScorer else scorer(rectangles, Reward())
    with pytest.raises(DataError, match=r"record data\.parquet:0: a true mask has no pixel"):
        overlaps(scorer, [""], [draw_of(codes_to_token(0, 8), masks=[rows()])])
