"""Networks of a user's own that tests export: encoders, and a whole actor-critic with a memory."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium.spaces import Box, Space
from torch import Tensor, nn


class Residual(nn.Module):
    """An encoder: float32 [N, inputs] -> [N, width]."""

    def __init__(self, inputs: int, width: int = 8) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, width)
        self.second = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        return x + torch.relu(self.second(x))


class Branches(Residual):
    """One whose code depends on the numbers, which no graph can hold."""

    def forward(self, x: Tensor) -> Tensor:
        features = super().forward(x)
        return features if float(self.first.weight.detach().sum() * x.abs().sum()) < 1e9 else -features


class Memory(nn.Module):
    """A whole actor-critic with a memory, whose episodes do not begin with zeros."""

    def __init__(self, observation_space: Box, action_space: Space[Any], outputs: int, width: int = 8) -> None:
        super().__init__()
        self.width = width
        self.cell = nn.GRUCell(observation_space.shape[0], width)
        self.policy = nn.Linear(width, outputs)
        self.value = nn.Linear(width, 1)

    def initial_state(self, count: int) -> Tensor:
        return torch.zeros(count, self.width)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        state = self.cell(x, state)
        return self.policy(state), self.value(state)[:, 0], state
