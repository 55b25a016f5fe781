"""Playing with a trained policy: evaluations beside a run, replays of a finished one, the policy for other programs.

python -m a3c_exp.evaluate outputs/<run> episodes=100 video=true
"""

from __future__ import annotations

import importlib.util
import inspect
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from a3c_exp import checkpoint, seeding
from a3c_exp.config import (
    BEST,
    CHECKPOINTS,
    CONFIG_FILE,
    LATEST,
    Experiment,
    best_checkpoint,
    load_experiment,
    read_config,
)
from a3c_exp.envs import EnvBatch
from a3c_exp.errors import ConfigError, exit_code, require
from a3c_exp.events import Episodes
from a3c_exp.networks import ActorCritic
from a3c_exp.networks.recurrent import forget
from a3c_exp.normalisation import Normalisation
from a3c_exp.rollout import restarts
from a3c_exp.schema import build, pairs
from a3c_exp.seeding import Role
from a3c_exp.threading_limits import one_thread
from a3c_exp.worker import build_network

Array = NDArray[Any]

# Evaluation plays this many episodes at a time, which costs little more than one.
BATCH = 16

# An episode that goes on for so many steps is cut there: where nothing else ends it, a policy that is stuck would play
# for ever.
LONGEST_EPISODE = 100_000

# Replays see other episodes than those by which a run chose its best checkpoint.
_REPLAY = 1


class Policy:
    """A trained network with the scaling it was trained with.

    network: its parameters are read at every call, so it may be loaded anew between calls.

    With a recurrent network `act` remembers what it has seen: call `reset` where an episode begins.
    """

    def __init__(
        self, network: ActorCritic, normalisation: Normalisation | None, env: EnvBatch, rng: np.random.Generator
    ) -> None:
        self.network, self.normalisation = network, normalisation
        self._env, self._rng = env, rng
        self._state: Array | None = None

    def seeded(self, seed: int) -> Policy:
        """The same policy, drawing its samples from another seed."""
        rng = seeding.generator(seed, Role.EVALUATION_ACTIONS, _REPLAY)
        return Policy(self.network, self.normalisation, self._env, rng)

    def act_batch(self, observations: Array, state: Array | None, greedy: bool = True) -> tuple[Array, Array | None]:
        """Observations [B, ...] as an EnvBatch gives them -> actions [B, ...] as it takes them, and the state after.

        state: the recurrent state before; None where all episodes begin, and for a network without one.
        """
        if state is None:
            state = self.network.initial_state(len(observations))
        if self.normalisation is not None:
            observations = self.normalisation.observations(observations)
        parameters, _, state = self.network.infer(observations, state)
        head = self.network.head
        return head.to_env(head.mode(parameters) if greedy else head.sample(parameters, self._rng)[0]), state

    def act(self, observation: Any, greedy: bool = True) -> Any:
        """The action for one observation, both as the gymnasium environment itself has them. See `reset`.

        greedy: the most likely action (the mean, for continuous ones), else one drawn from the distribution.
        Raises ValueError for an observation of another shape.
        """
        observations, shape = self._env.encode([observation]), self._env.observation_space.shape
        if observations.shape[1:] != shape or len(observations) != 1:
            raise ValueError(f"observation: has shape {np.shape(observation)}; one observation is needed, {shape}")
        actions, self._state = self.act_batch(observations, self._state, greedy)
        action = self._env.decode(actions)[0]
        return int(action) if np.ndim(action) == 0 and np.issubdtype(action.dtype, np.integer) else np.asarray(action)

    def reset(self) -> None:
        """A new episode begins: forget what `act` has seen. Without effect on a network that remembers nothing.

        What was trained with `env.life_loss=true` has begun anew behind every lost life as well.
        """
        self._state = None


