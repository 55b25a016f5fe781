"""K gymnasium environments stepped one after another, with as little overhead over `env.step` as
Python allows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from a3c_exp.common.arrays import Array, Floats
from a3c_exp.envs.answers import AnswerCheck, WrongAnswerError, flag_of, listed_rewards, short
from a3c_exp.envs.batch import MAX_STEPS_GUARD, Step
from a3c_exp.envs.errors import CloseTimeoutError, EnvError, env_error
from a3c_exp.envs.progress import progress_call, report_progress
from a3c_exp.envs.spaces import decoder
from a3c_exp.errors import FAILURES

Env = gymnasium.Env[Any, Any]

_FALSE: Any = np.False_
"""There is one of it, as of False: to compare with it costs no more than to ask for its truth."""


class _QuickDiscrete(Discrete):
    """A Discrete space from 0 that answers for one of Python's integers without numpy.

    gymnasium's own environments ask at every step whether the action is in their space. That is a
    third of CartPole's step otherwise.
    """

    def contains(self, x: Any) -> bool:
        return 0 <= x < self.end if type(x) is int else super().contains(x)

    @cached_property
    def end(self) -> int:
        return int(self.n)


class SyncEnvBatch:
    """An EnvBatch over K environments of the same kind; an episode that ends restarts in the same
    step.

    envs: K environments with the same spaces, and with the same time limit where they have one.
    seeds: K numbers, each used in its environment's first reset.
    max_steps_guard: see `Environment`.
    reset_options: of each reset, see `Gym`.

    Raises EnvError where an environment goes wrong. `reset` begins all episodes again.

    gymnasium's outermost wrappers (TimeLimit around OrderEnforcing) cost two more Python calls a
    step, a tenth of CartPole's whole step. If they are outermost, `step` calls what they wrap, and
    the limit is kept here with the same meaning: truncated after that many steps, whether or not
    the last one also terminated.
    """

    def __init__(
        self,
        envs: Sequence[Env],
        seeds: Sequence[int],
        max_steps_guard: int | None = MAX_STEPS_GUARD,
        reset_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.count = len(envs)
        observations = envs[0].observation_space
        self.action_space, self.decode = decoder(envs[0].action_space)
        self._check = AnswerCheck(observations, self.action_space)
        self.observation_space = self._check.box
        self.encode = self._check.batch
        # A row of an array is what the space's own `sample` returns, but for a Box of a single
        # number. gymnasium's own environments take Python's integers as well, with which
        # LunarLander's step is a tenth faster.
        space = envs[0].action_space
        self._scalar = isinstance(space, Box) and space.shape == ()
        self._plain = (
            isinstance(space, Discrete) and space.start == 0 and all(map(_is_gymnasiums, envs))
        )
        if self._plain:
            for own in (env.unwrapped for env in envs):
                if type(own.action_space) is Discrete and own.action_space.start == 0:
                    own.action_space = _QuickDiscrete(
                        own.action_space.n, dtype=own.action_space.dtype.type
                    )
        self._envs = list(envs)
        self._name = (
            envs[0].spec.id if envs[0].spec is not None else type(envs[0].unwrapped).__name__
        )
        self._seeds: list[int | None] = [int(seed) for seed in seeds]
        unwrapped = [_without_limit(env) for env in envs]
        self._steps = [env.step for env, _ in unwrapped]
        self._limit = min(
            unwrapped[0][1], float("inf") if max_steps_guard is None else float(max_steps_guard)
        )
        self._reset_options = reset_options
        self._report_step = progress_call()
        self._tick = 0
        self._all = np.ones(self.count, np.bool_)
        self._none = np.zeros(self.count, np.bool_)
        self._all.flags.writeable = self._none.flags.writeable = False

    def reset(self) -> Array:
        """Start an episode in every environment, and return the first observations [K, ...]."""
        self._began = [self._tick] * self.count
        self._due = self._tick + self._limit
        return np.concatenate([self._first_observation(index) for index in range(self.count)])

    def step(self, actions: Array) -> Step:
        """Take actions [K, ...]. Where an episode ends, `obs` is already the first observation of
        the next one."""
        each: Iterable[Any] = actions.tolist() if self._plain else self.decode(actions)
        if self._scalar:
            each = map(np.asarray, each)
        observations = []
        rewards = []
        ended = []
        report_step = self._report_step
        self._tick += 1
        due = self._tick >= self._due
        for index, (step, action) in enumerate(zip(self._steps, each, strict=True)):
            try:
                answer = step(action)
            except FAILURES as error:
                raise self._error(error, index) from error
            report_step()
            try:
                observation, reward, terminated, truncated, info = answer
            except (TypeError, ValueError):
                fault = f"{short(answer)}, not (observation, reward, terminated, truncated, info),"
                raise self._error(WrongAnswerError(fault), index) from None
            observations.append(observation)
            rewards.append(reward)
            if due or not (
                (terminated is False or terminated is _FALSE)
                and (truncated is False or truncated is _FALSE)
            ):
                ended.append((index, terminated, truncated, info))
        try:
            obs = self._check.batch(observations, range(self.count))
            result = Step(obs, listed_rewards(rewards), self._none, self._none, obs, self._all)
            if ended:
                result = self._restart(obs, result.reward, ended)
            self._check.require_action(result.obs)
        except WrongAnswerError as error:
            raise self._error(error, error.index or 0) from None
        return result

    def _restart(
        self, obs: Array, reward: Floats, answers: list[tuple[int, Any, Any, Any]]
    ) -> Step:
        """Apply the time limit, and restart ended episodes, whose last observations go to
        `final_obs`.

        answers: index, terminated, truncated and info, as its environment returned them, of each
            episode that may have ended. Raises WrongAnswerError for a flag that is none.
        """
        terminated = self._none.copy()
        truncated = self._none.copy()
        for index, dead, cut, _ in answers:
            terminated[index] = flag_of("terminated", dead, index)
            truncated[index] = flag_of("truncated", cut, index)
        if self._tick >= self._due:
            truncated |= self._tick - np.array(self._began) >= self._limit
        over = terminated | truncated
        answers = [answer for answer in answers if over[answer[0]]]
        final_obs, obs = obs, obs.copy()
        # Copies: an environment may write its next episode into the same mapping.
        infos = {
            index: dict(info) for index, _, _, info in answers if isinstance(info, Mapping) and info
        }
        for index, *_ in answers:
            self._began[index] = self._tick
            obs[index] = self._first_observation(index)[0]
        self._due = min(self._began) + self._limit
        return Step(
            obs, reward, terminated, truncated, final_obs, self._all, final_info=infos or None
        )

    def _first_observation(self, index: int) -> Array:
        """Start an episode and return its first observation [1, ...]."""
        seed, self._seeds[index] = self._seeds[index], None
        try:
            # an environment that takes no options is asked for none
            options = {"options": dict(self._reset_options)} if self._reset_options else {}
            answer = self._envs[index].reset(seed=seed, **options)
            report_progress()
            if not isinstance(answer, (tuple, list)) or len(answer) != 2:
                raise WrongAnswerError(f"{short(answer)}, not (observation, info),")
            row = self._check.batch([answer[0]], [index])
            self._check.require_action(row)
        except FAILURES as error:
            raise env_error(error, self._name, index=index) from error
        return row

    def _error(self, error: BaseException, index: int) -> EnvError:
        return env_error(error, self._name, index=index, step=self._tick - self._began[index])

    def render(self) -> Any:
        """Return what the first environment draws: see `EnvBatch.render`."""
        return self._envs[0].render()

    def close(self) -> None:
        """Close all, until time is up for one of them. Raises the first error of those that could
        not be closed."""
        errors = []
        for env in self._envs:
            try:
                env.close()
                report_progress()
            except CloseTimeoutError:
                raise
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]


def _is_gymnasiums(env: Env) -> bool:
    """Return whether an environment and all of its wrappers are gymnasium's own."""
    while isinstance(env, gymnasium.Wrapper) and type(env).__module__.startswith("gymnasium."):
        env = env.env
    return type(env).__module__.startswith("gymnasium.")


def _without_limit(env: Env) -> tuple[Env, float]:
    """Unwrap the outermost TimeLimit and OrderEnforcing; return the environment and the limit
    (infinity for none).

    Only these two classes are unwrapped. A class derived from them, or a wrapper around them, is
    stepped as it is.
    """
    limit = float("inf")
    if type(env) is TimeLimit:
        limit = float(env._max_episode_steps)
        env = env.env
    if type(env) is OrderEnforcing:
        env = env.env
    return env, limit
