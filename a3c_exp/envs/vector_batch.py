"""Environments of gymnasium that step in one call, in any autoreset mode."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Space, Tuple, flatten_space
from gymnasium.vector import (
    AsyncVectorEnv,
    AutoresetMode,
    SyncVectorEnv,
    VectorEnv,
    VectorObservationWrapper,
)

from a3c_exp.common.arrays import Array
from a3c_exp.envs.answers import AnswerCheck, flags_of, rewards_of
from a3c_exp.envs.batch import Step
from a3c_exp.envs.errors import env_error
from a3c_exp.envs.info import final_infos
from a3c_exp.envs.spaces import decoder
from a3c_exp.errors import FAILURES


class VectorEnvBatch:
    """An EnvBatch over a gymnasium vector environment, in any of its autoreset modes.

    - NEXT_STEP: the step after an end restarts the episode and ignores its action. The ended row's
      `obs` is the last observation, and the next row is marked as no transition. It costs one step
      of that environment an episode.
    - SAME_STEP: the ending step already returns the next episode's first observation, and the last
      one beside it.
    - DISABLED: the environments that ended are restarted here, at once.

    `max_steps_guard` is not kept here: a native vector has limits of its own.

    env: K environments.
    seeds: one for each environment, used in the first reset. gymnasium's own vectors of Python
        environments take all; a native one takes a single seed, and gets the first. None: the
        environments have been seeded.

    A subclass may begin and step in another way. Both raise whatever went wrong, of which `reset`
    and `step` make an EnvError.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], seeds: Sequence[int] | None) -> None:
        self.count = int(env.num_envs)
        self.action_space, self.decode = decoder(env.single_action_space)
        self._check = AnswerCheck(env.single_observation_space, self.action_space)
        self.observation_space = self._check.box
        self.encode = self._check.batch
        self._is_tuple = isinstance(env.single_action_space, Tuple)
        self._env = env
        # EnvPool's specification has none
        self._name = getattr(env.spec, "id", None) or type(env.unwrapped).__name__
        self._mode = autoreset_mode(env)
        self._seeds = None if seeds is None else [int(seed) for seed in seeds]
        self._takes_seeds = isinstance(env.unwrapped, (SyncVectorEnv, AsyncVectorEnv))
        self._tick = 0
        self._valid = np.ones(self.count, np.bool_)
        self._valid.flags.writeable = False

    def reset(self) -> Array:
        """Start an episode in every environment, and return the first observations [K, ...]."""
        seeds = self._seeds
        self._seeds = None
        try:
            return self._begin(seeds)
        except FAILURES as error:
            raise env_error(error, self._name) from error

    def step(self, actions: Array) -> Step:
        """Take actions [K, ...]."""
        self._tick += 1
        try:
            return self._advance(actions)
        except FAILURES as error:
            raise env_error(error, self._name, step=self._tick) from error

    def _begin(self, seeds: Sequence[int] | None) -> Array:
        """Start an episode in every environment, and return the first observations [K, ...]."""
        seed = seeds if seeds is None or self._takes_seeds else seeds[0]
        observations, _ = self._env.reset(seed=seed)  # type: ignore[arg-type]  # gymnasium types the native form only
        self._ended = np.zeros(self.count, np.bool_)
        obs = self._check.batch(observations, range(self.count))
        self._check.require_action(obs)
        return obs

    def _advance(self, actions: Array) -> Step:
        """Take actions [K, ...]."""
        env_actions: Any = self.decode(actions)
        if self._is_tuple:
            env_actions = tuple(np.array(env_actions).T)  # gymnasium's form for K of them
        observations, rewards, terminations, truncations, info = self._env.step(env_actions)

        terminated = flags_of("terminated", terminations, self.count)
        truncated = flags_of("truncated", truncations, self.count)
        ended = terminated | truncated
        obs = self._check.batch(observations, range(self.count))
        reward = rewards_of(rewards, self.count)

        valid = self._valid
        final_obs = obs
        if self._mode is AutoresetMode.NEXT_STEP:
            valid = ~self._ended
            self._ended = ended
        elif ended.any() and self._mode is AutoresetMode.SAME_STEP:
            final_obs = obs.copy()
            # gymnasium's own vectors return an object array with holes, others a dense one, or
            # arrays by the names of parts. All have the ended rows.
            final: Any = self._check.rows(info["final_obs"])
            is_array = isinstance(final, np.ndarray)
            rows = list(final[ended]) if is_array else list(compress(final, ended))
            final_obs[ended] = self._check.batch(rows, np.flatnonzero(ended))
            info = info.get("final_info", {})
        elif ended.any():
            restarted, _ = self._env.reset(options={"reset_mask": ended.copy()})
            obs = obs.copy()
            obs[ended] = self._check.batch(restarted, range(self.count))[ended]

        restarts_late = self._mode is AutoresetMode.NEXT_STEP
        self._check.require_action(obs, over=ended if restarts_late else False)
        infos = final_infos(info, ended)

        return Step(obs, reward, terminated, truncated, final_obs, valid, final_info=infos)

    def render(self) -> Any:
        """Return what the first environment draws: see `EnvBatch.render`."""
        frames: Any = self._env.render()
        return None if frames is None else frames[0]

    @property
    def render_fps(self) -> float | None:
        """Return how many images of the environment are a second of its own time, if it says so."""
        return self._env.metadata.get("render_fps")

    def close(self) -> None:
        self._env.close()


