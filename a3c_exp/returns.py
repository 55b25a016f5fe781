"""Returns: the actor's advantages and the critic's targets.

Estimators are pure functions of time-major arrays, called with a trajectory and gamma.

All of them are one backward recursion, x_t = a_t + c_t x_{t+1}, with c_t = 0 where an episode ends
and in the last row. A step of it is the map x -> a_t + c_t x, and maps compose: two steps are x ->
(a_t + c_t a_{t+1}) + c_t c_{t+1} x. So windows of 1, 2, 4, ... steps are built from one another,
for all rows and columns at once. That takes about log2(n) passes over the arrays, and a loop over
time takes T.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

import numpy as np

from a3c_exp.common.arrays import Bools, Floats
from a3c_exp.common.ranges import Checked, Count, Positive, Share
from a3c_exp.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Input of an estimator: T steps of B environments, time first.

    rewards: float32 [T, B], r_t, as the learner sees them (scaled, clipped).
    values: float32 [T, B], V(s_t).
    next_values: float32 [T, B], V(s_{t+1}) of the same episode: 0 where it terminated, V of the
        final observation where it was truncated.
    terminated, truncated: bool [T, B], whether step t ended the episode, and how.
    log_probs: float32 [T, B], of the actions taken, by the distribution that they were drawn from.
    target_log_probs: the same by the policy that learns; None for estimators that are not
        `off_policy`.
    action_values: float32 [T, B], Q(s_t, a_t); None if the network has none.
    """

    rewards: Floats
    values: Floats
    next_values: Floats
    terminated: Bools
    truncated: Bools
    log_probs: Floats | None = None
    target_log_probs: Floats | None = None
    action_values: Floats | None = None

    @property
    def ended(self) -> Bools:
        """Return bool [T, B], whether the state after step t belongs to another episode."""
        return self.terminated | self.truncated


AnyTrajectory = TypeVar("AnyTrajectory", bound=Trajectory)


class Returns(Checked, ABC):
    """Estimates the actor's advantages and the critic's targets.

    Every estimator derives from this class, as a frozen dataclass. It keeps no state, and does not
    write into the trajectory's arrays, which may be shared memory. Rows that are no transitions
    (the reset rows of some vector environments) stand directly after an ended row, so they reach
    into no other row's result. Their own results mean nothing: the loss masks them.

    off_policy: whether it corrects for the lag between the policy that acted and the one that
        learns. Such an estimator is given the log-probabilities of both and the learner's own
        values, and its worker pulls again between a rollout and its gradient.
    needs_action_values: whether it is given the learner's action values. Only `ACER` has them.
    across_episodes: whether what comes after the end of an episode is meant to change results
        before it.
    """

    off_policy: ClassVar[bool] = False
    needs_action_values: ClassVar[bool] = False
    across_episodes: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, trajectory: Trajectory, gamma: float) -> tuple[Floats, Floats]:
        """Return the actor's advantages and the critic's targets, new arrays, float32 [T, B] each.

        trajectory: T steps of B environments.
        gamma: the discount of a step, from 0 to 1.
        """

    def warning(self, rollout_length: int) -> str | None:
        """Return a sentence about settings that do not suit rollouts of this many steps; None if
        there are none."""
        return None


def example_trajectory(estimator: Returns) -> Trajectory:
    """Make a trajectory as a run gives it to this estimator, of 6 steps of 2 environments: an
    episode terminates after step 2, another is truncated after it."""
    rng = np.random.default_rng(0)
    shape = (6, 2)
    rewards, values, next_values = rng.standard_normal((3, *shape)).astype(np.float32)
    action_values = rng.standard_normal(shape, np.float32)
    terminated, truncated = np.zeros((2, *shape), np.bool_)
    terminated[2, 0] = truncated[2, 1] = True
    next_values[:-1] = np.where(truncated[:-1], next_values[:-1], values[1:])
    next_values[terminated] = 0

    log_probs, target_log_probs = -rng.random((2, *shape), np.float32)
    return Trajectory(
        rewards,
        values,
        next_values,
        terminated,
        truncated,
        log_probs,
        target_log_probs if estimator.off_policy else None,
        action_values if estimator.needs_action_values else None,
    )


