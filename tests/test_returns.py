"""Returns: by hand, against their definitions in float64 and O(T^2), and against one another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from a3c_exp.errors import ConfigError
from a3c_exp.returns import GAE, Discounted, NStep, NStepZero, Returns, Trajectory, VTrace, is_off_policy

ESTIMATORS: list[Returns] = [
    NStep(), NStep(n=1), NStep(n=3), NStepZero(n=3), GAE(lambda_=0.9), Discounted(), VTrace(lambda_=0.9, rho_clip=2.0),
]  # fmt: skip


def one_environment(
    rewards: Sequence[float],
    values: Sequence[float],
    behind: float,
    terminated: int | None = None,
    truncated: int | None = None,
    final: float = 0.0,
) -> Trajectory:
    """B = 1. behind: V(s_T). An episode ends in step `terminated`, or in step `truncated` with V(final) = `final`.

    On-policy: both log-probabilities are ln 1/2.
    """
    length = len(rewards)
    next_values = [*values[1:], behind]
    ends = np.zeros((2, length, 1), bool)
    if terminated is not None:
        ends[0, terminated], next_values[terminated] = True, 0.0
    if truncated is not None:
        ends[1, truncated], next_values[truncated] = True, final
    columns = (np.array(x, np.float32).reshape(-1, 1) for x in (rewards, values, next_values))
    log_probs = np.full((length, 1), np.log(0.5), np.float32)
    return Trajectory(*columns, *ends, log_probs, log_probs)


@st.composite
def trajectories(draw: st.DrawFn, truncations: bool = True) -> Trajectory:
    """Any mixture of episodes of any lengths; next_values as the rollout promises them."""
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
    floats = (x.astype(np.float32) for x in (rewards, values[:-1], next_values))
    behaviour, target = -rng.exponential(size=(2, *shape)).astype(np.float32)
    return Trajectory(*floats, terminated, truncated, behaviour, target)


gammas = st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0])


def column(x: NDArray[np.float32]) -> list[float]:
    return [float(y) for y in x[:, 0]]


def close(actual: NDArray[np.float32], expected: NDArray[np.floating]) -> None:
    assert actual.dtype == np.float32
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=2e-4)


# -- by hand: gamma = 1/2; rewards 1 2 3 4; values 10 20 30 40, and 50 behind them -----------------------------------

REWARDS, VALUES, BEHIND = (1, 2, 3, 4), (10, 20, 30, 40), 50


def targets(returns: Returns, **ends: float) -> list[float]:
    return column(returns(one_environment(REWARDS, VALUES, BEHIND, **ends), 0.5)[1])


def test_two_steps_then_the_critic():
    """G_0 = 1 + 2/2 + V(s_2)/4 = 1 + 1 + 7.5; the last row has only one step left, then V(s_4) = 50."""
    assert targets(NStep(n=2)) == [9.5, 13.5, 17.5, 29.0]


def test_two_steps_into_a_terminal_state_count_nothing_behind_it():
    assert targets(NStep(n=2), terminated=1) == [2.0, 2.0, 17.5, 29.0]


def test_two_steps_into_a_time_limit_count_the_final_observation():
    """V(final) = 60: 1 + 2/2 + 60/4 and 2 + 60/2."""
    assert targets(NStep(n=2), truncated=1, final=60) == [17.0, 32.0, 17.5, 29.0]


def test_an_episode_that_ends_in_the_last_row_is_not_bootstrapped():
    assert targets(NStep(n=2), terminated=3) == [9.5, 13.5, 5.0, 4.0]


def test_all_steps_of_the_rollout_then_the_critic():
    """G_3 = 4 + 50/2 = 29, G_2 = 3 + 29/2, G_1 = 2 + 17.5/2, G_0 = 1 + 10.75/2."""
    assert targets(NStep()) == [6.375, 10.75, 17.5, 29.0]
    assert targets(Discounted()) == [6.375, 10.75, 17.5, 29.0]


def test_the_discounted_return_of_a_whole_episode_has_no_critic_in_it():
    assert targets(Discounted(), terminated=3) == [3.25, 4.5, 5.0, 4.0]


def test_the_discounted_return_is_bootstrapped_at_a_time_limit():
    """V(final) = 8 stands behind the last reward."""
    assert targets(Discounted(), truncated=3, final=8) == [3.75, 5.5, 7.0, 8.0]


def test_missing_terms_as_zero_bootstrap_from_states_of_the_rollout_only():
    """s_2 and s_3 are states of the rollout; s_4 and s_5, which rows 2 and 3 would need, are not."""
    assert targets(NStepZero(n=2)) == [9.5, 13.5, 5.0, 4.0]


def test_missing_terms_as_zero_at_a_terminal_state():
    assert targets(NStepZero(n=2), terminated=1) == [2.0, 2.0, 5.0, 4.0]


def test_missing_terms_as_zero_take_a_time_limit_for_the_end():
    """The known bias: V(final) = 60 is there, and is not used."""
    assert targets(NStepZero(n=2), truncated=1, final=60) == [2.0, 2.0, 5.0, 4.0]


def test_missing_terms_as_zero_with_one_step():
    """V(s_{t+1}) for every row but the last, whose next state is no state of the rollout."""
    assert targets(NStepZero(n=1)) == [11.0, 17.0, 23.0, 4.0]


def test_missing_terms_as_zero_never_bootstrap_where_n_is_the_rollout_or_more():
    rewards_alone = [3.25, 4.5, 5.0, 4.0]
    assert targets(NStepZero(n=4)) == rewards_alone
    assert targets(NStepZero(n=100)) == rewards_alone
    assert targets(NStepZero(n=3))[0] == 1 + 2 / 2 + 3 / 4 + 40 / 8


def test_it_warns_of_an_n_that_never_bootstraps():
    assert NStepZero(n=4).warning(rollout_length=5) is None
    for n in (5, 6):
        assert f"n = {n} reaches past every rollout of 5 steps" in str(NStepZero(n=n).warning(rollout_length=5))


def test_gae_by_hand():
    """deltas 1 + 10 - 10, 2 + 15 - 20, 3 + 20 - 30, 4 + 25 - 40; gamma lambda = 1/4."""
    advantages, lambda_returns = GAE(lambda_=0.5)(one_environment(REWARDS, VALUES, BEHIND), 0.5)
    assert column(advantages) == [1 + (-3 + (-7 - 11 / 4) / 4) / 4, -3 + (-7 - 11 / 4) / 4, -7 - 11 / 4, -11.0]
    assert column(lambda_returns) == [a + v for a, v in zip(column(advantages), VALUES, strict=True)]


def test_gae_does_not_reach_across_an_episode():
    """Terminal: delta_1 = 2 - 20, and nothing of rows 2 and 3 in rows 0 and 1."""
    advantages, _ = GAE(lambda_=0.5)(one_environment(REWARDS, VALUES, BEHIND, terminated=1), 0.5)
    assert column(advantages)[:2] == [1 - 18 / 4, -18.0]


# -- against the definitions -----------------------------------------------------------------------------------------


def test_v_trace_by_hand():
    """gamma 1/2; deltas 1 + 10 - 10, 2 + 15 - 20, 3 + 20 - 30, 4 + 25 - 40; ratios 1/2, 4, 1, 1, the 4 cut to 1.

    v_2 - V = -7 - 11/2; v_1 - V = -3 + (v_2 - V)/2; v_0 - V = 1/2 (1 + (v_1 - V)/2).
    """
    x = one_environment(REWARDS, VALUES, BEHIND)
    assert x.log_probs is not None
    ratios = np.array([[0.5], [4], [1], [1]], np.float32)
    advantages, vs = VTrace()(replace(x, target_log_probs=x.log_probs + np.log(ratios)), 0.5)
    np.testing.assert_allclose(column(vs), [10 + (1 - 9.25 / 2) / 2, 20 - 9.25, 30 - 12.5, 40 - 11], rtol=1e-6)
    np.testing.assert_allclose(column(advantages), [(1 + 10.75 / 2 - 10) / 2, -9.25, -12.5, -11], rtol=1e-6)


def by_definition(x: Trajectory, row: Callable[[int, int], float]) -> NDArray[np.float64]:
    length, width = x.rewards.shape
    return np.array([[row(t, b) for b in range(width)] for t in range(length)])


def steps_there_are(x: Trajectory, t: int, b: int, n: int) -> int:
    """m: the smaller of n and the steps left from row t before the episode or the rollout ends."""
    for m in range(1, n + 1):
        if t + m == len(x.rewards) or x.ended[t + m - 1, b]:
            return m
    return n


def sum_of_rewards(x: Trajectory, gamma: float, t: int, b: int, m: int) -> float:
    return sum(gamma**k * float(x.rewards[t + k, b]) for k in range(m))


def n_step_definition(x: Trajectory, gamma: float, n: int) -> NDArray[np.float64]:
    def row(t: int, b: int) -> float:
        m = steps_there_are(x, t, b, n)
        return sum_of_rewards(x, gamma, t, b, m) + gamma**m * float(x.next_values[t + m - 1, b])

    return by_definition(x, row)


def n_step_zero_definition(x: Trajectory, gamma: float, n: int) -> NDArray[np.float64]:
    def row(t: int, b: int) -> float:
        rewards = sum_of_rewards(x, gamma, t, b, steps_there_are(x, t, b, n))
        collected = t + n < len(x.rewards) and not x.ended[t : t + n, b].any()
        return rewards + (gamma**n * float(x.values[t + n, b]) if collected else 0.0)

    return by_definition(x, row)


def gae_definition(x: Trajectory, gamma: float, lambda_: float) -> NDArray[np.float64]:
    deltas = x.rewards.astype(np.float64) + gamma * x.next_values - x.values

    def row(t: int, b: int) -> float:
        m = steps_there_are(x, t, b, len(x.rewards))
        return sum((gamma * lambda_) ** k * deltas[t + k, b] for k in range(m))

    return by_definition(x, row)


@given(trajectories(), gammas, st.integers(1, 25))
def test_n_step_is_its_definition(x: Trajectory, gamma: float, n: int):
    advantages, returns = NStep(n=n)(x, gamma)
    close(returns, n_step_definition(x, gamma, n))
    close(advantages, n_step_definition(x, gamma, n) - x.values)


@given(trajectories(), gammas, st.integers(1, 25))
def test_n_step_zero_is_its_definition(x: Trajectory, gamma: float, n: int):
    advantages, returns = NStepZero(n=n)(x, gamma)
    close(returns, n_step_zero_definition(x, gamma, n))
    close(advantages, n_step_zero_definition(x, gamma, n) - x.values)


@given(trajectories(), gammas, st.sampled_from([0.0, 0.3, 0.95, 1.0]))
def test_gae_is_its_definition(x: Trajectory, gamma: float, lambda_: float):
    advantages, returns = GAE(lambda_=lambda_)(x, gamma)
    close(advantages, gae_definition(x, gamma, lambda_))
    close(returns, gae_definition(x, gamma, lambda_) + x.values)


def v_trace_definition(
    x: Trajectory, gamma: float, lambda_: float, rho_clip: float, c_clip: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Equation 1 of Espeholt et al. 2018, a sum of products for each row; and its advantages."""
    assert x.log_probs is not None and x.target_log_probs is not None
    ratios = np.exp(x.target_log_probs.astype(np.float64) - x.log_probs)
    rho, c = np.minimum(rho_clip, ratios), lambda_ * np.minimum(c_clip, ratios)
    deltas = rho * (x.rewards.astype(np.float64) + gamma * x.next_values - x.values)

    def v(t: int, b: int) -> float:
        m = steps_there_are(x, t, b, len(x.rewards))
        terms = (gamma**k * np.prod(c[t : t + k, b]) * deltas[t + k, b] for k in range(m))
        return float(x.values[t, b] + sum(terms))

    def advantage(t: int, b: int) -> float:
        following = float(x.next_values[t, b])
        if steps_there_are(x, t, b, 2) == 2:
            following = (1 - lambda_) * following + lambda_ * v(t + 1, b)
        return float(rho[t, b] * (x.rewards[t, b] + gamma * following - x.values[t, b]))

    return by_definition(x, advantage), by_definition(x, v)


