"""Which objects a caption fits: a scene with two red circles (one small, one large) and a small blue square."""

from __future__ import annotations

import json

import pytest

from cyclegrpo.errors import DataError
from cyclegrpo.evaluation.truth import Judgement, Truth

TRUTH = {
    "vocabulary": {
        "size": ["small", "large"],
        "color": ["red", "blue", "green"],
        "shape": ["circle", "square"],
        "row": ["top", "bottom"],
    },
    "images": {
        "a.jpg": [
            {"ann_id": 10, "words": ["small", "red", "circle", "top"]},
            {"ann_id": 11, "words": ["large", "red", "circle", "bottom"]},
            {"ann_id": 12, "words": ["small", "blue", "square", "top"]},
        ],
        "one.jpg": [{"ann_id": 20, "words": ["small", "green", "circle", "top"]}],
    },
}


@pytest.fixture
def truth(tmp_path):
    path = tmp_path / "truth.json"
    path.write_text(json.dumps(TRUTH))
    return Truth.load(path)


@pytest.mark.parametrize(
    ("caption", "true", "unambiguous"),
    [
        ("the small red circle", True, True),
        ("the red circle", True, False),
        ("The RED thing at the Top.", True, True),
        ("the large red circle", False, False),  # fits one object, the wrong one
        ("the red blue circle", False, False),  # fits nothing
        ("the green circle", False, False),  # a known word that is true of nothing here
        ("a lovely thing", True, False),  # no known word fits everything
        ("", True, False),
        ("a redsmall circle", True, False),  # words, not parts of words
        ("the small circle (red-ish)", True, True),
    ],
)
def test_caption_against_the_small_red_circle(truth, caption, true, unambiguous):
    assert truth.judge(caption, "train2014/a.jpg", 10) == Judgement(true, unambiguous)


def test_without_known_words_a_lone_object_is_told_apart(truth):
    assert truth.judge("something", "one.jpg", 20) == Judgement(true=True, unambiguous=True)


@pytest.mark.parametrize(("image", "ann_id"), [("a.jpg", 99), ("a.jpg", 20), ("b.jpg", 10), ("a.jpg", 0)])
def test_an_unknown_object_is_not_judged(truth, image, ann_id):
    assert truth.judge("the small red circle", image, ann_id) is None


def test_number_of_attributes(truth):
    assert truth.num_attributes("the small small red thing") == 2


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"vocabulary": {}, "images": {"a": [{}]}}', '{"vocabulary": 1, "images": {}}']
)
def test_another_form_is_an_error_that_names_the_file(tmp_path, content):
    path = tmp_path / "truth.json"
    path.write_text(content)
    with pytest.raises(DataError, match=r"truth\.json.*expected the keys vocabulary and images"):
        Truth.load(path)


def test_a_missing_file_is_an_error_that_says_what_to_do(tmp_path):
    with pytest.raises(DataError, match=r"evaluate\.truth"):
        Truth.load(tmp_path / "none.json")
