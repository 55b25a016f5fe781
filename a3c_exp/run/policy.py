"""A trained policy: how it acts, and how it plays whole episodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from a3c_exp.common.arrays import Array
from a3c_exp.core import seeding
from a3c_exp.core.events import Episodes
from a3c_exp.core.experiment import Experiment, build_network
from a3c_exp.core.normalization import Normalizer
from a3c_exp.core.rollout import episode_boundaries
from a3c_exp.core.seeding import Role
from a3c_exp.envs import EnvBatch
from a3c_exp.networks import ActorCritic
from a3c_exp.networks.recurrent import reset_state

# Evaluation plays this many episodes at a time, which costs little more than one.
BATCH = 16

# An episode that goes on for so many steps is cut there: where nothing else ends it, a policy that is stuck would play
# for ever.
LONGEST_EPISODE = 100_000

# Replays see other episodes than those by which a run chose its best checkpoint.
REPLAY = 1


class Policy:
    """A trained network with the scaling it was trained with.

    network: its parameters are read at every call, so it may be loaded anew between calls.

    With a recurrent network `act` remembers what it has seen: call `reset` where an episode begins.
    """

    def __init__(
        self, network: ActorCritic, normalizer: Normalizer | None, env: EnvBatch, rng: np.random.Generator
    ) -> None:
        self.network, self.normalizer = network, normalizer
        self._env, self._rng = env, rng
        self._state: Array | None = None

    def seeded(self, seed: int) -> Policy:
        """The same policy, drawing its samples from another seed."""
        rng = seeding.generator(seed, Role.EVALUATION_ACTIONS, REPLAY)
        return Policy(self.network, self.normalizer, self._env, rng)

    def predict(self, observations: Array, state: Array | None, greedy: bool = True) -> tuple[Array, Array | None]:
        """Observations [B, ...] as an EnvBatch gives them -> actions [B, ...] as it takes them, and the state after.

        state: the recurrent state before; None where all episodes begin, and for a network without one.
        """
        if state is None:
            state = self.network.initial_state(len(observations))
        if self.normalizer is not None:
            observations = self.normalizer.observations(observations)
        parameters, _, state = self.network.infer(observations, state)
        head = self.network.head
        return head.to_env(head.mode(parameters) if greedy else head.sample(parameters, self._rng)[0]), state

    def act(self, observation: Any, greedy: bool = True) -> Any:
        """The action for one observation, both as the gymnasium environment itself has them. See `reset`.

        greedy: the most likely action (the mean, for continuous ones), else one drawn from the distribution.
        Raises ValueError for an observation of another shape.
        """
        observations, shape = self._env.encode([observation]), self._env.observation_space.shape
        if observations.shape[1:] != shape or len(observations) != 1:
            raise ValueError(f"observation: has shape {np.shape(observation)}; one observation is needed, {shape}")
        actions, self._state = self.predict(observations, self._state, greedy)
        action = self._env.decode(actions)[0]
        return int(action) if np.ndim(action) == 0 and np.issubdtype(action.dtype, np.integer) else np.asarray(action)

    def reset(self) -> None:
        """A new episode begins: forget what `act` has seen. Without effect on a network that remembers nothing.

        What was trained with `env.terminal_on_life_loss=true` has begun anew behind every lost life as well.
        """
        self._state = None


def evaluate_policy(
    policy: Policy,
    env: EnvBatch,
    episodes: int,
    greedy: bool = True,
    stopped: Callable[[], bool] = lambda: False,
    on_step: Callable[[EnvBatch], None] = lambda env: None,
) -> Episodes:
    """Play `episodes` whole episodes; their returns are those of the environment's own rewards.

    One that goes on for LONGEST_EPISODE steps is cut there and counts as one. Its environment is not restarted: the
    next one begins where it was cut.

    Each environment plays a share that is fixed beforehand: taking the first to finish would favour short episodes.
    stopped: asked at each step; if it says so, what has ended by then is returned.
    on_step: called before each step of the first environment's first episode.
    """
    quota = np.full(env.count, episodes // env.count)
    quota[: episodes % env.count] += 1
    returns, lengths = np.zeros(env.count), np.zeros(env.count, np.int64)
    done: list[tuple[float, int]] = []
    observations, first = env.reset(), quota[0]
    state: Array | None = None
    while quota.any() and not stopped():
        if quota[0] == first:
            on_step(env)
        actions, state = policy.predict(observations, state, greedy)
        step = env.step(actions)
        observations = step.obs
        returns += step.reward
        lengths += step.valid
        cut = lengths >= LONGEST_EPISODE
        if state is not None:
            state = reset_state(state, episode_boundaries(step) | cut)
        for index in np.flatnonzero(step.episode_over | cut):
            if quota[index]:
                quota[index] -= 1
                done.append((returns[index], lengths[index]))
            returns[index] = lengths[index] = 0
    return Episodes(
        np.array([r for r, _ in done]), np.array([n for _, n in done], np.int64), np.zeros(len(done), np.int64)
    )


def make_policy(experiment: Experiment, store_state: dict[str, Any]) -> Policy:
    """A policy of its own from the state of the shared parameters. Raises ValueError where it is another network's."""
    network, env = build_network(experiment, draw=False)
    parameters = store_state["parameters"]
    if parameters.shape != network.vector.shape:
        raise ValueError(f"it has {parameters.size} parameters, the network {network.vector.size}")
    network.vector[:] = parameters
    normalizer = make_normalizer(experiment, env.observation_space.shape, store_state["stats"])
    rng = seeding.generator(experiment.seed, Role.EVALUATION_ACTIONS)
    return Policy(network, normalizer, env, rng)


def make_normalizer(
    experiment: Experiment, shape: tuple[int, ...], statistics: NDArray[np.float64]
) -> Normalizer | None:
    """How observations [*shape] were scaled in training, by the statistics of a checkpoint; None: they were not."""
    if not experiment.env.normalize_observations:
        return None
    return Normalizer.from_row(statistics, shape, True, False)
