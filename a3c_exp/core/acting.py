"""What acts in environments: policies that choose actions for observations."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from a3c_exp.common.arrays import Array, Floats
from a3c_exp.core.normalization import Normalizer
from a3c_exp.networks.distributions import Distribution, Greedy, SingleChoice
from a3c_exp.schedules import EpsilonByWorker, Schedule, value


class PolicyNetwork(Protocol):
    """A network for an actor: local (`ActorCritic`), or on the other side of a queue (GA3C)."""

    distribution: Distribution

    def initial_state(self, count: int) -> Array | None:
        """Return the recurrent state with which every episode begins, float32 [B, S]; None for a
        network without one."""

    def policy_forward(
        self, observations: Array, state: Array | None
    ) -> tuple[Array, Array | None, Array | None]:
        """Compute observations [B, ...] -> distribution parameters [B, P], values [B], the state
        after.

        The values are None if `values` takes those of a whole rollout, which are then asked for at
        its end.
        """

    def values(self, observations: Array, state: Array | None) -> Array:
        """Compute V(s), float32 [N], of observations [N, ...]. A network whose `policy_forward`
        gives no values is also asked for those of a whole rollout: [T, B], of [T, B, ...].

        state: the recurrent state before s; None for a network without one.
        """


class Choice(NamedTuple):
    """What a policy chooses for observations of B environments.

    actions: [B, ...], as the distribution samples them.
    log_probs: float32 [B], of the policy that acts.
    values: float32 [B]; None: see `PolicyNetwork`.
    state: the recurrent state after the observations, float32 [B, S]; None for a network without
        one.
    parameters: of the distributions, float32 [B, P].
    """

    actions: Array
    log_probs: Floats
    values: Floats | None
    state: Array | None
    parameters: Floats


class ActingPolicy:
    """Samples actions from the distributions that a network computes.

    network: computes distributions and values.
    rng: samples the actions.
    epsilon: probability of a uniformly random action, for a single choice only. Log-probabilities
        are those of the mixture, since that is what acts.
    """

    def __init__(
        self, network: PolicyNetwork, rng: np.random.Generator, epsilon: float | Schedule = 0.0
    ) -> None:
        self.network = network
        self.rng = rng
        self.to_env = network.distribution.to_env
        self._epsilon = epsilon

    def begin(self, normalizer: Normalizer | None, progress: float) -> None:
        """Begin a rollout.

        normalizer: of its observations; None if they are not normalized.
        progress: share of the run that is done, for schedules.
        """
        self._normalizer = normalizer
        epsilon = self._epsilon
        if isinstance(epsilon, EpsilonByWorker):
            epsilon = epsilon.sample(progress, self.rng)
        epsilon = value(epsilon, progress)

        distribution = self.network.distribution
        self._sample = distribution.sample
        if epsilon:
            assert isinstance(distribution, SingleChoice)
            self._sample = partial(distribution.sample_mixed, epsilon=epsilon)

    def choose(self, observations: Array, state: Array | None) -> Choice:
        """Choose actions for observations [B, ...] of the environments, and a recurrent state
        [B, S]."""
        if self._normalizer is not None:
            observations = self._normalizer.observations(observations)
        parameters, values, after = self.network.policy_forward(observations, state)
        actions, log_probs = self._sample(parameters, self.rng)
        return Choice(actions, log_probs, values, after, parameters)

    def look_ahead(self, observations: Array, state: Array | None) -> Floats | None:
        """Return the values [B] of the observations after a rollout, if they depend on the actions
        that are chosen for them; None: they are those of `values`."""
        return None

    def values(self, observations: Array, state: Array | None) -> Array:
        """Compute V(s), float32 [N], of observations [N, ...] of the environments."""
        if self._normalizer is not None:
            observations = self._normalizer.observations(observations)
        return self.network.values(observations, state)


class SarsaPolicy(ActingPolicy):
    """Values observations by Q^-(s, a) of the actions that it chooses, for the targets of Sarsa.

    The last target of a rollout needs the actions after it. So `look_ahead` chooses them, and the
    next rollout begins with them. At a time limit no action is taken: there the network's V(s)
    counts.
    """

    _ahead: Choice | None = None

    def choose(self, observations: Array, state: Array | None) -> Choice:
        if self._ahead is not None:
            choice = self._ahead
            self._ahead = None
            return choice
        if self._normalizer is not None:
            observations = self._normalizer.observations(observations)
        parameters, _, after = self.network.policy_forward(observations, state)
        actions, log_probs = self._sample(parameters, self.rng)
        assert isinstance(self.network.distribution, Greedy)
        values = self.network.distribution.target_values(parameters, actions)
        return Choice(actions, log_probs, values, after, parameters)

    def look_ahead(self, observations: Array, state: Array | None) -> Floats | None:
        self._ahead = self.choose(observations, state)
        return self._ahead.values
