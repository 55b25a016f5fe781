"""Modules as users write them, good and bad, to be named as 'user_modules.Residual' with
plugins=[user_modules]."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from decimal import Decimal


class Residual(nn.Module):
    """float32 [N, inputs] -> [N, width]."""

    def __init__(self, inputs: int, width: int = 6, blocks: int = 2) -> None:
        super().__init__()
        if width < 1:
            raise ValueError(f"width must be\nat least 1, not {width}")
        self.first = nn.Linear(inputs, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(blocks))

    def forward(self, observations: Tensor) -> Tensor:
        x = torch.tanh(self.first(observations))
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        return x


class Leaky(nn.Sequential):
    """Has a setting that is no size, and a list as a default."""

    def __init__(self, inputs: int, slope: float = 0.5, sizes: tuple[int, ...] = (4,)) -> None:
        super().__init__(nn.Linear(inputs, sizes[0]), nn.LeakyReLU(slope))


class Branches(Residual):
    """One whose code depends on the numbers, which no graph can hold."""

    def forward(self, observations: Tensor) -> Tensor:
        features = super().forward(observations)
        return (
            features
            if float(self.first.weight.detach().sum() * observations.abs().sum()) < 1e9
            else -features
        )


class Faulty(Residual):
    """A module with one fault."""

    def __init__(self, inputs: int, fault: str = "none") -> None:
        super().__init__(inputs)
        self.fault = fault
        self.dropout = nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(6)
        self.hidden = [nn.Linear(6, 6)]
        self.tensor = torch.ones(6, requires_grad=True)
        if fault == "float64 parameter":
            self.first.double()

    def forward(self, observations: Tensor) -> Any:
        if self.fault == "raises":
            raise RuntimeError("two\nlines")
        if self.fault == "float64 parameter":
            return self.first(observations.double()).float()
        if self.fault == "training" and self.training:
            observations = observations + 1
        x = super().forward(observations)
        if self.fault == "writes":
            observations.mul_(2)
        return self.changed(x)

    def changed(self, x: Tensor) -> Any:
        changes: dict[str, Callable[[], Any]] = {
            "dropout": lambda: self.dropout(x),
            "batch norm": lambda: self.norm(x),
            "list": lambda: self.hidden[0](x),
            "tensor": lambda: x * self.tensor,
            "mean": lambda: x - x.mean(0),
            "sum": lambda: x.sum(1),
            "one row fewer": lambda: x[: max(len(x) - 1, 1)],
            "nothing": lambda: None,
            "NaN": lambda: x / 0 * 0,
            "float64": lambda: x.to(torch.float64),
            "no features": lambda: x[:, :0],
        }
        return changes[self.fault]() if self.fault in changes else x


class Unannotated(nn.Sequential):
    def __init__(self, inputs: int, width=3) -> None:  # type: ignore[no-untyped-def]
        super().__init__(nn.Linear(inputs, width))


class Positional(nn.Sequential):
    def __init__(self, inputs: int, *sizes: int) -> None:
        super().__init__(nn.Linear(inputs, 3))


class Clash(nn.Sequential):
    def __init__(self, inputs: int, shared: bool = True) -> None:
        super().__init__(nn.Linear(inputs, 3))


class Unreadable(nn.Sequential):
    def __init__(self, inputs: int, width: Decimal) -> None:
        super().__init__(nn.Linear(inputs, int(width)))


class Blind(nn.Sequential):
    def __init__(self, size: int = 3) -> None:
        super().__init__(nn.Linear(4, size))


class Unfinished(nn.Module, ABC):
    def __init__(self, inputs: int) -> None:
        super().__init__()

    @abstractmethod
    def forward(self, observations: Tensor) -> Tensor: ...


class Lazy(nn.Sequential):
    def __init__(self, observation_space: gym.Space[Any], width: int = 5) -> None:
        super().__init__(nn.Flatten(), nn.LazyLinear(width), nn.Tanh(), nn.LazyLinear(3))


class Normed(nn.Sequential):
    def __init__(self, inputs: int) -> None:
        super().__init__(nn.LayerNorm(inputs), nn.Linear(inputs, 5), nn.LayerNorm(5), nn.ReLU())


class Constants(nn.Module):
    """A buffer and a frozen parameter, drawn by the constructor."""

    projection: Tensor

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, 5)
        self.register_buffer("projection", torch.randn(inputs, inputs))
        self.scale = nn.Parameter(torch.rand(()), requires_grad=False)

    def forward(self, observations: Tensor) -> Tensor:
        features: Tensor = self.layer(self.scale * observations @ self.projection)
        return features


class Tied(nn.Module):
    """One layer, twice."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, inputs)

    def forward(self, observations: Tensor) -> Tensor:
        features: Tensor = self.layer(torch.tanh(self.layer(observations)))
        return features


