"""Atari games through the native vector environment of the Arcade Learning Environment (Bellemare
et al. 2013)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from a3c_exp.common.arrays import Array
from a3c_exp.common.ranges import BelowOne, Positive, whole
from a3c_exp.envs.answers import rewards_of
from a3c_exp.envs.batch import EnvBatch, Environment, Step
from a3c_exp.envs.gym import imported, register
from a3c_exp.envs.vector_batch import VectorEnvBatch
from a3c_exp.errors import ConfigError, did_you_mean, require_package
from a3c_exp.schedules import Schedule

_ENLARGED = 4
"""Enlargement of the frames of a video."""

MAX_NOOPS = 10_000
Size = Annotated[int, whole(1, 1024)]
"""Larger numbers are taken for typing errors: the console's screen has 210 x 160 points."""

SCREEN_ROWS = 210
SCREEN_COLUMNS = 160
"""Size of the console's image. A few games have more rows, which are scaled to these."""
CONSOLE_FPS = 60.0


@dataclass(frozen=True, kw_only=True)
class Atari(Environment):
    """A game of the Atari 2600, K copies of it stepped together in C++.

    An observation is uint8 [frame_stack, height, width]: the last frames in grey, the oldest first.
    A step lasts `frame_skip` frames, and its image is the maximum of the last two, pixel by pixel
    (Mnih et al. 2015, Nature 518, 529-533). Reported scores are the game's own: `reward_clip` is
    for training alone.

    game: its name in the Arcade Learning Environment, words joined by underscores
        ('space_invaders').
    repeat_action_probability: from 0 to less than 1: at each frame the game repeats the last action
        in place of the new one with it. 0.25 is the protocol of Machado et al. 2018 (arXiv
        1709.06009), with noop_max 0, fire_reset false, full_action_space true.
    noop_max: an episode begins with fewer frames than this without an action; the number is drawn
        uniformly.
    frame_skip: frames that an action lasts.
    max_frames: an episode that lasts this many frames is truncated (108,000: half an hour).
    terminal_on_life_loss: a lost life ends an episode for the learner, with value 0 after it. The
        game, its score and its length go on. Evaluations are of whole games in any case.
    fire_reset: press fire at the start of games whose actions have it, which with full_action_space
        are all.
    full_action_space: all 18 actions of the joystick, not only those that the game uses.
    frame_stack: frames in an observation.
    height, width: of a frame, in pixels.
    crop: (top, bottom, left, right): the part image[top:bottom, left:right] of the console's image
        of 210 rows and 160 columns, which is scaled to height x width; None: all of it.
    threads: for stepping one worker's games. With as many workers as cores, more than 1 slows the
        others down.
    reward_clip: 1 by default, as Mnih et al. clip. The other settings are those of every
        `Environment`; with terminal_on_life_loss every lost life is a death to `terminal_reward`.
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
    crop: tuple[int, int, int, int] | None = None
    threads: Size = 1
    reward_clip: Positive | Schedule | None = 1.0

    def make(self, count: int, seeds: Sequence[int], render_mode: str | None = None) -> EnvBatch:
        """Make games that step together.

        count: how many.
        seeds: one for each game (0 <= seed < 2**31).
        render_mode: None or 'rgb_array': images in grey of the first game.
        Raises ConfigError where there is no such game.
        """
        if render_mode not in (None, "rgb_array"):
            raise ConfigError(
                "game", self.game, f"cannot be drawn as {render_mode!r}: video=true draws it"
            )

        register("ALE/", "game", self.game)

        # Only registered games: to make a game for two players would end the program at once.
        games = {
            spec.kwargs["game"]
            for name, spec in gymnasium.registry.items()
            if name.startswith("ALE/")
        }
        if self.game not in games:
            guess = did_you_mean(self.game.lower(), games, list_all=False)
            problem = f"there is no such game (https://ale.farama.org/environments). {guess}"
            raise ConfigError("game", self.game, problem)

        return _AtariBatch(self, count, seeds)

    def games(self, count: int, height: int, width: int) -> Any:
        """Make the vector environment, with images of this size."""
        vector_env = imported("ale_py.vector_env", "game", self.game)
        return vector_env.AtariVectorEnv(
            self.game,
            count,
            num_threads=self.threads,
            autoreset_mode=AutoresetMode.SAME_STEP,
            max_num_frames_per_episode=self.max_frames,
            repeat_action_probability=self.repeat_action_probability,
            full_action_space=self.full_action_space,
            img_height=height,
            img_width=width,
            stack_num=self.frame_stack,
            frameskip=self.frame_skip,
            maxpool=self.frame_skip > 1,
            noop_max=self.noop_max,
            reward_clipping=False,
            use_fire_reset=self.fire_reset,
        )


class _AtariBatch(VectorEnvBatch):
    """An EnvBatch over the vector environment. It returns new arrays at every step, so nothing is
    copied here.

    An episode that ends restarts in the same step. Unlike other native vector environments it takes
    a seed for each game, and its final observations are one array, in which only rows of ended
    episodes are meaningful.

    With a crop its images are whole screens. They are cut and scaled here as the vector environment
    does it, by the mean over the area of each new point.
    """

    def __init__(self, settings: Atari, count: int, seeds: Sequence[int]) -> None:
        """Raise ConfigError for a crop beyond the image, and if the package that scales is not
        installed."""
        size = (settings.height, settings.width)
        crop = settings.crop
        self._size = size
        self._crop = crop
        if crop is not None:
            top, bottom, left, right = crop
            if not (0 <= top < bottom <= SCREEN_ROWS and 0 <= left < right <= SCREEN_COLUMNS):
                screen = [0, SCREEN_ROWS, 0, SCREEN_COLUMNS]
                problem = f"must be [top, bottom, left, right] in the image, {screen}"
                raise ConfigError("crop", list(crop), problem)

            require_package("crop", list(crop), "atari", "cv2")
            self._cv2 = imported("cv2", "crop", list(crop))

        games = settings.games(count, *(size if crop is None else (SCREEN_ROWS, SCREEN_COLUMNS)))
        games.single_observation_space = Box(0, 255, (settings.frame_stack, *size), np.uint8)
        super().__init__(games, seeds)

        self._name = settings.game
        self._life_loss = settings.terminal_on_life_loss
        self._render_fps = CONSOLE_FPS / settings.frame_skip

    @property
    def render_fps(self) -> float:
        """Return how many images, one for each step, are a second of the console's time."""
        return self._render_fps

    def _begin(self, seeds: Sequence[int] | None) -> Array:
        # gymnasium knows one seed only.
        seed: Any = None if seeds is None else np.array(seeds, np.int64)
        screens, info = self._env.reset(seed=seed)
        self._obs: Array = self._seen(screens)
        self._lives: Array = info["lives"]
        return self._obs

    def _advance(self, actions: Array) -> Step:
        screens, rewards, terminated, truncated, info = self._env.step(actions)
        ended = terminated | truncated
        obs = screens
        final_obs = info.get("final_obs", screens)
        if self._crop is not None:
            # In a game that goes on, only the newest frame is new.
            obs = np.concatenate([self._obs[:, 1:], self._seen(screens[:, -1:])], axis=1)
            obs[ended] = self._seen(screens[ended])
            last = self._seen(final_obs[ended])
            final_obs = obs.copy()
            final_obs[ended] = last

        self._obs = obs

        lost = None
        if self._life_loss:
            lost = (info["lives"] < self._lives) & ~ended
            terminated = terminated | lost
            self._lives = info["lives"]

        return Step(
            obs,
            rewards_of(rewards, self.count),
            terminated,
            truncated,
            final_obs,
            self._valid,
            lost,
        )

    def _seen(self, screens: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return images of the games [K, frames, rows, columns] as observations have them."""
        if self._crop is None:
            return screens

        top, bottom, left, right = self._crop
        height, width = self._size
        images = np.empty((*screens.shape[:2], height, width), np.uint8)
        for index in np.ndindex(screens.shape[:2]):
            part = screens[index][top:bottom, left:right]
            images[index] = self._cv2.resize(
                part, (width, height), interpolation=self._cv2.INTER_AREA
            )

        return images

    def render(self) -> NDArray[np.uint8]:
        """Return the newest frame of the first game, enlarged."""
        grey = self._obs[0, -1].repeat(_ENLARGED, 0).repeat(_ENLARGED, 1)
        return np.repeat(grey[..., None], 3, -1)
