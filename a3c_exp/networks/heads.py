"""The last layer of the policy: from features to the parameters of an action distribution."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from a3c_exp.common.arrays import Floats
from a3c_exp.networks.distributions import Distribution
from a3c_exp.networks.initialization import Initializer
from a3c_exp.networks.kernels import LinearKernel, array_of, gradient_of


class PolicyHead(nn.Module):
    """An affine layer: float32 [N, F] -> parameters [N, P] of a distribution.

    state_dependent_std: the parameters of standard deviations are outputs of the layer; False: they
        are free, one a dimension, where the distribution has others besides.
    initial_std: the standard deviation at the start, a share of half the action range.
    """

    def __init__(
        self,
        features: int,
        distribution: Distribution,
        state_dependent_std: bool,
        initial_std: float,
    ) -> None:
        super().__init__()
        size, spread = distribution.size, distribution.spread
        self._initial = torch.from_numpy(distribution.initial_spread(initial_std))
        free = 0 < spread < size and not state_dependent_std
        self.linear = nn.Linear(features, size - spread if free else size)
        self.spread = nn.Parameter(self._initial.clone()) if free else None

    def forward(self, features: Tensor) -> Tensor:
        outputs: Tensor = self.linear(features)
        if self.spread is None:
            return outputs
        return torch.cat([outputs, self.spread.expand_as(outputs)], dim=-1)

    def initialize(self, initializer: Initializer, policy_gain: float) -> None:
        """Draw the layer, and set the parameters of standard deviations."""
        initializer.draw(self.linear, policy_gain)
        place = slice(self.linear.out_features - len(self._initial), None)
        spread = self.linear.bias[place] if self.spread is None else self.spread
        with torch.no_grad():
            spread.copy_(self._initial)

    def ordered_parameters(self) -> list[nn.Parameter]:
        """The parameters in their order in the flat vector."""
        return [*self.linear.parameters(), *([] if self.spread is None else [self.spread])]

    def kernel(self) -> LinearKernel:
        """The same head on arrays."""
        return (
            LinearKernel(self.linear)
            if self.spread is None
            else FreeStdKernel(self.linear, self.spread)
        )


class FreeStdKernel(LinearKernel):
    """A head with free standard deviations on arrays, see `PolicyHead`."""

    def __init__(self, linear: nn.Linear, spread: Tensor) -> None:
        super().__init__(linear)
        self._means = linear.out_features
        self._spread = array_of(spread)
        self._spread_gradient = gradient_of(spread)

    def act_forward(self, x: Floats, out: Floats | None = None) -> Floats:
        means = super().act_forward(x)
        return np.concatenate([means, np.broadcast_to(self._spread, means.shape)], axis=-1, out=out)

    def backward(self, saved: Floats, grad: Floats, needs_input: bool = True) -> Floats:
        self._spread_gradient += grad[:, self._means :].sum(0)
        return super().backward(saved, grad[:, : self._means], needs_input)
