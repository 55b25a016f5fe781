"""Atari games through the native vector environment of the Arcade Learning Environment (Bellemare et al. 2013)."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from numpy.typing import NDArray

from a3c_exp.common.arrays import Array
from a3c_exp.common.ranges import BelowOne, Positive, whole
from a3c_exp.envs.answers import rewards_of
from a3c_exp.envs.batch import EnvBatch, Environment, Step
from a3c_exp.envs.packages import register
from a3c_exp.envs.vector_batch import VectorEnvBatch
from a3c_exp.errors import ConfigError, did_you_mean, require
from a3c_exp.schedules import Schedule

_ENLARGED = 4
"""Enlargement of the frames of a video."""

MAX_NOOPS = 10_000
Size = Annotated[int, whole(1, 1024)]
"""Larger numbers are taken for typing errors: the console's screen has 210 x 160 points."""

Crop = tuple[int, int, int, int]
"""Top, bottom, left and right: the part image[top:bottom, left:right] of the console's image."""


@dataclass(frozen=True, kw_only=True)
class Atari(Environment):
    """A game of the Atari 2600, K copies of it stepped together in C++.

    An observation is uint8 [frame_stack, height, width]: the last frames in grey, the oldest first.
    A step lasts `frame_skip` frames, and its image is the maximum of the last two, pixel by pixel (Mnih et al. 2015,
    Nature 518, 529-533). Reported scores are the game's own: `reward_clip` is for training alone.

    game: its name in the Arcade Learning Environment, words joined by underscores ('space_invaders').
    repeat_action_probability: at each frame, that the game repeats the last action in place of the new one. 0.25 is the
        protocol of Machado et al. 2018 (arXiv 1709.06009), with noop_max 0 and full_action_space true.
    noop_max: an episode begins with up to so many frames without an action; the number is drawn uniformly.
    frame_skip: frames an action lasts.
    max_frames: an episode that lasts so many frames is truncated (108,000: half an hour).
    terminal_on_life_loss: a lost life ends an episode for the learner, with value 0 after it. The game, its score and
        its length go on. Evaluations are of whole games in any case.
    fire_reset: press fire at the start of games that wait for it.
    full_action_space: all 18 actions of the joystick, not only those that the game uses.
    frame_stack, height, width: of an observation.
    crop: (top, bottom, left, right): the part image[top:bottom, left:right] of the console's image, which is scaled
        to height x width; None: all of it. The console's image has 210 rows and 160 columns, in a few games more
        rows. Needs the extra `images`.
    threads: for stepping one worker's games. With as many workers as cores, more than 1 slows the others down.
    reward_clip: 1 by default, as Mnih et al. clip. The other settings are those of every `Environment`; with
        terminal_on_life_loss every lost life is a death to `terminal_reward`.
    """

    game: str
    repeat_action_probability: BelowOne = 0.0
    noop_max: Annotated[int, whole(0, MAX_NOOPS)] = 30
    frame_skip: Size = 4
    max_frames: Annotated[int, whole(1, 2**31 - 1)] = 108_000
    terminal_on_life_loss: bool = False
    fire_reset: bool = True
    full_action_space: bool = False
    frame_stack: Size = 4
    height: Size = 84
    width: Size = 84
    crop: Crop | None = None
    threads: Size = 1
    reward_clip: Positive | Schedule | None = 1.0

    def make(self, count: int, seeds: Sequence[int], render_mode: str | None = None) -> EnvBatch:
        """`count` games, each with its seed (0 <= seed < 2**31). Raises ConfigError where there is no such game.

        render_mode: None or 'rgb_array': images in grey of the first game.
        """
        if render_mode not in (None, "rgb_array"):
            raise ConfigError("game", self.game, f"cannot be drawn as {render_mode!r}: video=true draws it")
        register("ALE/", "game", self.game)
        # Only registered games: to make a game for two players would end the program at once.
        games = {spec.kwargs["game"] for name, spec in gymnasium.registry.items() if name.startswith("ALE/")}
        if self.game not in games:
            guess = did_you_mean(self.game.lower(), games, list_all=False)
            raise ConfigError(
                "game", self.game, f"there is no such game (https://ale.farama.org/environments). {guess}"
            )
        return _AtariBatch(self._games(count), seeds, self)

    def _games(self, count: int) -> VectorEnv[Any, Any, Any]:
        if self.crop is None:
            return self._native_games(count, self.height, self.width)
        rows, columns = _screen_size(self.game)
        top, bottom, left, right = self.crop
        fits = 0 <= top < bottom <= rows and 0 <= left < right <= columns
        require(fits, "crop", list(self.crop), f"[top, bottom, left, right] in the picture, [0, {rows}, 0, {columns}]")
        return _CroppedGames(self._native_games(count, rows, columns), self.crop, self.height, self.width)

    def _native_games(self, count: int, height: int, width: int) -> VectorEnv[Any, Any, Any]:
        vector_env = importlib.import_module("ale_py.vector_env")
        env: VectorEnv[Any, Any, Any] = vector_env.AtariVectorEnv(
            self.game, count, num_threads=self.threads, autoreset_mode=AutoresetMode.SAME_STEP,
            max_num_frames_per_episode=self.max_frames, repeat_action_probability=self.repeat_action_probability,
            full_action_space=self.full_action_space, img_height=height, img_width=width,
            stack_num=self.frame_stack, frameskip=self.frame_skip, maxpool=self.frame_skip > 1,
            noop_max=self.noop_max, reward_clipping=False, use_fire_reset=self.fire_reset,
        )  # fmt: skip
        return env


