"""Videos of episodes."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from a3c_exp.core.callback import Video
from a3c_exp.envs import EnvBatch
from a3c_exp.errors import ConfigError


class Recorder:
    """Collects frames of an environment, called before each of its steps, for a video. Needs the `video` extra."""

    FRAMES_PER_SECOND = 30
    MAX_FRAMES = 60 * FRAMES_PER_SECOND

    def __init__(self, path: Path) -> None:
        if importlib.util.find_spec("moviepy") is None:
            raise ConfigError("video", True, "needs the video package: pip install 'a3c-exp[video]'")
        self._path = path
        self._frames: list[NDArray[np.uint8]] = []

    def __call__(self, env: EnvBatch) -> None:
        if len(self._frames) < self.MAX_FRAMES:
            frame = env.render()
            if frame is None:
                raise ConfigError("video", True, "must be false: this environment draws no pictures")
            self._frames.append(frame)

    def write(self) -> Video:
        """Write the mp4. Raises OSError."""
        from moviepy import ImageSequenceClip

        self._path.parent.mkdir(exist_ok=True)
        ImageSequenceClip(self._frames, fps=self.FRAMES_PER_SECOND).write_videofile(str(self._path), logger=None)
        return Video(self._path, self._frames[0])
