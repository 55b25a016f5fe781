"""Returns: by hand, against their definitions in float64 and O(T^2), and against one another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from trajectories import (
    LAST,
    REWARDS,
    VALUES,
    by_definition,
    close,
    column,
    columns,
    gammas,
    one_environment,
    steps_left,
    trajectories,
)

from a3c_exp.errors import ConfigError
from a3c_exp.returns import GAE, Discounted, NStep, NStepZero, Returns, Trajectory, VTrace

ESTIMATORS: list[Returns] = [
    NStep(), NStep(n=1), NStep(n=3), NStepZero(n=3), GAE(lambda_=0.9), Discounted(), VTrace(lambda_=0.9, rho_clip=2.0),
]  # fmt: skip


# -- by hand: gamma = 1/2; rewards 1 2 3 4; values 10 20 30 40, and 50 after them ------------------------------------


def targets(returns: Returns, **ends: Any) -> list[float]:
    return column(returns(one_environment(REWARDS, VALUES, LAST, **ends), 0.5)[1])


def test_two_steps_then_the_critic() -> None:
    """G_0 = 1 + 2/2 + V(s_2)/4 = 1 + 1 + 7.5; the last row has only one step left, then V(s_4) = 50."""
    assert targets(NStep(n=2)) == [9.5, 13.5, 17.5, 29.0]


def test_two_steps_into_a_terminal_state_count_nothing_after_it() -> None:
    assert targets(NStep(n=2), terminated=1) == [2.0, 2.0, 17.5, 29.0]


def test_two_steps_into_a_time_limit_count_the_final_observation() -> None:
    """V(final) = 60: 1 + 2/2 + 60/4 and 2 + 60/2."""
    assert targets(NStep(n=2), truncated=1, final=60) == [17.0, 32.0, 17.5, 29.0]


def test_an_episode_that_ends_in_the_last_row_is_not_bootstrapped() -> None:
    assert targets(NStep(n=2), terminated=3) == [9.5, 13.5, 5.0, 4.0]


def test_all_steps_of_the_rollout_then_the_critic() -> None:
    """G_3 = 4 + 50/2 = 29, G_2 = 3 + 29/2, G_1 = 2 + 17.5/2, G_0 = 1 + 10.75/2."""
    assert targets(NStep()) == [6.375, 10.75, 17.5, 29.0]
    assert targets(Discounted()) == [6.375, 10.75, 17.5, 29.0]


def test_the_discounted_return_of_a_whole_episode_has_no_critic_in_it() -> None:
    assert targets(Discounted(), terminated=3) == [3.25, 4.5, 5.0, 4.0]


def test_the_discounted_return_is_bootstrapped_at_a_time_limit() -> None:
    """V(final) = 8 follows the last reward."""
    assert targets(Discounted(), truncated=3, final=8) == [3.75, 5.5, 7.0, 8.0]


def test_missing_terms_as_zero_bootstrap_from_states_of_the_rollout_only() -> None:
    """s_2 and s_3 are states of the rollout; s_4 and s_5, which rows 2 and 3 would need, are not."""
    assert targets(NStepZero(n=2)) == [9.5, 13.5, 5.0, 4.0]


def test_the_worked_example_of_missing_terms() -> None:
    """From the post on n-step targets behind github.com/ChuaCheowHuan/reinforcement_learning: N = 2, gamma = 2."""
    example = one_environment(rewards=range(5), values=range(5), last=10)
    zero, maximum = NStepZero(n=2)(example, 2.0)[1], NStep(n=2)(example, 2.0)[1]
    assert column(zero) == [10, 17, 24, 11, 4]
    assert column(maximum) == [10, 17, 24, 51, 24]


def test_missing_terms_as_zero_at_a_terminal_state() -> None:
    assert targets(NStepZero(n=2), terminated=1) == [2.0, 2.0, 5.0, 4.0]


def test_missing_terms_as_zero_treat_a_time_limit_as_the_end() -> None:
    """The known bias: V(final) = 60 is known and not used."""
    assert targets(NStepZero(n=2), truncated=1, final=60) == [2.0, 2.0, 5.0, 4.0]


def test_missing_terms_as_zero_with_one_step() -> None:
    """V(s_{t+1}) for every row but the last, whose next state is no state of the rollout."""
    assert targets(NStepZero(n=1)) == [11.0, 17.0, 23.0, 4.0]


def test_missing_terms_as_zero_never_bootstrap_where_n_is_the_rollout_or_more() -> None:
    rewards_alone = [3.25, 4.5, 5.0, 4.0]
    assert targets(NStepZero(n=4)) == rewards_alone
    assert targets(NStepZero(n=100)) == rewards_alone
    assert targets(NStepZero(n=3))[0] == 1 + 2 / 2 + 3 / 4 + 40 / 8


def test_an_n_that_never_bootstraps_has_a_warning() -> None:
    assert NStepZero(n=4).warning(rollout_length=5) is None
    for n in (5, 6):
        assert f"n = {n} reaches past every rollout of 5 steps" in str(NStepZero(n=n).warning(rollout_length=5))


def test_gae_by_hand() -> None:
    """deltas 1 + 10 - 10, 2 + 15 - 20, 3 + 20 - 30, 4 + 25 - 40; gamma lambda = 1/4."""
    advantages, lambda_returns = GAE(lambda_=0.5)(one_environment(REWARDS, VALUES, LAST), 0.5)
    assert column(advantages) == [1 + (-3 + (-7 - 11 / 4) / 4) / 4, -3 + (-7 - 11 / 4) / 4, -7 - 11 / 4, -11.0]
    assert column(lambda_returns) == [a + v for a, v in zip(column(advantages), VALUES, strict=True)]


def test_gae_does_not_reach_across_an_episode() -> None:
    """Terminal: delta_1 = 2 - 20, and nothing of rows 2 and 3 in rows 0 and 1."""
    advantages, _ = GAE(lambda_=0.5)(one_environment(REWARDS, VALUES, LAST, terminated=1), 0.5)
    assert column(advantages)[:2] == [1 - 18 / 4, -18.0]


# -- against the definitions -----------------------------------------------------------------------------------------


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
    """5,000 rewards of 1 sum to (1 - gamma^m) / (1 - gamma), with m steps left and gamma as single precision has it."""
    gamma = float(np.float32(0.999))
    ones = np.ones((5000, 2), np.float32)
    ends = np.arange(5000)[:, None].repeat(2, axis=1) == 4999
    _, returns = Discounted()(Trajectory(ones, ones, 0 * ones, ends, ends & False), gamma)
    left = np.arange(5000, 0, -1)[:, None]
    np.testing.assert_allclose(returns, ((1 - gamma**left) / (1 - gamma)).repeat(2, axis=1), rtol=1e-5)


# -- against one another ---------------------------------------------------------------------------------------------


@given(trajectories(), gammas)
def test_gae_of_one_is_n_step_over_the_rollout(x: Trajectory, gamma: float) -> None:
    for one, other in zip(GAE(lambda_=1)(x, gamma), NStep()(x, gamma), strict=True):
        close(one, other)


def test_only_v_trace_is_off_policy() -> None:
    assert [type(estimator) for estimator in ESTIMATORS if estimator.off_policy] == [VTrace]


@given(trajectories(), gammas)
def test_gae_of_zero_is_one_step(x: Trajectory, gamma: float) -> None:
    for one, other in zip(GAE(lambda_=0)(x, gamma), NStep(n=1)(x, gamma), strict=True):
        close(one, other)


@given(trajectories(), gammas, st.integers(0, 10))
def test_an_n_past_the_rollout_is_all_of_it(x: Trajectory, gamma: float, more: int) -> None:
    _, whole = NStep()(x, gamma)
    np.testing.assert_array_equal(NStep(n=len(whole) + more)(x, gamma)[1], whole)
    np.testing.assert_array_equal(Discounted()(x, gamma)[1], whole)


@given(trajectories(truncations=False), gammas, st.integers(1, 20))
def test_both_n_steps_agree_where_no_term_is_missing(x: Trajectory, gamma: float, n: int) -> None:
    """In rows whose n steps lie inside the rollout, with terminal states (which nothing follows) as the only ends."""
    complete = len(x.rewards) - n
    if complete > 0:
        close(NStepZero(n=n)(x, gamma)[1][:complete], NStep(n=n)(x, gamma)[1][:complete])


@given(trajectories(), gammas)
def test_missing_terms_as_zero_need_no_critic_where_n_is_the_rollout(x: Trajectory, gamma: float) -> None:
    """Values only enter through the advantage."""
    n = len(x.rewards)
    blind = Trajectory(x.rewards, 0 * x.values, 0 * x.next_values, x.terminated, x.truncated)
    np.testing.assert_array_equal(NStepZero(n=n)(x, gamma)[1], NStepZero(n=n)(blind, gamma)[1])


@given(trajectories())
def test_a_perfect_critic_leaves_no_advantage(x: Trajectory) -> None:
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
def test_environments_do_not_touch_one_another(estimator: Returns, x: Trajectory, gamma: float) -> None:
    of_all = estimator(x, gamma)
    for b in range(x.rewards.shape[1]):
        single = Trajectory(**{name: column[:, b : b + 1] for name, column in columns(x).items()})
        for one, other in zip(of_all, estimator(single, gamma), strict=True):
            np.testing.assert_array_equal(one[:, b : b + 1], other)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
@settings(max_examples=30)
@given(x=trajectories(), gamma=gammas)
def test_what_follows_an_end_does_not_reach_back(estimator: Returns, x: Trajectory, gamma: float) -> None:
    """Whether another episode follows or a reset row, which is no transition: rows before the end do not change."""
    length = len(x.rewards)
    for b in range(x.rewards.shape[1]):
        for end in np.flatnonzero(x.ended[:, b]):
            later = np.arange(length)[:, None] > end
            floats = {name: columns(x)[name] for name in ("rewards", "values", "next_values")}
            changed = replace(x, **{name: np.where(later, np.float32(77), y) for name, y in floats.items()})
            for one, other in zip(estimator(x, gamma), estimator(changed, gamma), strict=True):
                np.testing.assert_array_equal(one[: end + 1, b], other[: end + 1, b])


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


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
def test_a_rollout_may_be_a_single_step(estimator: Returns) -> None:
    advantages, returns = estimator(one_environment([1], [10], 50), 0.5)
    assert column(returns) == ([1.0] if isinstance(estimator, NStepZero) else [26.0])
    assert column(advantages) == [returns[0, 0] - 10]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
def test_they_are_returns(estimator: Returns) -> None:
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
def test_settings_out_of_range_are_refused(build: Callable[[], Returns], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        build()
    assert str(error.value) == message
