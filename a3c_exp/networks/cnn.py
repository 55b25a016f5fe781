"""Convolutional networks for observations that are pictures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from a3c_exp.errors import ConfigError, require
from a3c_exp.networks.actor_critic import ActorCritic, Network
from a3c_exp.networks.bodies import Bodies
from a3c_exp.networks.convolutions import (
    Arithmetic,
    Picture,
    PictureBody,
    PlainBody,
    Precision,
    ResidualBody,
    output_size,
)
from a3c_exp.networks.layers import ActivationName


@dataclass(frozen=True, kw_only=True)
class PictureNetwork(Bodies, ABC):
    """What networks for pictures have in common.

    features_dim: units of the affine layer behind the convolutions, from which actions and values are made.
    precision: float32, bfloat16, or auto: bfloat16 where and when the processor is faster with it.
    channels_last: how pictures lie in memory while they are convolved; auto: as the processor is faster.
    The other settings are those of `Bodies`.
    """

    shared: bool = True
    features_dim: int = 256
    precision: Precision = "auto"
    channels_last: bool | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        require(self.features_dim >= 1, "features_dim", self.features_dim, "a whole number >= 1")
        super().__post_init__()

    def check(self, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> None:
        self._check_size(self._picture(observation_space))
        self.check_actions(action_space)

    def build(
        self, observation_space: gym.Space[Any], action_space: gym.Space[Any], rng: np.random.Generator | None
    ) -> ActorCritic:
        self.check(observation_space, action_space)
        picture = self._picture(observation_space)
        arithmetic = Arithmetic(self.precision, self.channels_last)
        return self.assemble(lambda: self._body(picture, arithmetic), action_space, rng)

    def _picture(self, observation_space: gym.Space[Any]) -> Picture:
        picture = Picture.of(observation_space.shape or ())
        if picture is None:
            problem = f"must be a network for observations of shape {observation_space.shape}: a CNN takes pictures"
            vectors = "network=mlp (in front of LSTM cells network@network.encoder=mlp)"
            raise ConfigError("network", type(self).__name__, f"{problem}. For vectors {vectors}")
        assert isinstance(observation_space, gym.spaces.Box)  # only a Box has two axes or more
        brightest = max(float(np.abs(bound).max()) for bound in (observation_space.low, observation_space.high))
        # What is without a bound is taken as it is, and so is what is small already.
        bounded = brightest < np.finfo(np.float32).max
        return replace(picture, brightest=max(brightest, 1.0) if bounded else 1.0)

    @abstractmethod
    def _check_size(self, picture: Picture) -> None:
        """Raise ConfigError where a picture is too small."""

    @abstractmethod
    def _body(self, picture: Picture, arithmetic: Arithmetic) -> PictureBody:
        """A body with parameters of its own."""


def sees_pictures(network: Network) -> bool:
    """Whether a network, or the encoder in front of its memory, is one for pictures."""
    return isinstance(getattr(network, "encoder", network), PictureNetwork)


@dataclass(frozen=True, kw_only=True)
class Cnn(PictureNetwork):
    """Convolutions one behind the other. The default is the network of Mnih et al. 2013 (arXiv 1312.5602, section 4.1),
    with which A3C was published (Mnih et al. 2016, arXiv 1602.01783, section 8).

    layers: (channels, kernel size, stride) of each convolution.
    activation: behind each layer; see `networks.layers`.
    """

    layers: tuple[tuple[int, int, int], ...] = ((16, 8, 4), (32, 4, 2))
    activation: ActivationName = "relu"

    def __post_init__(self) -> None:
        allowed = "at least one list of channels, kernel size and stride, each >= 1"
        require(bool(self.layers) and min(map(min, self.layers), default=0) >= 1, "layers", self.layers, allowed)
        super().__post_init__()

    def _check_size(self, picture: Picture) -> None:
        height, width = picture.height, picture.width
        for _, kernel, stride in self.layers:
            height, width = output_size(height, kernel, stride), output_size(width, kernel, stride)
            if min(height, width) < 1:
                problem = f"leave nothing of pictures of {picture.height} x {picture.width}"
                raise ConfigError("network.layers", [list(layer) for layer in self.layers], problem)

    def _body(self, picture: Picture, arithmetic: Arithmetic) -> PictureBody:
        return PlainBody(picture, self.layers, self.features_dim, self.activation, arithmetic)


@dataclass(frozen=True, kw_only=True)
class Impala(PictureNetwork):
    """The residual network of Espeholt et al. 2018 (arXiv 1802.01561, figure 3, right): 15 convolutions, without the
    LSTM, all activations relu.

    sections: channels of each. blocks: residual ones in a section, of two convolutions each.
    """

    sections: tuple[int, ...] = (16, 32, 32)
    blocks: int = 2

    def __post_init__(self) -> None:
        require(min(self.sections, default=0) >= 1, "sections", self.sections, "whole numbers >= 1, at least one")
        require(self.blocks >= 0, "blocks", self.blocks, "a whole number >= 0")
        super().__post_init__()

    def _check_size(self, picture: Picture) -> None:
        """Every size is one it can be built for: what is padded never shrinks to nothing."""

    def _body(self, picture: Picture, arithmetic: Arithmetic) -> PictureBody:
        return ResidualBody(picture, self.sections, self.blocks, self.features_dim, arithmetic)
