"""The last layer of the policy: from features to the parameters of an action distribution."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from a3c_exp.common.arrays import Array, Floats
from a3c_exp.networks.distributions import Distribution, Gaussian
from a3c_exp.networks.initialization import Initializer
from a3c_exp.networks.kernels import Backward, LinearKernel, array_of, gradient_of

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
        log_std = _Bounded.apply(self.log_std, *LOG_STD_RANGE)  # type: ignore[no-untyped-call]
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

    def kernel(self) -> HeadKernel:
        """The same head on arrays."""
        if self._gaussian:
            return GaussianHeadKernel(self.linear, self.log_std, self._means)
        return HeadKernel(self.linear)


class HeadKernel:
    """A policy's last layer on arrays."""

    def __init__(self, linear: nn.Linear) -> None:
        self._linear = LinearKernel(linear)

    def act_forward(self, features: Floats) -> Floats:
        """float32 [N, F] -> parameters [N, P]."""
        return self._linear.forward(features)

    def train_forward(self, features: Floats) -> tuple[Floats, Backward]:
        """The same, and the function that goes back."""
        return self._linear.forward(features), functools.partial(self._linear.backward, features)


class GaussianHeadKernel(HeadKernel):
    """That of a Gaussian, see `PolicyHead`."""

    def __init__(self, linear: nn.Linear, log_std: Tensor | None, actions: int) -> None:
        super().__init__(linear)
        self._actions = actions
        self._log_std = None if log_std is None else array_of(log_std)
        self._log_std_gradient = None if log_std is None else gradient_of(log_std)

    def act_forward(self, features: Floats) -> Floats:
        return self._with_log_std(self._linear.forward(features))[0]

    def train_forward(self, features: Floats) -> tuple[Floats, Backward]:
        parameters, log_std = self._with_log_std(self._linear.forward(features))

        def backward(grad: Array) -> Array:
            grad_log_std = grad[:, self._actions :]
            if self._log_std_gradient is not None:
                grad, grad_log_std = grad[:, : self._actions], grad_log_std.sum(0)
            grad_log_std[_leads_further_out(log_std, grad_log_std, *LOG_STD_RANGE)] = 0
            if self._log_std_gradient is not None:
                self._log_std_gradient += grad_log_std
            return self._linear.backward(features, grad)

        return parameters, backward

    def _with_log_std(self, outputs: Array) -> tuple[Array, Array]:
        """The parameters, and the log standard deviations before they are bounded."""
        log_std = outputs[:, self._actions :].copy() if self._log_std is None else self._log_std
        means, bounded = outputs[:, : self._actions], log_std.clip(*LOG_STD_RANGE)
        return np.concatenate([means, np.broadcast_to(bounded, means.shape)], axis=-1), log_std


class _Bounded(torch.autograd.Function):
    """x.clamp(low, high), with a gradient that leads back: outside the range it is 0 only if a step would lead further
    out."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, low: float, high: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.bounds = low, high
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (x,), (gradient,), bounds = ctx.saved_tensors, gradients, ctx.bounds
        return gradient.masked_fill(_leads_further_out(x, gradient, *bounds), 0.0), None, None


def bound_log_std(parameters: Tensor) -> Tensor:
    """Parameters [N, 2 D] of a Gaussian, with the log standard deviations kept within LOG_STD_RANGE."""
    mean, log_std = torch.chunk(parameters, 2, dim=-1)
    return torch.cat([mean, _Bounded.apply(log_std, *LOG_STD_RANGE)], dim=-1)  # type: ignore[no-untyped-call]


def _leads_further_out(x: Any, gradient: Any, low: float, high: float) -> Any:
    """Return whether a step against the gradient leads a number further out of its range. Arrays or tensors."""
    return ((x < low) & (gradient > 0)) | ((x > high) & (gradient < 0))