class _AtariBatch(VectorEnvBatch):
    """An EnvBatch over the vector environment. It returns new arrays at every step, so nothing is copied here.

    An episode that ends restarts in the same step. Unlike other native vector environments it takes a seed for each
    game, and its final observations are one array, in which only rows of ended episodes are meaningful.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], seeds: Sequence[int], settings: Atari) -> None:
        super().__init__(env, seeds)
        self._name = settings.game
        self._life_loss = settings.terminal_on_life_loss
        self._obs: Array = np.zeros((0,))
        self._lives: Array = np.zeros(self.count, np.int32)

    def _begin(self, seeds: Sequence[int] | None) -> Array:
        # gymnasium knows one seed only.
        seed: Any = None if seeds is None else np.array(seeds, np.int64)
        self._obs, info = self._env.reset(seed=seed)
        self._lives = info["lives"]
        return self._obs

    def _advance(self, actions: Array) -> Step:
        self._obs, rewards, terminated, truncated, info = self._env.step(actions)
        lost = None
        if self._life_loss:
            lost = (info["lives"] < self._lives) & ~terminated & ~truncated
            terminated = terminated | lost
            self._lives = info["lives"]
        reward = rewards_of(rewards, self.count)
        final_obs = info.get("final_obs", self._obs)
        return Step(self._obs, reward, terminated, truncated, final_obs, self._valid, lost)

    def render(self) -> NDArray[np.uint8]:
        """The newest frame of the first game, enlarged."""
        grey = self._obs[0, -1].repeat(_ENLARGED, 0).repeat(_ENLARGED, 1)
        return np.repeat(grey[..., None], 3, -1)


def _screen_size(game: str) -> tuple[int, int]:
    """Height and width of the console's image: 210 x 160 for most games, a few have more rows."""
    ale_py = importlib.import_module("ale_py")
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner
    console = ale_py.ALEInterface()
    console.loadROM(ale_py.roms.get_rom_path(game))
    height, width = console.getScreenDims()
    return height, width


class _CroppedGames(VectorWrapper):
    """The Atari vector environment `env`, whose images are whole screens in grey, cut to `crop` and scaled.

    They are scaled as the vector environment does it, by the mean over the area of each new point. Ended games restart
    in the same step.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], crop: Crop, height: int, width: int) -> None:
        """height, width: of the scaled images. Raises ConfigError if the package that scales is not installed."""
        super().__init__(env)
        try:
            self._cv2: Any = importlib.import_module("cv2")
        except ImportError as error:
            problem = "needs a package that is not installed: pip install 'a3c-exp[images]'"
            raise ConfigError("crop", list(crop), problem) from error
        frames, *_ = env.single_observation_space.shape or ()
        self.single_observation_space = Box(0, 255, (frames, height, width), np.uint8)
        self._size = (height, width)
        top, bottom, left, right = crop
        self._place = slice(top, bottom), slice(left, right)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        screens, info = self.env.reset(seed=seed, options=options)
        self._pictures = self._scaled(screens)
        return self._pictures, info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        screens, rewards, terminated, truncated, info = self.env.step(actions)
        # In a game that goes on, only the newest frame is new.
        pictures = np.concatenate([self._pictures[:, 1:], self._scaled(screens[:, -1:])], axis=1)
        ended = np.flatnonzero(terminated | truncated)
        if len(ended):
            final = pictures.copy()
            final[ended, -1:] = self._scaled(info["final_obs"][ended, -1:])
            pictures[ended] = self._scaled(screens[ended])
            info = info | {"final_obs": final}
        self._pictures = pictures
        return pictures, rewards, terminated, truncated, info

    def _scaled(self, screens: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """[K, frames, rows, columns] -> [K, frames, height, width]."""
        height, width = self._size
        pictures = np.empty((*screens.shape[:2], height, width), np.uint8)
        for index in np.ndindex(screens.shape[:2]):
            part = screens[index][self._place]
            pictures[index] = self._cv2.resize(part, (width, height), interpolation=self._cv2.INTER_AREA)
        return pictures
