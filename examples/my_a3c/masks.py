from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Dict, Discrete, MultiBinary, MultiDiscrete

from a3c_exp.envs.parts import ACTION_MASK


class MaskFromInfo(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds the mask of actions that an environment gives as info["action_mask"] to its observations, as a part.

    An observation that is no Dict becomes the part `observation`.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        actions = env.action_space
        if not isinstance(actions, (Discrete, MultiDiscrete)):
            raise TypeError(f"a mask belongs to Discrete or MultiDiscrete actions, not to {actions}")
        size = int(actions.n if isinstance(actions, Discrete) else actions.nvec.sum())
        space = env.observation_space
        inner = dict(space.items()) if isinstance(space, Dict) else {"observation": space}
        self.observation_space = Dict(inner | {ACTION_MASK: MultiBinary(size)})

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**arguments)
        return self._with_mask(observation, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._with_mask(observation, info), reward, terminated, truncated, info

    def _with_mask(self, observation: Any, info: Mapping[str, Any]) -> dict[str, Any]:
        inner = observation if isinstance(observation, Mapping) else {"observation": observation}
        if ACTION_MASK not in info:
            raise KeyError(f"{self.env} gave no info[{ACTION_MASK!r}]")
        mask = info[ACTION_MASK]
        of_choices = mask if isinstance(mask, tuple) else (mask,)  # gymnasium masks MultiDiscrete by a tuple
        return {**inner, ACTION_MASK: np.concatenate([np.ravel(part) for part in of_choices]).astype(np.int8)}