bounds = st.sampled_from([(1.0, 1.0), (2.0, 0.5), (1e6, 1e6)])


@given(trajectories(), gammas, st.sampled_from([0.0, 0.3, 0.95, 1.0]), bounds)
def test_v_trace_is_its_definition(x: Trajectory, gamma: float, lambda_: float, bound: tuple[float, float]):
    actual = VTrace(lambda_=lambda_, rho_clip=bound[0], c_clip=bound[1])(x, gamma)
    for result, expected in zip(actual, v_trace_definition(x, gamma, lambda_, *bound), strict=True):
        scale = max(1.0, np.abs(expected).max())  # products of unbounded ratios are large, and their digits as many
        np.testing.assert_allclose(result / scale, expected / scale, atol=2e-4)


def test_a_long_episode_keeps_five_digits():
    """5,000 rewards of 1 sum to (1 - gamma^m) / (1 - gamma), with m steps left and gamma as single precision has it."""
    gamma = float(np.float32(0.999))
    ones = np.ones((5000, 2), np.float32)
    ends = np.arange(5000)[:, None].repeat(2, axis=1) == 4999
    _, returns = Discounted()(Trajectory(ones, ones, 0 * ones, ends, ends & False), gamma)
    left = np.arange(5000, 0, -1)[:, None]
    np.testing.assert_allclose(returns, ((1 - gamma**left) / (1 - gamma)).repeat(2, axis=1), rtol=1e-5)