def autoreset_mode(env: VectorEnv[Any, Any, Any]) -> AutoresetMode:
    """Return the mode that `env` declares, also as a text in any case. Raises TypeError if it
    declares none: a guess would invent transitions."""
    declared = env.metadata.get("autoreset_mode")
    text = str(getattr(declared, "value", declared)).replace("_", "").lower()
    for mode in AutoresetMode:
        if mode.value.lower() == text:
            return mode

    modes = ", ".join(mode.value for mode in AutoresetMode)
    raise TypeError(
        f"{env} does not say how it restarts episodes: metadata['autoreset_mode'] is "
        f"{declared!r}, none of {modes}"
    )


class VectorFilter(VectorObservationWrapper):
    """Keeps some parts of a Dict of observations, like gymnasium's FilterObservation.

    filter_keys: their names.
    Raises ValueError about a name that is none, TypeError if observations are no Dict.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], filter_keys: Sequence[str]) -> None:
        super().__init__(env)
        spaces = _parts_of(env.single_observation_space)
        self._keys = tuple(filter_keys)
        if not set(self._keys) <= set(spaces):
            raise ValueError(f"filter_keys must be among {', '.join(spaces)}")

        self.single_observation_space = Dict({key: spaces[key] for key in self._keys})

    def observations(self, observations: Any) -> Any:
        """Return the parts of K observations, [K, ...] each."""
        return {key: observations[key] for key in self._keys}


class VectorFlatten(VectorObservationWrapper):
    """Puts the parts of a Dict of observations side by side, like gymnasium's FlattenObservation:
    Discrete ones as one-hot vectors. Gymnasium's own loops over the environments.

    Raises TypeError if observations are no Dict, or for a part that is neither an array nor
    Discrete.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        super().__init__(env)
        self._spaces = _parts_of(env.single_observation_space)
        for key, space in self._spaces.items():
            if not isinstance(space, (Box, Discrete, MultiBinary)):
                raise TypeError(f"{key} cannot be flattened in a native vector: {space}")

        self.single_observation_space = flatten_space(env.single_observation_space)

    def observations(self, observations: Any) -> Array:
        """Return K observations as vectors [K, D]."""
        vectors = []
        for key, space in self._spaces.items():
            part = observations[key]
            if isinstance(space, Discrete):
                part = part[:, None] == np.arange(space.start, space.start + space.n)
            vectors.append(part.reshape(len(part), -1))

        return np.concatenate(vectors, 1, dtype=self.single_observation_space.dtype)


def _parts_of(space: Space[Any]) -> dict[str, Space[Any]]:
    """Return the spaces of a Dict by their keys."""
    if not isinstance(space, Dict):
        raise TypeError(f"its observations are no Dict: {space}")
    return dict(space.items())


VECTOR_WRAPPERS = {"FilterObservation": VectorFilter, "FlattenObservation": VectorFlatten}
"""Wrappers of a native vector environment, by the name of those of gymnasium that do the same with
one environment."""
