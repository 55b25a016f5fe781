"""Running statistics of observations and of returns or rewards, to which many workers add.

A worker pulls one `Normalizer` and uses it for a whole rollout: acting, bootstrapping and learning
see the same scaling. What it measures travels back with its push as `Stats`.

Images of bytes stay bytes, a quarter of the memory, until the network scales their pixels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from a3c_exp.common.arrays import Array, Bools
from a3c_exp.envs.batch import Normalization, RewardNormalization
from a3c_exp.envs.parts import PartsBox
from a3c_exp.errors import ConfigError
from a3c_exp.networks import ActorCritic
from a3c_exp.networks.inputs import ImageLayout

# Beyond ten standard deviations an observation says no more than that it is extreme. Other
# frameworks use this bound.
CLIP = 10.0
EPSILON = 1e-8
# a smaller share of the squared mean is no variance: the rounding error of float64 is 1e-32 of it
CONSTANT = 1e-20


Stats = NDArray[np.float64]
"""Count, mean and sum of squared deviations of raw observations and of discounted returns, as one
row.

[1 + 2 * size + 3]: the count of observations, their means, their sums of squared deviations; then
count, mean and sum of squared deviations of the returns, all 0 if returns are not measured. size:
numbers of an observation, 0 if observations are not measured. With `normalize_rewards=centered`
rewards stand in the place of returns.

