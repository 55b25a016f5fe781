"""The base classes of losses."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from a3c_exp.algorithms.batch import Batch, PolicyOutputs
from a3c_exp.common.ranges import Checked

CURVE_NAME = re.compile(r"[\w./ -]+")
"""What TensorBoard takes as the name of a curve, which is that of a metric too."""

RUN_METRICS = {
    "grad_norm",
    "learning_rate",
    "parameter_norm",
    "explained_variance",
    "mean_value",
    "clipped",
    "n_updates",
    "rejected_updates",
}
"""Metrics that every run has. A loss's own have other names."""

Metrics = Mapping[str, Tensor | float]
"""Numbers for the curves `train/<name>`, by name, or tensors [T, B] whose mean over the transitions
is taken."""


class Algorithm(Checked, ABC):
    """A loss of a batch. Every algorithm derives from this class.

    reduction: whether the loss is a mean over transitions or their sum. In synchronous rounds the
        gradients of means are weighted by their transitions, those of sums are not.
    target_every: of an algorithm that learns action values Q(s, a): steps of all workers between
        two refreshes of the target network; None: it learns a policy and V(s).
    target_decay: of an algorithm that learns a policy and action values: how much of the average
        policy's parameters an update keeps; None: it has no average policy.
    needs_behaviour: whether the loss needs the parameters of the distributions that acted.
    learns_fresh: whether it learns from each rollout as it comes, and not from a memory alone.
    value_of_action: whether targets are made of Q^-(s, a) of the actions taken, as for Sarsa, or of
        max_a Q^-(s, a).
    """

    reduction: Literal["mean", "sum"] = "mean"
    target_every: int | None = None
    target_decay: float | None = None
    needs_behaviour: ClassVar[bool] = False
    learns_fresh: ClassVar[bool] = True
    value_of_action: ClassVar[bool] = False

    @property
    def has_target(self) -> bool:
        """Return whether its network has the part `target`, which no gradient moves."""
        return self.target_every is not None or self.target_decay is not None

    @abstractmethod
    def loss(self, policy: PolicyOutputs, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        """Compute the loss, one number, and metrics: policy_loss, value_loss and entropy, without
        their coefficients, and more.

        policy: what the network computes for the batch now, which the loss is differentiated by.
        batch: the transitions, with advantages and targets.
        progress: share of the run that is done, for coefficients that follow a schedule.
        """

    def build(self, features: int) -> nn.Module | None:
        """Make a module of the loss's own, which `loss` finds as `policy.module`; None if it needs
        none.

        Its parameters are trained with those of the network, as the group `loss`.

        features: F, the number of the policy's features.
        """
        return None


class MinibatchAlgorithm(Algorithm):
    """An algorithm that learns from a rollout more than once, in minibatches.

    Each of them is a pull, a gradient and a push. The loss gets its transitions as [1, N], or as
    the whole sequences [T, N] of some environments if the network has a recurrent state.
    """

    @abstractmethod
    def check_rollout(self, count: int, length: int) -> None:
        """Raise ConfigError if a rollout of `count` sequences of `length` transitions cannot be
        used. count: 0 if their number is not known yet."""

    @abstractmethod
    def minibatches(
        self, count: int, length: int, rng: np.random.Generator
    ) -> Iterator[NDArray[np.intp]]:
        """Yield the indices of the sequences in each gradient, in the order of the pushes.

        count: the number of sequences in the rollout.
        length: the steps of each.
        rng: the worker's generator.
        """

    def should_stop_early(self, metrics: Mapping[str, float]) -> bool:
        """Return whether the minibatch that reported these metrics is the last of its rollout."""
        return False
