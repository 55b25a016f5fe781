"""The contract of an environment: K copies that step together, and the record of one step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import numpy as np
from gymnasium.spaces import Box, Space
from numpy.typing import NDArray

from a3c_exp.common.arrays import Array
from a3c_exp.common.ranges import Checked, Count, Positive, PositiveFloat32, within
from a3c_exp.envs.answers import LARGEST_FLOAT32
from a3c_exp.envs.errors import close_within
from a3c_exp.envs.info import Info, is_usable_name
from a3c_exp.errors import ConfigError, under
from a3c_exp.schedules import Schedule

MAX_STEPS_GUARD = 1_000_000
"""The default of `max_steps_guard`."""

Normalization = bool | Literal["auto", "shared", "background"] | tuple[float, float]
RewardNormalization = bool | Literal["centered"]
"""Values of `normalize_observations` and `normalize_rewards`, see `Environment`."""


class Step(NamedTuple):
    """One step of K environments. Row k belongs to environment k.

    obs: [K, ...], the observations that the next actions are for. Where an episode ended, this is
        the first observation of the next one. Only a vector environment that restarts a step late
        still shows the last one; the row of its next step is then not `valid`.
    reward: float32 [K], the environment's own: neither scaled nor clipped.
    terminated: bool [K], the episode ended in a terminal state, whose value is 0.
    truncated: bool [K], the episode was cut off, by a time limit for example. Its last state still
        has a value. Both may be true, if the last allowed step also terminated; the episode then
        terminated.
    final_obs: [K, ...], the last observation of an episode that ended in this step; meaningful only
        there.
    valid: bool [K], false if the row is no transition but a late restart, which ignored the action.
        Such a row comes directly after one that ended; its reward is 0 and no episode ends in it.
    life_lost: bool [K], true if `terminated` holds for the learner alone. The episode, its return
        and its length go on, and `obs` is its next observation. None if that never happens.
    final_info: where an episode ended, the environment's `info` of that step, by its index; None if
        there is nothing in any. It is read only where an episode ended.
    The arrays may be kept, since a batch never writes into one again. They must not be written
    into: steps may share them (an all-false `terminated`), and so may the fields of one step (obs
    and final_obs if nothing ended).
    """

    obs: Array
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    final_obs: Array
    valid: NDArray[np.bool_]
    life_lost: NDArray[np.bool_] | None = None
    final_info: Mapping[int, Info] | None = None

    @property
    def episode_over(self) -> NDArray[np.bool_]:
        """Return bool [K], whether an episode ended, and not for the learner alone."""
        ended = self.terminated | self.truncated
        return ended if self.life_lost is None else ended & ~self.life_lost


class EnvBatch(Protocol):
    """K environments that step together and restart their own episodes.

    count: K.
    observation_space: the space of one observation, as the policy sees it: float32, or uint8 for
        images. Discrete observations are one-hot vectors.
    action_space: the space of one action, as the policy makes it: Discrete or MultiDiscrete that
        count from 0, MultiBinary or Box, of one axis at most.
    """

    count: int
    observation_space: Box
    action_space: Space[Any]

    def reset(self) -> Array:
        """Start an episode in every environment, and return the first observations [K, ...].

        The first call uses the environments' seeds, later ones continue from their generators.
        """

    def step(self, actions: Array) -> Step:
        """Take actions [K, ...], each already within the bounds of `action_space`. Only after
        `reset`."""

    def render(self) -> Any:
        """Return an image of the first environment, uint8 [height, width, 3]; also one in gray or
        with transparency, or of floats from 0 to 1. None if it draws in a window of its own.

        A batch may have `render_fps`: how many images are a second of the environment's time.
        """

    def encode(self, observations: Sequence[Any] | Array) -> Array:
        """Convert the environment's observations to `observation_space`, [K, ...]. For any K, even
        after `close`.

        Raises ValueError for one that is none of the environment's.
        """

    def decode(self, actions: Array) -> Array:
        """Convert actions of `action_space` [K, ...] to the environment's own. For any K, even
        after `close`."""

    def close(self) -> None:
        """Release the environments' resources. The batch cannot be used afterwards. Closing twice
        is harmless."""


@dataclass(frozen=True, kw_only=True)
class Environment(Checked, ABC):
    """The component of the `env` group: it makes batches, and has the settings of rewards and
    observations.

    Every environment component derives from this class, as a frozen dataclass with settings of its
    own and the method `make`. Whoever collects rollouts applies the settings of this class; a batch
    gives everything raw.

    reward_scale: training multiplies rewards by it. Reported returns are those of the environment
        itself.
    reward_clip: training then clips rewards to (-clip, clip): a number or a schedule; None: no
        clip.
    terminal_reward: added to the reward of a step that ends an episode by death, before scale and
        clip, in training alone. A life that ends the episode for the learner alone is a death too.
        None: nothing is added.
    time_limit_is_terminal: in training, an episode that a time limit or `max_steps_guard` cuts ends
        by death: the value of its last state counts as 0. A rollout's own end is bootstrapped in
        any case.
    normalize_observations: true: subtract the running mean of each number of an observation and
        divide by its running standard deviation, which all workers share; 'shared': one mean and
        one deviation for all numbers, as for the pixels of images; or false. For images of bytes
        also a mean and a deviation, or 'background': the most frequent byte of a short random play,
        and 64. 'auto': 'background' for images of bytes whose pixels the network scales, true for
        vectors of bytes, and false for all else.
    normalize_rewards: true: training divides rewards by the standard deviation of the discounted
        return, running too; 'centered': it subtracts the running mean of the rewards, and divides
        by their own deviation; or false.
    max_steps_guard: an episode of this many steps is truncated, with a warning; None: it is not.
        `SyncEnvBatch` applies it. Native vectors and Atari games have limits of their own.
    info_keys: names in the `info` of an episode's last step whose numbers are reported beside its
        return; None: of all numbers and truth values the first 20 names, in the order in which they
        come.
    """

    reward_scale: PositiveFloat32 = 1.0
    reward_clip: Positive | Schedule | None = None
    terminal_reward: Annotated[float, within(-LARGEST_FLOAT32, LARGEST_FLOAT32)] | None = None
    time_limit_is_terminal: bool = False
    normalize_observations: Normalization = False
    normalize_rewards: RewardNormalization = False
    max_steps_guard: Count | None = MAX_STEPS_GUARD
    info_keys: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.info_keys or ():
            if not is_usable_name(name):
                problem = (
                    "must be names of letters, digits, '_', '-', '.' and '/', "
                    "other than those of other curves and columns"
                )
                raise ConfigError("info_keys", name, problem)

        if isinstance(self.normalize_observations, tuple):
            mean, deviation = self.normalize_observations
            if not (0 <= mean <= 255 and 0.01 <= deviation <= 255):
                problem = "must be a mean of 0 to 255 and a deviation of 0.01 to 255"
                raise ConfigError("normalize_observations", [mean, deviation], problem)

    @abstractmethod
    def make(self, count: int, seeds: Sequence[int], render_mode: str | None = None) -> EnvBatch:
        """Make K environments that step together.

        count: K.
        seeds: one for each environment (0 <= seed < 2**31).
        render_mode: as gymnasium's; None: nothing is drawn.
        Raises ConfigError where the environment cannot be made; its key is relative to this
        component ('id').
        """

    def validate(self, plugins: Sequence[str]) -> None:
        """Refuse what this environment would import from outside, unless its package is among
        `plugins`.

        Called before `make`: importing a module runs its code, and a configuration alone may not
        ask for that.
        Raises ConfigError, also where the environment does not exist.
        """

    def warning(self) -> str | None:
        """Return a sentence about settings that are probably not meant; None if there are none."""
        return None


@contextmanager
def opened(env: Environment, plugins: Sequence[str], key: str = "env") -> Iterator[EnvBatch]:
    """Yield one environment, which is closed on exit, and still has its spaces after that.

    key: of the component, for errors.
    """
    with under(key):
        env.validate(plugins)
        batch = env.make(1, [0])
    try:
        yield batch
    finally:
        close_within(batch)