Sums of squares would be shorter, but they lose what varies little around a large mean. A reader
that meets a row half written also does little wrong: the two halves are from close points in time,
and so are their scales.
"""


def stats_width(shape: tuple[int, ...], observations: bool, rewards: RewardNormalization) -> int:
    """Return the length of a row for observations of this shape; 0 if neither observations nor
    rewards are normalized."""
    if not (observations or rewards):
        return 0
    size = math.prod(shape) if observations else 0
    return 1 + 2 * size + 3


def has_observations(stats: Stats) -> bool:
    """Return whether a row has statistics of observations."""
    return len(stats) > stats_width((), False, True)


def measure_stats(observations: Array | None, returns: Array | None) -> Stats:
    """Measure observations [N, ...] and returns [N]. N may be 0; None stands for what is not
    normalized.

    All numbers are finite, as an `Actor` makes sure: one that is not would spoil the means for
    good.
    """
    head = np.zeros(1)
    tail = np.zeros(3)
    if observations is not None:
        size = math.prod(observations.shape[1:])  # -1 would be undefined for no observations
        head = _measured(observations.reshape(len(observations), size))
    if returns is not None:
        tail = _measured(returns[:, None])
    return np.concatenate([head, tail])


def merge_stats(rows: Sequence[Stats] | Array) -> Stats:
    """Merge the statistics of rows [N, width]."""
    table = np.asarray(rows)
    return np.concatenate([_joined(table[:, :-3]), _joined(table[:, -3:])])


def are_images(space: Box) -> bool:
    """Return whether observations of `space` are images of bytes."""
    return space.dtype == np.uint8 and ImageLayout.of(space.shape) is not None


def has_byte_vectors(space: Box) -> bool:
    """Return whether observations of `space` have numbers of 0 to 255 that are no pixels: the
    memory of a console, for one."""
    is_byte = (space.low == 0) & (space.high == 255)
    return space.dtype == np.float32 and len(space.shape) == 1 and bool(is_byte.any())


def has_large_numbers(space: Box) -> bool:
    """Return whether some numbers of `space`, which the network takes as they are, go from 0 to 255
    or more: bytes, or images that are no bytes."""
    is_large = (space.low == 0) & (space.high >= 255)
    return space.dtype == np.float32 and bool(is_large.any())


def require_images(space: Box, key: str, setting: object) -> None:
    """Raise ConfigError for a setting that only images of bytes can have."""
    if are_images(space):
        return
    if isinstance(space, PartsBox):
        raise ConfigError(key, setting, "must be true or false: observations have several parts")

    raise ConfigError(
        key,
        setting,
        f"must be true, 'shared' or false: observations {space.shape} of {space.dtype} "
        "are no images of bytes",
    )


@dataclass(frozen=True)
class NormalizedObservations:
    """How a run measures and normalizes its observations, from its setting and the environment's
    space.

    measured: by running statistics, of the given shape: that of an observation, or () for all
        numbers together.
    by_network: they are images of bytes, whose pixels the network scales.
    fixed: mean and standard deviation of all pixels; None if they are measured, or nothing is
        normalized.
    unscaled: the columns of observations of several parts that stay as they are.
    """

    measured: bool = False
    shape: tuple[int, ...] = ()
    by_network: bool = False
    fixed: tuple[float, float] | None = None
    unscaled: tuple[slice, ...] = ()

    @classmethod
    def of(cls, setting: Normalization, space: Box) -> NormalizedObservations:
        """Return how observations of a space are normalized.

        setting: has two numbers or false in place of 'auto' and 'background'; see
            `config.builder.resolve`.

        Raises ConfigError for a fixed mean of what are no images of bytes.
        """
        if setting is False:
            return cls(shape=space.shape)
        if setting in ("auto", "background"):
            raise ValueError(
                f"normalize_observations={setting!r}: config.builder.resolve has the numbers"
            )
        if isinstance(setting, tuple):
            require_images(space, "env.normalize_observations", list(setting))
            return cls(by_network=True, fixed=setting)
        if isinstance(space, PartsBox):
            if setting == "shared":
                require_images(space, "env.normalize_observations", setting)
            unscaled = tuple(part.columns for part in space.parts if not part.is_measured)
            return cls(True, space.shape, unscaled=unscaled)

        return cls(True, space.shape if setting is True else (), are_images(space))

    def network_space(self, space: Box) -> Box:
        """Return the space of observations as a network gets them, from that of the environment.

        Normalized observations are floats without bounds.
        """
        if self.by_network or not self.measured:
            return space
        if isinstance(space, PartsBox):
            return space.unbounded()
        return Box(-np.inf, np.inf, space.shape, np.float32)

    def prepare(self, network: ActorCritic) -> None:
        """Let a network that scales pixels take the fixed numbers; measured ones come later.

        Raises ConfigError if it cannot.
        """
        if self.by_network and not network.scales_pixels:
            measured = True if self.shape else "shared"
            raise ConfigError(
                "env.normalize_observations",
                list(self.fixed) if self.fixed else measured,
                "must be false or auto: the network takes images as they are (raw_images), "
                "without `pixels`",
            )

        if self.fixed:
            mean, std = self.fixed
            network.normalize_pixels(np.array(mean, np.float32), np.array(1 / std, np.float32))


@dataclass(frozen=True, slots=True)
class Normalizer:
    """Frozen scales of observations and rewards.

    mean, inverse_std: float32, shaped like an observation, or [] for all its numbers; None if
        observations are not normalized.
    by_network: they are images, whose pixels the network scales.
    is_measured: two observations or more have been measured.
    reward_scale: factor of rewards; None if they are not normalized, NaN before the second return
        was measured.
    reward_mean: what is subtracted from them first, if rewards are measured in place of returns;
        None if nothing is.
    """

    mean: NDArray[np.float32] | None
    inverse_std: NDArray[np.float32] | None
    reward_scale: float | None
    reward_mean: float | None = None
    by_network: bool = False
    is_measured: bool = True

    @classmethod
    def from_row(
        cls, row: Stats, form: NormalizedObservations, rewards: RewardNormalization
    ) -> Normalizer:
        """Return the scales for the merged row of all workers. Before the second observation the
        mean is 0 and the scale 1."""
        mean = inverse_std = None
        if form.measured:
            size = math.prod(form.shape)
            means = row[1 : 1 + size]
            squares = row[1 + size : 1 + 2 * size]
            centre, std = _mean_and_std(row[0], means, squares)
            mean = centre.astype(np.float32).reshape(form.shape)
            inverse_std = (1 / std).astype(np.float32).reshape(form.shape)
            for columns in form.unscaled:
                mean[columns] = 0
                inverse_std[columns] = 1

        scale = _reward_scale(row) if rewards else None
        reward_mean = float(row[-2]) if rewards == "centered" else None
        is_measured = not form.measured or row[0] >= 2

        return cls(mean, inverse_std, scale, reward_mean, form.by_network, is_measured)

    def observations(self, raw: Array) -> Array:
        """Scale observations [B, ...] to mean 0 and variance 1 over the run so far, float32,
        clipped to +-10.

        The variance is less than 1 for numbers whose deviation is 1e-4 or below.
        """
        if self.by_network or self.mean is None or self.inverse_std is None:
            return raw
        scaled: Array = (raw - self.mean) * self.inverse_std
        return scaled.clip(-CLIP, CLIP, out=scaled)

    def scale_pixels(self, network: ActorCritic) -> None:
        """Let a network that scales pixels itself use this mean and deviation from now on."""
        if self.mean is None or self.inverse_std is None:
            return
        if self.by_network and self.is_measured:
            network.normalize_pixels(self.mean, self.inverse_std)

    def part_to_measure(self, raw: Array, valid: Bools) -> Array | None:
        """Return the observations [N, ...] of a rollout [T, B, ...] that are measured; None if they
        are not normalized.

        Images are measured at one step, since there are many pixels and images of a rollout are
        much alike. It is the middle one: a stack of frames begins an episode with black ones.
        """
        if self.mean is None:
            return None
        middle = len(raw) // 2
        steps = slice(middle, middle + 1) if self.by_network else slice(None)
        return raw[steps][valid[steps]].reshape(-1, *self.mean.shape)

    def rewards(self, rewards: NDArray[np.float32], measured: Stats) -> NDArray[np.float32]:
        """Divide rewards [T, B] by the standard deviation of the discounted return; clip to +-10.

        Where rewards are centered their own mean is subtracted first, and the deviation is their
        own.

        measured: statistics of these rewards. They count where nothing had been measured before:
            the gradient of a first rollout without a scale may be so large that Adam's second
            moment needs thousands of updates to forget it.
        """
        if self.reward_scale is None:
            return rewards

        scale = self.reward_scale
        mean = self.reward_mean
        if math.isnan(scale):
            scale = _reward_scale(measured)
            if mean is not None:
                mean = measured[-2]

        if mean is not None:
            rewards = rewards - np.float32(mean)
        if math.isnan(scale):
            scale = 1.0

        return (rewards * np.float32(scale)).clip(-CLIP, CLIP)


def _measured(rows: Array) -> NDArray[np.float64]:
    """Count, means and sums of squared deviations of rows [N, size]: [1 + 2 * size]."""
    # all pixels together: there are half a million
    if rows.dtype == np.uint8 and rows.shape[1] == 1:
        counts = np.bincount(rows[:, 0], minlength=256)
        levels = np.arange(256.0)
        mean = counts @ levels / max(len(rows), 1)
        return np.array([len(rows), mean, counts @ np.square(levels - mean)])

    numbers = rows.astype(np.float64)
    mean = numbers.sum(0) / max(len(numbers), 1)
    squares = np.square(numbers - mean).sum(0)

    return np.concatenate([[len(numbers)], mean, squares])


def _joined(groups: NDArray[np.float64]) -> NDArray[np.float64]:
    """Merge count, means and sums of squared deviations of N groups [N, 1 + 2 * size].

    The updating formula of Chan, Golub and LeVeque 1979 (STAN-CS-79-773), for N groups.
    """
    size = groups.shape[1] // 2
    counts = groups[:, :1]
    means = groups[:, 1 : 1 + size]
    squares = groups[:, 1 + size :]
    count = counts.sum()
    if not count:  # nothing yet, or not measured at all
        return np.zeros(groups.shape[1])

    mean = (counts / count * means).sum(0)
    squares = squares + counts * np.square(means - mean)
    return np.concatenate([[count], mean, squares.sum(0)])


def _reward_scale(row: Stats) -> float:
    """Return 1 / the standard deviation of the discounted returns in a row of `Stats`; NaN without
    two of them."""
    if row[-3] < 2:
        return math.nan
    _, std = _mean_and_std(row[-3], row[-2:-1], row[-1:])
    return float(1 / std[0])


def _mean_and_std(
    count: float, mean: NDArray[np.float64], squares: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    if count < 2:
        return np.zeros_like(mean), np.ones_like(mean)
    variance = squares / count
    # A number that never varies has no scale. To divide by its rounding error would invent one.
    return mean, np.where(variance > CONSTANT * mean * mean, np.sqrt(variance + EPSILON), 1.0)