class Seen(nn.Module):
    """Flattens its observations, and keeps its space and the observations of its last call."""

    def __init__(self, observation_space: gym.Space[Any]) -> None:
        super().__init__()
        self.space = observation_space
        self.last = torch.zeros(0)
        self.layer = nn.LazyLinear(3)

    def forward(self, observations: Tensor) -> Tensor:
        self.last = observations.detach().clone()
        features: Tensor = self.layer(observations.flatten(1).float())
        return features


class SeenRaw(Seen):
    raw_images = True


class OnlyOutputs(nn.Module):
    """A whole actor-critic that asks for no form of observations."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.policy = nn.LazyLinear(outputs)
        self.value = nn.LazyLinear(1)

    def forward(self, observations: Tensor, state: None) -> tuple[Tensor, Tensor, None]:
        flat = observations.flatten(1).float() / 255
        return self.policy(flat), self.value(flat)[:, 0], None


class Images(nn.Sequential):
    def __init__(self, channels: int, height: int, width: int, filters: int = 4) -> None:
        super().__init__(nn.Conv2d(channels, filters, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(5))


class Gru(nn.Module):
    """A whole actor-critic with a state."""

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        outputs: int,
        width: int = 5,
    ) -> None:
        super().__init__()
        assert observation_space.shape is not None
        self.width = width
        self.action_space = action_space
        self.cell = nn.GRUCell(observation_space.shape[0], width)
        self.policy = nn.Linear(width, outputs)
        self.value = nn.Linear(width, 1)

    def initial_state(self, count: int) -> Tensor:
        return torch.zeros(count, self.width)

    def forward(self, observations: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        state = self.cell(observations, state)
        return self.policy(state), self.value(state)[:, 0], state


class Plain(nn.Module):
    """A whole actor-critic without a state."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.policy = nn.Linear(inputs, outputs)
        self.value = nn.Linear(inputs, 1)

    def forward(self, observations: Tensor, state: Tensor | None) -> Any:
        return self.policy(observations), self.value(observations)[:, 0], None


class FaultyWhole(Gru):
    """A whole actor-critic with one fault."""

    def __init__(self, observation_space: gym.Space[Any], outputs: int, fault: str) -> None:
        super().__init__(observation_space, gym.spaces.Discrete(2), outputs)
        self.fault = fault
        if fault == "no initial state":
            self.initial_state = None  # type: ignore[method-assign, assignment]

    def initial_state(self, count: int) -> Tensor:
        state = super().initial_state(count)
        return state + 1 if self.fault == "initial state of ones" else state

    def forward(self, observations: Tensor, state: Tensor | None) -> Any:
        parameters, values, after = super().forward(
            observations, super().initial_state(len(observations))
        )
        faults = {
            "parameters": (parameters[:, :1], values, after),
            "values": (parameters, values[:, None], after),
            "state": (parameters, values, after[:, :2]),
            "one tensor": parameters,
            "a list in place of values": (parameters, values.tolist(), after),
            "NaN": (parameters / 0 * 0, values, after),
            "one state for all": (parameters, values, after.mean(0, keepdim=True).expand_as(after)),
        }
        return faults.get(self.fault, (parameters, values, after))


class Another(gym.Wrapper[Any, Any, Any, Any]):
    """Plays another environment, which a plugin must have registered."""

    def __init__(self, env: gym.Env[Any, Any], name: str) -> None:
        super().__init__(gym.make(name))
