"""K gymnasium environments stepped one after another, with as little overhead over `env.step` as Python allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Discrete
from gymnasium.wrappers import OrderEnforcing, TimeLimit
from numpy.typing import NDArray

from a3c_exp.common.arrays import Array, Floats
from a3c_exp.envs.answers import AnswerCheck, WrongAnswerError, listed_rewards, reward_fault, step_fault
from a3c_exp.envs.batch import Step
from a3c_exp.envs.errors import MAX_STEPS_GUARD, EnvErrors, OnError, another_seed
from a3c_exp.envs.spaces import decoder, encoder
from a3c_exp.errors import FAILURES

Env = gymnasium.Env[Any, Any]


class SyncEnvBatch:
    """An EnvBatch over K environments of the same kind; an episode that ends restarts in the same step.

    envs: K environments with the same spaces, and with the same time limit where they have one.
    seeds: K numbers, each used in its environment's first reset.
    on_error, max_steps_guard: see `Environment`. An environment that goes wrong begins a new episode, and the others go
        on.

    gymnasium's outermost wrappers (TimeLimit around OrderEnforcing) cost two more Python calls a step, a tenth of
    CartPole's whole step. If they are outermost, `step` calls what they wrap, and the limit is kept here with the same
    meaning: truncated after that many steps, whether or not the last one also terminated.
    """

    def __init__(
        self, envs: Sequence[Env], seeds: Sequence[int], on_error: OnError = "restart",
        max_steps_guard: int | None = MAX_STEPS_GUARD,
    ) -> None:  # fmt: skip
        if not envs or len(seeds) != len(envs):
            raise ValueError(f"{len(envs)} environments need as many seeds, and at least one; got {len(seeds)}")
        self.count = len(envs)
        self.observation_space, self.encode = encoder(envs[0].observation_space)
        self.action_space, self.decode = decoder(envs[0].action_space)
        self._check = AnswerCheck(envs[0].observation_space)
        self._errors = EnvErrors(_name(envs[0]), self.count, on_error)
        # For an environment a Python int is faster than a numpy one. Other actions are rows of an array.
        self._each: Callable[[Array], Sequence[Any] | Array] = self.decode
        if isinstance(envs[0].action_space, Discrete):
            plain = envs[0].action_space.start == 0
            decode = self.decode
            self._each = (lambda actions: actions.tolist()) if plain else (lambda actions: decode(actions).tolist())
        self._envs = list(envs)
        self._seeds: list[int | None] = [int(seed) for seed in seeds]
        unwrapped = [_without_limit(env) for env in envs]
        self._steps = [env.step for env, _ in unwrapped]
        limit, guard = unwrapped[0][1], float("inf") if max_steps_guard is None else float(max_steps_guard)
        self._limit, self._guarded = min(limit, guard), guard < limit
        self._tick = 0
        self._began = [0] * self.count
        self._due = self._limit
        self._all, self._none = np.ones(self.count, np.bool_), np.zeros(self.count, np.bool_)
        self._all.flags.writeable = self._none.flags.writeable = False

    def reset(self) -> Array:
        """Start an episode in every environment, and return the first observations [K, ...]."""
        self._began = [self._tick] * self.count
        obs = np.concatenate([self._first_observation(index) for index in range(self.count)])
        # What went wrong here is reported with the next step.
        self._due = self._tick if self._errors.warnings else self._tick + self._limit
        return obs

    def step(self, actions: Array) -> Step:
        """Take actions [K, ...]. Where an episode ends, `obs` is already the first observation of the next one."""
        each = self._each(actions)
        observations, rewards, ended, failed = [], [], [], []
        for index, (step, action) in enumerate(zip(self._steps, each, strict=True)):
            try:
                answer = step(action)
                try:
                    observation, reward, terminated, truncated, _ = answer
                    if terminated or truncated:
                        ended.append((index, terminated, truncated))
                except (TypeError, ValueError):
                    raise WrongAnswerError(step_fault(answer)) from None
            except FAILURES as error:
                observation, reward = None, 0.0
                failed.append((index, error))
            observations.append(observation)
            rewards.append(reward)
        self._tick += 1
        obs, earned = self._check.observations(observations), listed_rewards(rewards)
        if obs is None or earned is None:  # one that failed has no observation
            return self._mend(observations, rewards, ended, dict(failed))
        if not ended and self._tick < self._due:
            return Step(obs, earned, self._none, self._none, obs, self._all)
        return self._restart(obs, earned, ended)

    def _mend(
        self, observations: list[Any], rewards: list[Any], ended: list[tuple[int, bool, bool]],
        failed: dict[int, BaseException],
    ) -> Step:  # fmt: skip
        """Begin a new episode in each environment that went wrong. The rows of the others are what they are."""
        broken, rows = self._none.copy(), []
        reward = np.zeros(self.count, np.float32)
        for index, (observation, given) in enumerate(zip(observations, rewards, strict=True)):
            error = failed.get(index)
            if error is None and (fault := reward_fault(given) or self._check.fault(observation)):
                error = WrongAnswerError(fault)
            if error is None:
                rows.append(self.encode([observation]))
                reward[index] = np.asarray(given, np.float32).item()
                continue
            broken[index] = True
            began = self._began[index]
            self._errors.add(error, tick=self._tick, began=began, unit=index, env=index, moment=self._tick - began)
            self._began[index] = self._tick
            rows.append(self._first_observation(index))
        step = self._restart(np.concatenate(rows), reward, [end for end in ended if not broken[end[0]]])
        return step._replace(valid=~broken, broken=broken)

    def _restart(self, obs: Array, reward: Floats, ended: list[tuple[int, bool, bool]]) -> Step:
        """Apply the time limit, and restart ended episodes, whose last observations go to `final_obs`."""
        terminated, truncated = self._none.copy(), self._none.copy()
        for index, dead, cut in ended:
            terminated[index], truncated[index] = dead, cut
        if self._tick >= self._due:
            late = self._tick - np.array(self._began) >= self._limit
            endless = np.flatnonzero(late & ~(terminated | truncated)) if self._guarded else self._none[:0]
            for index in endless.tolist():
                self._errors.warn_of_endless(index, int(self._limit))
            truncated |= late
        final_obs, obs = obs, obs.copy()
        for index in np.flatnonzero(terminated | truncated).tolist():
            self._began[index] = self._tick
            obs[index] = self._first_observation(index)[0]
        self._due = min(self._began) + self._limit
        step = Step(obs, reward, terminated, truncated, final_obs, self._all)
        if not self._errors.warnings:
            return step
        errors, warnings = self._errors.take()
        return step._replace(errors=errors, warnings=warnings)

    def _first_observation(self, index: int) -> Array:
        """Start an episode and return its first observation [1, ...]. Tries again after an error.

        `_began` has been set before: an error here is in a row with those that came after that.
        """
        while True:
            seed = self._seeds[index]
            try:
                observation, _ = self._envs[index].reset(seed=seed)
                row = self._check.observations([observation])
                if row is None:
                    raise WrongAnswerError(str(self._check.fault(observation)))
            except FAILURES as error:
                self._errors.add(error, tick=self._tick, began=self._began[index], unit=index, env=index)
                self._seeds[index] = None if seed is None else another_seed(seed)
            else:
                self._seeds[index] = None
                return row

    def render(self) -> NDArray[np.uint8] | None:
        """A picture of the first environment; None if it draws in a window of its own."""
        frame: Any = self._envs[0].render()
        return None if frame is None else np.asarray(frame, np.uint8)

    def close(self) -> None:
        for env in self._envs:
            env.close()


def _name(env: Env) -> str:
    """The name by which messages call an environment."""
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__


def _without_limit(env: Env) -> tuple[Env, float]:
    """Unwrap the outermost TimeLimit and OrderEnforcing; return the environment and the limit (infinity for none).

    Only these two classes are unwrapped. A class derived from them, or a wrapper around them, is stepped as it is.
    """
    limit = float("inf")
    if type(env) is TimeLimit:
        limit = float(env._max_episode_steps)
        env = env.env
    if type(env) is OrderEnforcing:
        env = env.env
    return env, limit
