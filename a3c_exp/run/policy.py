"""A trained policy, and its evaluation over whole episodes, with a video."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from a3c_exp.common.arrays import Array
from a3c_exp.common.log import log
from a3c_exp.core import seeding
from a3c_exp.core.events import Episodes
from a3c_exp.core.experiment import Eval, Experiment, build_network
from a3c_exp.core.normalization import Normalizer
from a3c_exp.core.rollout import episode_boundaries
from a3c_exp.core.run_view import Video
from a3c_exp.envs import EnvBatch, EnvError, Step
from a3c_exp.envs.info import InfoNumbers, number_columns
from a3c_exp.errors import FAILURES, RunError, one_line, place_of, refused, require_package
from a3c_exp.networks import ActorCritic
from a3c_exp.networks.cnn import ImageEncoder
from a3c_exp.networks.recurrent import reset_state

# Environments of an evaluation, stepped together: a batch of 16 costs little more than one.
BATCH = 16
# Failures of an evaluation's environments without an ended episode in between, which end it.
MOST_FAILURES = 10

# Index of the seeds of evaluations of a run that has ended: other episodes than those by which it
# chose its best checkpoint.
LATER_EVALUATIONS = 1


EnvObservation = ArrayLike | Mapping[str, Any] | tuple[Any, ...]
EnvAction = int | Array | tuple[Any, ...]
"""What `Policy.act` takes and returns."""


@dataclass(slots=True)
class PlayedEpisodes(Episodes):
    """The episodes of an evaluation. cut: how many of them had not ended after the most steps that
    one may have."""

    cut: int = 0


class Policy:
    """A trained network, with the observation normalizer of its training.

    state: `SharedStore.state()`, whose parameters and scales it has: see `load`.
    normalizer: the scales of observations; None if training did not measure them.
    info_keys: see `Environment`, of evaluations.

    With a recurrent network `act` keeps a state between calls: call `reset` at the start of each
    episode.
    """

    def __init__(self, experiment: Experiment, state: Mapping[str, Any]) -> None:
        self._network, self._env = build_network(experiment, draw=False)
        self._normalized = experiment.normalized(self._env.observation_space)
        self._rng = seeding.generator(experiment.seed, seeding.Role.EVALUATION_ACTIONS)
        self._state: Array | None = None
        self.normalizer: Normalizer | None = None
        self.info_keys = experiment.eval_env.info_keys
        self.load(state)

    def __repr__(self) -> str:
        shape = self._env.observation_space.shape
        actions = self._env.action_space
        size = self._network.vector.size
        return f"<policy: observations {shape}, actions {actions}, {size:,} parameters>"

    @cached_property
    def network(self) -> ActorCritic:
        """A torch module with parameters of its own, equal to the policy's: see
        `ActorCritic.forward`.

        It can be moved, saved and trained as any module of torch. Observations are those of an
        EnvBatch, normalized by `normalizer` if there is one.
        """
        return copy.deepcopy(self._network)

    def load(self, store_state: Mapping[str, Any]) -> None:
        """Take the parameters and scales in `SharedStore.state()`. Raises ValueError if they do not
        fit."""
        self._network.vector[:] = store_state["parameters"]
        if "constants" in store_state:  # a checkpoint of a network that has some
            self._network.load_constants(store_state["constants"])
        form = self._normalized
        if form.measured:
            self.normalizer = Normalizer.from_row(store_state["stats"], form, False)
            self.normalizer.scale_pixels(self._network)

    def seed(self, seed: int) -> None:
        """Sample actions from a generator for this seed from now on."""
        self._rng = seeding.generator(seed, seeding.Role.EVALUATION_ACTIONS, LATER_EVALUATIONS)

    def use_float32(self) -> None:
        """Compute images in float32 from now on, whatever the `precision` of the network."""
        for module in self._network.modules():
            if isinstance(module, ImageEncoder):
                module.plain = True

    def actions(
        self, observations: Array, state: Array | None, greedy: bool = True
    ) -> tuple[Array, Array | None]:
        """Observations [B, ...] of an EnvBatch -> its actions [B, ...], and the next recurrent
        state.

        state: the recurrent state; None at the start of all episodes, and for a network without
        one.
        """
        parameters, _, state = self._network.policy_forward(*self._inputs(observations, state))
        return self.choose(parameters, greedy), state

    def outputs(
        self, observations: Array, state: Array | None
    ) -> tuple[Array, Array, Array | None]:
        """Observations and state as `actions` takes them -> distribution parameters [B, P], values
        [B], next state."""
        return self._network.act_forward(*self._inputs(observations, state))

    def _inputs(self, observations: Array, state: Array | None) -> tuple[Array, Array | None]:
        state = self._network.initial_state(len(observations)) if state is None else state
        return observations if self.normalizer is None else self.normalizer.observations(
            observations
        ), state

    def choose(self, parameters: Array, greedy: bool = True) -> Array:
        """Actions of an EnvBatch [B, ...] from distribution parameters [B, P]."""
        distribution = self._network.distribution
        if greedy:
            return distribution.mode_for_env(torch.from_numpy(parameters)).numpy()
        return distribution.to_env(distribution.sample(parameters, self._rng)[0])

    def act(
        self, observation: EnvObservation, greedy: bool = True, **unknown: NoReturn
    ) -> EnvAction:
        """The action for one observation, or the actions for a batch of N, in the spaces of the
        gymnasium environment.

        A batch has one more axis at the front, each part of a Dict or Tuple too, as a vector
        environment of gymnasium gives it. Its recurrent state is of N episodes: see `reset`.
        greedy: the most likely action (the mean of a continuous one); False: one drawn from the
            distribution.
        Raises ValueError for an observation of another shape, for numbers that are not finite, for
        those in an image that are no integers of 0 to 255, and for another N than the recurrent
        state has; TypeError for the arguments of another library.
        """
        if unknown:
            problem = f"has no argument {next(iter(unknown))!r}"
            raise TypeError(f"Policy.act {problem}: act(observation, greedy=False) samples actions")

        observations, is_batch = self._encoded(observation)
        shape = self._env.observation_space.shape
        # a user's batch may let it pass
        if observations.shape[1:] != shape or not np.isfinite(observations).all():
            raise ValueError(f"observation: finite numbers of shape {shape} are needed")
        if self._state is not None and len(self._state) != len(observations):
            problem = f"{len(observations)} observations, {len(self._state)} before: call reset"
            raise ValueError(f"observation: {problem}")

        actions, self._state = self.actions(observations, self._state, greedy)
        decoded = self._env.decode(actions)
        if is_batch:
            return decoded
        action = decoded[0]
        if isinstance(action, tuple):
            return action
        is_whole = np.ndim(action) == 0 and np.issubdtype(action.dtype, np.integer)
        return int(action) if is_whole else np.asarray(action)

    def _encoded(self, observation: EnvObservation) -> tuple[Array, bool]:
        """Return one observation or a batch as the network takes it, [N, ...], and whether it is a
        batch."""
        try:
            encoded = self._env.encode([observation])
        except ValueError as refusal:
            if _is_answer(observation):
                problem = "is what reset or step has returned: pass its first item alone"
                raise ValueError(f"observation: {problem}") from None
            axes = 1 if isinstance(observation, Mapping) else np.ndim(observation)
            if axes == 0:
                raise
            try:
                return self._env.encode(_rows(observation)), True
            except ValueError as of_batch:
                is_batch = axes > len(self._env.observation_space.shape)
                raise (of_batch if is_batch else refusal) from None
        return encoded, len(encoded) > 1

    def predict(self, *_: object, **__: object) -> NoReturn:
        """Raise TypeError: other libraries return another pair by this name."""
        raise TypeError("Policy.predict is Policy.act(observation), which returns the action alone")

    def reset(self) -> None:
        """Start a new episode: clear the recurrent state, if there is one.

        A policy trained with `env.terminal_on_life_loss=true` was also reset after each lost life.
        """
        self._state = None


def _is_answer(observation: EnvObservation) -> bool:
    """Return whether this is (observation, info), or all that a step returns."""
    if not isinstance(observation, tuple):
        return False
    return len(observation) in (2, 5) and isinstance(observation[-1], Mapping)


def _rows(observations: Any) -> Any:
    """Return the observations of a batch one by one, those of a mapping or a tuple of arrays [N,
    ...] too."""
    if isinstance(observations, Mapping):
        rows = zip(*map(_rows, observations.values()), strict=True)
        return [dict(zip(observations, row, strict=True)) for row in rows]
    if isinstance(observations, tuple):
        return list(zip(*map(_rows, observations), strict=True))
    return observations


class Recorder:
    """Collects frames of an episode, called before each of its steps, for a video. Needs the
    `video` extra.

    An episode that begins once more, after a failure, takes the place of the one before. What goes
    wrong is a warning, and there is no video: an evaluation goes on.
    strict: a first frame that cannot be drawn raises ConfigError.

    The video plays at the environment's `render_fps`, or at FRAMES_PER_SECOND if it has none.
    """

    FRAMES_PER_SECOND = 30.0
    MAX_FRAMES = 1800

    def __init__(self, path: Path, strict: bool = True) -> None:
        require_package("video", True, "video", "moviepy")
        self._path = path
        self._strict = strict
        self._frames: list[NDArray[np.uint8]] = []
        self._frames_per_second = self.FRAMES_PER_SECOND
        self._failed = False

    def __call__(self, env: EnvBatch, time: int = 0) -> None:
        """time: number of steps of the episode before this one."""
        del self._frames[time:]
        if self._failed or len(self._frames) >= self.MAX_FRAMES:
            return
        try:
            frame = _rgb(env.render())
            if self._frames and frame.shape != self._frames[0].shape:
                raise ValueError(f"the size of its images changes to {frame.shape[:2]}")
        except FAILURES as error:
            if self._strict and not self._frames:
                with refused("video", True, "the environment cannot be drawn"):
                    raise
            self._give_up(error)
        else:
            self._frames.append(frame)
            self._frames_per_second = getattr(env, "render_fps", None) or self.FRAMES_PER_SECOND

    def _give_up(self, error: BaseException) -> None:
        self._failed = True
        self._frames.clear()
        reason = one_line(error) + place_of(error)
        log.warning("there is no video %s: %s", self._path.name, reason)

    def write(self) -> Video | None:
        """Write the mp4; None, after a warning, if that is impossible."""
        if self._failed:
            return None
        part = self._path.with_suffix(".part.mp4")
        try:
            from moviepy import ImageSequenceClip

            self._path.parent.mkdir(exist_ok=True)
            clip = ImageSequenceClip(self._frames, fps=self._frames_per_second)
            clip.write_videofile(str(part), logger=None)
            part.replace(self._path)  # there is none where ffmpeg has ended without a word
        except Exception as error:
            with suppress(OSError):
                part.unlink()
            self._give_up(error)
            return None
        return Video(self._path, self._frames[0])


def _rgb(drawn: object) -> NDArray[np.uint8]:
    """A drawn image as uint8 [height, width, 3]: see `EnvBatch.render`. Raises ValueError for what
    is none."""
    pixels = np.asarray(drawn)
    if pixels.dtype.kind in "bf":
        pixels = np.rint(255 * pixels)
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    fits = pixels.dtype.kind in "iuf" and pixels.ndim == 3 and pixels.shape[2] in (1, 3, 4)
    if not (fits and pixels.size and pixels.min() >= 0 and pixels.max() <= 255):
        problem = "an image is [height, width, 3], of whole numbers to 255 or of floats to 1"
        raise ValueError(f"{problem}, not {type(drawn).__name__} {pixels.dtype} {pixels.shape}")
    colors = pixels[..., :3].astype(np.uint8)
    return np.broadcast_to(colors, (*colors.shape[:2], 3))


class _Tally:
    """The episodes of an evaluation, as its environments step.

    Each environment plays a fixed share of them: counting those that end first would favour short
    ones.
    """

    def __init__(
        self, count: int, episodes: int, max_steps: int, info_keys: Sequence[str] | None
    ) -> None:
        # episodes that each environment has still to play
        self.quota = np.full(count, episodes // count)
        self.quota[: episodes % count] += 1
        self.lengths = np.zeros(count, np.int64)
        self._returns = np.zeros(count)
        self._resting = np.zeros(count, np.bool_)  # of an episode that was cut
        self._max_steps = max_steps
        self._info_numbers = InfoNumbers(info_keys)
        self._numbers: list[dict[str, float]] = []
        self._ended: list[tuple[float, int, bool]] = []

    def __len__(self) -> int:
        return len(self._ended)

    @property
    def reset_is_due(self) -> bool:
        """Whether all environments that have episodes to play are at the rest of one that was
        cut."""
        return bool(self.quota.any() and self._resting[self.quota > 0].all())

    def begin(self) -> None:
        """All environments have been reset."""
        self._returns[:] = self.lengths[:] = self._resting[:] = 0

    def add(self, step: Step) -> None:
        """Count a step of each environment. Raises RunError for a return that is not finite."""
        returns = self._returns
        lengths = self.lengths
        quota = self.quota
        resting = self._resting
        returns += step.reward
        lengths += step.valid
        cut = (lengths >= self._max_steps) & ~step.episode_over
        for index in np.flatnonzero(step.episode_over | cut):
            if quota[index] and not resting[index]:
                if not math.isfinite(returns[index]):
                    raise RunError(
                        f"environment {index} of an evaluation has the return {returns[index]}"
                    )
                quota[index] -= 1
                self._ended.append((returns[index], lengths[index], cut[index]))
                self._numbers.append(
                    self._info_numbers.of((step.final_info or {}).get(int(index), {}))
                )
            returns[index] = lengths[index] = 0
            resting[index] = cut[index]

    def played(self) -> PlayedEpisodes:
        returns, lengths, cut = np.array(self._ended, np.float64).reshape(-1, 3).T
        return PlayedEpisodes(
            returns=returns,
            lengths=lengths.astype(np.int64),
            end_steps=np.zeros(len(self), np.int64),  # of a run, which this is not
            numbers=number_columns(self._numbers),
            cut=int(cut.sum()),
        )


def evaluate_policy(
    policy: Policy,
    env: EnvBatch,
    episodes: int,
    greedy: bool = True,
    *,
    max_steps: int = Eval.max_steps,
    go_on: Callable[[int, int], bool] = lambda ended, steps: True,
    on_step: Callable[[EnvBatch, int], None] | None = None,
) -> PlayedEpisodes:
    """Play `episodes` whole episodes; returns are sums of the environment's own rewards.

    An episode of `max_steps` steps is cut and counted. What its environment plays from there to the
    episode's end is not. Once all environments that have episodes to play are at such a rest, they
    are reset.

    If an environment goes wrong, the episodes under way are left out, with a warning, and others
    are played in their place. Raises EnvError after MOST_FAILURES without an ended episode in
    between, and RunError for a return that is not finite.
    go_on: called before each step and at the end, with the number of episodes that have ended and
        of steps of each environment; once it returns False, only the episodes that have ended are
        returned.
    on_step: called before each step of the first environment's first episode, with the number of
        those before it.
    """
    tally = _Tally(env.count, episodes, max_steps, policy.info_keys)
    first = tally.quota[0]
    failures: list[tuple[int, str]] = []  # with the number of episodes that had ended
    observations: Array | None = None  # a reset is due
    state: Array | None = None
    ticks = 0
    while go_on(len(tally), ticks) and tally.quota.any():
        try:
            if observations is None:
                observations = env.reset()
                state = None
                tally.begin()
            if on_step is not None and tally.quota[0] == first:
                on_step(env, int(tally.lengths[0]))
            actions, state = policy.actions(observations, state, greedy)
            step = env.step(actions)
        except EnvError as error:
            failures.append((len(tally), str(error).partition("\n")[0]))
            if sum(ended == len(tally) for ended, _ in failures) == MOST_FAILURES:
                raise
            observations = None
            continue
        if state is not None:
            state = reset_state(state, episode_boundaries(step))
        tally.add(step)
        observations = None if tally.reset_is_due else step.obs
        ticks += 1
    if failures:
        log.warning(
            "an evaluation has begun again after errors: %d, the first: %s",
            len(failures),
            failures[0][1],
        )
    return tally.played()