def play(
    policy: Policy,
    env: EnvBatch,
    episodes: int,
    greedy: bool = True,
    stopped: Callable[[], bool] = lambda: False,
    watch: Callable[[EnvBatch], None] = lambda env: None,
) -> Episodes:
    """Play `episodes` whole episodes; their returns are those of the environment's own rewards.

    One that goes on for LONGEST_EPISODE steps is cut there and counts as one. Its environment is not restarted: the
    next one begins where it was cut.

    Each environment plays a share that is fixed beforehand: taking the first to finish would favour short episodes.
    stopped: asked at each step; if it says so, what has ended by then is returned.
    watch: called before each step of the first environment's first episode.
    """
    quota = np.full(env.count, episodes // env.count)
    quota[: episodes % env.count] += 1
    returns, lengths = np.zeros(env.count), np.zeros(env.count, np.int64)
    done: list[tuple[float, int]] = []
    observations, first = env.reset(), quota[0]
    state: Array | None = None
    while quota.any() and not stopped():
        if quota[0] == first:
            watch(env)
        actions, state = policy.act_batch(observations, state, greedy)
        step = env.step(actions)
        observations = step.obs
        returns += step.reward
        lengths += step.valid
        cut = lengths >= LONGEST_EPISODE
        if state is not None:
            state = forget(state, restarts(step) | cut)
        for index in np.flatnonzero(step.over | cut):
            if quota[index]:
                quota[index] -= 1
                done.append((returns[index], lengths[index]))
            returns[index] = lengths[index] = 0
    return Episodes(
        np.array([r for r, _ in done]), np.array([n for _, n in done], np.int64), np.zeros(len(done), np.int64)
    )


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
    except checkpoint.MISFITS as error:
        raise ConfigError("checkpoint", str(path), f"does not fit the run's {CONFIG_FILE}: {error}") from error


def load(folder: str | Path, which: Literal["best", "latest"] | None = None, plugins: Sequence[str] = ()) -> Policy:
    """The policy that a run has trained: `load(folder).act(observation)`. See `load_run`."""
    return load_run(folder, which, plugins).policy


def make_policy(experiment: Experiment, store_state: dict[str, Any]) -> Policy:
    """A policy of its own from the state of the shared parameters. Raises ValueError where it is another network's."""
    network, env = build_network(experiment, draw=False)
    parameters = store_state["parameters"]
    if parameters.shape != network.vector.shape:
        raise ValueError(f"it has {parameters.size} parameters, the network {network.vector.size}")
    network.vector[:] = parameters
    normalisation = make_normalisation(experiment, env.observation_space.shape, store_state["statistics"])
    rng = seeding.generator(experiment.seed, Role.EVALUATION_ACTIONS)
    return Policy(network, normalisation, env, rng)


def make_normalisation(
    experiment: Experiment, shape: tuple[int, ...], statistics: NDArray[np.float64]
) -> Normalisation | None:
    """How observations [*shape] were scaled in training, by the statistics of a checkpoint; None: they were not."""
    if not experiment.env.normalize_observations:
        return None
    return Normalisation.from_row(statistics, shape, True, False)


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


def replay(loaded: Loaded, folder: Path, options: Options) -> Episodes:
    """Play a run's policy as `options` say. Raises ConfigError."""
    drawing = "rgb_array" if options.video else options.render
    count = 1 if drawing else min(options.episodes, BATCH)
    seeds = seeding.environment_seeds(options.seed, Role.EVALUATION, _REPLAY, count)
    recorder = Recorder(folder / "videos" / f"{loaded.steps}.mp4") if options.video else None
    policy = loaded.policy.seeded(options.seed)
    try:
        env = loaded.experiment.env.make(count, seeds, drawing)
    except ConfigError as error:
        raise error.under("env") from error
    try:
        episodes = play(policy, env, options.episodes, options.greedy, watch=recorder or (lambda env: None))
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


def report(episodes: Episodes) -> str:
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
    options = build(pairs(settings), Options)
    with one_thread():
        loaded = load_run(folder, options.checkpoint, options.plugins)
        episodes = replay(loaded, folder, options)
    print(f"policy: {loaded.checkpoint.name}, after {loaded.steps:,} steps")
    print(report(episodes))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