def crosses_episodes(estimator: Returns) -> bool:
    """Return whether a reward after the end of an episode changes results before it."""
    before = example_trajectory(estimator)
    rewards = before.rewards.copy()
    rewards[3:] += 1
    after = replace(before, rewards=rewards)
    advantages, targets = estimator(before, 0.9)
    changed_advantages, changed_targets = estimator(after, 0.9)
    return not (
        np.array_equal(advantages[:3], changed_advantages[:3])
        and np.array_equal(targets[:3], changed_targets[:3])
    )


def with_learner_values(
    trajectory: AnyTrajectory,
    values: Floats,
    log_probs: Floats,
    action_values: Floats | None = None,
) -> AnyTrajectory:
    """Return a trajectory with the values and log-probabilities [T, B] of the policy that learns,
    and its action values if it has them.

    After the last row and after a time limit the rollout's own values stay: those states are not in
    it.
    """
    next_values = trajectory.next_values.copy()
    same_episode = ~trajectory.ended[:-1]
    next_values[:-1][same_episode] = values[1:][same_episode]
    return replace(
        trajectory,
        values=values,
        next_values=next_values,
        target_log_probs=log_probs,
        action_values=action_values,
    )


@dataclass(frozen=True, kw_only=True)
class NStep(Returns):
    """n-step returns with as many terms as there are.

        G_t = sum_{k<m} gamma^k r_{t+k} + gamma^m V(s_{t+m})

    with m = the smaller of n and the steps left before the episode or the rollout ends, and V = 0
    after a terminal step. The advantage is G_t - V(s_t), the critic's target G_t.

    n: rewards in a return, >= 1; None: as many as the rollout has. That is the return of Mnih et
        al. 2016 (arXiv 1602.01783, algorithm S3).
    """

    n: Count | None = None

    def __call__(self, trajectory: Trajectory, gamma: float) -> tuple[Floats, Floats]:
        discounts = _discounts(trajectory, gamma)
        # Where the discount of a row is 0, its episode or the rollout ends: there is the bootstrap.
        terms = np.float32(gamma) - discounts
        terms *= trajectory.next_values
        terms += trajectory.rewards
        if self.n is None or self.n >= len(terms):
            targets = _scan_inplace(terms, discounts)
        else:
            targets = _bootstrapped(terms, discounts, trajectory.next_values, self.n)
        return targets - trajectory.values, targets


@dataclass(frozen=True, kw_only=True)
class NStepZero(Returns):
    """n-step returns in which every term that was not collected counts as zero.

    The terms are n rewards and the bootstrap after them. Terms after the last collected step are 0;
    `NStep` would bootstrap there. The states of a rollout are s_0 ... s_{T-1}; s_T and an episode's
    final observation are not among them, so

        G_t = sum_{k<m} gamma^k r_{t+k} + b_t gamma^n V(s_{t+n})

    with m as in `NStep`, and b_t = 1 where s_{t+n} is one of them and of the same episode, else 0.
    Near the end of a rollout, or of an episode that a time limit cut, the returns are too small in
    size. That is the bias of a well-known threaded implementation, kept because comparing it is the
    point.

    n: rewards in a return, >= 1.
    """

    n: Count

    def __call__(self, trajectory: Trajectory, gamma: float) -> tuple[Floats, Floats]:
        discounts = _discounts(trajectory, gamma)
        targets = _bootstrapped(trajectory.rewards, discounts, trajectory.next_values, self.n)
        return targets - trajectory.values, targets

    def warning(self, rollout_length: int) -> str | None:
        """Warn if n reaches past every rollout of this many steps."""
        if self.n < rollout_length:
            return None
        return (
            f"n = {self.n} reaches past every rollout of {rollout_length} steps: "
            "no return is ever bootstrapped from the critic"
        )


