"""V-trace: by hand, against its definition in float64, and against GAE and n-step returns where the policies agree."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from trajectories import (
    LAST,
    REWARDS,
    VALUES,
    by_definition,
    close,
    column,
    gammas,
    one_environment,
    steps_left,
    trajectories,
)

from a3c_exp.returns import GAE, Trajectory, VTrace


def test_v_trace_by_hand() -> None:
    """gamma 1/2; deltas 1 + 10 - 10, 2 + 15 - 20, 3 + 20 - 30, 4 + 25 - 40; ratios 1/2, 4, 1, 1, the 4 cut to 1.

    v_2 - V = -7 - 11/2; v_1 - V = -3 + (v_2 - V)/2; v_0 - V = 1/2 (1 + (v_1 - V)/2).
    """
    x = one_environment(REWARDS, VALUES, LAST)
    assert x.log_probs is not None
    ratios = np.array([[0.5], [4], [1], [1]], np.float32)
    advantages, vs = VTrace()(replace(x, target_log_probs=x.log_probs + np.log(ratios)), 0.5)
    np.testing.assert_allclose(column(vs), [10 + (1 - 9.25 / 2) / 2, 20 - 9.25, 30 - 12.5, 40 - 11], rtol=1e-6)
    np.testing.assert_allclose(column(advantages), [(1 + 10.75 / 2 - 10) / 2, -9.25, -12.5, -11], rtol=1e-6)


def v_trace_definition(
    x: Trajectory, gamma: float, lambda_: float, rho_clip: float, c_clip: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Equation 1 of Espeholt et al. 2018, a sum of products for each row; and its advantages."""
    assert x.log_probs is not None and x.target_log_probs is not None
    ratios = np.exp(x.target_log_probs.astype(np.float64) - x.log_probs)
    rho, c = np.minimum(rho_clip, ratios), lambda_ * np.minimum(c_clip, ratios)
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
def test_v_trace_is_its_definition(x: Trajectory, gamma: float, lambda_: float, bound: tuple[float, float]) -> None:
    actual = VTrace(lambda_=lambda_, rho_clip=bound[0], c_clip=bound[1])(x, gamma)
    for result, expected in zip(actual, v_trace_definition(x, gamma, lambda_, *bound), strict=True):
        scale = max(1.0, np.abs(expected).max())  # products of unbounded ratios are large, and their digits as many
        np.testing.assert_allclose(result / scale, expected / scale, atol=2e-4)


def on_policy(x: Trajectory) -> Trajectory:
    return replace(x, target_log_probs=x.log_probs)


@given(trajectories(), gammas, st.sampled_from([0.0, 0.3, 0.95, 1.0]), bounds)
def test_v_trace_of_the_policy_that_acted_is_the_lambda_return(
    x: Trajectory, gamma: float, lambda_: float, bound: tuple[float, float]
) -> None:
    """Its advantages are those of GAE. The bounds do nothing, as long as they are at least 1."""
    rho_clip, c_clip = bound[0], max(bound[1], 1.0)
    results = VTrace(lambda_=lambda_, rho_clip=rho_clip, c_clip=c_clip)(on_policy(x), gamma)
    for one, other in zip(results, GAE(lambda_=lambda_)(x, gamma), strict=True):
        close(one, other)


def test_v_trace_stays_finite_where_the_policy_that_acted_was_nearly_certain_not_to() -> None:
    x = one_environment(REWARDS, VALUES, LAST)
    strange = replace(x, log_probs=np.full((4, 1), -1000, np.float32), target_log_probs=np.zeros((4, 1), np.float32))
    for result, expected in zip(VTrace()(strange, 0.5), VTrace()(x, 0.5), strict=True):
        np.testing.assert_array_equal(result, expected)
