"""The base classes of losses, and their derivatives by torch."""

from __future__ import annotations

import functools
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from a3c_exp.algorithms.batch import Batch, BatchArrays, PolicyOutputs, count_of, total
from a3c_exp.common.ranges import Checked
from a3c_exp.networks.actor_critic import NetworkOutputs, OutputGradients

CURVE_NAME = re.compile(r"[\w./ -]+")
"""What TensorBoard takes as the name of a curve, which is that of a metric too."""
RUN_METRICS = {
    "grad_norm",
    "learning_rate",
    "parameter_norm",
    "explained_variance",
    "mean_value",
    "clipped",
}
RUN_METRICS |= {"n_updates", "rejected_updates"}
"""Metrics that every run has. A loss's own have other names."""

Metrics = Mapping[str, Tensor | float]
"""Numbers for the curves `train/<name>`, by name, or tensors [T, B] whose mean over the transitions
is taken."""

LossGradient = tuple[OutputGradients, dict[str, float]]
"""A loss's derivatives by the network's outputs, and its metrics as numbers."""


class Algorithm(Checked, ABC):
    """A loss of a batch. Every algorithm derives from this class.

    reduction: whether the loss is a mean over transitions or their sum. In synchronous rounds the
        gradients of means are weighted by their transitions, those of sums are not.
    target_every: of an algorithm that learns action values Q(s, a): steps of all workers between
        two refreshes of the target network; None: it learns a policy and V(s).
    value_of_action: whether targets are made of Q^-(s, a) of the actions taken, as for Sarsa, or of
        max_a Q^-(s, a).
    """

    reduction: Literal["mean", "sum"] = "mean"
    target_every: int | None = None
    value_of_action: ClassVar[bool] = False

    @abstractmethod
    def loss(self, policy: PolicyOutputs, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        """The loss, one number, and metrics: policy_loss, value_loss and entropy, without their
        coefficients, and more.

        progress: share of the run that is done, for coefficients that follow a schedule.
        """

    def build(self, features: int) -> nn.Module | None:
        """A module of the loss's own, which `loss` finds as `policy.module`; None if it needs none.

        Its parameters are trained with those of the network, as the group `loss`. features: F,
        their size.
        """
        return None

    def gradient(
        self,
        outputs: NetworkOutputs,
        batch: BatchArrays,
        progress: float,
        module: nn.Module | None = None,
    ) -> LossGradient:
        """The loss's derivatives by the network's outputs, and its metrics.

        Derivatives by the parameters of `module` are added to their gradients. By `closed_form` if
        the class has one.
        """
        if has_closed_form(type(self)):
            return self.closed_form(outputs, batch, progress)
        return differentiate(self, outputs, batch, progress, module)

    def closed_form(
        self, outputs: NetworkOutputs, batch: BatchArrays, progress: float
    ) -> LossGradient:
        """The same, written out without torch, if the class has defined it. A subclass with a
        `loss` or a `build` of its own needs its own `closed_form` as well."""
        raise NotImplementedError


def differentiate(
    algorithm: Algorithm,
    outputs: NetworkOutputs,
    arrays: BatchArrays,
    progress: float,
    module: nn.Module | None = None,
) -> LossGradient:
    """`Algorithm.gradient` by torch's automatic differentiation of `loss`."""
    device = None if module is None else next((p.device for p in module.parameters()), None)
    batch = Batch(arrays, device)
    policy = PolicyOutputs(outputs, batch, module)
    returned: object = algorithm.loss(policy, batch, progress)
    match returned:
        case (Tensor() as loss, Mapping() as metrics):
            pass
        case _:
            raise TypeError("loss must return a tensor and a mapping of metrics")
    if loss.dim():
        raise TypeError(
            "loss must return one number: batch.mean and batch.sum reduce "
            f"{tuple(loss.shape)} to it"
        )
    if loss.requires_grad:
        torch.autograd.backward(loss)
    return policy.gradients(), {name: _number(name, x, arrays) for name, x in metrics.items()}


def _number(name: str, x: Tensor | float, arrays: BatchArrays) -> float:
    """A metric as a number. Raises TypeError, with its name, if it is none, nor one for each
    row."""
    try:
        if isinstance(x, Tensor) and x.shape == arrays.shape:
            return total(x.detach().cpu().numpy(), arrays.mask) / count_of(
                arrays.targets, arrays.mask
            )
        return float(x.detach() if isinstance(x, Tensor) else x)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"the metric {name} must be one number, or one for each row") from error


@functools.cache
def has_closed_form(cls: type[Algorithm]) -> bool:
    """Return whether the derivatives of a class's loss are written out: in the class that has
    `loss` and `build`, or in one derived from it."""
    own = _owner(cls, "closed_form")
    return issubclass(own, _owner(cls, "loss")) and issubclass(own, _owner(cls, "build"))


def _owner(cls: type, name: str) -> type:
    """The class in which an attribute of a class is defined."""
    return next((base for base in cls.__mro__ if name in vars(base)), object)


class MinibatchAlgorithm(Algorithm):
    """An algorithm that learns from a rollout more than once, in minibatches.

    Each of them is a pull, a gradient and a push. The loss gets its transitions as [1, N], or as
    the whole sequences [T, N] of some environments if the network has a recurrent state.
    """

    @abstractmethod
    def check_rollout(self, count: int, length: int) -> None:
        """Raise ConfigError if a rollout of `count` sequences of `length` transitions cannot be
        used.

        count: 0 if the number of sequences is not known yet.
        """

    @abstractmethod
    def minibatches(
        self, count: int, length: int, rng: np.random.Generator
    ) -> Iterator[NDArray[np.intp]]:
        """Indices of the sequences in each gradient, in the order of the pushes: of `count`,
        `length` steps each."""

    def should_stop_early(self, metrics: Mapping[str, float]) -> bool:
        """Return whether the minibatch that reported these metrics is the last of its rollout."""
        return False
