"""What a loss is given: a batch of transitions, and the policy's outputs for it, as tensors."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A batch of transitions as a loss sees it: constant tensors [T, B]. Use `mean` and `sum` to
    reduce over it.

    Rows that are no transitions hold the numbers of one that is, so that a loss which is finite for
    transitions is finite for all rows.

    observations: [T, B, ...], as the network takes them.
    actions: [T, B, ...], int64, or float32 of continuous actions, as the policy has chosen them.
    log_probs, values: float32, of the policy that acted.
    rewards: float32, scaled, clipped and normalized as the learner's are.
    advantages, targets: float32, from the returns.
    valid: bool, whether a row is a transition.
    behaviour: float32 [T, B, P], parameters of the distributions that acted; None unless the
        algorithm needs them.
    from_memory: whether the batch has been drawn from a worker's memory. Then `values` are 0.
    """

    observations: Tensor
    actions: Tensor
    log_probs: Tensor
    values: Tensor
    rewards: Tensor
    advantages: Tensor
    targets: Tensor
    valid: Tensor
    behaviour: Tensor | None = None
    from_memory: bool = False

    @functools.cached_property
    def count(self) -> int:
        """Number of transitions, at least 1."""
        return max(int(self.valid.sum()), 1)

    @functools.cached_property
    def _complete(self) -> bool:
        return bool(self.valid.all())

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum of x [T, B] over the transitions."""
        if x.shape != self.valid.shape:
            raise ValueError(
                f"{list(x.shape)} must be {list(self.valid.shape)}: "
                "a number for each step and environment"
            )
        return x.sum() if self._complete else torch.where(self.valid, x, 0.0).sum()

    def mean(self, x: Tensor) -> Tensor:
        """Return the mean of x [T, B] over the transitions; 0 if there are none."""
        return self.sum(x) / self.count

    def normalize(self, x: Tensor) -> Tensor:
        """Return x [T, B] with mean 0 and standard deviation 1 over the transitions. Computed in
        float64."""
        wide = x.double()
        deviations = wide - self.mean(wide)
        return (deviations / (self.mean(deviations**2).sqrt() + 1e-8)).float()


class PolicyOutputs:
    """The policy's outputs for a batch, through which a loss is differentiated.

    log_probs: float32 [T, B], log pi(a_t | s_t).
    entropy: float32 [T, B], of pi(. | s_t), in nats.
    values: float32 [T, B], V(s_t).
    module: the loss's own, as `Algorithm.build` has made it; None if it has made none.
    """

    def __init__(
        self,
        batch: Batch,
        *,
        log_probs: Tensor,
        entropy: Tensor,
        values: Tensor,
        features: Tensor | None = None,
        parameters: Tensor | None = None,
        module: nn.Module | None = None,
    ) -> None:
        self._batch = batch
        self._features = features
        self._parameters = parameters
        self.log_probs = log_probs
        self.entropy = entropy
        self.values = values
        self.module = module

    @property
    def features(self) -> Tensor:
        """float32 [T, B, F], from which the policy is computed. A loss through them trains the
        (actor's) encoder."""
        if self._features is None:
            raise TypeError("policy.features: the network must be made of an encoder")
        return self._features

    @property
    def parameters(self) -> Tensor:
        """float32 [T, B, P], of the distribution pi(. | s_t): see its class in
        `networks.distributions`.

        The logit of an action that is not allowed is a constant, -1e9.
        """
        assert self._parameters is not None
        return self._parameters

    @functools.cached_property
    def log_ratio(self) -> Tensor:
        """log pi(a_t | s_t) - log mu(a_t | s_t), [T, B], with mu the policy that acted."""
        return self.log_probs - self._batch.log_probs

    @functools.cached_property
    def ratio(self) -> Tensor:
        """r = pi(a_t | s_t) / mu(a_t | s_t), [T, B]."""
        return self.log_ratio.exp()

    @property
    def approx_kl(self) -> Tensor:
        """r - 1 - ln r, [T, B]. Its mean estimates KL(mu || pi) (Schulman 2020, "Approximating KL
        divergence")."""
        return self.ratio - 1 - self.log_ratio
