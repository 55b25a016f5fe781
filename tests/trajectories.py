"""Trajectories for tests of returns, and what their definitions are written with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from a3c_exp.common.arrays import Array, Floats
from a3c_exp.returns import Trajectory

REWARDS, VALUES, LAST = (1, 2, 3, 4), (10, 20, 30, 40), 50


def one_environment(
    rewards: Sequence[float],
    values: Sequence[float],
    last: float,
    terminated: int | None = None,
    truncated: int | None = None,
    final: float = 0.0,
) -> Trajectory:
    """B = 1. last: V(s_T). An episode ends in step `terminated`, or in step `truncated` with V(final) = `final`.

    On-policy: both log-probabilities are ln 1/2.
    """
    length = len(rewards)
    next_values = [*values[1:], last]
    ends = np.zeros((2, length, 1), bool)
    if terminated is not None:
        ends[0, terminated], next_values[terminated] = True, 0.0
    if truncated is not None:
        ends[1, truncated], next_values[truncated] = True, final
    log_probs = np.full((length, 1), np.log(0.5), np.float32)
    return Trajectory(
        rewards=as_column(rewards),
        values=as_column(values),
        next_values=as_column(next_values),
        terminated=ends[0],
        truncated=ends[1],
        log_probs=log_probs,
        target_log_probs=log_probs,
    )


def as_column(numbers: Sequence[float]) -> Floats:
    return np.array(numbers, np.float32).reshape(-1, 1)


@st.composite
def trajectories(draw: st.DrawFn, truncations: bool = True) -> Trajectory:
    """Any mixture of episodes of any lengths, with next_values as a rollout has them."""
    length, width = draw(st.integers(1, 20)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shape = (length, width)
    rewards = rng.normal(scale=draw(st.sampled_from([0.0, 1.0, 10.0])), size=shape)
    values = rng.normal(scale=3, size=(length + 1, width))
    often = draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    ended = rng.random(shape) < often
    truncated = ended & (rng.random(shape) < 0.5) if truncations else np.zeros(shape, bool)
    terminated = ended & ~truncated
    finals = rng.normal(scale=3, size=shape)
    next_values = np.where(terminated, 0, np.where(truncated, finals, values[1:]))
    log_probs, target_log_probs = -rng.exponential(size=(2, *shape)).astype(np.float32)
    return Trajectory(
        rewards=rewards.astype(np.float32),
        values=values[:-1].astype(np.float32),
        next_values=next_values.astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        log_probs=log_probs,
        target_log_probs=target_log_probs,
    )


gammas = st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0])


def columns(x: Trajectory) -> dict[str, Array]:
    return {field.name: getattr(x, field.name) for field in fields(x)}


def column(x: Floats) -> list[float]:
    return [float(y) for y in x[:, 0]]


def close(actual: Floats, expected: Array) -> None:
    assert actual.dtype == np.float32
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=2e-4)


def by_definition(x: Trajectory, row: Callable[[int, int], float]) -> NDArray[np.float64]:
    length, width = x.rewards.shape
    return np.array([[row(t, b) for b in range(width)] for t in range(length)])


def steps_left(x: Trajectory, t: int, b: int, n: int) -> int:
    """m: the smaller of n and the steps left from row t before the episode or the rollout ends."""
    for m in range(1, n + 1):
        if t + m == len(x.rewards) or x.ended[t + m - 1, b]:
            return m
    return n
