"""Networks and a loss as a user writes them, equal to the built-in ones, for `bench.versus` beside those."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from a3c_exp.algorithms import A3C, Batch, Metrics, PolicyOutputs


class SequentialMlp(nn.Sequential):
    """Two layers in sequence, which numpy kernels run: float32 [N, inputs] -> [N, 64]."""

    def __init__(self, inputs: int) -> None:
        super().__init__(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())


class TorchMlp(nn.Module):
    """The same layers behind a `forward` of its own, which only torch can run."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.layers = SequentialMlp(inputs)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.layers(x)
        return features


@dataclass(frozen=True, kw_only=True)
class AutogradA3C(A3C):
    """A3C without its closed form: a class that overrides `loss` is differentiated by torch."""

    def loss(self, policy: PolicyOutputs, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        return super().loss(policy, batch, progress)