# -- against one another ---------------------------------------------------------------------------------------------


@given(trajectories(), gammas)
def test_gae_of_one_is_n_step_over_the_rollout(x: Trajectory, gamma: float):
    for one, other in zip(GAE(lambda_=1)(x, gamma), NStep()(x, gamma), strict=True):
        close(one, other)


def on_policy(x: Trajectory) -> Trajectory:
    return replace(x, target_log_probs=x.log_probs)


@given(trajectories(), gammas, st.sampled_from([0.0, 0.3, 0.95, 1.0]), bounds)
def test_v_trace_of_the_policy_that_acted_is_the_lambda_return(
    x: Trajectory, gamma: float, lambda_: float, bound: tuple[float, float]
):
    """Its advantages are those of GAE. The bounds do nothing, as long as they are at least 1."""
    rho_clip, c_clip = bound[0], max(bound[1], 1.0)
    results = VTrace(lambda_=lambda_, rho_clip=rho_clip, c_clip=c_clip)(on_policy(x), gamma)
    for one, other in zip(results, GAE(lambda_=lambda_)(x, gamma), strict=True):
        close(one, other)


@given(trajectories(), gammas)
def test_v_trace_of_the_policy_that_acted_is_n_step_over_the_rollout(x: Trajectory, gamma: float):
    for one, other in zip(VTrace()(on_policy(x), gamma), NStep()(x, gamma), strict=True):
        close(one, other)