@dataclass(frozen=True, kw_only=True)
class GAE(Returns):
    """Generalised advantage estimation, Schulman et al. 2016 (arXiv 1506.02438, equations 11 and
    16).

        delta_t = r_t + gamma V(s_{t+1}) - V(s_t)
        A_t = delta_t + gamma lambda A_{t+1},  within an episode and a rollout

    The critic's target is A_t + V(s_t), the lambda-return.

    lambda_: from 0, the one-step temporal difference, to 1, n-step over the whole rollout.
    """

    lambda_: Share = 0.95

    def __call__(self, trajectory: Trajectory, gamma: float) -> tuple[Floats, Floats]:
        deltas = _temporal_differences(trajectory, gamma)
        advantages = _scan_inplace(deltas, _discounts(trajectory, gamma * self.lambda_))
        return advantages, advantages + trajectory.values


@dataclass(frozen=True, kw_only=True)
class Discounted(Returns):
    """The discounted return to the end of the episode (Monte Carlo), bootstrapped only where it was
    cut.

        G_t = r_t + gamma G_{t+1}

    starting from 0 after a terminal step, V(final observation) after a truncated one, V(s_T) after
    the last row.
    Over whole episodes (rollout_length: episode) the critic enters at time limits alone; over
    shorter rollouts this is the n-step return of the whole rollout.

    baseline: whether the advantage is G_t - V(s_t). False: it is G_t, that of REINFORCE without a
        baseline (Williams 1992).
    """

    baseline: bool = True

    def __call__(self, trajectory: Trajectory, gamma: float) -> tuple[Floats, Floats]:
        advantages, targets = NStep()(trajectory, gamma)
        return advantages if self.baseline else targets.copy(), targets


@dataclass(frozen=True, kw_only=True)
class VTrace(Returns):
    """V-trace, Espeholt et al. 2018 (arXiv 1802.01561, section 4.1): returns of a policy for which
    another one acted.

        v_t = V(s_t) + rho_t delta_t + gamma c_t (v_{t+1} - V(s_{t+1}))
        delta_t = r_t + gamma V(s_{t+1}) - V(s_t)
        rho_t = min(rho_clip, pi(a_t | s_t) / mu(a_t | s_t))
        c_t = lambda min(c_clip, pi(a_t | s_t) / mu(a_t | s_t))

    within an episode and a rollout, with pi the policy that learns and mu the one that acted. The
    critic's target is v_t, the advantage

        rho_t (r_t + gamma ((1 - lambda) V(s_{t+1}) + lambda v_{t+1}) - V(s_t))

    which is the paper's at lambda = 1. Where pi = mu this is GAE, and with lambda = 1 n-step over
    the whole rollout.

    lambda_: from 0 to 1 (the paper's remark 2).
    rho_clip: bound of rho_t, > 0. It decides which policy the values are of: pi's where nothing is
        clipped.
    c_clip: bound of c_t, > 0 and at most rho_clip. It bounds the variance.
    """

    lambda_: Share = 1.0
    rho_clip: Positive = 1.0
    c_clip: Positive = 1.0

    off_policy: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.c_clip > self.rho_clip:
            problem = "must be a number > 0, and at most rho_clip"
            raise ConfigError("c_clip", self.c_clip, problem)

    def __call__(self, trajectory: Trajectory, gamma: float) -> tuple[Floats, Floats]:
        assert trajectory.log_probs is not None and trajectory.target_log_probs is not None
        log_ratios = trajectory.target_log_probs - trajectory.log_probs
        # A ratio of e^60 is beyond any bound, and still finite in float32.
        ratios = np.exp(np.minimum(log_ratios, np.float32(60)))
        rhos = np.minimum(ratios, np.float32(self.rho_clip))
        cs = np.minimum(ratios, np.float32(self.c_clip))

        deltas = _temporal_differences(trajectory, gamma)
        discounts = _discounts(trajectory, gamma * self.lambda_)
        corrections = _scan_inplace(rhos * deltas, discounts * cs)
        deltas[:-1] += discounts[:-1] * corrections[1:]
        return rhos * deltas, corrections + trajectory.values


