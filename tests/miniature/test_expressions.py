"""What expressions mean, on scenes drawn by hand, and what random ones must hold, on many drawn scenes."""

from __future__ import annotations

import numpy as np
import pytest

from miniature.expressions import (
    EXPRESSION_PROBABILITIES,
    draw_expression,
    draw_multi_target,
    draw_near_miss,
    draw_no_target,
    fitting_objects,
    plural_caption_of,
)
from miniature.scene import DIVISIONS, SIDE_PX, VOCABULARY, Scene, SceneObject, draw_scene

EMPTY = np.zeros((SIDE_PX, SIDE_PX), bool)
BY_HAND = Scene(
    np.zeros((SIDE_PX, SIDE_PX, 3), np.uint8),
    (
        SceneObject("small", "red", "circle", "top", "left", EMPTY, DIVISIONS[0]),
        SceneObject("large", "red", "circle", "top", "right", EMPTY, DIVISIONS[0]),
        SceneObject("small", "blue", "square", "bottom", "right", EMPTY, DIVISIONS[0]),
    ),
)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({}, [0, 1, 2]),
        ({"color": "red"}, [0, 1]),
        ({"size": "small"}, [0, 2]),
        ({"color": "red", "column": "right"}, [1]),
        ({"color": "green"}, []),
        ({"color": "red", "shape": "square"}, []),
    ],
)
def test_fitting_objects(words: dict[str, str], expected: list[int]) -> None:
    assert fitting_objects(words, BY_HAND) == expected


@pytest.mark.parametrize("seed", range(60))
def test_drawn_expressions_mean_what_they_say(seed: int) -> None:
    scene, rng = draw_scene(seed), np.random.default_rng(seed)
    target, words = draw_expression(scene, rng, EXPRESSION_PROBABILITIES, True)
    assert fitting_objects(words, scene) == [target]
    target, words = draw_expression(scene, rng, EXPRESSION_PROBABILITIES, False)
    assert words
    assert target in fitting_objects(words, scene)
    words = draw_no_target(scene, rng, EXPRESSION_PROBABILITIES)
    assert fitting_objects(words, scene) == []
    num_agreeing = [sum(o.word(a) == word for a, word in words.items()) for o in scene.objects]
    assert max(num_agreeing) == len(words) - 1  # true of an object but for one word


@pytest.mark.parametrize("seed", range(20))
def test_a_near_miss_differs_from_an_expression_in_one_word(seed: int) -> None:
    scene, rng = draw_scene(seed), np.random.default_rng(seed)
    target, words, missing = draw_near_miss(scene, rng, EXPRESSION_PROBABILITIES)
    assert fitting_objects(words, scene) == [target] and fitting_objects(missing, scene) == []
    assert list(words) == list(missing) and sum(words[a] != missing[a] for a in words) == 1


def read(text: str) -> list[dict[str, str]]:
    """The words of every part of an expression, read back independently of how it was spelled."""
    attribute_of = {word: a for a, words in VOCABULARY.items() for word in words}
    singular = [[word.removesuffix("s") for word in part.split()] for part in text.split(" and ")]
    return [{attribute_of[word]: word for word in part if word in attribute_of} for part in singular]


def test_multi_target_expressions_mean_exactly_their_targets() -> None:
    kinds = set()
    for seed in range(200):
        scene = draw_scene(seed)
        targets, text = draw_multi_target(scene, np.random.default_rng(seed))
        parts = [fitting_objects(words, scene) for words in read(text)]
        assert sorted(i for part in parts for i in part) == targets
        assert len(targets) >= 2
        if len(parts) == 2:
            assert [len(part) for part in parts] == [1, 1]
        else:
            assert text.startswith("both " if len(targets) == 2 else "all ")
        kinds.add(text.split()[0])
    assert kinds == {"both", "all", "the"}


def test_same_seed_same_expressions() -> None:
    first, second = (np.random.default_rng(5) for _ in range(2))
    for seed in range(10):
        scene = draw_scene(seed)
        assert draw_multi_target(scene, first) == draw_multi_target(scene, second)
        assert draw_no_target(scene, first, EXPRESSION_PROBABILITIES) == draw_no_target(
            scene, second, EXPRESSION_PROBABILITIES
        )


def test_impossible_probabilities_are_an_error_and_no_endless_loop() -> None:
    with pytest.raises(ValueError, match="raise the attribute probabilities"):
        draw_expression(BY_HAND, np.random.default_rng(0), {}, False)
    with pytest.raises(ValueError, match="at least 2 targets"):
        plural_caption_of({"color": "red"}, 1)
