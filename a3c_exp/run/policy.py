"""A trained policy, and its evaluation over whole episodes, with a video."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from a3c_exp.common.arrays import Array
from a3c_exp.core import seeding
from a3c_exp.core.callback import Video
from a3c_exp.core.events import Episodes
from a3c_exp.core.experiment import Eval, Experiment, build_network
from a3c_exp.core.normalization import NormalizedObservations, Normalizer
from a3c_exp.core.rollout import episode_boundaries
from a3c_exp.envs import EnvBatch, EnvError
from a3c_exp.envs.info import InfoNumbers, number_columns
from a3c_exp.errors import ConfigError, RunError, one_line, refused, require_package
from a3c_exp.networks import ActorCritic
from a3c_exp.networks.cnn import ImageEncoder
from a3c_exp.networks.recurrent import reset_state
from a3c_exp.run.files import log

# Environments of an evaluation, stepped together: a batch of 16 costs little more than one.
BATCH = 16
# Failures of an evaluation's environments without an ended episode in between, which end it.
MOST_FAILURES = 10

# Index of the seeds of `evaluate_run`: other episodes than those by which the run chose its best checkpoint.
REPLAY = 1


@dataclass(slots=True)
class PlayedEpisodes(Episodes):
    """The episodes of an evaluation. cut: how many of them had not ended after the most steps that one may have."""

    cut: int = 0


class Policy:
    """A trained network, with the observation normalizer of its training.

    state: `SharedStore.state()`, whose parameters and scales it has: see `load`.
    normalizer: the scales of observations; None if training did not measure them.
    info_keys: see `Environment`, of evaluations.

    With a recurrent network `act` keeps a state between calls: call `reset` at the start of each episode.
    """

    def __init__(self, experiment: Experiment, state: Mapping[str, Any]) -> None:
        self._network, self._env = build_network(experiment, draw=False)
        self._normalized = NormalizedObservations.of(experiment.env.normalize_observations, self._env.observation_space)
        self._rng = seeding.generator(experiment.seed, seeding.Role.EVALUATION_ACTIONS)
        self._state: Array | None = None
        self.normalizer: Normalizer | None = None
        self.info_keys = experiment.eval_env.info_keys
        self.load(state)

    @cached_property
    def network(self) -> ActorCritic:
        """A torch module with parameters of its own, equal to the policy's: see `ActorCritic.forward`.

        It can be moved, saved and trained as any module of torch. Observations are those of an EnvBatch, normalized by
        `normalizer` if there is one.
        """
        return copy.deepcopy(self._network)

    def load(self, store_state: Mapping[str, Any]) -> None:
        """Take the parameters and scales in `SharedStore.state()`. Raises ValueError if they do not fit."""
        self._network.vector[:] = store_state["parameters"]
        if "constants" in store_state:  # a checkpoint of a network that has some
            self._network.load_constants(store_state["constants"])
        form = self._normalized
        if form.measured:
            self.normalizer = Normalizer.from_row(store_state["stats"], form, False)
            self.normalizer.scale_pixels(self._network)

    def seed(self, seed: int) -> None:
        """Sample actions from a generator for this seed from now on."""
        self._rng = seeding.generator(seed, seeding.Role.EVALUATION_ACTIONS, REPLAY)

    def use_float32(self) -> None:
        """Compute images in float32 from now on, whatever the `precision` of the network."""
        for module in self._network.modules():
            if isinstance(module, ImageEncoder):
                module.plain = True

    def predict(self, observations: Array, state: Array | None, greedy: bool = True) -> tuple[Array, Array | None]:
        """Observations [B, ...] of an EnvBatch -> its actions [B, ...], and the next recurrent state.

        state: the recurrent state; None at the start of all episodes, and for a network without one.
        """
        parameters, _, state = self._network.policy_forward(*self._inputs(observations, state))
        return self.choose(parameters, greedy), state

    def outputs(self, observations: Array, state: Array | None) -> tuple[Array, Array, Array | None]:
        """Observations and state as `predict` takes them -> distribution parameters [B, P], values [B], next state."""
        return self._network.act_forward(*self._inputs(observations, state))

    def _inputs(self, observations: Array, state: Array | None) -> tuple[Array, Array | None]:
        state = self._network.initial_state(len(observations)) if state is None else state
        return observations if self.normalizer is None else self.normalizer.observations(observations), state

    def choose(self, parameters: Array, greedy: bool = True) -> Array:
        """Actions of an EnvBatch [B, ...] from distribution parameters [B, P]."""
        distribution = self._network.distribution
        if greedy:
            return distribution.mode_for_env(torch.from_numpy(parameters)).numpy()
        return distribution.to_env(distribution.sample(parameters, self._rng)[0])

    def act(self, observation: Any, greedy: bool = True) -> Any:
        """The action for one observation, both in the spaces of the gymnasium environment. See `reset`.

        greedy: the most likely action (the mean of a continuous one); False: one drawn from the distribution.
        Raises ValueError for an observation of another shape, for numbers that are not finite, and for those in an
        image that are no integers of 0 to 255.
        """
        observations, shape = self._env.encode([observation]), self._env.observation_space.shape
        if observations.shape != (1, *shape) or not np.isfinite(observations).all():  # a user's batch may let it pass
            raise ValueError(f"observation: finite numbers of shape {shape} are needed")
        actions, self._state = self.predict(observations, self._state, greedy)
        action = self._env.decode(actions)[0]
        return int(action) if np.ndim(action) == 0 and np.issubdtype(action.dtype, np.integer) else np.asarray(action)

    def reset(self) -> None:
        """Start a new episode: clear the recurrent state, if there is one.

        A policy trained with `env.terminal_on_life_loss=true` was also reset after each lost life.
        """
        self._state = None


class Recorder:
    """Collects frames of an episode, called before each of its steps, for a video. Needs the `video` extra.

    An episode that begins once more, after a failure, takes the place of the one before.
    """

    FRAMES_PER_SECOND = 30
    MAX_FRAMES = 60 * FRAMES_PER_SECOND

    def __init__(self, path: Path) -> None:
        require_package("video", True, "video", "moviepy")
        self._path = path
        self._frames: list[NDArray[np.uint8]] = []

    def __call__(self, env: EnvBatch, time: int = 0) -> None:
        """time: number of steps of the episode before this one."""
        del self._frames[time:]
        if len(self._frames) < self.MAX_FRAMES:
            with refused("video", True, "the environment cannot be drawn"):
                frame = env.render()
            if frame is None:
                raise ConfigError("video", True, "must be false: this environment draws no pictures")
            self._frames.append(frame)

    def write(self) -> Video | None:
        """Write the mp4; None with a warning if that is impossible."""
        from moviepy import ImageSequenceClip

        part = self._path.with_suffix(".part.mp4")
        try:
            self._path.parent.mkdir(exist_ok=True)
            ImageSequenceClip(self._frames, fps=self.FRAMES_PER_SECOND).write_videofile(str(part), logger=None)
            part.replace(self._path)  # there is none where ffmpeg has ended without a word
        except OSError as error:
            with suppress(OSError):
                part.unlink()
            log.warning("the video %s could not be written: %s", self._path.name, one_line(error))
            return None
        return Video(self._path, self._frames[0])


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

    An episode of `max_steps` steps is cut and counted. What its environment plays from there to the episode's end is
    not. Once all environments that have episodes to play are at such a rest, they are reset.

    Each environment plays a fixed share of the episodes: counting those that end first would favour short ones.
    If an environment goes wrong, the episodes under way are left out, with a warning, and others are played in their
    place. Raises EnvError after MOST_FAILURES without an ended episode in between, and RunError for a return that is
    not finite.
    go_on: called before each step and at the end, with the number of episodes that have ended and of steps of each
        environment; once it returns False, only the episodes that have ended are returned.
    on_step: called before each step of the first environment's first episode, with the number of those before it.
    """
    quota = np.full(env.count, episodes // env.count)
    quota[: episodes % env.count] += 1
    returns, lengths = np.zeros(env.count), np.zeros(env.count, np.int64)
    rest = np.zeros(env.count, np.bool_)  # of an episode that was cut
    done: list[tuple[float, int]] = []
    info_numbers, numbers = InfoNumbers(policy.info_keys), list[dict[str, float]]()
    failures: list[str] = []
    failures_in_a_row = 0
    first = quota[0]
    observations: Array | None = None  # a reset is due
    state: Array | None = None
    ticks = cut_count = 0
    while go_on(len(done), ticks) and quota.any():
        try:
            if observations is None:
                observations, state = env.reset(), None
                returns[:] = lengths[:] = rest[:] = 0
            if on_step is not None and quota[0] == first:
                on_step(env, int(lengths[0]))
            actions, state = policy.predict(observations, state, greedy)
            step = env.step(actions)
        except EnvError as error:
            failures.append(str(error).partition("\n")[0])
            failures_in_a_row += 1
            if failures_in_a_row == MOST_FAILURES:
                raise
            observations = None
            continue
        observations = step.obs
        returns += step.reward
        lengths += step.valid
        cut = (lengths >= max_steps) & ~step.episode_over
        if state is not None:
            state = reset_state(state, episode_boundaries(step))
        for index in np.flatnonzero(step.episode_over | cut):
            if quota[index] and not rest[index]:
                if not math.isfinite(returns[index]):
                    raise RunError(f"environment {index} of an evaluation has the return {returns[index]}")
                failures_in_a_row = 0
                quota[index] -= 1
                done.append((returns[index], lengths[index]))
                numbers.append(info_numbers.of((step.final_info or {}).get(int(index), {})))
                cut_count += int(cut[index])
            returns[index] = lengths[index] = 0
            rest[index] = cut[index]
        if quota.any() and rest[quota > 0].all():
            observations = None
        ticks += 1
    if failures:
        log.warning("an evaluation has begun again after errors: %d, the first: %s", len(failures), failures[0])
    return PlayedEpisodes(
        np.array([r for r, _ in done]),
        np.array([n for _, n in done], np.int64),
        np.zeros(len(done), np.int64),
        numbers=number_columns(numbers),
        cut=cut_count,
    )
