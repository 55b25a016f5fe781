"""The check of a network before training: whether a rollout can be reproduced from what it
computes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch
from gymnasium.spaces import Box
from torch import Tensor, nn

from a3c_exp.errors import ConfigError
from a3c_exp.networks.actor_critic import ActorCritic
from a3c_exp.networks.components import evaluation_mode, run_module, seeded_construction
from a3c_exp.networks.composed import WholeActorCritic
from a3c_exp.networks.inputs import sample_observations

TOLERANCE = 1e-4
"""Of outputs that have to be equal, as a share of their largest number. Sums in another order
differ by less."""

_WHY = "the learner could not compute again what the actor computed"


def verify(network: ActorCritic, space: Box) -> None:
    """Run the modules of a bound network on a few observations of `space`.

    Raises ConfigError, in one line that names the class and the reason, for a module whose outputs
    are not finite float32 of the right shape, depend on other rows, differ in a second pass or in
    evaluation mode, or that learns tensors which are not its parameters.
    """
    observations = torch.from_numpy(sample_observations(space, 3))
    if isinstance(network, WholeActorCritic):
        outputs = functools.partial(_whole_outputs, network)
        _verify_module(network.module, observations, network, outputs)
    for encoder in dict.fromkeys(network.encoders):
        features = functools.partial(_features, network, encoder)
        _verify_module(encoder, observations, network, features)


def _features(network: ActorCritic, encoder: nn.Module, observations: Tensor) -> Tensor:
    name = type(encoder).__name__
    features = run_module(encoder, network.observation_input.prepare(observations), name)
    width = features.shape[-1] if isinstance(features, Tensor) and features.dim() else 1
    return _output_rows(name, "features", features, (len(observations), width))


def _whole_outputs(network: WholeActorCritic, observations: Tensor) -> Tensor:
    """All outputs side by side, [N, K]."""
    count = len(observations)
    name = type(network.module).__name__
    parameters, values, state = run_module(network, observations, name)
    outputs = [_output_rows(name, "parameters", parameters, (count, network.distribution.size))]
    outputs.append(_output_rows(name, "values", values, (count,)))
    if network.recurrent:
        outputs.append(_output_rows(name, "a state", state, (count, network.state_size)))
    elif state is not None:
        raise _refusal(name, "returned a state: a state needs initial_state(count)")

    return torch.cat(outputs, dim=1)


def _verify_module(
    module: nn.Module, inputs: Tensor, network: ActorCritic, rows: Callable[[Tensor], Tensor]
) -> None:
    """Check one module. rows: computes its outputs for inputs [N, ...] as one tensor [N, K]."""
    name = type(module).__name__
    with seeded_construction(0):
        trained = rows(inputs)
        again = rows(inputs)
        with evaluation_mode(module):
            evaluated = rows(inputs)

    if not _equal(trained, again):
        text = f"returns other numbers in a second pass (dropout or noise do): {_WHY}"
        raise _refusal(name, text)

    if not _equal(trained, evaluated):
        text = (
            "returns other numbers in training than in evaluation mode (dropout or batch "
            f"normalization do): {_WHY}"
        )
        raise _refusal(name, text)

    in_other_order = rows(inputs.flip(0)).flip(0)
    alone = rows(inputs[:1])
    if not _equal(in_other_order, trained) or not _equal(alone, trained[:1]):
        text = (
            f"mixes the rows of a batch: the outputs of one row must depend on it alone, or {_WHY}"
        )
        raise _refusal(name, text)

    parameters = set(map(id, network.parameters()))
    for leaf in _leaves(trained):
        if id(leaf) not in parameters:
            text = (
                f"learns a tensor of shape {tuple(leaf.shape)} that is none of its parameters: "
                "modules belong into attributes or an nn.ModuleList, tensors into an nn.Parameter"
            )
            raise _refusal(name, text)


def _output_rows(name: str, kind: str, output: object, shape: tuple[int, ...]) -> Tensor:
    """Return an output as [N, K]. Raises ConfigError unless it is finite float32 of this shape."""
    if not isinstance(output, Tensor) or tuple(output.shape) != shape:
        form = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        text = (
            f"must return {kind} of shape {shape} for {shape[0]} observations: it returned {form}"
        )
        raise _refusal(name, text)
    if output.dtype != torch.float32:
        raise _refusal(name, f"must return float32, not {output.dtype}")
    if not torch.isfinite(output).all():
        raise _refusal(name, "returns numbers that are not finite for ordinary observations")

    return output.reshape(shape[0], -1)


def _leaves(outputs: Tensor) -> Iterator[Tensor]:
    """The tensors to whose gradients a backward pass from `outputs` would add."""
    seen = set()
    pending = [outputs.grad_fn]
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue

        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        pending += [following for following, _ in node.next_functions]


def _equal(one: Tensor, other: Tensor) -> bool:
    scale = max(float(one.detach().abs().max()), 1.0)
    return torch.allclose(one.detach(), other.detach(), rtol=0, atol=TOLERANCE * scale)


def _refusal(name: str, text: str) -> ConfigError:
    return ConfigError("network", name, text)
