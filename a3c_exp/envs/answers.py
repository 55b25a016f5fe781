"""The check of what environments return: observations, rewards and flags that can be used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Space
from gymnasium.vector.utils import batch_space, iterate

from a3c_exp.common.arrays import Array, Bools, Floats
from a3c_exp.envs.parts import ACTION_MASK, PartsBox
from a3c_exp.envs.spaces import encoder
from a3c_exp.errors import shown

_FLOAT32 = np.dtype(np.float32)
_MASKED = {np.ma.MaskedArray, type(np.ma.masked)}
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


class WrongAnswerError(ValueError):
    """An observation, a reward or a flag that cannot be used. Its text: 'the reward nan'.

    index: of the environment in its batch; None if it is not known.
    """

    def __init__(self, text: str, index: int | None = None) -> None:
        super().__init__(text)
        self.index = index


class AnswerCheck:
    """Converts observations of `space`, and finds those that cannot be used.

    An observation must have the shape of `space`. Its numbers must be finite in float32, and none
    of them masked; whole numbers in range where the space is discrete or one of images, since a
    conversion would change them silently.

    `observations` runs at every step and is quick. `fault` says afterwards what is wrong with one
    of them.

    actions: of the policy, for `require_action`.
    """

    def __init__(self, space: Space[Any], actions: Space[Any] | None = None) -> None:
        self.space = space
        self.box, self._encode = encoder(space)
        if actions is not None and not np.prod(self.box.shape):
            raise TypeError(f"its observations have no numbers: {space}")

        self._shape = space.shape
        self._is_image = self.box.dtype == np.uint8
        self._plain = isinstance(space, Box) and bool(space.shape) and not self._is_image
        whole_numbers = self._is_image or isinstance(space, (Discrete, MultiDiscrete))
        self._kinds = "iub" if whole_numbers else "fiub"

        parts = self.box.parts if isinstance(self.box, PartsBox) else ()
        self._parts = [(part, AnswerCheck(part.space)) for part in parts]

        self.mask = self.box.mask if isinstance(self.box, PartsBox) else None
        sizes = actions.nvec if isinstance(actions, MultiDiscrete) else np.ones(1, np.int64)
        self._choices = np.cumsum(sizes) - np.ravel(sizes)

    def observations(self, observations: Sequence[Any] | Array) -> Array | None:
        """Return K observations as the policy takes them, a new array [K, ...]; None if one of them
        cannot be used."""
        if self._parts:
            return self._joined(observations)

        try:
            is_list = type(observations) is not np.ndarray
            may_be_masked = is_list and not _MASKED.isdisjoint(map(type, observations))
            if may_be_masked and any(map(np.ma.is_masked, observations)):
                return None
            raw = np.array(observations)
        except Exception:  # their shapes differ, or they are no numbers
            return None

        # The usual case. The sum of squares is a third of the cost of isfinite, and may refuse too
        # much.
        if raw.dtype is _FLOAT32 and self._plain and raw.shape[1:] == self._shape:
            flat = raw.ravel()
            if flat.dot(flat) < LARGEST_FLOAT32:
                return raw

        # A single number may also come as an array of one.
        if raw.shape[1:] != self._shape and (self._shape != () or raw.shape[1:] != (1,)):
            return None

        kind = raw.dtype.kind
        if kind not in self._kinds:
            return None
        if kind == "f" and not (np.abs(raw) <= np.float64(LARGEST_FLOAT32)).all():
            return None

        if self._is_image:
            are_bytes = raw.dtype == np.uint8 or (raw.size and raw.min() >= 0 and raw.max() <= 255)
            return raw.astype(np.uint8, copy=False) if are_bytes else None

        with suppress(ValueError):  # a number outside a discrete space
            return raw.astype(np.float32, copy=False) if self._plain else self._encode(raw)

        return None

    def batch(
        self, observations: Sequence[Any] | Array, indices: Sequence[int] | Array | None = None
    ) -> Array:
        """Convert observations of the environments with these indices (None: 0 to K - 1). Raises
        WrongAnswerError."""
        indices = range(len(observations)) if indices is None else indices
        converted = self.observations(observations)
        if converted is not None and len(converted) == len(indices):
            return converted

        for index, observation in zip(indices, self.rows(observations), strict=False):
            if fault := self.fault(observation):
                raise WrongAnswerError(fault, int(index))

        expected = (len(indices), *(self._shape or self.box.shape))
        raise WrongAnswerError(
            f"observations of {getattr(observations, 'shape', 'several shapes')}, not {expected}"
        )

    def rows(self, observations: Any) -> Iterable[Any]:
        """Return the observations of a batch one by one: of a list, an array, or a mapping or tuple
        of arrays [K, ...]."""
        is_batched = isinstance(observations, (Mapping, tuple))
        return iterate(batch_space(self.space), observations) if is_batched else observations

    def fault(self, observation: Any) -> str | None:
        """Return what is wrong with an observation, as 'an observation with nan at [3]'; None if
        nothing is."""
        if self.observations([observation]) is not None:
            return None

        for part, check in self._parts:
            try:
                [inner] = part.rows([observation])
            except Exception:  # it lacks the key, or is no mapping
                return f"an observation without the part {part.name!r}: {shortened(observation)}"
            if fault := check.fault(inner):
                return f"in {part.name!r} {fault}"

        try:
            if np.ma.is_masked(observation):
                position = np.argwhere(np.ma.getmaskarray(observation))[0].tolist()
                return f"an observation that is masked at {position}"
            raw = np.asarray(observation)
            wrong = np.argwhere(~np.isfinite(raw))
        except Exception:  # no numbers; an object of the environment's own may raise anything here
            return f"an observation that is no array of numbers: {shortened(observation)}"

        if raw.shape != self._shape:
            return f"an observation of shape {raw.shape}, not {self._shape}"
        if len(wrong):
            return f"an observation with {raw[tuple(wrong[0])]} at {wrong[0].tolist()}"

        return (
            f"an observation of {raw.dtype} that is not in {self.space}: {shortened(observation)}"
        )

    def require_action(self, observations: Array, over: Bools | bool = False) -> None:
        """Raise WrongAnswerError if the mask of an observation [K, ...] allows no action, or
        nothing for one of several choices. over: bool [K], those that are not acted on.
        """
        if self.mask is None:
            return
        masks = observations[:, self.mask] > 0.5
        allowed = np.logical_or.reduceat(masks, self._choices, axis=1).all(1) | over
        if not allowed.all():
            raise WrongAnswerError(f"an {ACTION_MASK} that allows no action", int(allowed.argmin()))

    def _joined(self, observations: Any) -> Floats | None:
        """Convert observations of several parts; None if one of them cannot be used."""
        try:
            converted = [check.observations(part.rows(observations)) for part, check in self._parts]
        except Exception:  # one lacks the key, or is no mapping
            return None
        usable = [rows for rows in converted if rows is not None]
        return PartsBox.join(usable) if len(usable) == len(converted) else None


def listed_rewards(rewards: Sequence[Any]) -> Floats:
    """Return the rewards of K environments, float32 [K]. Raises WrongAnswerError."""
    try:
        # NaN and infinity are not between; float32 has no room for the others.
        if -LARGEST_FLOAT32 < sum(rewards) < LARGEST_FLOAT32:
            converted = np.array(rewards, np.float32)
            if converted.ndim == 1:
                return converted
    except Exception:  # one is no number
        pass

    return np.array([_reward(reward, index) for index, reward in enumerate(rewards)], np.float32)


def rewards_of(rewards: Any, count: int) -> Floats:
    """Return the rewards of a vector environment, a new array, float32 [K]. Raises
    WrongAnswerError."""
    raw = np.asanyarray(rewards)
    if raw.shape != (count,):
        raise WrongAnswerError(f"rewards of shape {raw.shape}, not {(count,)}")
    if (
        raw.dtype.kind not in "fiub"
        or np.ma.is_masked(raw)
        or not np.vdot(raw, raw) < LARGEST_FLOAT32
    ):
        return listed_rewards(raw.tolist())

    return np.array(raw, np.float32)


def _reward(reward: Any, index: int) -> float:
    """Return a reward, which may be an array of one number. Raises WrongAnswerError unless it is
    finite."""
    number = _one_number(reward)
    if number is not None and abs(number) <= LARGEST_FLOAT32:
        return number
    raise WrongAnswerError(f"the reward {shortened(reward)}", index)


def flags_of(name: str, flags: Any, count: int) -> Bools:
    """Return the flags `name` of a vector environment, a new array, bool [K]. Raises
    WrongAnswerError."""
    raw = np.asanyarray(flags)
    if raw.shape != (count,):
        raise WrongAnswerError(f"{name} of shape {raw.shape}, not {(count,)}")
    if raw.dtype == np.bool_ and not np.ma.is_masked(raw):
        return np.array(raw, np.bool_)
    flags = [flag_of(name, flag, index) for index, flag in enumerate(raw.tolist())]
    return np.array(flags, np.bool_)


def flag_of(name: str, flag: Any, index: int) -> bool:
    """Return a flag, which may be a truth value, 0 or 1, or an array of one of them. Raises
    WrongAnswerError."""
    if type(flag) is bool:
        return flag
    number = _one_number(flag)
    if number is not None and number in (0, 1):
        return bool(number)
    raise WrongAnswerError(f"{name} {shortened(flag)}, neither true nor false,", index)


def _one_number(value: Any) -> float | None:
    """Return a number or a truth value, which may be an array of one; None for anything else, or if
    it is masked."""
    with suppress(Exception):  # an object of the environment's own may raise anything here
        number = np.asarray(value)
        if number.dtype.kind in "fiub" and number.size == 1 and not np.ma.is_masked(value):
            return float(number.item())
    return None


def shortened(value: Any) -> str:
    """Return a value of an environment's own on one line, shortened."""
    return " ".join(shown(value, 80).split())
