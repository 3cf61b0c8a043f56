"""Scenes are a function of their seed, and the parts of their objects can be seen."""

from __future__ import annotations

import numpy as np
import pytest

from miniature.scene import DIVISIONS, draw_scene, part_mask


def test_a_seed_gives_the_same_scene_again_and_another_seed_another():
    first, again, other = draw_scene(3), draw_scene(3), draw_scene(4)
    assert np.array_equal(first.image, again.image) and not np.array_equal(first.image, other.image)
    assert [o.words for o in first.objects] == [o.words for o in again.objects]


def test_the_parts_of_an_object_are_disjoint_cover_it_and_differ_in_tone():
    seen = set()
    for seed in range(60):
        scene = draw_scene(seed)
        for scene_object in scene.objects:
            first, second = (part_mask(scene_object.mask, part) for part in scene_object.parts)
            assert not (first & second).any() and np.array_equal(first | second, scene_object.mask)
            assert min(first.sum(), second.sum()) > 0.15 * scene_object.mask.sum()
            tones = sorted(scene.image[part].mean() for part in (first, second))
            assert tones[0] < 0.8 * tones[1]
            seen.add(scene_object.parts)
    assert seen == set(DIVISIONS)


def test_objects_of_a_scene_do_not_touch():
    for seed in range(60):
        total = sum(scene_object.mask.astype(int) for scene_object in draw_scene(seed).objects)
        assert total.max() == 1


def test_a_part_of_nothing_and_an_unknown_part_are_refused():
    with pytest.raises(ValueError, match="empty"):
        part_mask(np.zeros((4, 4), bool), "left half")
    with pytest.raises(ValueError, match="unknown part 'rim'; expected one of left half, right half"):
        part_mask(np.ones((4, 4), bool), "rim")
