"""Rollouts: what a worker saw and did, as time-major arrays, and the loop that collects one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from a3c_exp.envs import EnvBatch
from a3c_exp.events import Episodes
from a3c_exp.networks import ActorCritic
from a3c_exp.normalisation import Moments, Normalisation

Array = NDArray[Any]


class Acted(NamedTuple):
    """What an actor answers to B observations. log_probs and values: float32 [B]; state: the recurrent state after."""

    actions: Array
    log_probs: NDArray[np.float32]
    values: NDArray[np.float32]
    state: Any


class Actor(Protocol):
    """Where actions come from. The loop below cannot tell whether the network is here or behind a queue."""

    def act(self, observations: Array, state: Any) -> Acted:
        """Sampled actions for observations [B, ...]."""

    def values(self, observations: Array, state: Any) -> NDArray[np.float32]:
        """V(s) alone, float32 [B]: what a rollout that was cut is bootstrapped with."""

    def to_env(self, actions: Array) -> Array: ...


class LocalActor:
    """Acts with a network of this thread, drawing from this worker's generator."""

    def __init__(self, network: ActorCritic, rng: np.random.Generator) -> None:
        self._network, self._rng = network, rng
        self.to_env = network.head.to_env

    def act(self, observations: Array, state: Any) -> Acted:
        parameters, values = self._network.infer(observations)
        return Acted(*self._network.head.sample(parameters, self._rng), values, state)

    def values(self, observations: Array, state: Any) -> NDArray[np.float32]:
        return self._network.values(observations)