@dataclass(frozen=True, kw_only=True)
class Retrace(Returns):
    """Retrace(lambda), Munos et al. 2016 (arXiv 1606.02647), for a policy and its action values as
    ACER has them, Wang et al. 2017 (arXiv 1611.01224, equation 5).

        Q^ret_t = r_t + gamma (V(s_{t+1}) + c_{t+1} (Q^ret_{t+1} - Q(s_{t+1}, a_{t+1})))
        c_t = lambda min(1, pi(a_t | s_t) / mu(a_t | s_t))

    within an episode and a rollout, with V(s) = sum_a pi(a | s) Q(s, a), pi the policy that learns
    and mu the one that acted. The critic's target is Q^ret_t, the advantage Q^ret_t - V(s_t).

    lambda_: from 0, one step, to 1.
    """

    lambda_: Share = 1.0

    off_policy: ClassVar[bool] = True
    needs_action_values: ClassVar[bool] = True

    def __call__(self, trajectory: Trajectory, gamma: float) -> tuple[Floats, Floats]:
        assert trajectory.log_probs is not None and trajectory.target_log_probs is not None
        assert trajectory.action_values is not None
        log_ratios = trajectory.target_log_probs - trajectory.log_probs
        ratios = np.exp(np.minimum(log_ratios, np.float32(0)))
        discounts = _discounts(trajectory, gamma * self.lambda_)
        discounts[:-1] *= ratios[1:]

        errors = trajectory.next_values * np.float32(gamma)
        errors += trajectory.rewards
        errors -= trajectory.action_values
        targets = _scan_inplace(errors, discounts) + trajectory.action_values
        return targets - trajectory.values, targets


def _temporal_differences(trajectory: Trajectory, gamma: float) -> Floats:
    """Return delta_t = r_t + gamma V(s_{t+1}) - V(s_t), [T, B]."""
    deltas = trajectory.next_values * np.float32(gamma)
    deltas += trajectory.rewards
    deltas -= trajectory.values
    return deltas


def _discounts(trajectory: Trajectory, factor: float) -> Floats:
    """Return `factor` where row t + 1 continues the episode of row t, else 0. [T, B]"""
    discounts = np.multiply(~trajectory.ended, np.float32(factor))
    discounts[-1] = 0
    return discounts


def _scan_inplace(terms: Floats, discounts: Floats) -> Floats:
    """Solve x_t = terms[t] + discounts[t] x_{t+1}, with x = 0 after the last row. Overwrites both;
    x is in `terms`."""
    span = 1
    length = len(terms)
    while span < length:
        terms[:-span] += discounts[:-span] * terms[span:]
        if 2 * span < length:
            discounts[:-span] *= discounts[span:]
        span *= 2
    return terms


def _bootstrapped(terms: Floats, discounts: Floats, next_values: Floats, n: int) -> Floats:
    """Return the map of n steps (see the module's docstring) from every row, applied to V(s_{t+n}).
    A new array, [T, B].

    The discount of a row whose n steps reach past its episode or the rollout is 0, so no V comes
    in.
    """
    span = 1
    length = len(terms)
    n = min(n, length)
    sums = terms.copy()
    products = discounts.copy()
    for bit in bin(n)[3:]:
        sums[:-span] += products[:-span] * sums[span:]
        products[:-span] *= products[span:]
        span *= 2
        if bit == "1":
            sums[:-1] = terms[:-1] + discounts[:-1] * sums[1:]
            products[:-1] = discounts[:-1] * products[1:]
            span += 1
    sums[: length - n] += products[: length - n] * next_values[n - 1 : -1]
    return sums
