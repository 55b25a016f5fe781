"""Rollouts: what a worker saw and did, as time-major arrays, and the actor that collects them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from a3c_exp.common.arrays import Array, Bools, Floats
from a3c_exp.core.episodes import RunningEpisodes
from a3c_exp.core.events import Episodes
from a3c_exp.core.heartbeat import STEPPING, Heartbeat
from a3c_exp.core.normalization import Normalizer, Stats, measure_stats, merge_stats
from a3c_exp.core.rewards import discounted_sums, shaped_rewards
from a3c_exp.core.store import Snapshot
from a3c_exp.envs import EnvBatch, EnvError, Environment, Step
from a3c_exp.envs.info import InfoNumbers, number_columns
from a3c_exp.networks.distributions import Distribution, Greedy, SingleChoice
from a3c_exp.networks.recurrent import RecurrentInput, reset_state
from a3c_exp.returns import Trajectory
from a3c_exp.schedules import EpsilonByWorker, Schedule, value


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout(Trajectory):
    """T steps of B environments: what estimators of returns see of them, and the rest. Arrays start
    with [T, B].

    observations: as the network gets them, normalized with the statistics of the pull; images of
        bytes as they are.
    actions: as the distribution samples them, before `to_env`.
    valid: bool; False if the row is no transition: a vector environment spent the step on a reset.
    version: of the parameters that acted; int64 [T, B] where it may change inside a rollout.
    state: the recurrent state at t = 0, float32 [B, S]; None for a network without one.
    episodes: those that ended in it.
    transitions: how many rows are transitions.
    stats: statistics of the raw observations and returns, for the shared ones; None if nothing is
        normalized.
    """

    log_probs: Floats
    observations: Array
    actions: Array
    valid: Bools
    version: int | NDArray[np.int64]
    state: Array | None
    episodes: Episodes
    transitions: int
    stats: Stats | None

    @property
    def recurrent_input(self) -> RecurrentInput | None:
        """Input with which a recurrent network computes these rows as the actor did; None for one
        without a state."""
        return None if self.state is None else RecurrentInput(self.state, episode_boundaries(self))


STEP_FIELDS = (
    "observations",
    "actions",
    "log_probs",
    "rewards",
    "values",
    "next_values",
    "terminated",
    "truncated",
    "valid",
    "version",
)
"""The fields of a rollout that have a row for each step."""


def episode_boundaries(of: Step | Rollout) -> Bools:
    """Flags [B] or [T, B]: no transition leads from a row to the next, since its episode ended in
    it or it was none."""
    return of.terminated | of.truncated | ~of.valid


def concat_rollouts(rollouts: Sequence[Rollout]) -> Rollout:
    """Rollouts side by side, as one of all their environments, with a version for each step and
    without the episodes.

    A shorter one is filled up with its last row, as rows that are no transitions. Only a rollout
    whose episode has ended is shorter, so nothing reaches from the filling into rows that are
    transitions.
    """
    if len(rollouts) == 1:
        return rollouts[0]
    length = max(len(rollout.rewards) for rollout in rollouts)
    columns = {
        name: _side_by_side([getattr(rollout, name) for rollout in rollouts], length)
        for name in STEP_FIELDS
    }
    states = [rollout.state for rollout in rollouts if rollout.state is not None]
    stats = [rollout.stats for rollout in rollouts if rollout.stats is not None]
    return Rollout(
        **columns,
        state=np.concatenate(states) if states else None,
        episodes=Episodes(),  # whoever collected them reports these
        transitions=sum(rollout.transitions for rollout in rollouts),
        stats=merge_stats(stats) if stats else None,
    )


def _side_by_side(parts: Sequence[Array], length: int) -> Array:
    """Concatenate arrays [T, B, ...] of any T along their second axis, filled up to `length`: flags
    with False, numbers with those of the last row, since a loss and its gradient need not be finite
    for others."""
    out = np.empty(
        (length, sum(part.shape[1] for part in parts), *parts[0].shape[2:]), parts[0].dtype
    )
    end = 0
    for part in parts:
        start, end = end, end + part.shape[1]
        out[: len(part), start:end] = part
        out[len(part) :, start:end] = False if part.dtype == bool else part[-1]
    return out


class PolicyNetwork(Protocol):
    """A network for an actor: local (`ActorCritic`), or on the other side of a queue (GA3C)."""

    distribution: Distribution

    def initial_state(self, count: int) -> Array | None:
        """The recurrent state with which every episode begins, float32 [B, S]; None for a network
        without one."""

    def policy_forward(
        self, observations: Array, state: Array | None
    ) -> tuple[Array, Array | None, Array | None]:
        """Observations [B, ...] -> distribution parameters [B, P], values [B], the state after.

        The values are None if `values` takes those of a whole rollout, which are then asked for at
        its end.
        """

    def values(self, observations: Array, state: Array | None) -> Array:
        """V(s), float32 [N]. state: the one before s. Without a state perhaps of [T, B, ...], see
        above: [T, B]."""


# Actions, their log-probabilities, values (None: see `PolicyNetwork`), and the recurrent state
# after the observations
# that they are for.
_Choice = tuple[Array, Floats, Floats | None, Array | None]

# A row of a rollout as it comes: a choice, and the environments' answer. An environment never
# writes into an array
# again, and to concatenate T of them at once is cheaper than to copy each.
_Row = tuple[Array, Floats, Floats | None, Array | None, Step]


@dataclass(eq=False)
class Actor:
    """A worker's environments, and what must outlive a rollout: observations, running returns,
    recurrent state.

    env: K environments, which `reset` has not been called on. network: where actions come from.
        rng: draws them.
    settings: of rewards, of time limits and of `info`: see `Environment`. Reported returns are of
        raw rewards.
    rollout_length: steps of a rollout, or "episode" for one whole episode. With one environment a
        rollout also ends where an episode does, so it never spans two episodes (Mnih et al. 2016,
        algorithm S3).
    epsilon: probability of a uniformly random action, for a single choice only. Log-probabilities
        are those of the mixture, since that is what acted.
    heartbeat: beats with each step.
    value_of_action: V(s_t) is replaced by Q^-(s_t, a_t) of the action that is taken in s_t, for
        Sarsa. So the first action of a rollout is chosen at the end of the one before, whose last
        target needs it. At a time limit no action is taken: there the network's V(s) stays.

    Raises EnvError where an environment goes wrong.
    """

    env: EnvBatch
    network: PolicyNetwork
    rng: np.random.Generator
    settings: Environment
    rollout_length: int | Literal["episode"]
    gamma: float
    epsilon: float | Schedule = 0.0
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    value_of_action: bool = False

    def __post_init__(self) -> None:
        self._next_choice: _Choice | None = None
        self._single = self.env.count == 1
        self._state = self.network.initial_state(self.env.count)
        self._observations = self.env.reset()
        self._episodes = RunningEpisodes(self.env.count)
        self._info_numbers = InfoNumbers(self.settings.info_keys)
        self._discounted = np.zeros(self.env.count)

    def collect(self, snapshot: Snapshot, progress: float = 0.0) -> Rollout:
        """Step the environments until the rollout is full.

        snapshot: the pull that the network acts with. progress: share of the run that is done, for
        schedules.
        """
        normalizer = snapshot.normalizer
        first = self._observations
        first_state = self._state
        epsilon = self.epsilon
        if isinstance(epsilon, EpsilonByWorker):
            epsilon = epsilon.sample(progress, self.rng)
        rows = self._interact(snapshot, value(epsilon, progress))
        actions, log_probs, acted_values, _, steps = zip(*rows, strict=True)
        raw = _stack([first, *[step.obs for step in steps[:-1]]])
        rewards = _stack([step.reward for step in steps])
        terminated = _stack([step.terminated for step in steps])
        truncated = _stack([step.truncated for step in steps])
        valid = _stack([step.valid for step in steps])
        self._require_finite(raw, rewards)
        # of a user's own batch
        if {terminated.dtype, truncated.dtype, valid.dtype} != {np.dtype(bool)}:
            raise EnvError(
                f"{type(self.env).__name__} returned a Step whose terminated, truncated, "
                "valid are no bools"
            )
        observations = raw if normalizer is None else normalizer.observations(raw)
        values = (
            self.network.values(observations, None)
            if acted_values[0] is None
            else _stack(acted_values)
        )

        if self.settings.time_limit_is_terminal:
            terminated, truncated = terminated | truncated, np.zeros_like(truncated)
        next_values = self._next_values(values, terminated, truncated, rows, normalizer)
        ended = episode_over = terminated | truncated
        if steps[0].life_lost is not None:
            episode_over = ended & ~_stack([step.life_lost for step in steps])
        episodes = self._episodes.finish(rewards, valid, episode_over, snapshot.steps)
        if len(episodes):
            if self._info_numbers.chosen or any(step.final_info for step in steps):
                self._add_numbers(episodes, steps, episode_over)
            else:
                self._info_numbers.episodes += len(episodes)
        learned_rewards = shaped_rewards(self.settings, rewards, terminated, valid, progress)
        stats = None
        if normalizer is not None:
            stats = self._measure(normalizer, raw, learned_rewards, ended, valid)
            learned_rewards = normalizer.rewards(learned_rewards, stats)
        return Rollout(
            observations=observations,
            actions=_stack(actions),
            log_probs=_stack(log_probs),
            rewards=learned_rewards,
            values=values,
            next_values=next_values,
            terminated=terminated,
            truncated=truncated,
            valid=valid,
            version=snapshot.version,
            state=first_state,
            episodes=episodes,
            transitions=int(np.count_nonzero(valid)),
            stats=stats,
        )

    def _add_numbers(self, episodes: Episodes, steps: Sequence[Step], over: Bools) -> None:
        """Give episodes the environment's own numbers. over: bool [T, B], an episode ended."""
        # Step by step, which is the order of `episodes`.
        infos = [
            (steps[time].final_info or {}).get(env, {}) for time, env in np.argwhere(over).tolist()
        ]
        episodes.numbers = number_columns([self._info_numbers.of(info) for info in infos])
        episodes.warnings = self._info_numbers.warnings()

    def _interact(self, snapshot: Snapshot, epsilon: float) -> list[_Row]:
        """Act and step until the rollout is full."""
        network, env, rng, normalizer = self.network, self.env, self.rng, snapshot.normalizer
        length = None if self.rollout_length == "episode" else self.rollout_length
        distribution = network.distribution
        self.heartbeat.begin(STEPPING)
        beat = self.heartbeat.beat
        observations = self._observations
        state = self._state
        rows: list[_Row] = []
        chosen = self._next_choice
        self._next_choice = None
        values_actions = self.value_of_action
        last = None if values_actions else length
        while len(rows) != last:
            if chosen is None:
                network_observations = (
                    observations if normalizer is None else normalizer.observations(observations)
                )
                parameters, values, state = network.policy_forward(network_observations, state)
                if epsilon:
                    assert isinstance(distribution, SingleChoice)
                    actions, log_probs = distribution.sample_mixed(parameters, epsilon, rng)
                else:
                    actions, log_probs = distribution.sample(parameters, rng)
                if values_actions:
                    assert isinstance(distribution, Greedy)
                    values = distribution.target_values(parameters, actions)
            else:
                actions, log_probs, values, state = chosen
                chosen = None
            if len(rows) == length:  # the action after the last row
                self._next_choice = actions, log_probs, values, state
                break
            step = env.step(distribution.to_env(actions))
            beat()
            rows.append((actions, log_probs, values, state, step))
            observations = step.obs
            if state is not None:
                state = reset_state(state, episode_boundaries(step))
            if self._single and (step.terminated[0] or step.truncated[0]):
                break
        self._observations = observations
        self._state = state
        return rows

    def _require_finite(self, observations: Array, rewards: Floats | None = None) -> None:
        """Raise EnvError for observations or rewards that are not finite.

        The batches of this package never give such. A user's own may.
        """
        for what, numbers in (("an observation", observations), ("a reward", rewards)):
            if numbers is not None and numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
                found = numbers[~np.isfinite(numbers)][0]
                raise EnvError(f"{type(self.env).__name__} returned {what} that is {found}")

    def _next_values(
        self,
        values: Floats,
        terminated: Bools,
        truncated: Bools,
        rows: Sequence[_Row],
        normalizer: Normalizer | None,
    ) -> Floats:
        """V(s_{t+1}) [T, B], with one call of the network for all states that no step of the
        rollout has valued.

        A final observation is valued with the recurrent state after its step, before ended episodes
        have reset it.
        """
        *_, states, steps = zip(*rows, strict=True)
        next_values = np.empty_like(values)
        next_values[:-1] = values[1:]
        times, envs = np.nonzero(truncated & ~terminated)
        bootstraps_end = not (self._single and (terminated[-1, 0] or truncated[-1, 0]))
        if self._next_choice is not None:
            next_values[-1] = self._next_choice[2]
            bootstraps_end = False
        cut = list(zip(times.tolist(), envs.tolist(), strict=True))
        if bootstraps_end or cut:
            final_obs = [steps[t].final_obs[env : env + 1] for t, env in cut]
            raw = np.concatenate([self._observations, *final_obs] if bootstraps_end else final_obs)
            self._require_finite(raw)
            state = None
            if self._state is not None:
                after = [row[env : env + 1] for t, env in cut if (row := states[t]) is not None]
                state = np.concatenate([self._state, *after] if bootstraps_end else after)
            found = self.network.values(
                raw if normalizer is None else normalizer.observations(raw), state
            )
            if bootstraps_end:
                next_values[-1], found = found[: self.env.count], found[self.env.count :]
            next_values[times, envs] = found
        next_values[terminated] = 0.0
        return next_values

    def _measure(
        self, normalizer: Normalizer, raw: Array, rewards: Floats, ended: Bools, valid: Bools
    ) -> Stats:
        """Statistics of what is normalized, over the rows that are transitions."""
        observations = normalizer.part_to_measure(raw, valid)
        if normalizer.reward_scale is None:
            return measure_stats(observations, None)
        if normalizer.reward_mean is not None:
            return measure_stats(observations, rewards[valid])
        return measure_stats(
            observations, discounted_sums(self._discounted, rewards, ended, self.gamma)[valid]
        )


def _stack(rows: Sequence[Array]) -> Array:
    """T arrays [B, ...] as one [T, B, ...]."""
    return np.concatenate(rows).reshape(len(rows), *rows[0].shape)
