"""K gymnasium environments stepped one after another, with as little overhead over `env.step` as
Python allows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from a3c_exp.common.arrays import Array, Floats
from a3c_exp.envs.answers import AnswerCheck, WrongAnswerError, flag_of, listed_rewards, shortened
from a3c_exp.envs.batch import MAX_STEPS_GUARD, Step
from a3c_exp.envs.errors import CloseTimeoutError, EnvError, env_error
from a3c_exp.envs.progress import progress_call, report_progress
from a3c_exp.envs.spaces import decoder
from a3c_exp.errors import FAILURES

Env = gymnasium.Env[Any, Any]

_FALSE: Any = np.False_
"""There is one of it, as of False: to compare with it costs no more than to ask for its truth."""


class _Answer(NamedTuple):
    """What the step of one environment returned besides observation and reward, unchecked."""

    row: int
    terminated: Any
    truncated: Any
    info: Any


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
        counts_from_0 = isinstance(space, Discrete) and space.start == 0
        self._plain = counts_from_0 and all(map(_is_gymnasiums, envs))
        if self._plain:
            for env in envs:
                _quicken(env.unwrapped)

        self._envs = list(envs)
        spec = envs[0].spec
        self._name = type(envs[0].unwrapped).__name__ if spec is None else spec.id
        self._seeds: list[int | None] = [int(seed) for seed in seeds]

        unwrapped = [_without_limit(env) for env in envs]
        self._steps = [env.step for env, _ in unwrapped]
        _, limit = unwrapped[0]
        self._limit = limit if max_steps_guard is None else min(limit, float(max_steps_guard))
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
        env_actions: Iterable[Any] = actions.tolist() if self._plain else self.decode(actions)
        if self._scalar:
            env_actions = map(np.asarray, env_actions)
        observations = []
        rewards = []
        ended = []
        report_step = self._report_step
        self._tick += 1
        due = self._tick >= self._due
        for index, (step, action) in enumerate(zip(self._steps, env_actions, strict=True)):
            try:
                answer = step(action)
            except FAILURES as error:
                raise self._error(error, index) from error

            report_step()
            try:
                observation, reward, terminated, truncated, info = answer
            except (TypeError, ValueError):
                fault = (
                    f"{shortened(answer)}, not (observation, reward, terminated, truncated, info),"
                )
                raise self._error(WrongAnswerError(fault), index) from None

            observations.append(observation)
            rewards.append(reward)
            if due or not (
                (terminated is False or terminated is _FALSE)
                and (truncated is False or truncated is _FALSE)
            ):
                ended.append(_Answer(index, terminated, truncated, info))

        try:
            obs = self._check.batch(observations, range(self.count))
            result = Step(obs, listed_rewards(rewards), self._none, self._none, obs, self._all)
            if ended:
                result = self._restart(obs, result.reward, ended)
            self._check.require_action(result.obs)
        except WrongAnswerError as error:
            raise self._error(error, error.index or 0) from None

        return result

    def _restart(self, obs: Array, reward: Floats, answers: list[_Answer]) -> Step:
        """Apply the time limit, and restart ended episodes, whose last observations go to
        `final_obs`.

        answers: of the episodes that may have ended.
        Raises WrongAnswerError for a flag that is none.
        """
        terminated = self._none.copy()
        truncated = self._none.copy()
        for index, terminated_flag, truncated_flag, _ in answers:
            terminated[index] = flag_of("terminated", terminated_flag, index)
            truncated[index] = flag_of("truncated", truncated_flag, index)

        if self._tick >= self._due:
            truncated |= self._tick - np.array(self._began) >= self._limit
        over = terminated | truncated
        answers = [answer for answer in answers if over[answer.row]]
        # Copies: an environment may write its next episode into the same mapping.
        infos = {
            answer.row: dict(answer.info)
            for answer in answers
            if isinstance(answer.info, Mapping) and answer.info
        }

        final_obs = obs
        obs = obs.copy()
        for answer in answers:
            self._began[answer.row] = self._tick
            obs[answer.row] = self._first_observation(answer.row)[0]

        self._due = min(self._began) + self._limit
        return Step(
            obs, reward, terminated, truncated, final_obs, self._all, final_info=infos or None
        )

    def _first_observation(self, index: int) -> Array:
        """Start an episode and return its first observation [1, ...]."""
        seed = self._seeds[index]
        self._seeds[index] = None
        try:
            # an environment that takes no options is asked for none
            options = {"options": dict(self._reset_options)} if self._reset_options else {}
            answer = self._envs[index].reset(seed=seed, **options)
            report_progress()
            if not isinstance(answer, (tuple, list)) or len(answer) != 2:
                raise WrongAnswerError(f"{shortened(answer)}, not (observation, info),")

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

    @property
    def render_fps(self) -> float | None:
        """Return how many images of the environment are a second of its own time, if it says so."""
        return self._envs[0].metadata.get("render_fps")

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


def _quicken(env: Env) -> None:
    """Let an environment of gymnasium's own check its actions quickly: see `_QuickDiscrete`."""
    space = env.action_space
    if type(space) is Discrete and space.start == 0:
        env.action_space = _QuickDiscrete(space.n, dtype=space.dtype.type)


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
