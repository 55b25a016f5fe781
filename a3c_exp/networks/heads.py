"""The last layer of the policy: from features to the parameters of an action distribution."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from a3c_exp.errors import ConfigError
from a3c_exp.networks.distributions import Distribution
from a3c_exp.networks.initialization import Initializer


class PolicyHead(nn.Module):
    """An affine layer: float32 [N, F] -> parameters [N, P] of a distribution.

    features: F, their number.
    distribution: of the actions.
    state_dependent_std: whether the parameters of standard deviations are outputs of the layer.
        False: they are free, one a dimension, where the distribution has others besides.
    initial_std: the standard deviation at the start, as a share of half the action range.
    bias: False leaves out the layer's biases. Raises ConfigError if standard deviations are outputs
        of the layer: their biases set `initial_std`.
    """

    def __init__(
        self,
        features: int,
        distribution: Distribution,
        state_dependent_std: bool,
        initial_std: float,
        bias: bool = True,
    ) -> None:
        super().__init__()
        size = distribution.size
        spread = distribution.spread
        free = 0 < spread < size and not state_dependent_std
        if spread and not free and not bias:
            problem = "must be true where the network gives the standard deviation"
            raise ConfigError("network.head_bias", bias, problem)

        self._initial = torch.from_numpy(distribution.initial_spread(initial_std))
        self.linear = nn.Linear(features, size - spread if free else size, bias)
        self.spread = nn.Parameter(self._initial.clone()) if free else None

    def forward(self, features: Tensor) -> Tensor:
        outputs: Tensor = self.linear(features)
        if self.spread is None:
            return outputs
        return torch.cat([outputs, self.spread.expand_as(outputs)], dim=-1)

    def initialize(self, initializer: Initializer, policy_gain: float) -> None:
        """Draw the layer, and set the parameters of standard deviations."""
        initializer.draw(self.linear, policy_gain)
        with torch.no_grad():
            if self.spread is not None:
                self.spread.copy_(self._initial)
            elif len(self._initial):
                self.linear.bias[-len(self._initial) :] = self._initial

    def ordered_parameters(self) -> list[nn.Parameter]:
        """Return the parameters in their order in the flat vector."""
        free = [] if self.spread is None else [self.spread]
        return [*self.linear.parameters(), *free]
