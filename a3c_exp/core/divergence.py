"""Explanation of a gradient that is not finite: what of the batch, the loss and the network is not.

Computed once for each learner, after such a gradient has been refused, so it may take as long as an update.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from a3c_exp.algorithms import BatchArrays
from a3c_exp.algorithms.algorithm import RESERVED
from a3c_exp.common.arrays import Array
from a3c_exp.networks import ActorCritic
from a3c_exp.networks.torch_runtime import TorchRuntime

# Names in a list before the rest is only counted.
MOST_NAMES = 3

# Numbers from here on have squares that float32 cannot hold.
TOO_LARGE = math.sqrt(np.finfo(np.float32).max)

_HINT = (
    "A smaller learning rate, gradient clipping (optimizer.max_grad_norm) or smaller rewards (env.reward_scale) may "
    "help."
)


class BatchLoss(NamedTuple):
    """A batch, and the metrics that its loss returned."""

    batch: BatchArrays
    metrics: dict[str, float]


class Extreme(NamedTuple):
    """The largest absolute value among several tensors, or the first that is not finite, and its place."""

    size: float
    place: str


@np.errstate(all="ignore")
def explain_divergence(name: str, steps: int, network: ActorCritic, losses: Sequence[BatchLoss]) -> str:
    """The explanation of a gradient that is not finite, as a line for the log.

    name: of the learner. steps: environment steps of the run, as of the learner's pull. network: bound, with the
    refused gradient. losses: those that the gradient is of. Without a lock on a device, other threads may have changed
    the parameters since.
    """
    batches = [loss.batch for loss in losses]
    data = _fault_of_data(batches)
    spoiled = _parts_not_finite(network, lambda parameter: parameter.detach())
    parts = _parts_not_finite(network, lambda parameter: parameter.grad)
    activation = _largest_activation(network, batches)
    inputs = data or _fault_of_returns(batches)
    finite_inputs = inputs is None and activation is not None and math.isfinite(activation.size)
    extremes = [("activation", activation), ("parameter", _largest_parameter(network))]
    sentences = [
        f"{name}, step {steps:,}: a gradient that was not finite was refused.",
        inputs,
        f"Parameters not finite in {spoiled}: an earlier update or another worker made them so." if spoiled else None,
        _describe_terms([loss.metrics for loss in losses], finite_inputs),
        f"Gradient not finite in {parts}." if parts else None,
        *(f"Largest {kind}: {found.size:.2g} in {found.place}." for kind, found in extremes if found is not None),
        None if data else _remedy_for_size(batches) or _HINT,
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def find_remedy(losses: Sequence[BatchLoss]) -> str:
    """What may help where gradients of these losses are not finite: what the environment gives is looked at first."""
    batches = [loss.batch for loss in losses]
    return _fault_of_data(batches) or _remedy_for_size(batches) or f"Training has diverged. {_HINT}"


# -- the batch and its loss -------------------------------------------------------------------------------------------


def _fault_of_data(batches: Sequence[BatchArrays]) -> str | None:
    """A sentence about observations or rewards that are not finite; None if all are."""
    for name in ("observations", "rewards"):
        numbers = _column(batches, name)
        if bad := np.count_nonzero(~np.isfinite(numbers)):
            return (
                f"Not finite in the data: {name} ({bad:,} of {numbers.size:,} numbers). The environment, a wrapper or "
                "env.reward_scale gave them: the learning rate is not the cause."
            )
    return None


def _remedy_for_size(batches: Sequence[BatchArrays]) -> str | None:
    """A sentence about observations or rewards that are finite and too large to learn from; None if none are."""
    remedies = {
        "rewards": "Set env.reward_scale or env.reward_clip.",
        "observations": "Set env.normalize_observations=true, or scale them in a wrapper.",
    }
    for name, remedy in remedies.items():
        if (largest := _largest_of(_column(batches, name))) >= TOO_LARGE:
            return (
                f"The environment gave {name} of up to {largest:.2g}, whose squares float32 cannot hold: the learning "
                f"rate is not the cause. {remedy}"
            )
    return None


def _fault_of_returns(batches: Sequence[BatchArrays]) -> str | None:
    """A sentence about numbers that the actor or the returns have computed, and that are not finite; or None."""
    names = ("log_probs", "values", "advantages", "targets")
    bad = [name for name in names if not np.isfinite(_column(batches, name)).all()]
    if not bad:
        return None
    reward, value = (_largest_of(_column(batches, name)) for name in ("rewards", "values"))
    return f"Not finite in the batch: {', '.join(bad)} (largest reward {reward:.2g}, largest value {value:.2g})."


def _column(batches: Sequence[BatchArrays], name: str) -> Array:
    """The numbers of one field of all transitions, [N]."""
    parts = []
    for batch in batches:
        array: Array = getattr(batch, name)
        parts.append((array if batch.mask is None else array[batch.mask != 0]).ravel())
    return np.concatenate(parts)


def _describe_terms(metrics: Sequence[Mapping[str, float]], finite_inputs: bool) -> str | None:
    """A sentence about the metrics that a loss returned: those that are not finite, or the largest.

    finite_inputs: whether the batch and the network's activations are finite.
    """
    terms = [(name, value) for each in metrics for name, value in each.items() if name not in RESERVED]
    if bad := {name: value for name, value in terms if not math.isfinite(value)}:
        reason = ", though the batch and all activations are" if finite_inputs else ""
        return f"Loss terms not finite: {', '.join(f'{name} ({value})' for name, value in bad.items())}{reason}."
    if not terms:
        return None
    name, value = max(terms, key=lambda term: abs(term[1]))
    return f"All loss terms are finite, the largest is {name} ({value:.2g})."


# -- the network ------------------------------------------------------------------------------------------------------


def _parts_not_finite(network: ActorCritic, tensor_of: Callable[[nn.Parameter], Tensor | None]) -> str:
    """The parameter groups in which a tensor is not finite, with the parameters' names unless it is all of them."""
    names, parts = {id(parameter): name for name, parameter in network.named_parameters()}, []
    for group, parameters in network.trained_groups().items():
        tensors = ((names[id(parameter)], tensor_of(parameter)) for parameter in parameters)
        bad = [name for name, tensor in tensors if tensor is not None and not torch.isfinite(tensor).all()]
        if bad:
            more = f" and {len(bad) - MOST_NAMES} more" if len(bad) > MOST_NAMES else ""
            parts.append(group if len(bad) == len(parameters) else f"{group} ({', '.join(bad[:MOST_NAMES])}{more})")
    return ", ".join(parts)


