"""The arrays that a learner works on: a batch, the network's outputs for it, and a loss's
derivatives by them.

Below them are sums and means over the rows of an array that are transitions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from a3c_exp.common.arrays import Array, Bools, Floats
from a3c_exp.networks.recurrent import RecurrentInput

ROWS = (
    "observations",
    "actions",
    "log_probs",
    "values",
    "rewards",
    "advantages",
    "targets",
    "behaviour",
)
"""Fields of `BatchArrays` that have a row for each transition. The last may be None."""


@dataclass(frozen=True, slots=True)
class NetworkOutputs:
    """Outputs of the learner's network for a batch.

    log_probs: float32 [T, B], log pi(a_t | s_t) of the actions that were taken, summed over the
        parts of an action.
    entropy: float32 [T, B], of pi(. | s_t), in nats.
    values: float32 [T, B], V(s_t); Q(s_t, a_t) of a network of action values, whose log_probs and
        entropy are 0.
    features: float32 [T, B, F], from which the policy is computed; None for a network that has none
        to show.
    parameters: float32 [T, B, P], of the distribution pi(. | s_t).

    Memory of the last two is the network's own, which overwrites it as soon as the gradient is
    added.
    """

    log_probs: Floats
    entropy: Floats
    values: Floats
    features: Floats | None = None
    parameters: Floats | None = None


class OutputGradients(NetworkOutputs):
    """A loss's derivatives by these outputs, under their names. The last two are None if the loss
    does not use them."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchArrays:
    """Collected transitions with their advantages and targets, as the learner holds them.

    Transitions in order, [T, B, ...]; or without their order, [1, N, ...], if minibatches are drawn
    from them.

    observations, actions: as the network takes them.
    log_probs, values: float32 [T, B], of the policy that acted.
    rewards: float32 [T, B], scaled, clipped and normalized.
    advantages, targets: float32 [T, B], from the returns.
    valid: bool [T, B], whether a row is a transition; None: every row is one.
    recurrent_input: of a network with a recurrent state; None for one without.
    behaviour, from_memory: see `Batch`.
    """

    observations: Array
    actions: Array
    log_probs: Floats
    values: Floats
    rewards: Floats
    advantages: Floats
    targets: Floats
    valid: Bools | None = None
    recurrent_input: RecurrentInput | None = None
    behaviour: Floats | None = None
    from_memory: bool = False

    @property
    def rows(self) -> dict[str, Any]:
        """Return the fields that have a row for each transition, by name."""
        fields = ((name, getattr(self, name)) for name in ROWS)
        return {name: array for name, array in fields if array is not None}

    @property
    def shape(self) -> tuple[int, ...]:
        """T and B."""
        return self.targets.shape

    @property
    def transitions(self) -> int:
        """Number of rows that are transitions."""
        return self.targets.size if self.valid is None else int(np.count_nonzero(self.valid))

    def without_order(self) -> BatchArrays:
        """Return its transitions alone, [1, N, ...]: what minibatches of single transitions are
        drawn from."""
        transitions = None if self.valid is None else np.flatnonzero(self.valid)

        def in_a_row(array: Array) -> Array:
            rows = array.reshape(-1, *array.shape[2:])
            if transitions is not None:
                rows = rows.take(transitions, axis=0)
            return rows[None]

        arrays: dict[str, Any] = {name: in_a_row(array) for name, array in self.rows.items()}
        return replace(self, valid=None, recurrent_input=None, **arrays)

    def take(self, columns: NDArray[np.intp]) -> BatchArrays:
        """Return some of the B columns."""

        def part(array: Array) -> Array:
            return array.take(columns, axis=1)  # faster than [:, columns]

        valid = None if self.valid is None else part(self.valid)
        recurrent_input = self.recurrent_input
        if recurrent_input is not None:
            recurrent_input = recurrent_input.take(columns)
        arrays: dict[str, Any] = {name: part(array) for name, array in self.rows.items()}

        return replace(self, valid=valid, recurrent_input=recurrent_input, **arrays)


def count_of(rows: Array, valid: Bools | None) -> float:
    """Return the number of transitions, at least 1: a rollout of one row can hold no transition,
    and then its gradient is 0."""
    return float(rows.size) if valid is None else max(float(np.count_nonzero(valid)), 1.0)


def of_transitions(rows: Array, valid: Bools | None) -> Array:
    """Return rows [T, B, ...], with 0 for those that are no transitions, whatever they hold."""
    return rows if valid is None else np.where(_like(valid, rows), rows, rows.dtype.type(0))


def filled(rows: Array, valid: Bools | None) -> Array:
    """Return rows [T, B, ...], with the first transition in place of those that are none; zeros
    where there is no transition."""
    if valid is None:
        return rows
    transition = rows[valid][0] if valid.any() else rows.dtype.type(0)
    return np.where(_like(valid, rows), rows, transition)


def _like(valid: Bools, rows: Array) -> Bools:
    """Flags [T, B] with as many axes as rows [T, B, ...]."""
    return valid if rows.ndim == 2 else valid.reshape(valid.shape + (1,) * (rows.ndim - 2))


def log_softmax(logits: Floats) -> Floats:
    """Return the logarithms of probabilities [..., A], given logits."""
    shifted = logits - logits.max(-1, keepdims=True)
    log_probs: Floats = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return log_probs


def action_values_of(outputs: NetworkOutputs, actions: Array) -> Floats:
    """Return Q(s_t, a_t), float32 [T, B], of an `AveragedActorCritic` and the actions taken."""
    assert outputs.parameters is not None
    _, action_values, _ = np.split(outputs.parameters, 3, axis=-1)
    taken: Floats = np.take_along_axis(action_values, actions[..., None], -1)[..., 0]
    return taken


def total(rows: Array, valid: Bools | None) -> float:
    """Return the sum over the transitions."""
    return float(rows.sum()) if valid is None else float(rows[valid].sum())


def dot(a: Array, b: Array) -> float:
    """Return the sum of products of all elements."""
    return float(np.vdot(a, b))


def broadcast(number: float, like: Floats, valid: Bools | None) -> Floats:
    """Return the number in every row that is a transition, 0 in the others."""
    return np.full_like(like, number) if valid is None else valid * np.float32(number)


def explained_variance(values: Floats, targets: Floats, valid: Bools | None = None) -> float:
    """Return 1 - Var[targets - values] / Var[targets]: 1 for a perfect critic, 0 for one no better
    than a constant.

    values, targets: float32 [T, B], the critic's predictions and its targets.
    valid: bool [T, B], whether a row is a transition; None: every row is one.
    NaN if the targets do not vary, since the ratio has no meaning then.
    """
    # In double precision the variance of equal numbers is exactly 0, and that of nearly equal ones
    # is right.
    wide = targets.ravel().astype(np.float64)
    errors = wide - values.ravel()
    if valid is not None:
        counted = valid.ravel()
        wide = wide[counted]
        errors = errors[counted]
    variance = _squared_deviations(wide)
    return 1 - _squared_deviations(errors) / variance if variance > 0 else math.nan


def _squared_deviations(x: Array) -> float:
    """Sum of squared deviations from the mean; 0 for an empty array. (`var` takes longer at this
    size.)"""
    deviations = x - np.add.reduce(x) / max(x.size, 1)
    return float(deviations.dot(deviations))
