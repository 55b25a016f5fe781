"""A native vector environment of gymnasium as an EnvBatch, in any autoreset mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from a3c_exp.common.arrays import Array, Bools
from a3c_exp.envs.batch import Step
from a3c_exp.envs.spaces import decoder, encoder


class VectorEnvBatch:
    """An EnvBatch over a gymnasium vector environment, in any of its autoreset modes.

    - NEXT_STEP: the step after an end restarts the episode and ignores its action. The ended row's `obs` is the last
      observation, and the next row is marked as no transition. It costs one step of that environment an episode.
    - SAME_STEP: the ending step already returns the next episode's first observation, and the last one beside it.
    - DISABLED: the environments that ended are restarted here, at once.

    seeds: one for each environment. gymnasium's own vectors of Python environments take all; a native one takes a
    single seed, and gets the first.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], seeds: Sequence[int]) -> None:
        if len(seeds) != env.num_envs:
            raise ValueError(f"{env.num_envs} environments need as many seeds; got {len(seeds)}")
        self.count = int(env.num_envs)
        self.observation_space, self.encode = encoder(env.single_observation_space)
        self.action_space, self.decode = decoder(env.single_action_space)
        self._env = env
        several = isinstance(env.unwrapped, (SyncVectorEnv, AsyncVectorEnv))
        self._seed: int | list[int] | None = [int(seed) for seed in seeds] if several else int(seeds[0])
        answers: dict[AutoresetMode, Callable[..., Step]] = {
            AutoresetMode.NEXT_STEP: self._next_step,
            AutoresetMode.SAME_STEP: self._same_step,
            AutoresetMode.DISABLED: self._disabled,
        }
        self._answer = answers[autoreset_mode(env)]
        self._ended = np.zeros(self.count, np.bool_)
        self._valid = np.ones(self.count, np.bool_)
        self._valid.flags.writeable = False

    def reset(self) -> Array:
        """Start an episode in every environment, and return the first observations [K, ...]."""
        observations, _ = self._env.reset(seed=self._seed)  # type: ignore[arg-type]  # gymnasium types the native form only
        self._seed = None
        self._ended = np.zeros(self.count, np.bool_)
        return self.encode(observations)

    def step(self, actions: Array) -> Step:
        """Take actions [K, ...]."""
        observations, rewards, terminations, truncations, info = self._env.step(self.decode(actions))
        terminated, truncated = np.array(terminations, np.bool_), np.array(truncations, np.bool_)
        reward = np.array(rewards, np.float32)
        return self._answer(self.encode(observations), reward, terminated, truncated, info)

    def _next_step(
        self, obs: Array, reward: NDArray[np.float32], terminated: Bools, truncated: Bools, info: dict[str, Any]
    ) -> Step:
        valid = ~self._ended
        self._ended = terminated | truncated
        return Step(obs, reward, terminated, truncated, obs, valid)

    def _same_step(
        self, obs: Array, reward: NDArray[np.float32], terminated: Bools, truncated: Bools, info: dict[str, Any]
    ) -> Step:
        ended = terminated | truncated
        if not ended.any():
            return Step(obs, reward, terminated, truncated, obs, self._valid)
        if "final_obs" not in info:
            raise RuntimeError(f"{self._env} ended an episode in SAME_STEP mode without giving its 'final_obs'")
        final_obs = obs.copy()
        # gymnasium's own vectors return an object array with holes, others a dense one. Both have the ended rows.
        final_obs[ended] = self.encode(list(info["final_obs"][ended]))
        return Step(obs, reward, terminated, truncated, final_obs, self._valid)

    def _disabled(
        self, obs: Array, reward: NDArray[np.float32], terminated: Bools, truncated: Bools, info: dict[str, Any]
    ) -> Step:
        ended = terminated | truncated
        if not ended.any():
            return Step(obs, reward, terminated, truncated, obs, self._valid)
        observations, _ = self._env.reset(options={"reset_mask": ended.copy()})
        first = obs.copy()
        first[ended] = self.encode(observations)[ended]
        return Step(first, reward, terminated, truncated, obs, self._valid)

    def render(self) -> NDArray[np.uint8] | None:
        """A picture of the first environment; None if it draws in a window of its own."""
        frames: Any = self._env.render()
        return None if frames is None or frames[0] is None else np.asarray(frames[0], np.uint8)

    def close(self) -> None:
        self._env.close()


def autoreset_mode(env: VectorEnv[Any, Any, Any]) -> AutoresetMode:
    """The mode that `env` declares. Raises TypeError if it declares none: a guess would invent transitions."""
    mode = env.metadata.get("autoreset_mode")
    if not isinstance(mode, AutoresetMode):
        raise TypeError(f"{env} does not say how it restarts episodes: metadata['autoreset_mode'] is {mode!r}")
    return mode
