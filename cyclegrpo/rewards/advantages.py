"""Advantages of GRPO: rewards made comparable within their group; always finite, exactly 0 where nothing is learned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

Rewards = Sequence[Sequence[float | None]] | np.ndarray


def group_advantages(rewards: Rewards, scale: Literal["group", "batch"] = "group", *, eps: float = 1e-6) -> np.ndarray:
    """`(reward - mean of its group) / (standard deviation + eps)`, float64 of shape (groups, size).

    Args:
        rewards: (groups, size). None, NaN and infinity are missing: they change nothing for the others and get 0.
        scale: whose sample standard deviation divides: the group's, or that of all rewards of the batch.
        eps: keeps small deviations from blowing up.

    A group whose present rewards are all equal, or that has fewer than two, gets exactly 0 (`dead_groups`).

    >>> group_advantages([[1.0, None, 0.0, 0.5], [1.0, 1.0, 1.0, 1.0]]).round(3).tolist()
    [[1.0, 0.0, -1.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
    """
    if scale not in ("group", "batch"):
        raise ValueError(f"scale is {scale!r}; expected 'group' or 'batch'.")
    values, present = _present(rewards)
    num_present = present.sum(axis=1, keepdims=True)
    centred = np.where(present, values - values.sum(axis=1, keepdims=True) / np.maximum(num_present, 1), 0.0)
    if scale == "group":
        variance = (centred**2).sum(axis=1, keepdims=True) / np.maximum(num_present - 1, 1)
        deviation = np.sqrt(variance)
    else:
        deviation = np.full((len(values), 1), values[present].std(ddof=1) if present.sum() > 1 else 0.0)
    advantages = centred / (deviation + eps)
    advantages[dead_groups(rewards)] = 0.0
    return advantages


def dead_groups(rewards: Rewards) -> np.ndarray:
    """Which groups teach nothing, as bool array (groups,): all present rewards equal, or fewer than two present.

    Their share is the main sign of a stalled run.

    >>> dead_groups([[1, 1, 1], [0, 1, 1], [None, None, None]]).tolist()
    [True, False, True]
    """
    values, present = _present(rewards)
    highest = np.where(present, values, -np.inf).max(axis=1, initial=-np.inf)
    lowest = np.where(present, values, np.inf).min(axis=1, initial=np.inf)
    return highest <= lowest


def _present(rewards: Rewards) -> tuple[np.ndarray, np.ndarray]:
    """Rewards with 0 for missing ones, and where there is one; both (groups, size)."""
    values = np.array(rewards, dtype=np.float64)  # None becomes NaN
    if values.ndim != 2:
        raise ValueError(f"rewards have shape {values.shape}; expected (groups, size).")
    present = np.isfinite(values)
    return np.where(present, values, 0.0), present