@given(trajectories(), gammas)
def test_v_trace_learns_nothing_from_what_the_policy_would_never_do(x: Trajectory, gamma: float):
    never = replace(x, target_log_probs=np.full_like(x.rewards, -1e9))
    advantages, vs = VTrace()(never, gamma)
    assert not advantages.any()
    np.testing.assert_array_equal(vs, x.values)


def test_v_trace_stays_finite_where_the_policy_that_acted_was_nearly_certain_not_to():
    x = one_environment(REWARDS, VALUES, BEHIND)
    strange = replace(x, log_probs=np.full((4, 1), -1000, np.float32), target_log_probs=np.zeros((4, 1), np.float32))
    for result, expected in zip(VTrace()(strange, 0.5), VTrace()(x, 0.5), strict=True):
        np.testing.assert_array_equal(result, expected)


def test_only_v_trace_asks_for_the_policy_that_learns():
    assert [type(estimator) for estimator in ESTIMATORS if is_off_policy(estimator)] == [VTrace]


@given(trajectories(), gammas)
def test_gae_of_zero_is_one_step(x: Trajectory, gamma: float):
    for one, other in zip(GAE(lambda_=0)(x, gamma), NStep(n=1)(x, gamma), strict=True):
        close(one, other)


@given(trajectories(), gammas, st.integers(0, 10))
def test_an_n_past_the_rollout_is_all_of_it(x: Trajectory, gamma: float, more: int):
    _, whole = NStep()(x, gamma)
    np.testing.assert_array_equal(NStep(n=len(whole) + more)(x, gamma)[1], whole)
    np.testing.assert_array_equal(Discounted()(x, gamma)[1], whole)


@given(trajectories(truncations=False), gammas, st.integers(1, 20))
def test_both_n_steps_agree_where_no_term_is_missing(x: Trajectory, gamma: float, n: int):
    """In rows whose n steps lie inside the rollout, with terminal states (which nothing follows) as the only ends."""
    complete = len(x.rewards) - n
    if complete > 0:
        close(NStepZero(n=n)(x, gamma)[1][:complete], NStep(n=n)(x, gamma)[1][:complete])


@given(trajectories(), gammas)
def test_missing_terms_as_zero_need_no_critic_where_n_is_the_rollout(x: Trajectory, gamma: float):
    """Values only enter through the advantage."""
    n = len(x.rewards)
    blind = Trajectory(x.rewards, 0 * x.values, 0 * x.next_values, x.terminated, x.truncated)
    np.testing.assert_array_equal(NStepZero(n=n)(x, gamma)[1], NStepZero(n=n)(blind, gamma)[1])


