"""The inputs of a loss: a batch of transitions and the policy's outputs for it, as arrays and as
tensors.

Below them are sums and means over the rows of an array that are transitions, for closed forms of
losses.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from a3c_exp.common.arrays import Array, Floats
from a3c_exp.networks.actor_critic import NetworkOutputs, OutputGradients
from a3c_exp.networks.recurrent import RecurrentInput

ROWS = ("observations", "actions", "log_probs", "values", "rewards", "advantages", "targets")
"""Fields of `BatchArrays` that have a row for each transition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchArrays:
    """Collected transitions with their advantages and targets, as the learner holds them.

    Transitions in order, [T, B, ...]; or without their order, [1, N, ...], if minibatches are drawn
    from them.
    observations, actions: as the network takes them.
    log_probs, values: float32 [T, B], of the policy that acted.
    rewards: float32 [T, B], scaled, clipped and normalized.
    advantages, targets: float32 [T, B], from the returns.
    mask: float32 [T, B], 1 for a transition, 0 for a row that is none; None: every row is a
        transition.
    recurrent_input: of a network with a recurrent state; None for one without.
    """

    observations: Array
    actions: Array
    log_probs: Floats
    values: Floats
    rewards: Floats
    advantages: Floats
    targets: Floats
    mask: Floats | None = None
    recurrent_input: RecurrentInput | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """T and B."""
        return self.targets.shape

    @property
    def transitions(self) -> int:
        """Number of rows that are transitions."""
        return self.targets.size if self.mask is None else int(self.mask.sum())

    def without_order(self) -> BatchArrays:
        """Its transitions alone, [1, N, ...]: what minibatches of single transitions are drawn
        from."""
        valid = None if self.mask is None else np.flatnonzero(self.mask)

        def in_a_row(array: Array) -> Array:
            rows = array.reshape(-1, *array.shape[2:])
            return (rows if valid is None else rows.take(valid, axis=0))[None]

        return replace(
            self,
            mask=None,
            recurrent_input=None,
            **{name: in_a_row(getattr(self, name)) for name in ROWS},
        )

    def take(self, columns: NDArray[np.intp]) -> BatchArrays:
        """Some of the B columns."""

        def part(array: Array) -> Array:
            return array.take(columns, axis=1)  # faster than [:, columns]

        mask = None if self.mask is None else part(self.mask)
        recurrent_input = (
            None if self.recurrent_input is None else self.recurrent_input.take(columns)
        )
        rows = {name: part(getattr(self, name)) for name in ROWS}
        return replace(self, mask=mask, recurrent_input=recurrent_input, **rows)


class Batch:
    """A batch of transitions as a loss sees it: constant tensors [T, B]. Use `mean` and `sum` to
    reduce over it.

    advantages, targets: float32, from the returns.
    log_probs, values: float32, of the policy that acted.
    rewards: float32, scaled, clipped and normalized as the learner's are.
    mask: bool, whether a row is a transition. A row that is none holds the numbers of one that is,
        so that a loss which is finite for transitions is finite for all rows.
    """

    def __init__(self, arrays: BatchArrays, device: torch.device | None = None) -> None:
        self._arrays = arrays
        self._device = device
        self._valid = np.ones(arrays.shape, np.bool_) if arrays.mask is None else arrays.mask != 0
        self.mask = torch.from_numpy(self._valid).to(device)
        self.advantages = self.tensor(arrays.advantages)
        self.targets = self.tensor(arrays.targets)
        self.log_probs = self.tensor(arrays.log_probs)
        self.values = self.tensor(arrays.values)
        self.rewards = self.tensor(arrays.rewards)

    @property
    def observations(self) -> Tensor:
        """[T, B, ...], as the network takes them."""
        return self.tensor(self._arrays.observations)

    @property
    def actions(self) -> Tensor:
        """[T, B, ...]: int64, float32 of continuous actions, as the policy has chosen them."""
        return self.tensor(self._arrays.actions)

    @property
    def count(self) -> int:
        """Number of transitions, at least 1."""
        return max(self._arrays.transitions, 1)

    def sum(self, x: Tensor) -> Tensor:
        """The sum of x [T, B] over the transitions."""
        return self._of_transitions(x).sum()

    def mean(self, x: Tensor) -> Tensor:
        """The mean of x [T, B] over the transitions; 0 if there are none."""
        return (
            self._of_transitions(x).mean()
            if self._arrays.mask is None
            else self.sum(x) / self.count
        )

    def _of_transitions(self, x: Tensor) -> Tensor:
        if x.shape != self.mask.shape:
            raise ValueError(
                f"{list(x.shape)} must be {list(self.mask.shape)}: "
                "a number for each step and environment"
            )
        return x if self._arrays.mask is None else torch.where(self.mask, x, 0.0)

    def normalize(self, x: Tensor) -> Tensor:
        """x [T, B] with mean 0 and standard deviation 1 over the transitions. Computed in
        float64."""
        wide = x.double()
        deviations = wide - self.mean(wide)
        return (deviations / (self.mean(deviations**2).sqrt() + 1e-8)).float()

    def tensor(self, array: Floats) -> Tensor:
        """An array [T, B, ...] as a tensor: of the array's own memory, or of a copy if a row is no
        transition."""
        if self._arrays.mask is not None:
            array = self._filled(
                array, array[self._valid][0] if self._valid.any() else np.float32(0)
            )
        return torch.from_numpy(array).to(self._device)

    def masked(self, array: Floats) -> Floats:
        """An array [T, B, ...] with zeros for rows that are no transitions."""
        return array if self._arrays.mask is None else self._filled(array, np.float32(0))

    def _filled(self, array: Floats, row: Floats | np.float32) -> Floats:
        """An array with `row` in place of the rows that are no transitions."""
        return np.where(
            self._valid.reshape(self._valid.shape + (1,) * (array.ndim - 2)), array, row
        )


