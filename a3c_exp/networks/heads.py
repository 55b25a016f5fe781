"""The last layer of the policy: from features to the parameters of an action distribution."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from a3c_exp.common.arrays import Floats
from a3c_exp.networks.distributions import Distribution, Gaussian
from a3c_exp.networks.initialization import Initializer
from a3c_exp.networks.kernels import LinearKernel, array_of, gradient_of

# exp(-5) of half an action range explores hardly at all, and exp(2) covers any range. Beyond is only overflow.
LOG_STD_RANGE = (-5.0, 2.0)


class PolicyHead(nn.Module):
    """An affine layer: float32 [N, F] -> parameters [N, P] of a distribution.

    Those of a Gaussian are D means and D log standard deviations, kept within LOG_STD_RANGE.

    state_dependent_std: the log standard deviations are outputs of the layer; False: free parameters, one a dimension.
    initial_std: the standard deviation at the start, a share of half the action range.
    """

    def __init__(
        self, features: int, distribution: Distribution, state_dependent_std: bool, initial_std: float
    ) -> None:
        super().__init__()
        self._gaussian = isinstance(distribution, Gaussian)
        self._means = distribution.size // 2 if self._gaussian else distribution.size
        self._initial_log_std = math.log(initial_std)
        free = self._gaussian and not state_dependent_std
        self.linear = nn.Linear(features, self._means if free else distribution.size)
        self.log_std = nn.Parameter(torch.full((self._means,), self._initial_log_std)) if free else None

    def forward(self, features: Tensor) -> Tensor:
        outputs: Tensor = self.linear(features)
        if not self._gaussian:
            return outputs
        if self.log_std is None:
            return bound_log_std(outputs)
        # Bounded before it is spread over the rows: their sum decides whether a step leads further out.
        log_std = _Bounded.apply(self.log_std)  # type: ignore[no-untyped-call]
        return torch.cat([outputs, log_std.expand_as(outputs)], dim=-1)

    def initialize(self, initializer: Initializer, policy_gain: float) -> None:
        """Draw the layer, and set the log standard deviations."""
        initializer.draw(self.linear, policy_gain)
        if self._gaussian:
            log_std = self.linear.bias[self._means :] if self.log_std is None else self.log_std
            with torch.no_grad():
                log_std.fill_(self._initial_log_std)

    def ordered_parameters(self) -> list[nn.Parameter]:
        """The parameters in their order in the flat vector."""
        return [*self.linear.parameters(), *([] if self.log_std is None else [self.log_std])]

    def kernel(self) -> LinearKernel:
        """The same head on arrays."""
        return GaussianHeadKernel(self.linear, self.log_std) if self._gaussian else LinearKernel(self.linear)


class GaussianHeadKernel(LinearKernel):
    """The head of a Gaussian on arrays, see `PolicyHead`. Its `backward` belongs to the `forward` before it."""

    def __init__(self, linear: nn.Linear, log_std: Tensor | None) -> None:
        super().__init__(linear)
        self._means = linear.out_features if log_std is not None else linear.out_features // 2
        self._log_std = np.empty(0, np.float32) if log_std is None else array_of(log_std)
        self._log_std_gradient = None if log_std is None else gradient_of(log_std)

    def forward(self, x: Floats, out: Floats | None = None) -> Floats:
        outputs = super().forward(x)
        means = outputs[:, : self._means]
        if self._log_std_gradient is None:
            self._log_std = outputs[:, self._means :].copy()  # numbers side by side are quicker
        bounded = np.broadcast_to(self._log_std.clip(*LOG_STD_RANGE), means.shape)
        return np.concatenate([means, bounded], axis=-1, out=out)

    def backward(self, x: Floats, grad_y: Floats) -> Floats:
        grad_log_std = grad_y[:, self._means :]
        if self._log_std_gradient is not None:
            grad_y, grad_log_std = grad_y[:, : self._means], grad_log_std.sum(0)
        grad_log_std[_leads_further_out(self._log_std, grad_log_std)] = 0
        if self._log_std_gradient is not None:
            self._log_std_gradient += grad_log_std
        return super().backward(x, grad_y)


class _Bounded(torch.autograd.Function):
    """log_std.clamp(*LOG_STD_RANGE), with a gradient that leads back: outside the range it is 0 only if a step would
    lead further out."""

    @staticmethod
    def forward(ctx: Any, log_std: Tensor) -> Tensor:
        ctx.save_for_backward(log_std)
        return log_std.clamp(*LOG_STD_RANGE)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        [log_std], [gradient] = ctx.saved_tensors, gradients
        return gradient.masked_fill(_leads_further_out(log_std, gradient), 0.0)


def bound_log_std(parameters: Tensor) -> Tensor:
    """Parameters [N, 2 D] of a Gaussian, with the log standard deviations kept within LOG_STD_RANGE."""
    mean, log_std = torch.chunk(parameters, 2, dim=-1)
    return torch.cat([mean, _Bounded.apply(log_std)], dim=-1)  # type: ignore[no-untyped-call]


def _leads_further_out(log_std: Any, gradient: Any) -> Any:
    """Return whether a step against the gradient leads a number further out of its range. Arrays or tensors."""
    low, high = LOG_STD_RANGE
    return ((log_std < low) & (gradient > 0)) | ((log_std > high) & (gradient < 0))
