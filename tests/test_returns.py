"""Returns: by hand, against their definitions in float64 and O(T^2), and against one another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from a3c_exp.common.arrays import Array, Floats
from a3c_exp.returns import GAE, Discounted, NStep, NStepZero, Retrace, Returns, Trajectory, VTrace

REWARDS = (1, 2, 3, 4)
VALUES = (10, 20, 30, 40)
LAST = 50


def one_environment(
    rewards: Sequence[float],
    values: Sequence[float],
    last: float,
    terminated: int | None = None,
    truncated: int | None = None,
    final: float = 0.0,
) -> Trajectory:
    """B = 1. last: V(s_T). An episode ends in step `terminated`, or in step `truncated` with
    V(final) = `final`.

    On-policy: both log-probabilities are ln 1/2.
    """
    next_values = [*values[1:], last]
    ends = np.zeros((2, len(rewards), 1), bool)
    if terminated is not None:
        ends[0, terminated], next_values[terminated] = True, 0.0
    if truncated is not None:
        ends[1, truncated], next_values[truncated] = True, final
    r, v, next_v = (
        np.array(numbers, np.float32).reshape(-1, 1) for numbers in (rewards, values, next_values)
    )
    log_probs = np.full(ends[0].shape, np.log(0.5), np.float32)
    return Trajectory(r, v, next_v, ends[0], ends[1], log_probs, log_probs)


@st.composite
def trajectories(draw: st.DrawFn, truncations: bool = True) -> Trajectory:
    """Any mixture of episodes of any lengths, with next_values as a rollout has them."""
    length = draw(st.integers(1, 20))
    width = draw(st.integers(1, 3))
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
    r, v, next_v = (numbers.astype(np.float32) for numbers in (rewards, values[:-1], next_values))
    action_values = rng.normal(scale=3, size=shape).astype(np.float32)
    return Trajectory(
        r, v, next_v, terminated, truncated, log_probs, target_log_probs, action_values
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


ESTIMATORS: list[Returns] = [
    NStep(),
    NStep(n=1),
    NStep(n=3),
    NStepZero(n=3),
    GAE(lambda_=0.9),
    Discounted(),
    Discounted(baseline=False),
    VTrace(lambda_=0.9, rho_clip=2.0),
    Retrace(lambda_=0.9),
]


# -- by hand: gamma = 1/2; rewards 1 2 3 4; values 10 20 30 40, and 50 after them
# ------------------------------------


@pytest.mark.parametrize(
    ("returns", "ends", "expected"),
    [
        # G_0 = 1 + 2/2 + V(s_2)/4 = 1 + 1 + 7.5; the last row has only one step left, then V(s_4) =
        # 50.
        (NStep(n=2), {}, [9.5, 13.5, 17.5, 29.0]),
        (NStep(n=2), {"terminated": 1}, [2.0, 2.0, 17.5, 29.0]),
        # V(final) = 60: 1 + 2/2 + 60/4 and 2 + 60/2.
        (NStep(n=2), {"truncated": 1, "final": 60}, [17.0, 32.0, 17.5, 29.0]),
        # G_3 = 4 + 50/2 = 29, G_2 = 3 + 29/2, G_1 = 2 + 17.5/2, G_0 = 1 + 10.75/2.
        (NStep(), {}, [6.375, 10.75, 17.5, 29.0]),
        (Discounted(), {"terminated": 3}, [3.25, 4.5, 5.0, 4.0]),
        (Discounted(), {"truncated": 3, "final": 8}, [3.75, 5.5, 7.0, 8.0]),
        # s_2 and s_3 are states of the rollout; s_4 and s_5, which rows 2 and 3 would need, are
        # not.
        (NStepZero(n=2), {}, [9.5, 13.5, 5.0, 4.0]),
        # The known bias: V(final) = 60 is known and not used.
        (NStepZero(n=2), {"truncated": 1, "final": 60}, [2.0, 2.0, 5.0, 4.0]),
    ],
    ids=str,
)
def test_targets_by_hand(returns: Returns, ends: dict[str, Any], expected: list[float]) -> None:
    assert column(returns(one_environment(REWARDS, VALUES, LAST, **ends), 0.5)[1]) == expected


def test_reinforce_has_no_baseline() -> None:
    x = one_environment(REWARDS, VALUES, LAST, terminated=3)
    advantages, targets = Discounted(baseline=False)(x, 0.5)
    assert column(advantages) == column(targets) == [3.25, 4.5, 5.0, 4.0]


@pytest.mark.parametrize(
    ("returns", "expected"),
    [(NStepZero(n=2), [10, 17, 24, 11, 4]), (NStep(n=2), [10, 17, 24, 51, 24])],
)
def test_targets_of_the_worked_example_of_the_threaded_notebooks(
    returns: Returns, expected: list[float]
) -> None:
    """Two rewards and V(s_{t+2}), with gamma = 2: 0 + 2 * 1 + 4 * 2 = 10. The last two rows have
    fewer terms: 3 + 2 * 4 = 11, and with V(s_5) = 10 also 11 + 4 * 10 = 51."""
    numbers = range(5)
    assert column(returns(one_environment(numbers, numbers, last=10), gamma=2)[1]) == expected


# -- against the definitions
# -----------------------------------------------------------------------------------------


def sum_of_rewards(x: Trajectory, gamma: float, t: int, b: int, m: int) -> float:
    return sum(gamma**k * float(x.rewards[t + k, b]) for k in range(m))


def n_step_definition(x: Trajectory, gamma: float, n: int) -> NDArray[np.float64]:
    def row(t: int, b: int) -> float:
        m = steps_left(x, t, b, n)
        return sum_of_rewards(x, gamma, t, b, m) + gamma**m * float(x.next_values[t + m - 1, b])

    return by_definition(x, row)


def n_step_zero_definition(x: Trajectory, gamma: float, n: int) -> NDArray[np.float64]:
    def row(t: int, b: int) -> float:
        rewards = sum_of_rewards(x, gamma, t, b, steps_left(x, t, b, n))
        collected = t + n < len(x.rewards) and not x.ended[t : t + n, b].any()
        return rewards + (gamma**n * float(x.values[t + n, b]) if collected else 0.0)

    return by_definition(x, row)


def gae_definition(x: Trajectory, gamma: float, lambda_: float) -> NDArray[np.float64]:
    deltas = x.rewards.astype(np.float64) + gamma * x.next_values - x.values

    def row(t: int, b: int) -> float:
        m = steps_left(x, t, b, len(x.rewards))
        return float(sum((gamma * lambda_) ** k * deltas[t + k, b] for k in range(m)))

    return by_definition(x, row)


@given(trajectories(), gammas, st.integers(1, 25))
def test_n_step_is_its_definition(x: Trajectory, gamma: float, n: int) -> None:
    advantages, returns = NStep(n=n)(x, gamma)
    close(returns, n_step_definition(x, gamma, n))
    close(advantages, n_step_definition(x, gamma, n) - x.values)


@given(trajectories(), gammas, st.integers(1, 25))
def test_n_step_zero_is_its_definition(x: Trajectory, gamma: float, n: int) -> None:
    advantages, returns = NStepZero(n=n)(x, gamma)
    close(returns, n_step_zero_definition(x, gamma, n))
    close(advantages, n_step_zero_definition(x, gamma, n) - x.values)


@given(trajectories(), gammas, st.sampled_from([0.0, 0.3, 0.95, 1.0]))
def test_gae_is_its_definition(x: Trajectory, gamma: float, lambda_: float) -> None:
    advantages, returns = GAE(lambda_=lambda_)(x, gamma)
    close(advantages, gae_definition(x, gamma, lambda_))
    close(returns, gae_definition(x, gamma, lambda_) + x.values)


def test_a_long_episode_keeps_five_digits() -> None:
    """5,000 rewards of 1 sum to (1 - gamma^m) / (1 - gamma), with m steps left and gamma as single
    precision has it."""
    gamma = float(np.float32(0.999))
    ones = np.ones((5000, 2), np.float32)
    ends = np.arange(5000)[:, None].repeat(2, axis=1) == 4999
    _, returns = Discounted()(Trajectory(ones, ones, 0 * ones, ends, ends & False), gamma)
    left = np.arange(5000, 0, -1)[:, None]
    np.testing.assert_allclose(
        returns, ((1 - gamma**left) / (1 - gamma)).repeat(2, axis=1), rtol=1e-5
    )


# -- against one another
# ---------------------------------------------------------------------------------------------


@given(trajectories(), gammas, st.integers(0, 10))
def test_an_n_past_the_rollout_is_all_of_it(x: Trajectory, gamma: float, more: int) -> None:
    _, full_returns = NStep()(x, gamma)
    np.testing.assert_array_equal(NStep(n=len(full_returns) + more)(x, gamma)[1], full_returns)
    np.testing.assert_array_equal(Discounted()(x, gamma)[1], full_returns)


# -- what holds for all of them
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
@settings(max_examples=30)
@given(x=trajectories(), gamma=gammas)
def test_they_are_pure_functions(estimator: Returns, x: Trajectory, gamma: float) -> None:
    """The results are float32 [T, B] and no views of the arguments, which do not change."""
    arguments = list(columns(x).values())
    copies = [array.copy() for array in arguments]
    for result in estimator(x, gamma):
        assert result.dtype == np.float32
        assert result.shape == x.rewards.shape
        assert not any(np.shares_memory(result, array) for array in arguments)
    for array, copy in zip(arguments, copies, strict=True):
        np.testing.assert_array_equal(array, copy)


# -- v-trace
# --------------------------------------------------------------------------------------------------


def v_trace_definition(
    x: Trajectory, gamma: float, lambda_: float, rho_clip: float, c_clip: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Equation 1 of Espeholt et al. 2018, a sum of products for each row; and its advantages."""
    assert x.log_probs is not None and x.target_log_probs is not None
    ratios = np.exp(x.target_log_probs.astype(np.float64) - x.log_probs)
    rho = np.minimum(rho_clip, ratios)
    c = lambda_ * np.minimum(c_clip, ratios)
    deltas = rho * (x.rewards.astype(np.float64) + gamma * x.next_values - x.values)

    def v(t: int, b: int) -> float:
        m = steps_left(x, t, b, len(x.rewards))
        terms = (gamma**k * np.prod(c[t : t + k, b]) * deltas[t + k, b] for k in range(m))
        return float(x.values[t, b] + sum(terms))

    def advantage(t: int, b: int) -> float:
        following = float(x.next_values[t, b])
        if steps_left(x, t, b, 2) == 2:
            following = (1 - lambda_) * following + lambda_ * v(t + 1, b)
        return float(rho[t, b] * (x.rewards[t, b] + gamma * following - x.values[t, b]))

    return by_definition(x, advantage), by_definition(x, v)


bounds = st.sampled_from([(1.0, 1.0), (2.0, 0.5), (1e6, 1e6)])


@given(trajectories(), gammas, st.sampled_from([0.0, 0.3, 0.95, 1.0]), bounds)
def test_v_trace_is_its_definition(
    x: Trajectory, gamma: float, lambda_: float, bound: tuple[float, float]
) -> None:
    actual = VTrace(lambda_=lambda_, rho_clip=bound[0], c_clip=bound[1])(x, gamma)
    for result, expected in zip(actual, v_trace_definition(x, gamma, lambda_, *bound), strict=True):
        # products of unbounded ratios are large, and their digits as many
        scale = max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(result / scale, expected / scale, atol=2e-4)


def test_v_trace_stays_finite_where_the_policy_that_acted_was_nearly_certain_not_to() -> None:
    x = one_environment(REWARDS, VALUES, LAST)
    strange = replace(
        x,
        log_probs=np.full((4, 1), -1000, np.float32),
        target_log_probs=np.zeros((4, 1), np.float32),
    )
    for result, expected in zip(VTrace()(strange, 0.5), VTrace()(x, 0.5), strict=True):
        np.testing.assert_array_equal(result, expected)