@dataclass(frozen=True, slots=True)
class Rollout:
    """T steps of B environments; every array starts with [T, B].

    observations: as the network saw them, normalised with the statistics that were pulled.
    rewards: float32, scaled, clipped and normalised as the environment's settings say.
    next_values: V(s_{t+1}) of the same episode: 0 where it terminated, V(final observation) where it was truncated.
    valid: False where the row is no transition (a vector environment spent the step on a reset).
    version: of the parameters that acted.
    state: the recurrent state at t = 0, None for a network without one.
    observed: sums over the raw observations and returns, for the shared statistics; None if nothing is normalised.
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
    version: int
    state: Any
    episodes: Episodes
    transitions: int
    observed: Moments | None


@dataclass(frozen=True, slots=True)
class RewardShaping:
    """What training makes of a reward: clip(scale * r). Reported returns are those of the raw rewards."""

    scale: float = 1.0
    clip: float | None = None

    def __call__(self, rewards: Array) -> NDArray[np.float32]:
        """rewards [T, B] -> float32 [T, B]."""
        shaped: NDArray[np.float32] = rewards.astype(np.float32) if self.scale == 1 else np.float32(self.scale) * rewards
        return shaped if self.clip is None else shaped.clip(-self.clip, self.clip)


class Collector:
    """Steps one worker's environments and keeps what must outlive a rollout: observations, running returns, state.

    length: steps of a rollout, or "episode" for one whole episode. With one environment a rollout also ends where an
    episode does, so no rollout of a single environment spans two episodes (Mnih et al. 2016, algorithm S3).
    """

    def __init__(
        self,
        env: EnvBatch,
        length: int | Literal["episode"],
        shaping: RewardShaping,
        gamma: float,
        initial_state: Any = None,
    ) -> None:
        self._env, self._shaping, self._gamma = env, shaping, gamma
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
        buffers = _Buffers(self._length or 256)
        truncations: list[tuple[int, NDArray[np.intp], Array]] = []
        first_state = self._state
        raw, observation = self._observations, self._observations
        while self._length is None or buffers.filled < self._length:
            observation = raw if normalisation is None else normalisation.observations(raw)
            acted = actor.act(observation, self._state)
            step = self._env.step(actor.to_env(acted.actions))
            if step.truncated.any():
                cut = step.truncated & ~step.terminated
                rows = np.flatnonzero(cut)
                truncations.append((buffers.filled, rows, step.final_obs[rows]))
            buffers.append(raw, observation, acted, step)
            raw, self._state = step.obs, acted.state
            if self._single and (step.terminated[0] or step.truncated[0]):
                break
        self._observations = raw

        b = buffers.trimmed()
        next_values = self._next_values(actor, b, truncations, normalisation)
        ended = b.terminated | b.truncated
        transitions = int(np.count_nonzero(b.valid))
        episodes = self._finish_episodes(b.rewards, b.valid, ended, steps)
        rewards = self._shaping(b.rewards)
        observed = None
        if normalisation is not None:
            discounted = self._discounted_returns(rewards, ended) if normalisation.reward_scale is not None else None
            observed = Moments.of(b.raw[b.valid], None if discounted is None else discounted[b.valid])
            rewards = normalisation.rewards(rewards)
        return Rollout(
            observations=b.observations, actions=b.actions, log_probs=b.log_probs, rewards=rewards, values=b.values,
            next_values=next_values, terminated=b.terminated, truncated=b.truncated, valid=b.valid, version=version,
            state=first_state, episodes=episodes, transitions=transitions, observed=observed,
        )  # fmt: skip

    def _next_values(
        self,
        actor: Actor,
        b: _Trimmed,
        truncations: list[tuple[int, NDArray[np.intp], Array]],
        normalisation: Normalisation | None,
    ) -> NDArray[np.float32]:
        """V(s_{t+1}) [T, B], with one call of the network for all states that no rollout step has valued."""
        next_values = np.empty_like(b.values)
        next_values[:-1] = b.values[1:]
        cut = not (self._single and (b.terminated[-1, 0] or b.truncated[-1, 0]))
        unseen = ([self._observations] if cut else []) + [final for _, _, final in truncations]
        if unseen:
            raw = np.concatenate(unseen) if len(unseen) > 1 else unseen[0]
            values = actor.values(raw if normalisation is None else normalisation.observations(raw), self._state)
            start = 0
            if cut:
                start = self._env.count
                next_values[-1] = values[:start]
            for t, rows, _ in truncations:
                next_values[t, rows] = values[start : start + len(rows)]
                start += len(rows)
        next_values[b.terminated] = 0.0
        return next_values

    def _finish_episodes(
        self, rewards: Array, valid: NDArray[np.bool_], ended: NDArray[np.bool_], steps: int
    ) -> Episodes:
        """The episodes that ended in these rows ([T, B]), in the order in which they ended."""
        returns = np.cumsum(rewards, axis=0, dtype=np.float64) + self._running_returns
        lengths = np.cumsum(valid, axis=0) + self._running_lengths
        envs, times = np.nonzero(ended.T)
        if not len(times):
            self._running_returns, self._running_lengths = returns[-1], lengths[-1]
            return Episodes()
        self._ended_once[envs] = True
        end_returns, end_lengths = returns[times, envs], lengths[times, envs]
        # Sorted by environment, then time: what came before an episode in the same rollout is the row above it.
        same_env = envs[1:] == envs[:-1]
        episode_returns, episode_lengths = end_returns.copy(), end_lengths.copy()
        episode_returns[1:] -= np.where(same_env, end_returns[:-1], 0.0)
        episode_lengths[1:] -= np.where(same_env, end_lengths[:-1], 0)
        self._running_returns, self._running_lengths = returns[-1], lengths[-1]
        last = np.append(~same_env, True)
        self._running_returns[envs[last]] -= end_returns[last]
        self._running_lengths[envs[last]] -= end_lengths[last]
        order = np.argsort(times, kind="stable")
        end_steps = steps + (times[order] + 1) * self._env.count
        return Episodes(episode_returns[order], episode_lengths[order], end_steps.astype(np.int64))

    def _discounted_returns(self, rewards: NDArray[np.float32], ended: NDArray[np.bool_]) -> NDArray[np.float64]:
        """The running discounted sum of rewards at each row, float64 [T, B]; its spread is what rewards are divided by."""
        out = np.empty(rewards.shape)
        for t in range(len(rewards)):
            self._discounted = self._gamma * self._discounted + rewards[t]
            out[t] = self._discounted
            self._discounted[ended[t]] = 0.0
        return out


class _Trimmed(NamedTuple):
    """A rollout's buffers, cut to the steps that were filled."""

    raw: Array
    observations: Array
    actions: Array
    log_probs: NDArray[np.float32]
    values: NDArray[np.float32]
    rewards: Array
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]


class _Buffers:
    """Arrays that are filled a row at a time, and doubled where a whole episode is longer than expected."""

    def __init__(self, capacity: int) -> None:
        self.filled = 0
        self._capacity = capacity
        self._arrays: list[Array] = []

    def append(self, raw: Array, observation: Array, acted: Acted, step: Any) -> None:
        row = (
            raw, observation, acted.actions, acted.log_probs, acted.values,
            step.reward, step.terminated, step.truncated, step.valid,
        )  # fmt: skip
        if not self._arrays:
            self._normalised = observation is not raw
            self._arrays = [np.empty((self._capacity, *a.shape), a.dtype) for a in row]
            if not self._normalised:
                self._arrays[0] = self._arrays[1]
        elif self.filled == self._capacity:
            self._capacity *= 2
            self._arrays = [np.concatenate([a, np.empty_like(a)]) for a in self._arrays]
        t = self.filled
        for array, values in zip(self._arrays, row, strict=True):
            array[t] = values
        self.filled += 1

    def trimmed(self) -> _Trimmed:
        return _Trimmed(*(a[: self.filled] for a in self._arrays))
