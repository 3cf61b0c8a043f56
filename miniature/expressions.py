"""Expressions about a scene: which objects one fits, and random ones for one target, for several, and for none.

An expression is a dict attribute -> word (`scene.VOCABULARY`); `scene.caption_of` spells it. Every draw is a pure
function of the scene and the state of the generator. Used by the `world` stage and by the cold start.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import numpy as np

from miniature.scene import VOCABULARY, Scene, caption_of

EXPRESSION_PROBABILITIES = {"size": 0.4, "color": 0.7, "shape": 0.75, "row": 0.45, "column": 0.45}
"""How often an expression that must find its object names each attribute (before it is drawn again)."""

MAX_DRAWS = 1000
PAIR_RATIO = 0.5


def fitting_objects(words: Mapping[str, str], scene: Scene) -> list[int]:
    """Indices, ascending, of the scene's objects that every word is true of; no words fit every object.

    An attribute that is not in `VOCABULARY` raises AttributeError; a word that no object has fits nothing.
    """
    return [i for i, o in enumerate(scene.objects) if all(o.word(a) == word for a, word in words.items())]


def draw_expression(
    scene: Scene, rng: np.random.Generator, probabilities: Mapping[str, float], unambiguous: bool
) -> tuple[int, dict[str, str]]:
    """A uniformly drawn object's index and at least one of its words, in the order of `VOCABULARY`.

    Each attribute is named with its probability (a missing one never). With `unambiguous` the words of that object are
    drawn again until they fit it alone. Raises ValueError where `MAX_DRAWS` draws do not get there, which happens only
    with (nearly) zero probabilities.
    """
    target = int(rng.integers(len(scene.objects)))
    return target, draw_words(scene, target, rng, probabilities, unambiguous)


def draw_caption(
    scene: Scene, target: int, rng: np.random.Generator, probabilities: Mapping[str, float]
) -> dict[str, str]:
    """Words of the object of index `target`, perhaps none (`the object`), in the order of `VOCABULARY`."""
    named = rng.random(len(VOCABULARY)) < [probabilities.get(a, 0.0) for a in VOCABULARY]
    return {a: scene.objects[target].word(a) for a, is_named in zip(VOCABULARY, named, strict=True) if is_named}


def draw_words(
    scene: Scene, target: int, rng: np.random.Generator, probabilities: Mapping[str, float], unambiguous: bool
) -> dict[str, str]:
    """At least one word of the object of index `target`, in the order of `VOCABULARY`; see `draw_expression`."""
    for _ in range(MAX_DRAWS):
        words = draw_caption(scene, target, rng, probabilities)
        if words and (not unambiguous or fitting_objects(words, scene) == [target]):
            return words
    raise ValueError(f"no expression for an object in {MAX_DRAWS} draws; raise the attribute probabilities")


def draw_near_miss(
    scene: Scene, rng: np.random.Generator, probabilities: Mapping[str, float]
) -> tuple[int, dict[str, str], dict[str, str]]:
    """A target's index, words that fit it alone, and the same with one word changed so that they fit no object.

    Raises ValueError as `draw_expression` does.
    """
    for _ in range(MAX_DRAWS):
        target, words = draw_expression(scene, rng, probabilities, True)
        attribute = list(words)[int(rng.integers(len(words)))]
        others = [word for word in VOCABULARY[attribute] if word != words[attribute]]
        missing = {**words, attribute: others[int(rng.integers(len(others)))]}
        if not fitting_objects(missing, scene):
            return target, words, missing
    raise ValueError(f"no expression without a target in {MAX_DRAWS} draws; raise the attribute probabilities")


def draw_no_target(scene: Scene, rng: np.random.Generator, probabilities: Mapping[str, float]) -> dict[str, str]:
    """Words that fit no object of the scene, though all but one are true of one object together.

    Such expressions are about as long as those with a target. Raises ValueError as `draw_expression` does.
    """
    return draw_near_miss(scene, rng, probabilities)[2]


def draw_multi_target(
    scene: Scene, rng: np.random.Generator, probabilities: Mapping[str, float] = EXPRESSION_PROBABILITIES
) -> tuple[list[int], str]:
    """Indices (ascending, at least two) and text of an expression that fits exactly those objects.

    Either one plural that two or more objects share ("both blue squares", "all red objects at the top"), where the
    scene has one, or two objects that are named one after the other ("the red circle and the small square").
    """
    plurals = _plural_expressions(scene)
    if plurals and rng.random() >= PAIR_RATIO:
        words = plurals[int(rng.integers(len(plurals)))]
        targets = fitting_objects(words, scene)
        return targets, plural_caption_of(words, len(targets))
    first, second = (int(i) for i in rng.permutation(len(scene.objects))[:2])
    texts = [caption_of(draw_words(scene, i, rng, probabilities, True)) for i in (first, second)]
    return sorted((first, second)), " and ".join(texts)


def plural_caption_of(words: Mapping[str, str], num_targets: int) -> str:
    """The expression that names the given attributes of several objects; ValueError for fewer than two.

    >>> plural_caption_of({"color": "blue", "shape": "square"}, 2)
    'both blue squares'
    >>> plural_caption_of({"size": "small", "row": "top"}, 3)
    'all small objects at the top'
    """
    if num_targets < 2:
        raise ValueError(f"a plural has at least 2 targets, not {num_targets}")
    noun = words.get("shape", "object")
    plural = caption_of({**words, "shape": f"{noun}s"})
    return plural.replace("the ", "both " if num_targets == 2 else "all ", 1)


def _plural_expressions(scene: Scene) -> list[dict[str, str]]:
    """Every set of words that two or more objects of the scene share and that names a colour or a shape, sorted."""
    shared: set[tuple[tuple[str, str], ...]] = set()
    for first, second in combinations(scene.objects, 2):
        common = [(a, first.word(a)) for a in VOCABULARY if first.word(a) == second.word(a)]
        for size in range(1, len(common) + 1):
            shared.update(c for c in combinations(common, size) if {"color", "shape"} & {a for a, _ in c})
    return [dict(words) for words in sorted(shared)]