class PolicyOutputs:
    """The policy's outputs for a batch, through which a loss is differentiated.

    log_probs: float32 [T, B], log pi(a_t | s_t). entropy: float32 [T, B], of pi(. | s_t), in nats.
    values: float32 [T, B], V(s_t).
    module: the loss's own, as `Algorithm.build` has made it; None if it has made none.
    """

    def __init__(self, outputs: NetworkOutputs, batch: Batch, module: nn.Module | None) -> None:
        self._outputs = outputs
        self._batch = batch
        self.module = module
        self.log_probs = batch.tensor(outputs.log_probs).requires_grad_()
        self.entropy = batch.tensor(outputs.entropy).requires_grad_()
        self.values = batch.tensor(outputs.values).requires_grad_()

    @functools.cached_property
    def features(self) -> Tensor:
        """float32 [T, B, F], from which the policy is computed. A loss through them trains the
        (actor's) encoder."""
        if self._outputs.features is None:
            raise TypeError("policy.features: the network must be made of an encoder")
        return self._batch.tensor(self._outputs.features).requires_grad_()

    @functools.cached_property
    def parameters(self) -> Tensor:
        """float32 [T, B, P], of the distribution pi(. | s_t): see its class in
        `networks.distributions`.

        The logit of an action that is not allowed is a constant, -1e9.
        """
        assert self._outputs.parameters is not None
        return self._batch.tensor(self._outputs.parameters).requires_grad_()

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

    def gradients(self) -> OutputGradients:
        """The derivatives of a loss that has been differentiated. Rows that are no transitions have
        none."""
        names = ("log_probs", "entropy", "values", "features", "parameters")
        used = vars(self)  # the last two are there if the loss has asked for them
        return OutputGradients(
            **{name: self._gradient(used[name]) for name in names if name in used}
        )

    def _gradient(self, leaf: Tensor) -> Floats:
        gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        return self._batch.masked(gradient.cpu().numpy())


def count_of(rows: Floats, mask: Floats | None) -> float:
    """Number of transitions, at least 1: a rollout of one row can hold no transition, and then its
    gradient is 0."""
    return float(rows.size) if mask is None else max(float(mask.sum()), 1.0)


def masked(rows: Array, mask: Floats | None) -> Array:
    """The rows, with 0 for those that are no transitions, whatever they hold."""
    return rows if mask is None else np.where(mask != 0, rows, rows.dtype.type(0))


def total(rows: Array, mask: Floats | None) -> float:
    """The sum over the transitions."""
    return float(rows.sum()) if mask is None else float(rows[mask != 0].sum())


def dot(a: Array, b: Array) -> float:
    """The sum of products of all elements."""
    return float(np.vdot(a, b))


def broadcast(number: float, like: Floats, mask: Floats | None) -> Floats:
    """The number in every row that is a transition, 0 in the others."""
    return np.full_like(like, number) if mask is None else mask * np.float32(number)


def masked_advantages(
    advantages: Floats, mask: Floats | None, normalize: bool
) -> tuple[Floats, float]:
    """The advantages [T, B] of a closed form, 0 for rows that are no transitions, and the number of
    transitions.

    normalize: to mean 0 and standard deviation 1, in float64: if all advantages are the same,
        float32's error in their mean would be all that is left of them, and would be scaled to 1.
    """
    count = count_of(advantages, mask)
    if normalize:
        wide = advantages.astype(np.float64)
        deviations = wide - total(wide, mask) / count
        counted = masked(deviations, mask)
        advantages = (deviations / (math.sqrt(dot(counted, counted) / count) + 1e-8)).astype(
            np.float32
        )
    # Masked last: a row that is no transition may hold anything, and 0 times infinity is not 0.
    return masked(advantages, mask), count


def explained_variance(values: Floats, targets: Floats, mask: Array | None = None) -> float:
    """1 - Var[targets - values] / Var[targets]: 1 for a perfect critic, 0 for one no better than a
    constant.

    values, targets: float32 [T, B], the critic's predictions and its targets.
    mask: [T, B], other than 0 for a transition; None: every row is one.
    NaN if the targets do not vary, since the ratio has no meaning then.
    """
    # In double precision the variance of equal numbers is exactly 0, and that of nearly equal ones
    # is right.
    wide = targets.ravel().astype(np.float64)
    errors = wide - values.ravel()
    if mask is not None:
        counted = mask.ravel() != 0
        wide, errors = wide[counted], errors[counted]
    variance = _squared_deviations(wide)
    return 1 - _squared_deviations(errors) / variance if variance > 0 else math.nan


def _squared_deviations(x: Array) -> float:
    """Sum of squared deviations from the mean; 0 for an empty array. (`var` takes longer at this
    size.)"""
    deviations = x - np.add.reduce(x) / max(x.size, 1)
    return float(deviations.dot(deviations))
