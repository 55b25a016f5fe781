"""Playing with a trained policy: evaluations beside a run, replays of a finished one, the policy for other programs.

python -m a3c_exp.evaluate outputs/<run> episodes=100 video=true
"""

from __future__ import annotations

import importlib.util
import inspect
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from a3c_exp.config.builder import load_experiment
from a3c_exp.config.schema import build, parse_key_values
from a3c_exp.core import seeding
from a3c_exp.core.cpu import one_thread
from a3c_exp.core.events import Episodes
from a3c_exp.core.experiment import Experiment
from a3c_exp.core.seeding import Role
from a3c_exp.envs import EnvBatch
from a3c_exp.errors import ConfigError, exit_code, require
from a3c_exp.run import checkpoint
from a3c_exp.run.policy import BATCH, REPLAY, Policy, evaluate_policy, make_policy
from a3c_exp.run.run_folder import BEST, CHECKPOINTS, CONFIG_FILE, LATEST, best_checkpoint, read_config


@dataclass(frozen=True)
class Loaded:
    """A run's policy, and what it was trained in."""

    policy: Policy
    experiment: Experiment
    steps: int
    checkpoint: Path


def load_run(folder: str | Path, which: Literal["best", "latest"] | None = None, plugins: Sequence[str] = ()) -> Loaded:
    """The policy of a run's best checkpoint (the latest where no evaluation has been made), or of `which`.

    plugins: as in training; they are not taken from the run's folder. Raises ConfigError.
    """
    folder = Path(folder).expanduser()
    experiment = load_experiment(read_config(folder, plugins, key="run"), to_train=False)
    path = best_checkpoint(folder) if which is None else folder / CHECKPOINTS / {"best": BEST, "latest": LATEST}[which]
    state = checkpoint.load(path)
    try:
        return Loaded(make_policy(experiment, state["store"]), experiment, int(state["store"]["steps"]), path)
    except checkpoint.STATE_ERRORS as error:
        raise ConfigError("checkpoint", str(path), f"does not fit the run's {CONFIG_FILE}: {error}") from error


def load(folder: str | Path, which: Literal["best", "latest"] | None = None, plugins: Sequence[str] = ()) -> Policy:
    """The policy that a run has trained: `load(folder).act(observation)`. See `load_run`."""
    return load_run(folder, which, plugins).policy


@dataclass(frozen=True, kw_only=True)
class Options:
    """Play with the policy that a run has trained.

    episodes: how many to play (100).
    checkpoint: `best` or `latest` (the best; the latest where no evaluation was made in training).
    greedy: the most likely actions (true), else sampled ones (false).
    seed: of the environments and of sampling (0).
    video: true writes an mp4 of the first episode, its first minute, into the run's folder (false).
    render: `human` opens a window (null).
    plugins: as in training ([]).
    """

    episodes: int = 100
    checkpoint: Literal["best", "latest"] | None = None
    greedy: bool = True
    seed: int = 0
    video: bool = False
    render: Literal["human"] | None = None
    plugins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(self.episodes >= 1, "episodes", self.episodes, "a whole number >= 1")
        require(self.seed >= 0, "seed", self.seed, "a whole number >= 0")
        require(not (self.video and self.render), "video", self.video, "false where render=human")


def evaluate_run(loaded: Loaded, folder: Path, options: Options) -> Episodes:
    """Play a run's policy as `options` say. Raises ConfigError."""
    drawing = "rgb_array" if options.video else options.render
    count = 1 if drawing else min(options.episodes, BATCH)
    seeds = seeding.environment_seeds(options.seed, Role.EVALUATION, REPLAY, count)
    recorder = Recorder(folder / "videos" / f"{loaded.steps}.mp4") if options.video else None
    policy = loaded.policy.seeded(options.seed)
    try:
        env = loaded.experiment.env.make(count, seeds, drawing)
    except ConfigError as error:
        raise error.under("env") from error
    try:
        episodes = evaluate_policy(
            policy, env, options.episodes, options.greedy, on_step=recorder or (lambda env: None)
        )
    finally:
        env.close()
    if recorder is not None:
        recorder.write()
    return episodes


class Recorder:
    """Keeps the frames of an environment and writes them as a film. Needs the `video` extra."""

    FRAMES_PER_SECOND = 30
    LONGEST = 60 * FRAMES_PER_SECOND

    def __init__(self, path: Path) -> None:
        if importlib.util.find_spec("moviepy") is None:
            raise ConfigError("video", True, "needs the video package: pip install 'a3c-exp[video]'")
        self._path = path
        self._frames: list[NDArray[np.uint8]] = []

    def __call__(self, env: EnvBatch) -> None:
        if len(self._frames) < self.LONGEST:
            frame = env.render()
            if frame is None:
                raise ConfigError("video", True, "must be false: this environment draws no pictures")
            self._frames.append(frame)

    def write(self) -> None:
        from moviepy import ImageSequenceClip

        try:
            self._path.parent.mkdir(exist_ok=True)
            ImageSequenceClip(self._frames, fps=self.FRAMES_PER_SECOND).write_videofile(str(self._path), logger=None)
        except OSError as error:
            raise ConfigError("video", str(self._path), f"cannot be written: {str(error).splitlines()[0]}") from error
        print(f"video: {self._path}")


def format_returns(episodes: Episodes) -> str:
    """Every return, in the order in which episodes ended; their mean with its 95 % interval (normal approximation),
    spread and extremes; the mean length."""
    returns, count = episodes.returns, len(episodes)
    lines = ["returns: " + " ".join(f"{value:.6g}" for value in returns)]
    mean = f"mean return {returns.mean():.6g}"
    if count > 1:
        deviation = returns.std(ddof=1)
        mean += f" +- {1.96 * deviation / math.sqrt(count):.3g} (95 % interval), standard deviation {deviation:.3g}"
    lines.append(f"{count} episode{'s' if count > 1 else ''}: {mean}")
    lines.append(f"lowest {returns.min():.6g}, highest {returns.max():.6g}, mean length {episodes.lengths.mean():.6g}")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    usage = "usage: python -m a3c_exp.evaluate <run folder> [key=value ...]"
    if not arguments or not {"-h", "--help"}.isdisjoint(arguments):
        print(f"{usage}\n\n{inspect.getdoc(Options)}")
        return 0 if arguments else 2
    return exit_code(lambda: _command(Path(arguments[0]).expanduser(), arguments[1:]))


def _command(folder: Path, settings: Sequence[str]) -> int:
    options = build(parse_key_values(settings), Options)
    with one_thread():
        loaded = load_run(folder, options.checkpoint, options.plugins)
        episodes = evaluate_run(loaded, folder, options)
    print(f"policy: {loaded.checkpoint.name}, after {loaded.steps:,} steps")
    print(format_returns(episodes))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
