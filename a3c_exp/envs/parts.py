"""Observations of several parts (Dict and Tuple spaces) as one vector, in which every backend
carries them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple, flatdim

from a3c_exp.common.arrays import Array, Floats

ACTION_MASK = "action_mask"
"""The part that says which actions are allowed: 1 for each that is, 0 for each that is not."""


@dataclass(frozen=True)
class Part:
    """One part of an observation.

    name: the keys that lead to it, joined by dots: 'camera.left'; of a Tuple its index, '0'.
    path: these keys. space: the environment's. box: of the part as a policy sees it: a vector, or
        an image.
    columns: its numbers in the vector. The bytes of an image become numbers from 0 to 1.
    """

    name: str
    path: tuple[Any, ...]
    space: Space[Any]
    box: Box
    columns: slice

    @property
    def is_image(self) -> bool:
        """Return whether the part is an image of bytes."""
        return self.box.dtype == np.uint8

    @property
    def is_measured(self) -> bool:
        """Return whether running statistics may scale the part: not images, choices and masks."""
        return isinstance(self.space, Box) and not self.is_image and self.name != ACTION_MASK

    def rows(self, observations: Any) -> Any:
        """Return this part of K observations, which are a list, or one mapping or tuple of arrays
        [K, ...]."""
        if isinstance(observations, (Mapping, tuple)):
            return functools.reduce(operator.getitem, self.path, observations)
        return [
            functools.reduce(operator.getitem, self.path, observation)
            for observation in observations
        ]


class PartsBox(Box):
    """The space of observations of several parts: float32 [D], the parts side by side,
    flattened."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = tuple(parts)
        [low] = self.join([part.box.low[None] for part in parts])
        [high] = self.join([part.box.high[None] for part in parts])
        super().__init__(low, high, dtype=np.float32)

    @classmethod
    def of(cls, space: Space[Any], encoder: Callable[[Space[Any]], tuple[Box, Any]]) -> PartsBox:
        """Make the space for a Dict or a Tuple. encoder: see `spaces.encoder`."""
        parts = []
        start = 0
        for path, leaf in _leaf_spaces(space, ()):
            if path == (ACTION_MASK,) and isinstance(leaf, Box):
                leaf = MultiBinary(leaf.shape)  # bytes of two axes or more are no image here
            box, _ = encoder(leaf)
            stop = start + int(np.prod(box.shape))
            parts.append(Part(".".join(map(str, path)), path, leaf, box, slice(start, stop)))
            start = stop

        names = [part.name for part in parts]
        if not names or len(set(names)) < len(names):
            raise TypeError(f"its observations need parts of different names: {names}")

        return cls(parts)

    @property
    def mask(self) -> slice | None:
        """Return the columns of the mask of actions; None if there is none."""
        return next((part.columns for part in self.parts if part.name == ACTION_MASK), None)

    def unbounded(self) -> PartsBox:
        """Return the same with no bounds for the parts that running statistics scale."""
        parts = [
            replace(part, box=Box(-np.inf, np.inf, part.box.shape)) if part.is_measured else part
            for part in self.parts
        ]
        return PartsBox(parts)

    @staticmethod
    def join(parts: Sequence[Array] | Array) -> Floats:
        """Return the parts of K observations, [K, ...] each, as vectors, float32 [K, D]."""
        flat = [part.reshape(len(part), -1) for part in parts]
        scaled = [x / np.float32(255) if x.dtype == np.uint8 else x for x in flat]
        return np.concatenate(scaled, 1, dtype=np.float32)

    def split(self, observations: Floats) -> dict[str, Array]:
        """Undo `join`: the parts by name, [K, ...] each, those of images as bytes."""
        by_name = {}
        for part in self.parts:
            numbers = observations[:, part.columns]
            if part.is_image:
                numbers = np.rint(numbers * 255)
            by_name[part.name] = numbers.astype(part.box.dtype).reshape(-1, *part.box.shape)
        return by_name


def sample_action(actions: Space[Any], space: Box, observation: Floats) -> Any:
    """Return a random action that the mask of the observation [D], if there is one, allows."""
    columns = space.mask if isinstance(space, PartsBox) else None
    if columns is None:
        return actions.sample()
    mask = observation[columns].astype(np.int8)
    if isinstance(actions, MultiDiscrete):
        return actions.sample(tuple(np.split(mask, np.cumsum(actions.nvec)[:-1])))
    return actions.sample(mask)


def _leaf_spaces(
    space: Space[Any], path: tuple[Any, ...]
) -> Iterator[tuple[tuple[Any, ...], Space[Any]]]:
    """Yield the spaces inside a Dict or a Tuple that are neither, with the keys that lead to
    them."""
    if not isinstance(space, (Dict, Tuple)):
        yield path, space
        return
    for key, inner in space.items() if isinstance(space, Dict) else enumerate(space):
        yield from _leaf_spaces(inner, (*path, key))


class MaskFromInfo(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds the mask of actions that an environment gives as info["action_mask"] to its
    observations, as a part.

    An observation that is no Dict becomes the part `observation`. The last step of an episode needs
    no mask: without one all actions count as allowed.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        actions: Any = env.action_space
        choices = actions if isinstance(actions, Tuple) else [actions]
        if not all(isinstance(choice, (Discrete, MultiDiscrete)) for choice in choices):
            raise TypeError(
                f"a mask belongs to Discrete or MultiDiscrete actions, not to {actions}"
            )

        self._size = flatdim(actions)
        space = env.observation_space
        inner = dict(space.items()) if isinstance(space, Dict) else {"observation": space}
        self.observation_space = Dict(inner | {ACTION_MASK: MultiBinary(self._size)})

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**arguments)
        return self._with_mask(observation, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        mask = info.get(ACTION_MASK)
        is_over = bool(terminated or truncated)
        if is_over and (mask is None or not len(mask)):
            info = {**info, ACTION_MASK: np.ones(self._size, np.int8)}
        return self._with_mask(observation, info), reward, terminated, truncated, info

    def _with_mask(self, observation: Any, info: Mapping[str, Any]) -> dict[str, Any]:
        inner = observation if isinstance(observation, Mapping) else {"observation": observation}
        if ACTION_MASK not in info:
            raise KeyError(f"{self.env} gave no info[{ACTION_MASK!r}]")

        mask = info[ACTION_MASK]
        # gymnasium masks MultiDiscrete by a tuple
        of_choices = mask if isinstance(mask, tuple) else (mask,)
        return {
            **inner,
            ACTION_MASK: np.concatenate([np.ravel(part) for part in of_choices]).astype(np.int8),
        }
