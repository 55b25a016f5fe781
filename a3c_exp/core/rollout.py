"""Rollouts: what a worker saw and did, as time-major arrays, and the actor that collects them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from a3c_exp.common.arrays import Array, Bools, Floats
from a3c_exp.core.acting import ActingPolicy, Choice
from a3c_exp.core.episodes import RunningEpisodes
from a3c_exp.core.events import Episodes
from a3c_exp.core.heartbeat import STEPPING, Heartbeat
from a3c_exp.core.measuring import Stopwatch, timed
from a3c_exp.core.normalization import Normalizer, Stats, measure_stats, merge_stats
from a3c_exp.core.rewards import discounted_sums, shaped_rewards
from a3c_exp.core.store import Snapshot
from a3c_exp.envs import EnvBatch, EnvError, Environment, Step
from a3c_exp.envs.info import InfoNumbers, number_columns
from a3c_exp.networks.recurrent import RecurrentInput, reset_state
from a3c_exp.returns import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """What a memory keeps of a rollout besides its columns.

    space: of the environment's observations.
    observations: [T + 1, B, ...], as the environment has given them, those after the last row too.
    rewards: float32 [T, B], before they are normalized.
    finals: int64 [F, 2], the rows and environments where a time limit has ended an episode.
    final_observations: [F, ...], after these.
    next_state: recurrent state after the last row, float32 [B, S]; None for a network without one.
    final_states: those before the final observations, float32 [F, S].
    """

    space: Box
    observations: Array
    rewards: Floats
    finals: NDArray[np.int64]
    final_observations: Sequence[Array]
    next_state: Floats | None
    final_states: Sequence[Floats] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout(Trajectory):
    """T steps of B environments: a `Trajectory`, as estimators of returns see it, and what else a
    learner needs.

    log_probs: float32 [T, B], log-probabilities of the actions under the policy that acted.
    observations: [T, B, ...], as the network gets them: normalized with the statistics of the pull;
        images of bytes as they are.
    actions: [T, B, ...], as the distribution samples them, before `to_env`.
    valid: bool [T, B]; False if the row is no transition, since a vector environment spent the step
        on a reset.
    version: of the parameters that acted; int64 [T, B] where it may change inside a rollout.
    state: recurrent state at t = 0, float32 [B, S]; None for a network without one.
    episodes: those that ended in the rollout.
    transitions: number of rows that are transitions.
    stats: statistics of the raw observations and returns, for the shared ones; None if nothing is
        normalized.
    behaviour: float32 [T, B, P], parameters of the distributions that acted; None if they are not
        kept.
    from_memory: whether it has been drawn from the worker's memory. Then the actor's values are not
        known, and are 0.
    experience: for the worker's memory; None if it has none.
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
    behaviour: Floats | None = None
    from_memory: bool = False
    experience: Experience | None = None

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
    columns: dict[str, Any] = {
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
    width = sum(part.shape[1] for part in parts)
    out = np.empty((length, width, *parts[0].shape[2:]), parts[0].dtype)
    start = 0
    for part in parts:
        end = start + part.shape[1]
        out[: len(part), start:end] = part
        out[len(part) :, start:end] = False if part.dtype == bool else part[-1]
        start = end
    return out


@dataclass(eq=False)
class Actor:
    """A worker's environments, and what must outlive a rollout: observations, running returns,
    recurrent state.

    env: K environments, which `reset` has not been called on.
    policy: chooses the actions.
    settings: of rewards, of time limits and of `info`: see `Environment`. Reported returns are of
        raw rewards.
    rollout_length: steps of a rollout, or "episode" for one whole episode. With one environment a
        rollout also ends where an episode does, so it never spans two episodes (Mnih et al. 2016,
        algorithm S3).
    gamma: discount per step, of the returns by which rewards are normalized.
    heartbeat: beats with each step.
    watch: times the environments' steps; None if time is not measured.
    remembers: whether its rollouts have an `Experience`.
    keeps_behaviour: whether its rollouts have the parameters of the distributions that acted.

    Raises EnvError where an environment goes wrong.
    """

    env: EnvBatch
    policy: ActingPolicy
    settings: Environment
    rollout_length: int | Literal["episode"]
    gamma: float
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    watch: Stopwatch | None = None
    remembers: bool = False
    keeps_behaviour: bool = False

    def __post_init__(self) -> None:
        self._single = self.env.count == 1
        self._state = self.policy.network.initial_state(self.env.count)
        self._observations = self.env.reset()
        self._episodes = RunningEpisodes(self.env.count)
        self._info_numbers = InfoNumbers(self.settings.info_keys)
        self._discounted = np.zeros(self.env.count)

    def collect(self, snapshot: Snapshot, progress: float = 0.0) -> Rollout:
        """Step the environments until the rollout is full.

        snapshot: the pull that the network acts with.
        progress: share of the run that is done, for schedules.
        """
        normalizer = snapshot.normalizer
        first_observations = self._observations
        first_state = self._state
        self.policy.begin(normalizer, progress)
        choices, steps, ends_with_episode = self._interact()
        values_after = None
        if not ends_with_episode:
            values_after = self.policy.look_ahead(self._observations, self._state)

        raw, rewards, terminated, truncated, valid = self._columns(first_observations, steps)
        observations = raw if normalizer is None else normalizer.observations(raw)
        values = self._values(choices, observations)
        cut = truncated & ~terminated
        needs_last = values_after is None and not ends_with_episode
        next_values = self._next_values(values, values_after, needs_last, cut, choices, steps)
        next_values[terminated] = 0.0

        ended = terminated | truncated
        episodes = self._finish_episodes(steps, rewards, valid, ended, snapshot.steps)
        learned_rewards = shaped_rewards(self.settings, rewards, terminated, valid, progress)
        experience = self._experience(raw, learned_rewards, cut, choices, steps)
        stats = None
        if normalizer is not None:
            stats = self._measure(normalizer, raw, learned_rewards, ended, valid)
            learned_rewards = normalizer.rewards(learned_rewards, stats)
        parameters = [choice.parameters for choice in choices] if self.keeps_behaviour else []
        return Rollout(
            observations=observations,
            actions=_stack([choice.actions for choice in choices]),
            log_probs=_stack([choice.log_probs for choice in choices]),
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
            behaviour=_stack(parameters) if parameters else None,
            experience=experience,
        )

    def _columns(
        self, first_observations: Array, steps: Sequence[Step]
    ) -> tuple[Array, Floats, Bools, Bools, Bools]:
        """Return observations [T, B, ...], as the environment has given them, rewards, terminated,
        truncated and valid, [T, B] each, as a learner takes them. Raises EnvError for what is not
        finite or no flag."""
        observations = _stack([first_observations, *[step.obs for step in steps[:-1]]])
        rewards = _stack([step.reward for step in steps])
        terminated = _stack([step.terminated for step in steps])
        truncated = _stack([step.truncated for step in steps])
        valid = _stack([step.valid for step in steps])
        self._require_finite(observations, rewards)
        # A batch of a user's own may have numbers.
        if {terminated.dtype, truncated.dtype, valid.dtype} != {np.dtype(bool)}:
            raise EnvError(
                f"{type(self.env).__name__} returned a Step whose terminated, truncated, "
                "valid are no bools"
            )
        if self.settings.time_limit_is_terminal:
            terminated |= truncated
            truncated[:] = False
        return observations, rewards, terminated, truncated, valid

    def _values(self, choices: Sequence[Choice], observations: Array) -> Floats:
        """Return the values [T, B] of the policy that acted, or of all rows at once."""
        acted_values = [choice.values for choice in choices if choice.values is not None]
        if acted_values:
            return _stack(acted_values)
        return self.policy.network.values(observations, None)

    def _experience(
        self,
        raw: Array,
        rewards: Floats,
        cut: Bools,
        choices: Sequence[Choice],
        steps: Sequence[Step],
    ) -> Experience | None:
        """Return what a memory keeps; None if there is none. cut: bool [T, B], where a time limit
        has ended an episode."""
        if not self.remembers:
            return None
        finals = np.argwhere(cut)
        final_states = None
        if self._state is not None:
            final_states = [choices[time].state[env].copy() for time, env in finals]
        return Experience(
            space=self.env.observation_space,
            observations=np.concatenate([raw, self._observations[None]]),
            rewards=rewards,
            finals=finals,
            final_observations=[np.array(steps[time].final_obs[env]) for time, env in finals],
            next_state=self._state,
            final_states=final_states,
        )

    def _interact(self) -> tuple[list[Choice], list[Step], bool]:
        """Act and step until the rollout is full, or the episode of the only environment over.
        Return the choices, the steps, and whether the last one has ended that episode.

        An environment never writes into an array again, and to concatenate T of them at once is
        cheaper than to copy each.
        """
        length = None if self.rollout_length == "episode" else self.rollout_length
        step_envs = timed(self.watch, "environment", self.env.step)
        policy = self.policy
        observations = self._observations
        state = self._state
        choices: list[Choice] = []
        steps: list[Step] = []
        ends_with_episode = False
        beat = self.heartbeat.beat
        self.heartbeat.begin(STEPPING)
        while len(steps) != length:
            choice = policy.choose(observations, state)
            step = step_envs(policy.to_env(choice.actions))
            beat()

            choices.append(choice)
            steps.append(step)
            observations = step.obs
            state = choice.state
            if state is not None:
                state = reset_state(state, episode_boundaries(step))
            if self._single and (step.terminated[0] or step.truncated[0]):
                ends_with_episode = True
                break
        self._observations = observations
        self._state = state
        return choices, steps, ends_with_episode

    def _finish_episodes(
        self, steps: Sequence[Step], rewards: Floats, valid: Bools, ended: Bools, run_steps: int
    ) -> Episodes:
        """Return the reported episodes that have ended in a rollout. Several lives are one
        episode."""
        lives_lost = [step.life_lost for step in steps if step.life_lost is not None]
        over = ended & ~_stack(lives_lost) if lives_lost else ended
        episodes = self._episodes.finish(rewards, valid, over, run_steps)
        if not len(episodes):
            return episodes
        if self._info_numbers.chosen or any(step.final_info for step in steps):
            self._add_numbers(episodes, steps, over)
        else:
            self._info_numbers.episodes += len(episodes)
        return episodes

    def _add_numbers(self, episodes: Episodes, steps: Sequence[Step], over: Bools) -> None:
        """Give episodes the environment's own numbers. over: bool [T, B], an episode ended."""
        numbers = []
        for time, env in np.argwhere(over).tolist():  # step by step, the order of `episodes`
            infos = steps[time].final_info or {}
            numbers.append(self._info_numbers.of(infos.get(env, {})))
        episodes.numbers = number_columns(numbers)
        episodes.warnings = self._info_numbers.warnings()

    def _require_finite(self, observations: Array, rewards: Floats | None = None) -> None:
        """Raise EnvError for observations or rewards that are not finite.

        The batches of this package never give such. A user's own may.
        """
        for kind, numbers in (("an observation", observations), ("a reward", rewards)):
            if numbers is not None and numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
                first = numbers[~np.isfinite(numbers)][0]
                raise EnvError(f"{type(self.env).__name__} returned {kind} that is {first}")

    def _next_values(
        self,
        values: Floats,
        values_after: Floats | None,
        needs_last: bool,
        cut: Bools,
        choices: Sequence[Choice],
        steps: Sequence[Step],
    ) -> Floats:
        """Compute V(s_{t+1}) [T, B], with one call of the network for all states that no step of
        the rollout has valued. What follows a terminal step means nothing.

        values_after: of the observations after the last row, if the policy has valued them.
        needs_last: whether the network has to value those.
        cut: bool [T, B], where a time limit has ended an episode.
        A final observation is valued with the recurrent state after its step, before ended episodes
        have reset it.
        """
        next_values = np.empty_like(values)
        next_values[:-1] = values[1:]
        if values_after is not None:
            next_values[-1] = values_after
        times, envs = np.nonzero(cut)
        if needs_last or len(times):
            observations = []
            states = []
            if needs_last:
                observations.append(self._observations)
                if self._state is not None:
                    states.append(self._state)
            for time, env in zip(times.tolist(), envs.tolist(), strict=True):
                observations.append(steps[time].final_obs[env : env + 1])
                state = choices[time].state
                if state is not None:
                    states.append(state[env : env + 1])

            raw = np.concatenate(observations)
            self._require_finite(raw)
            valued = self.policy.values(raw, np.concatenate(states) if states else None)
            if needs_last:
                next_values[-1] = valued[: self.env.count]
                valued = valued[self.env.count :]
            next_values[times, envs] = valued
        return next_values

    def _measure(
        self, normalizer: Normalizer, raw: Array, rewards: Floats, ended: Bools, valid: Bools
    ) -> Stats:
        """Measure what is normalized, over the rows that are transitions."""
        observations = normalizer.part_to_measure(raw, valid)
        if normalizer.reward_scale is None:
            return measure_stats(observations, None)
        if normalizer.reward_mean is not None:
            return measure_stats(observations, rewards[valid])
        returns = discounted_sums(self._discounted, rewards, ended, self.gamma)
        return measure_stats(observations, returns[valid])


def _stack(rows: Sequence[Array]) -> Array:
    """Return T arrays [B, ...] as one [T, B, ...]."""
    return np.concatenate(rows).reshape(len(rows), *rows[0].shape)
