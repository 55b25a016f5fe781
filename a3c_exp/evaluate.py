"""Evaluate the policy of a run, or of every run of a sweep: on the command line, as a video, or
loaded into other programs.

python -m a3c_exp.evaluate latest episodes=100 video=true
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from a3c_exp.cli.startup import folder_command
from a3c_exp.common.estimates import student_half_width
from a3c_exp.common.ranges import Checked, Count, Whole
from a3c_exp.common.reading import expanded, parse_key_values
from a3c_exp.common.trust import acts_outside, beyond_folder
from a3c_exp.config.builder import load_experiment
from a3c_exp.config.saved import of_saved_run, read_config, with_value
from a3c_exp.config.schema import build
from a3c_exp.core import seeding
from a3c_exp.core.cpu import one_thread
from a3c_exp.core.experiment import Experiment
from a3c_exp.envs import close_within
from a3c_exp.errors import ConfigError, RunError, named, printable, under
from a3c_exp.exit_codes import ExitCode, leave
from a3c_exp.report.runs import run_folders
from a3c_exp.run import markdown
from a3c_exp.run.checkpoint import STATE_ERRORS, load_state
from a3c_exp.run.console import LiveLineHandler
from a3c_exp.run.outcome import short
from a3c_exp.run.policy import (
    BATCH,
    LATER_EVALUATIONS,
    PlayedEpisodes,
    Policy,
    Recorder,
    evaluate_policy,
)
from a3c_exp.run.run_folder import (
    CONFIG_FILE,
    VIDEOS,
    best_checkpoint,
    check_names,
    numbered_checkpoints,
)

Which = Literal["best", "latest"] | int | None
"""A checkpoint: a number is the steps of training of a numbered one; None: the best, or the latest
without one."""
VIDEO_CLOSE_SECONDS = 60.0
"""The longest wait for environments that are closed: wrappers may write videos then."""
SHOWN_STEPS = 50
"""Steps of the environments between two moments at which a terminal shows how far an evaluation
is."""


@dataclass(frozen=True)
class Loaded:
    """The policy of a checkpoint, and the experiment that trained it.

    steps: environment steps of training.
    """

    policy: Policy
    experiment: Experiment
    steps: int
    checkpoint: Path


def load_run(folder: str | Path, which: Which = None, plugins: Sequence[str] = ()) -> Loaded:
    """Return the policy of a run's best checkpoint, or of its latest if it has no best one, or of
    `which`.

    folder: of the run.
    which: a number is the steps of training of a numbered checkpoint.
    plugins: as in training; those in the folder's configuration do not count, and neither do its
        wrappers that write files or open windows.
    Raises ConfigError.
    """
    folder = expanded(folder)
    with named("run"):
        config = read_config(folder, plugins)
    for key, value in beyond_folder(config).items():
        if key.endswith("wrappers"):
            inside = [wrapper for wrapper in value if not acts_outside(wrapper)]
            config = with_value(config, key, inside)
    with of_saved_run():
        experiment = load_experiment(config, to_train=False)

    path = best_checkpoint(folder)
    if isinstance(which, str):
        path = path.with_name(f"{which}.ckpt")
    elif which is not None:
        path = path.with_name(f"step_{which}.ckpt")
        steps = sorted(numbered_checkpoints(folder).values())
        if which not in steps:
            raise ConfigError("checkpoint", which, f"must be best, latest or one of {steps}")
    with named("checkpoint"):
        state = load_state(path)
    try:
        return Loaded(Policy(experiment, state["store"]), experiment, state["store"]["steps"], path)
    except STATE_ERRORS as error:
        problem = f"does not fit the run's {CONFIG_FILE}: {error}"
        raise ConfigError("checkpoint", str(path), problem) from error


@dataclass(frozen=True, kw_only=True)
class Options(Checked):
    """Evaluate the policy of a run; of a sweep's folder, of each run in it, in one table.

    episodes: number of episodes (default 100).
    max_steps: an episode of so many steps is cut, and counts as it is (default: eval.max_steps of
        the run).
    checkpoint: `best`, `latest` or the steps of a numbered one (default: the best, or the latest of
        a run without evaluations).
    greedy: the most likely actions (true, the default), or sampled ones (false).
    seed: of the environments and of sampling (default 0).
    video: true writes the first episode, at most 1,800 steps of it, as an mp4 into the run's folder
        (default false).
    render: `human` opens a window (default null).
    plugins: as in training (default []).
    """

    episodes: Count = 100
    max_steps: Count | None = None
    checkpoint: Which = None
    greedy: bool = True
    seed: Whole = 0
    video: bool = False
    render: Literal["human"] | None = None
    plugins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.video and self.render:
            raise ConfigError("video", self.video, "must be false where render=human")


@dataclass(frozen=True, repr=False)
class Evaluation:
    """The episodes that the policy of a checkpoint has played.

    steps: environment steps of its training.
    video: of the first episode; None if there is none.
    """

    checkpoint: Path
    steps: int
    episodes: PlayedEpisodes
    video: Path | None = None

    @property
    def returns(self) -> NDArray[np.float64]:
        """Return the returns [E], in the order in which episodes ended."""
        return self.episodes.returns

    @property
    def mean_return(self) -> float:
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        """Return the standard deviation of the returns, with E - 1; NaN for a single episode."""
        return float(self.returns.std(ddof=1)) if len(self.returns) > 1 else math.nan

    def __repr__(self) -> str:
        numbers = statistics(self.episodes)
        film = "" if self.video is None else f", video {short(self.video)}"
        return (
            f"mean return {numbers['mean return']} of {numbers['episodes']} episodes, "
            f"standard deviation {numbers['standard deviation']}, "
            f"{self.checkpoint.name} after {self.steps:,} steps{film}"
        )


def evaluate_run(loaded: Loaded, folder: Path, options: Options) -> Evaluation:
    """Play a run's policy with these options. A terminal shows how far it is.

    Raises ConfigError.
    """
    render_mode = "rgb_array" if options.video else options.render
    count = 1 if render_mode else min(options.episodes, BATCH)
    if options.video:
        with named("video"):
            name = f"{VIDEOS}/{loaded.steps}"
            check_names(folder, VIDEOS, f"{name}.mp4", f"{name}.part.mp4")
    seeds = seeding.environment_seeds(
        options.seed, seeding.Role.EVALUATION, LATER_EVALUATIONS, count
    )
    recorder = Recorder(_free(folder / VIDEOS, str(loaded.steps))) if options.video else None
    loaded.policy.seed(options.seed)
    seeding.seed_globals(options.seed, 0)  # from which an environment may draw
    with under("env"):
        env = loaded.experiment.eval_env.make(count, seeds, render_mode)

    terminal = LiveLineHandler(sys.stderr)

    def show(ended: int, steps: int) -> bool:
        if terminal.live and steps % SHOWN_STEPS == 0:
            terminal.show(f"{ended} of {options.episodes} episodes, step {steps:,}")
        return True

    max_steps = options.max_steps
    if max_steps is None:
        max_steps = loaded.experiment.eval.max_steps
    try:
        episodes = evaluate_policy(
            loaded.policy,
            env,
            options.episodes,
            options.greedy,
            max_steps=max_steps,
            go_on=show,
            on_step=recorder,
        )
    finally:
        terminal.clear()
        close_within(env, VIDEO_CLOSE_SECONDS)
    video = None if recorder is None else recorder.write()
    path = None if video is None else video.path
    return Evaluation(loaded.checkpoint, loaded.steps, episodes, path)


def _free(folder: Path, name: str) -> Path:
    """Return the first path of name, name_2, name_3 and so on that is not there: training, or
    another evaluation, may have filmed the same policy."""
    path = folder / f"{name}.mp4"
    for number in itertools.count(2):
        if not path.is_file():
            break
        path = folder / f"{name}_{number}.mp4"
    return path


def _with_half_width(mean: float, half_width: float) -> str:
    """Return a mean and half the width of its interval, of three digits, with equal decimals."""
    if not 0 < half_width < math.inf:
        return f"{mean:.6g} +- {half_width:g}"

    decimals = min(max(2 - math.floor(math.log10(half_width)), 0), 6)
    return f"{mean:.{decimals}f} +- {half_width:.{decimals}f}"


def statistics(episodes: PlayedEpisodes) -> dict[str, str]:
    """Return what is reported about episodes, as texts: of the mean return with its 95 % interval
    (Student's t)."""
    returns = episodes.returns
    several = len(episodes) > 1
    mean = f"{returns.mean():.6g}"
    if several:
        mean = f"{_with_half_width(returns.mean(), student_half_width(returns))} (95 %)"
    own_numbers = [f"{name} {number:.6g}" for name, number in episodes.means().items()]
    return {
        "episodes": str(len(episodes)),
        "mean return": mean,
        "standard deviation": f"{returns.std(ddof=1):.3g}" if several else "-",
        "lowest": f"{returns.min():.6g}",
        "highest": f"{returns.max():.6g}",
        "mean length": f"{episodes.lengths.mean():.6g}",
        "cut by max_steps": str(episodes.cut),
        "own numbers": ", ".join(own_numbers) or "-",
    }


def main(arguments: Sequence[str]) -> int:
    return folder_command("evaluate", Options, _command, arguments)


def _command(folder: Path, settings: Sequence[str]) -> int:
    options = build(parse_key_values(settings), Options)
    if not (folder / CONFIG_FILE).exists() and (runs := run_folders(folder)):
        return _evaluate_sweep(folder, runs, options)
    played = play(folder, options)
    print(f"policy: {played.checkpoint.name}, after {played.steps:,} steps")
    print("returns:", *(f"{value:.6g}" for value in played.returns))
    for name, value in statistics(played.episodes).items():
        if value != "-":
            print(f"{name}: {value}")
    return ExitCode.DONE


def play(folder: Path, options: Options) -> Evaluation:
    """Load the policy of the run in `folder` and play it: see `evaluate_run`."""
    with one_thread():
        loaded = load_run(folder, options.checkpoint, options.plugins)
        played = evaluate_run(loaded, folder, options)
    if played.video is not None:
        print(printable(f"video: {played.video}"))
    return played


def _evaluate_sweep(folder: Path, runs: Sequence[Path], options: Options) -> int:
    """Print a table with a row for each run as soon as it has been evaluated, then which could not
    be evaluated.

    Returns FAILED if there are such runs.
    """
    failures: list[str] = []
    columns: list[str] = []
    for run in runs:
        try:
            played = play(run, options)
        except (ConfigError, RunError) as error:
            failures.append(f"not evaluated: {run}: {' '.join(str(error).split())}")
            continue
        name = printable(str(run.relative_to(folder.resolve())))
        cells = {
            "run": name,
            "policy": played.checkpoint.name,
            "steps": f"{played.steps:,}",
            **statistics(played.episodes),
        }
        if not columns:
            columns = list(cells)
            print(markdown.table(columns))
        print(markdown.row(list(cells.values())), flush=True)

    for failure in failures:
        print(printable(f"a3c_exp: {failure}"), file=sys.stderr)
    return ExitCode.FAILED if failures else ExitCode.DONE


if __name__ == "__main__":
    sys.exit(leave(main(sys.argv[1:])))
