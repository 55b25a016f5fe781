"""A package of a user's own, as workers import it: `thirdparty`, with plugins=[thirdparty]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from a3c_exp.algorithms import A3C, Batch, Metrics, PolicyOutputs
from a3c_exp.engine.arrays import BatchArrays, NetworkOutputs
from a3c_exp.engine.losses import LOSSES, LossGradient


class Attention(nn.Module):
    """Self-attention over the numbers of an observation, each of which is a token: float32 [N,
    inputs] -> [N, width].

    directions: by which the tokens are embedded. Drawn by the constructor, and never trained.
    """

    directions: Tensor

    def __init__(self, inputs: int, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.register_buffer("directions", torch.randn(inputs, width))
        self.places = nn.Parameter(torch.randn(inputs, width))
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.last = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x[:, :, None] * self.directions + self.places
        mixed, _ = self.attention(tokens, tokens, tokens, need_weights=False)
        features: Tensor = torch.tanh(self.last((tokens + mixed).mean(1)))
        return features


class Frozen(nn.Module):
    """A layer that is never trained before one that is: float32 [N, inputs] -> [N, width].

    matrix: large, so that its drawing takes a while.
    """

    matrix: Tensor

    def __init__(self, inputs: int, width: int = 8) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, width).requires_grad_(False)
        self.register_buffer("matrix", torch.stack([torch.randn(width) for _ in range(400)]))
        self.last = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = torch.tanh(self.last(torch.tanh(self.first(x)) + self.matrix.mean(0)))
        return features


class Counting(Frozen):
    """Counts its forward passes in a buffer."""

    passes: Tensor

    def __init__(self, inputs: int, width: int = 8) -> None:
        super().__init__(inputs, width)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return super().forward(x)


class Unseeded(Frozen):
    """Its constants are others each time."""

    def __init__(self, inputs: int, width: int = 8) -> None:
        super().__init__(inputs, width)
        self.matrix = torch.from_numpy(
            np.random.default_rng().normal(size=(400, width)).astype(np.float32)
        )


class Whole(nn.Module):
    """A whole actor-critic, for vectors."""

    def __init__(
        self, observation_space: gym.spaces.Box, action_space: gym.Space[Any], outputs: int
    ) -> None:
        super().__init__()
        self.layer = nn.Linear(observation_space.shape[0], outputs + 1)

    def forward(self, observations: Tensor, state: None) -> tuple[Tensor, Tensor, None]:
        both = self.layer(observations)
        return both[:, :-1], both[:, -1], None


class Predictor(nn.Module):
    """A guess of the reward from features [..., F], scaled by a number that is drawn by the
    constructor."""

    scale: Tensor

    def __init__(self, features: int, width: int = 4) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, width), nn.Tanh(), nn.Linear(width, 1))
        self.register_buffer("scale", torch.rand(1) + 0.5)

    def forward(self, features: Tensor) -> Tensor:
        guesses: Tensor = self.layers(features)[..., 0] * self.scale
        return guesses


@dataclass(frozen=True, kw_only=True)
class PredictingA3C(A3C):
    """The loss of A3C, and an auxiliary one: the features have to tell the reward."""

    prediction_coefficient: float = 0.5

    def build(self, features: int) -> nn.Module:
        return Predictor(features)

    def loss(self, policy: PolicyOutputs, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        loss, metrics = super().loss(policy, batch, progress)
        assert policy.module is not None
        error = batch.mean((policy.module(policy.features) - batch.rewards) ** 2)
        coefficient = self.prediction_coefficient
        return loss + coefficient * error, {
            **metrics,
            "reward_loss": error,
            "coefficient": coefficient,
        }


@dataclass(frozen=True, kw_only=True)
class ByHand(A3C):
    """The loss of A3C, with a closed form that says so."""


def by_hand(
    algorithm: ByHand, outputs: NetworkOutputs, batch: BatchArrays, progress: float
) -> LossGradient:
    gradient, metrics = LOSSES[A3C](algorithm, outputs, batch, progress)
    return gradient, metrics | {"by_hand": 1.0}


LOSSES[ByHand] = by_hand
