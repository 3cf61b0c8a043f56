"""Advantages: hand-computed, finite for whatever comes in, zero where nothing can be learned."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cyclegrpo.rewards.advantages import dead_groups, group_advantages

NAN = float("nan")


def test_scaled_by_the_group() -> None:
    """Mean 2, sample standard deviation sqrt((1 + 0 + 1) / 2) = 1."""
    assert group_advantages([[1.0, 2.0, 3.0]]).tolist() == [pytest.approx([-1, 0, 1], abs=1e-5)]


def test_scaled_by_the_batch() -> None:
    """All six: mean 2, squares 1 0 1 4 0 4, sample variance 10 / 5 = 2."""
    advantages = group_advantages([[1.0, 2.0, 3.0], [0.0, 2.0, 4.0]], "batch")
    expected = np.array([[-1, 0, 1], [-2, 0, 2]]) / math.sqrt(2)
    assert advantages == pytest.approx(expected, abs=1e-5)


def test_missing_rewards_change_nothing_for_the_others() -> None:
    for missing in (None, NAN, math.inf, -math.inf):
        advantages = group_advantages([[1.0, missing, 0.0, 0.5]])
        assert advantages[0] == pytest.approx([1, 0, -1, 0], abs=1e-5)
    batch = group_advantages([[1.0, None, 3.0], [None, None, None]], "batch")
    assert batch == pytest.approx(np.array([[-1, 0, 1], [0, 0, 0]]) / math.sqrt(2), abs=1e-5)


@pytest.mark.parametrize("scale", ["group", "batch"])
@pytest.mark.parametrize(
    "group",
    [[1, 1, 1, 1], [0, 0, 0, 0], [None] * 4, [None, 0.5, None, None], [0.1, 0.1, 0.1, NAN], [7.3] * 4],
)
def test_a_group_that_teaches_nothing_gets_exactly_zero(
    scale: Literal["group", "batch"], group: list[float | None]
) -> None:
    advantages = group_advantages([group, [0.0, 1.0, 2.0, 3.0]], scale)
    assert advantages[0].tolist() == [0.0] * 4
    assert advantages[1, 3] > 0
    assert dead_groups([group, [0.0, 1.0, 2.0, 3.0]]).tolist() == [True, False]


def test_batches_without_any_reward() -> None:
    assert group_advantages([[None, None]], "batch").tolist() == [[0.0, 0.0]]
    assert group_advantages(np.zeros((0, 4))).shape == (0, 4)
    assert dead_groups(np.zeros((2, 0))).tolist() == [True, True]


def test_wrong_use_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(groups, size\)"):
        group_advantages([1.0, 2.0])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="'group' or 'batch'"):
        group_advantages([[1.0]], "all")  # type: ignore[arg-type]


rewards = hnp.arrays(
    np.float64, st.tuples(st.integers(1, 4), st.integers(1, 6)), elements=st.floats(0, 12) | st.just(NAN)
)


@given(rewards, st.sampled_from(["group", "batch"]))
def test_advantages_are_finite_and_sum_to_zero(values: np.ndarray, scale: Literal["group", "batch"]) -> None:
    advantages = group_advantages(values, scale)
    assert np.isfinite(advantages).all()
    assert (advantages[np.isnan(values)] == 0).all()
    assert np.abs(advantages.sum(axis=1)).max() < 1e-6