@given(trajectories())
def test_a_perfect_critic_leaves_no_advantage(x: Trajectory):
    """Where V(s_t) is r_t + gamma V(s_{t+1}) in every row, each unbiased estimator finds the same, and advantage 0."""
    consistent, _ = NStep()(x, 0.9)
    values = consistent + x.values  # the return of the rollout is consistent by its own recursion
    next_values = np.where(x.ended, x.next_values, np.vstack([values[1:], x.next_values[-1:]])).astype(np.float32)
    perfect = replace(x, values=values, next_values=next_values)
    for estimator in (NStep(), NStep(n=1), NStep(n=3), GAE(lambda_=0.7), Discounted(), VTrace(lambda_=0.7)):
        close(estimator(perfect, 0.9)[0], np.zeros_like(values))


# -- what holds for all of them --------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
@settings(max_examples=30)
@given(x=trajectories(), gamma=gammas)
def test_environments_do_not_touch_one_another(estimator: Returns, x: Trajectory, gamma: float):
    together = estimator(x, gamma)
    for b in range(x.rewards.shape[1]):
        exclusive_folder = Trajectory(*(getattr(x, name)[:, b : b + 1] for name in Trajectory.__dataclass_fields__))
        for one, other in zip(together, estimator(exclusive_folder, gamma), strict=True):
            np.testing.assert_array_equal(one[:, b : b + 1], other)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
@settings(max_examples=30)
@given(x=trajectories(), gamma=gammas)
def test_what_follows_an_end_does_not_reach_back(estimator: Returns, x: Trajectory, gamma: float):
    """Neither another episode nor a reset row, which is no transition: whatever stands there, rows before it stay."""
    length = len(x.rewards)
    for b in range(x.rewards.shape[1]):
        for end in np.flatnonzero(x.ended[:, b]):
            later = np.arange(length)[:, None] > end
            changed = Trajectory(
                *(np.where(later, np.float32(77), y) for y in (x.rewards, x.values, x.next_values)),
                x.terminated,
                x.truncated,
                x.log_probs,
                x.target_log_probs,
            )
            for one, other in zip(estimator(x, gamma), estimator(changed, gamma), strict=True):
                np.testing.assert_array_equal(one[: end + 1, b], other[: end + 1, b])


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
@settings(max_examples=30)
@given(x=trajectories(), gamma=gammas)
def test_they_are_pure_functions(estimator: Returns, x: Trajectory, gamma: float):
    """float32 [T, B]; nothing given is changed, and nothing returned is a view of it."""
    given_arrays = [getattr(x, name) for name in Trajectory.__dataclass_fields__]
    copies = [array.copy() for array in given_arrays]
    for result in estimator(x, gamma):
        assert result.dtype == np.float32
        assert result.shape == x.rewards.shape
        assert not any(np.shares_memory(result, array) for array in given_arrays)
    for array, copy in zip(given_arrays, copies, strict=True):
        np.testing.assert_array_equal(array, copy)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
def test_a_rollout_may_be_a_single_step(estimator: Returns):
    advantages, returns = estimator(one_environment([1], [10], 50), 0.5)
    assert column(returns) == ([1.0] if isinstance(estimator, NStepZero) else [26.0])
    assert column(advantages) == [returns[0, 0] - 10]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
def test_they_are_returns(estimator: Returns):
    assert isinstance(estimator, Returns)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: NStep(n=0), "n = 0: must be a whole number >= 1, or null for the whole rollout"),
        (lambda: NStepZero(n=0), "n = 0: must be a whole number >= 1"),
        (lambda: GAE(lambda_=1.5), "lambda_ = 1.5: must be a number from 0 to 1"),
        (lambda: GAE(lambda_=float("nan")), "lambda_ = nan: must be a number from 0 to 1"),
        (lambda: VTrace(lambda_=-0.1), "lambda_ = -0.1: must be a number from 0 to 1"),
        (lambda: VTrace(rho_clip=0.0), "rho_clip = 0.0: must be a number > 0"),
        (lambda: VTrace(c_clip=2.0), "c_clip = 2.0: must be a number > 0, and at most rho_clip"),
    ],
)
def test_settings_out_of_range_are_refused(build: Callable[[], Returns], message: str):
    with pytest.raises(ConfigError) as error:
        build()
    assert str(error.value) == message
