"""From distribution parameters to actions in torch: what `Distribution` does with a generator, with random numbers that
are given. For exported graphs, which have no generator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from a3c_exp.common.arrays import Floats


class ActionModule(nn.Module, ABC):
    """Parameters [N, P] and noise, float32 [N, K] -> actions as the environment takes them, [N, ...].

    noise: the random numbers that `Distribution.sample` would draw; None for the most likely actions.
    noise_size: K. noise_kind: what they are.
    """

    noise_kind: ClassVar[str] = "uniform in [0, 1)"

    def __init__(self, noise_size: int) -> None:
        super().__init__()
        self.noise_size = noise_size

    @abstractmethod
    def forward(self, parameters: Tensor, noise: Tensor | None) -> Tensor:
        """See the class."""


class Choice(ActionModule):
    """One choice: int64 [N]."""

    def __init__(self) -> None:
        super().__init__(1)

    def forward(self, parameters: Tensor, noise: Tensor | None) -> Tensor:
        return _choose(parameters, noise)


class Choices(ActionModule):
    """Several choices among `sizes`: int64 [N, K]."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__(len(sizes))
        self._sizes = list(sizes)

    def forward(self, parameters: Tensor, noise: Tensor | None) -> Tensor:
        logits = torch.split(parameters, self._sizes, dim=-1)
        columns = [None] * len(logits) if noise is None else list(torch.split(noise, 1, dim=-1))
        return torch.stack([_choose(*each) for each in zip(logits, columns, strict=True)], dim=-1)


class Bits(ActionModule):
    """Yes/no choices: int8 [N, K]."""

    def forward(self, parameters: Tensor, noise: Tensor | None) -> Tensor:
        yes = parameters > 0 if noise is None else torch.log(noise / (1 - noise)) < parameters
        return yes.to(torch.int8)


class Range(ActionModule):
    """Numbers in a range: float32 [N, K]. The arguments are those of `Gaussian.to_env`."""

    noise_kind = "standard normal"
    center: Tensor
    half_range: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, center: Floats, half_range: Floats, low: Floats, high: Floats) -> None:
        super().__init__(len(center))
        arrays = {"center": center, "half_range": half_range, "low": low, "high": high}
        for name, array in arrays.items():
            self.register_buffer(name, torch.from_numpy(array))

    def forward(self, parameters: Tensor, noise: Tensor | None) -> Tensor:
        mean, log_std = torch.chunk(parameters, 2, dim=-1)
        actions = mean if noise is None else mean + torch.exp(log_std) * noise
        return torch.clamp(self.center + self.half_range * actions, self.low, self.high)


def _choose(logits: Tensor, uniform: Tensor | None) -> Tensor:
    """Logits [N, A] and uniform numbers [N, 1] -> the first choice at which the summed probabilities exceed them."""
    if uniform is None:
        return logits.argmax(-1)
    sums = torch.cumsum(torch.exp(logits - logits.amax(-1, keepdim=True)), -1)
    return (sums[:, :-1] <= uniform * sums[:, -1:]).sum(-1)