def _largest_parameter(network: ActorCritic) -> Extreme | None:
    return _largest((name, parameter.detach()) for name, parameter in network.named_parameters())


def _largest_activation(network: ActorCritic, batches: Sequence[BatchArrays]) -> Extreme | None:
    """The largest output of a module of the network, in a forward pass by torch; None if it fails."""
    found: list[Extreme] = []

    def note(place: str, module: nn.Module, inputs: object, outputs: object) -> None:
        largest = _largest((f"{place} ({type(module).__name__})", tensor) for tensor in _tensors(outputs))
        found.extend([] if largest is None else [largest])

    device = torch.as_tensor(network.vector).device
    runtime = TorchRuntime(network, lambda purpose, tensor: tensor.to(device))
    with ExitStack() as hooks, torch.no_grad():
        try:
            for name, module in network.named_modules():
                if name:  # not the network itself, whose outputs are those of its parts
                    hooks.callback(module.register_forward_hook(functools.partial(note, name)).remove)
            for batch in batches:
                runtime.train_forward(batch.observations, batch.recurrent_input)
        except Exception:  # a user's module may raise anything: then the rest of the explanation has to do
            return None
    return _most_extreme(found)


def _largest(tensors: Iterable[tuple[str, Tensor]]) -> Extreme | None:
    """The largest absolute value in floating-point tensors with their places; None if there are no numbers."""
    numbers = ((place, tensor) for place, tensor in tensors if tensor.is_floating_point() and tensor.numel())
    return _most_extreme([Extreme(float(tensor.abs().max()), place) for place, tensor in numbers])


def _most_extreme(found: Sequence[Extreme]) -> Extreme | None:
    """The first that is not finite, which the later ones have it from; or else the largest."""
    first = next((each for each in found if not math.isfinite(each.size)), None)
    return first or max(found, key=lambda each: each.size, default=None)


def _largest_of(numbers: Array) -> float:
    largest = _largest([("", torch.from_numpy(numbers))])
    return 0.0 if largest is None else largest.size


def _tensors(outputs: object) -> Iterator[Tensor]:
    """The tensors among a module's outputs."""
    match outputs:
        case Tensor():
            yield outputs
        case tuple() | list():
            for each in outputs:
                yield from _tensors(each)
        case Mapping():
            yield from _tensors(list(outputs.values()))
