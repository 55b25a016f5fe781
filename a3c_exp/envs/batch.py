"""The contract of an environment: K copies that step together, and what one step of them says."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from gymnasium.spaces import Box, Space
from numpy.typing import NDArray

from a3c_exp.common.arrays import Array
from a3c_exp.errors import require
from a3c_exp.schedules import Schedule, require_throughout


class Step(NamedTuple):
    """What K environments answered to K actions. Row k belongs to environment k.

    obs: [K, ...], what the next actions answer. Where an episode ended this is the first observation of the next one;
        only a vector environment that restarts a step late still shows the last one, and says so in its next `valid`.
    reward: float32 [K], the environment's own: neither scaled nor clipped.
    terminated: bool [K], the episode ended in a state from which nothing more is to be had.
    truncated: bool [K], the episode was cut off (a time limit): the state it was cut in still has a value.
        Both may be true at once, where the last allowed step also terminated; the episode then terminated.
    final_obs: [K, ...], the true last observation of an episode that ended in this step; meaningful only there.
    valid: bool [K], false where the row is no transition: a late restart, which ignored the action. Such a row stands
        only directly behind one that ended; its reward is 0 and nothing ends in it.
    life_lost: bool [K], or None where it is never so: `terminated` holds for the learner alone (a lost life); the
        episode, its return and its length go on, and `obs` is its next observation.

    The arrays may be kept, since a batch never writes into one again, but not written into: they may be shared between
    steps (an all-false `terminated`) or within one (obs and final_obs where nothing ended).
    """

    obs: Array
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    final_obs: Array
    valid: NDArray[np.bool_]
    life_lost: NDArray[np.bool_] | None = None

    @property
    def episode_over(self) -> NDArray[np.bool_]:
        """bool [K]: an episode ended, not only for the learner."""
        ended = self.terminated | self.truncated
        return ended if self.life_lost is None else ended & ~self.life_lost


class EnvBatch(Protocol):
    """K environments that step together and restart their own episodes.

    observation_space: the space of one observation, as the policy sees it: float32 (uint8 for pictures), with
        discrete ones turned into one-hot vectors.
    action_space: the space of one action, as the policy gives it: Discrete or MultiDiscrete that count from 0,
        MultiBinary or Box, of one axis at most.
    """

    @property
    def count(self) -> int: ...
    @property
    def observation_space(self) -> Box: ...
    @property
    def action_space(self) -> Space[Any]: ...

    def reset(self) -> Array:
        """Start an episode in every environment; the first observations [K, ...].

        The first call uses the environments' seeds, later ones continue from their generators.
        """

    def step(self, actions: Array) -> Step:
        """Take actions [K, ...], each already within the bounds of `action_space`. Only after `reset`."""

    def render(self) -> NDArray[np.uint8] | None:
        """A picture [height, width, 3] of the first environment, or None where it draws in a window of its own."""

    def encode(self, observations: Sequence[Any] | Array) -> Array:
        """Observations as the environment has them -> [K, ...] of `observation_space`. Any K; also once closed."""

    def decode(self, actions: Array) -> Array:
        """K actions of `action_space` -> [K, ...] as the environment takes them. Any K; also once closed."""

    def close(self) -> None:
        """Release what the environments hold. The batch cannot be used afterwards; closing twice is harmless."""


def require_shaping(scale: float, clip: float | Schedule | None) -> None:
    """Raise ConfigError for what rewards can be neither multiplied by nor clipped to."""
    require(math.isfinite(scale) and scale > 0, "reward_scale", scale, "a finite number > 0")
    if clip is not None:
        require_throughout(lambda most: most > 0, "reward_clip", clip, "a number > 0 (null: no clip)")


class Environment(ABC):
    """The component behind the `env` group: makes batches, and says how rewards and observations are treated.

    Every environment component derives from this class. Whoever collects rollouts applies these settings; a batch gives
    everything raw.
    reward_scale, reward_clip: training multiplies rewards by the scale, and then clips them to (-clip, clip). The clip
        is a number or a schedule. Reported returns are those of the environment itself.
    normalize_observations, normalize_rewards: whether training divides by running statistics that all workers share.
    """

    reward_scale: float = 1.0
    reward_clip: float | Schedule | None = None
    normalize_observations: bool = False
    normalize_rewards: bool = False

    @abstractmethod
    def make(self, count: int, seeds: Sequence[int], render_mode: str | None = None) -> EnvBatch:
        """`count` environments, each with its seed (0 <= seed < 2**31). render_mode: as gymnasium's; None: not drawn.

        Raises ConfigError where the environment cannot be made; its key is relative to this component ('id').
        """

    def validate(self, plugins: Sequence[str]) -> None:
        """Refuse what this environment would import from outside, unless its package is among `plugins`.

        Called before `make`: importing a module runs its code, and a configuration alone may not ask for that.
        Raises ConfigError, also where the environment does not exist.
        """

    def warning(self) -> str | None:
        """What is probably not meant, in a sentence; None if nothing is."""
        return None
