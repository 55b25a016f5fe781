"""Rollouts: what a worker saw and did, as time-major arrays, and the loop that collects one."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from a3c_exp.envs import EnvBatch, Step
from a3c_exp.events import Episodes
from a3c_exp.networks.heads import mixed_with_uniform
from a3c_exp.networks.recurrent import Memory, forget
from a3c_exp.normalisation import Moments, Normalisation

Array = NDArray[Any]


class Acted(NamedTuple):
    """What an actor answers to B observations. log_probs and values: float32 [B]; state: the recurrent state behind
    them, float32 [B, S], None for a network without one."""

    actions: Array
    log_probs: NDArray[np.float32]
    values: NDArray[np.float32]
    state: Array | None


class Actor(Protocol):
    """Where actions come from. The loop below cannot tell whether the network is here or behind a queue."""

    def act(self, observations: Array, state: Array | None) -> Acted:
        """Sampled actions for observations [B, ...]."""

    def values(self, observations: Array, state: Array | None) -> NDArray[np.float32]:
        """V(s) alone, float32 [B]: what a rollout that was cut is bootstrapped with. state: that before s."""

    def to_env(self, actions: Array) -> Array: ...


class Acting(Protocol):
    """What acts: a network, or the way to one elsewhere. See `networks.ActorCritic`."""

    @property
    def head(self) -> Distribution: ...

    def initial_state(self, count: int) -> Array | None: ...

    def infer(self, observations: Array, state: Array | None) -> tuple[Array, Array, Array | None]: ...

    def values(self, observations: Array, state: Array | None) -> Array: ...


class Distribution(Protocol):
    """What a head knows of actions without its parameters. See `networks.heads.Head`."""

    def sample(self, parameters: Array, rng: np.random.Generator) -> tuple[Array, Array]: ...

    def to_env(self, actions: Array) -> Array: ...


class LocalActor:
    """Acts with a network, drawing from this worker's generator wherever the network is.

    epsilon: with this probability any action alike, whatever the network says. Log-probabilities are those of the
        mixture, since that is what acted. For a categorical head only.
    """

    def __init__(self, network: Acting, rng: np.random.Generator) -> None:
        self._network, self._rng = network, rng
        self.to_env = network.head.to_env
        self.epsilon = 0.0

    def act(self, observations: Array, state: Array | None) -> Acted:
        parameters, values, state = self._network.infer(observations, state)
        if self.epsilon:
            parameters = mixed_with_uniform(parameters, self.epsilon)
        actions, log_probs = self._network.head.sample(parameters, self._rng)
        return Acted(actions, log_probs, values, state)

    def values(self, observations: Array, state: Array | None) -> NDArray[np.float32]:
        return self._network.values(observations, state)


@dataclass(frozen=True, slots=True)
class Rollout:
    """T steps of B environments; every array starts with [T, B].

    observations: as the network saw them, normalised with the statistics that were pulled.
    actions: as the head samples them, before `to_env`.
    log_probs: float32, of the actions under the distribution that acted.
    rewards: float32, scaled, clipped and normalised as the environment's settings say.
    values: float32, V(s_t) of the parameters that acted.
    next_values: V(s_{t+1}) of the same episode: 0 where it terminated, V(final observation) where it was truncated.
    terminated, truncated: how an episode ended in this step; where both hold it terminated.
    valid: False where the row is no transition (a vector environment spent the step on a reset).
    version: of the parameters that acted; where that may change inside a rollout, of each step, int64 [T, B].
    state: the recurrent state at t = 0, float32 [B, S]; None for a network without one.
    episodes: those that ended in it.
    transitions: how many rows are transitions.
    observed: moments of the raw observations and returns, for the shared statistics; None if nothing is normalised.
    """

    observations: Array
    actions: Array
    log_probs: NDArray[np.float32]
    rewards: NDArray[np.float32]
    values: NDArray[np.float32]
    next_values: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    version: int | NDArray[np.int64]
    state: Array | None
    episodes: Episodes
    transitions: int
    observed: Moments | None

    @property
    def memory(self) -> Memory | None:
        """What a recurrent network needs to see these rows as the actor saw them; None for one without a state."""
        return None if self.state is None else Memory(self.state, restarts(self))


# What a rollout has a row of for each step.
COLUMNS = (
    "observations", "actions", "log_probs", "rewards", "values", "next_values", "terminated", "truncated", "valid",
    "version",
)  # fmt: skip


def together(rollouts: Sequence[Rollout]) -> Rollout:
    """Rollouts side by side, as one of all their environments; their versions are of each step.

    A shorter one is filled up with rows of zeros, which are no transitions. Only a rollout whose episode has ended is
    shorter, so that nothing reaches from them into rows that are.
    """
    first = rollouts[0]
    if len(rollouts) == 1:
        return first
    longest = max(len(rollout.rewards) for rollout in rollouts)
    columns = {name: _beside([getattr(rollout, name) for rollout in rollouts], longest) for name in COLUMNS}
    observed = first.observed
    if observed is not None:
        for rollout in rollouts[1:]:
            observed = observed.merge(rollout.observed)
    states = [rollout.state for rollout in rollouts if rollout.state is not None]
    return Rollout(
        **columns,
        state=np.concatenate(states) if states else None,
        episodes=functools.reduce(Episodes.merge, (rollout.episodes for rollout in rollouts)),
        transitions=sum(rollout.transitions for rollout in rollouts),
        observed=observed,
    )


def _beside(parts: Sequence[Array], length: int) -> Array:
    """Arrays [T, B, ...] of any T along their second axis, filled up with zeros to `length`."""
    if all(len(part) == length for part in parts):
        return np.concatenate(parts, axis=1)
    out = np.zeros((length, sum(part.shape[1] for part in parts), *parts[0].shape[2:]), parts[0].dtype)
    end = 0
    for part in parts:
        start, end = end, end + part.shape[1]
        out[: len(part), start:end] = part
    return out


@dataclass(frozen=True, slots=True)
class RewardShaping:
    """What training makes of a reward: clip(scale * r). Reported returns are those of the raw rewards."""

    scale: float = 1.0
    clip: float | None = None

    def __call__(self, rewards: Array) -> NDArray[np.float32]:
        """rewards [T, B] -> float32 [T, B]."""
        shaped: NDArray[np.float32] = rewards if self.scale == 1 else np.float32(self.scale) * rewards
        return shaped if self.clip is None else shaped.clip(-self.clip, self.clip)


class Collector:
    """Steps one worker's environments and keeps what must outlive a rollout: observations, running returns, state.

    length: steps of a rollout, or "episode" for one whole episode. With one environment a rollout also ends where an
    episode does, so no rollout of a single environment spans two episodes (Mnih et al. 2016, algorithm S3).
    shaping: of rewards; another may be set between rollouts.
    initial_state: the recurrent state with which every episode begins, [B, S] of zeros; None for a network without one.
    """

    def __init__(
        self,
        env: EnvBatch,
        length: int | Literal["episode"],
        shaping: RewardShaping,
        gamma: float,
        initial_state: Array | None = None,
    ) -> None:
        self._env, self.shaping, self._gamma = env, shaping, gamma
        self._length = None if length == "episode" else length
        self._single = env.count == 1
        self._observations = env.reset()
        self._state = initial_state
        self._running_returns = np.zeros(env.count)
        self._running_lengths = np.zeros(env.count, np.int64)
        self._discounted = np.zeros(env.count)
        self._ended_once = np.zeros(env.count, np.bool_)

    @property
    def envs_ended(self) -> int:
        """How many of the environments have ended at least one episode."""
        return int(self._ended_once.sum())

    def collect(self, actor: Actor, version: int, steps: int, normalisation: Normalisation | None) -> Rollout:
        """Step the environments until the rollout is full. `steps`: the run's steps so far, to date episodes' ends."""
        first, first_state = self._observations, self._state
        acts, answers = self._step(actor, normalisation)
        *told, states = zip(*acts, strict=True)
        actions, log_probs, values = map(_stacked, told)
        following, *columns, finals, valids, goes_on = zip(*answers, strict=True)
        raw, valid = _stacked([first, *following[:-1]]), _stacked(valids)
        rewards, terminated, truncated = map(_stacked, columns)

        ended = terminated | truncated
        next_values = self._next_values(actor, values, terminated, truncated, finals, states, normalisation)
        over = ended if goes_on[0] is None else ended & ~_stacked(goes_on)
        episodes = self._finish_episodes(rewards, valid, over, steps)
        shaped = self.shaping(rewards)
        observed = None
        if normalisation is not None:
            discounted = self._discounted_returns(shaped, ended) if normalisation.reward_scale is not None else None
            seen = None if normalisation.mean is None else raw[valid]
            observed = Moments.of(seen, None if discounted is None else discounted[valid])
            shaped = normalisation.rewards(shaped)
        return Rollout(
            observations=raw if normalisation is None else normalisation.observations(raw),
            actions=actions, log_probs=log_probs, rewards=shaped, values=values, next_values=next_values,
            terminated=terminated, truncated=truncated, valid=valid, version=version, state=first_state,
            episodes=episodes, transitions=int(np.count_nonzero(valid)), observed=observed,
        )  # fmt: skip

    def _step(self, actor: Actor, normalisation: Normalisation | None) -> tuple[list[Acted], list[Step]]:
        """Act and step until the rollout is full. The rows are kept as they come: an environment never writes into an
        array again, and putting T of them together at once is cheaper than copying each."""
        acts: list[Acted] = []
        answers: list[Step] = []
        observations, state = self._observations, self._state
        while self._length is None or len(acts) < self._length:
            seen = observations if normalisation is None else normalisation.observations(observations)
            acted = actor.act(seen, state)
            step = self._env.step(actor.to_env(acted.actions))
            acts.append(acted)
            answers.append(step)
            observations, state = step.obs, acted.state
            if state is not None:
                state = forget(state, restarts(step))
            if self._single and (step.terminated[0] or step.truncated[0]):
                break
        self._observations, self._state = observations, state
        return acts, answers

    def _next_values(
        self,
        actor: Actor,
        values: NDArray[np.float32],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        finals: Sequence[Array],
        states: Sequence[Array | None],
        normalisation: Normalisation | None,
    ) -> NDArray[np.float32]:
        """V(s_{t+1}) [T, B], with one call of the network for all states that no rollout step has valued.

        finals: of each step, the final observations [B, ...] of the episodes that ended in it.
        states: of each step, the recurrent state [B, S] behind its observations, before what ended is forgotten: what a
            final observation is seen with.
        """
        next_values = np.empty_like(values)
        next_values[:-1] = values[1:]
        times, envs = np.nonzero(truncated & ~terminated)
        goes_on = not (self._single and (terminated[-1, 0] or truncated[-1, 0]))
        cut = list(zip(times.tolist(), envs.tolist(), strict=True))
        if goes_on or cut:
            raw = _gathered(self._observations if goes_on else None, finals, cut)
            state = None if self._state is None else _gathered(self._state if goes_on else None, states, cut)
            found = actor.values(raw if normalisation is None else normalisation.observations(raw), state)
            if goes_on:
                next_values[-1], found = found[: self._env.count], found[self._env.count :]
            next_values[times, envs] = found
        next_values[terminated] = 0.0
        return next_values

    def _finish_episodes(
        self, rewards: Array, valid: NDArray[np.bool_], ended: NDArray[np.bool_], steps: int
    ) -> Episodes:
        """The episodes that were over in these rows ([T, B]), in the order in which they ended."""
        if not ended.any():
            self._running_returns += rewards.sum(0, np.float64)
            self._running_lengths += valid.sum(0)
            return Episodes()
        # Each environment's rows are cut into pieces, behind every end of an episode. Its first piece goes on with what
        # was under way, its last is under way again unless it ends an episode too. A sum for each piece: a reward that
        # is no number spoils the return of its own episode alone.
        length = len(rewards)
        ends = ended.T.ravel()
        begins = np.concatenate([[True], ends[:-1]])
        begins[::length] = True
        starts = np.flatnonzero(begins)
        tails = np.append(starts[1:], ends.size) - 1
        returns = np.add.reduceat(rewards.T.ravel(), starts, dtype=np.float64)
        lengths = np.add.reduceat(valid.T.ravel(), starts, dtype=np.int64)
        first, last = starts % length == 0, tails % length == length - 1
        returns[first] += self._running_returns
        lengths[first] += self._running_lengths
        over = ends[tails]
        self._running_returns = np.where(over, 0.0, returns)[last]
        self._running_lengths = np.where(over, 0, lengths)[last]

        envs, times = np.divmod(tails[over], length)
        self._ended_once[envs] = True
        order = np.argsort(times, kind="stable")
        end_steps = steps + (times[order] + 1) * self._env.count
        return Episodes(returns[over][order], lengths[over][order], end_steps.astype(np.int64))

    def _discounted_returns(self, rewards: NDArray[np.float32], ended: NDArray[np.bool_]) -> NDArray[np.float64]:
        """The running discounted sum of rewards at each row, float64 [T, B]: its spread is what they are divided by."""
        out = np.empty(rewards.shape)
        for t in range(len(rewards)):
            self._discounted = self._gamma * self._discounted + rewards[t]
            out[t] = self._discounted
            self._discounted[ended[t]] = 0.0
        return out


def restarts(of: Step | Rollout) -> NDArray[np.bool_]:
    """Whether nothing leads from a row to the next: its episode ended in it, or it was no transition. Shaped as the
    flags are, [B] or [T, B]."""
    return of.terminated | of.truncated | ~of.valid


def _gathered(first: Array | None, rows: Sequence[Any], places: Sequence[tuple[int, int]]) -> Array:
    """`first` [B, ...], if it is given, and behind it the rows of the (t, environment) in `places`: [N, ...]."""
    pieces = [] if first is None else [first]
    pieces += [rows[t][env : env + 1] for t, env in places]
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _stacked(rows: Sequence[Array]) -> Array:
    """T arrays [B, ...] as one [T, B, ...]."""
    return np.concatenate(rows).reshape(len(rows), *rows[0].shape)
