"""A trial of a network before training: whether a rollout can be reproduced from what it computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from a3c_exp.errors import ConfigError, one_line
from a3c_exp.networks.actor_critic import ActorCritic
from a3c_exp.networks.components import evaluation_mode, is_lack_of_memory, run_module, seeded_construction
from a3c_exp.networks.composed import EncoderActorCritic
from a3c_exp.networks.inputs import sample_observations

TOLERANCE = 1e-4
"""Of outputs that have to be equal, as a share of their largest number. Sums in another order differ by less."""

_WHY = "the learner could not compute again what the actor computed"


def verify(network: ActorCritic, space: gym.Space[object]) -> None:
    """Run the modules of a bound network on a few observations of `space`. Raises ConfigError, in one line that names
    the class and the reason, for one that cannot be trained here."""
    observations = torch.from_numpy(sample_observations(space, 3))
    with seeded_construction(0):
        if isinstance(network, EncoderActorCritic):
            inputs = network.observation_input.prepare(observations)
            encoders = [network.actor_encoder] if network.shared else [network.actor_encoder, network.critic_encoder]
            for encoder in encoders:
                _verify_module(encoder, _Trial(encoder, _features), inputs, network)
        else:
            module = next(network.children())
            _verify_module(
                module, _Trial(network, _whole_outputs(network), type(module).__name__), observations, network
            )


def is_own_module(module: nn.Module) -> bool:
    """Return whether a module's class is neither torch's nor this package's."""
    return type(module).__module__.partition(".")[0] not in ("torch", "a3c_exp")


def verify_construction(network: ActorCritic, other: ActorCritic, space: gym.Space[object]) -> None:
    """Raise ConfigError if a network that is constructed again, under the same seed, computes something else."""
    other.vector[:] = network.vector
    observations = sample_observations(space, 3)
    state = network.initial_state(3)
    one, again = (each.act_forward(observations, state)[:2] for each in (network, other))
    if not all(np.array_equal(a, b) for a, b in zip(one, again, strict=True)):
        names = {type(module).__name__ for module in network.modules() if is_own_module(module)}
        text = "computes something else when it is constructed again: random numbers in a constructor must be torch's"
        raise _refusal(", ".join(sorted(names)), text)


class _Trial:
    """Calls a module. to_rows: its outputs as one tensor [N, K]; raises ConfigError for other outputs."""

    def __init__(
        self, module: nn.Module, to_rows: Callable[[object, int, str], Tensor], name: str | None = None
    ) -> None:
        self._module, self._to_rows, self.name = module, to_rows, name or type(module).__name__

    def __call__(self, inputs: Tensor) -> Tensor:
        return self._to_rows(run_module(self._module, inputs, self.name), len(inputs), self.name)


def _features(outputs: object, count: int, name: str) -> Tensor:
    if not isinstance(outputs, Tensor) or outputs.dim() != 2 or len(outputs) != count:
        raise _refusal(name, f"must return features [N, F]: for {count} observations it returned {_form(outputs)}")
    _check_numbers(outputs, name)
    return outputs


def _whole_outputs(network: ActorCritic) -> Callable[[object, int, str], Tensor]:
    size, state_size = network.distribution.size, network.state_size

    def to_rows(outputs: object, count: int, name: str) -> Tensor:
        assert isinstance(outputs, tuple)
        parameters, values, state = outputs
        wanted = [("parameters", parameters, (count, size)), ("values", values, (count,))]
        if state_size or state is not None:
            wanted.append(("a state", state, (count, state_size)))
        for what, tensor, shape in wanted:
            if not isinstance(tensor, Tensor) or tuple(tensor.shape) != shape:
                text = f"must return {what} of shape {shape} for {count} observations: it returned {_form(tensor)}"
                hint = "; a state needs initial_state(count)" if what == "a state" and not state_size else ""
                raise _refusal(name, text + hint)
            _check_numbers(tensor, name)
        return torch.cat([tensor.reshape(count, -1) for _, tensor, _ in wanted], dim=1)

    return to_rows


def _verify_module(module: nn.Module, trial: _Trial, inputs: Tensor, network: ActorCritic) -> None:
    name, untouched = trial.name, inputs.clone()
    buffers = {key: buffer.clone() for key, buffer in module.named_buffers()}
    with torch.inference_mode():  # first as an actor runs it, then as a learner does
        trial(inputs)
    if not torch.equal(inputs, untouched):
        raise _refusal(name, "writes into its inputs, which the learner needs again")
    trained, again = trial(inputs), trial(inputs)
    for key, buffer in module.named_buffers():
        if not torch.equal(buffer, buffers[key]):
            text = f"changes its buffer {key} in a forward pass (batch normalization does): {_WHY}"
            raise _refusal(name, text)
    with evaluation_mode(module):
        evaluated = trial(inputs)
    if not _equal(trained, again):
        raise _refusal(name, f"returns other numbers in a second pass (dropout or noise do): {_WHY}")
    if not _equal(trained, evaluated):
        text = f"returns other numbers in training than in evaluation mode (dropout or batch normalization do): {_WHY}"
        raise _refusal(name, text)
    with torch.no_grad():
        if not _equal(trial(inputs.flip(0)), trained.flip(0)) or not _equal(trial(inputs[:1]), trained[:1]):
            raise _refusal(
                name, f"mixes the rows of a batch: the outputs of one row must depend on it alone, or {_WHY}"
            )
    if any(parameter.requires_grad for parameter in module.parameters()) and not trained.requires_grad:
        raise _refusal(
            name, "returns outputs without a gradient (detach or no_grad do): its parameters would not learn"
        )
    _check_leaves(trained, network, name)
    _check_backward(trained, network, name)


def _check_leaves(outputs: Tensor, network: ActorCritic, name: str) -> None:
    """Raise ConfigError if a tensor that is no parameter of the network would get a gradient."""
    known = {id(parameter) for parameter in network.parameters()}
    for leaf in _leaves(outputs):
        if id(leaf) not in known:
            text = f"learns a tensor of shape {tuple(leaf.shape)} that is none of its parameters: modules belong into "
            raise _refusal(name, f"{text}attributes or an nn.ModuleList, tensors into an nn.Parameter")


def _check_backward(outputs: Tensor, network: ActorCritic, name: str) -> None:
    """Raise ConfigError if the backward pass raises, after a write in place, for one."""
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    try:
        if outputs.requires_grad:
            torch.autograd.grad(outputs.sum(), parameters, allow_unused=True)
    except Exception as error:  # a user's module may raise anything
        if is_lack_of_memory(error):
            raise
        raise _refusal(name, f"its backward pass failed: {one_line(error)}") from error


def _leaves(outputs: Tensor) -> Iterator[Tensor]:
    """The tensors to whose gradients a backward pass from `outputs` would add."""
    seen, pending = set(), [outputs.grad_fn]
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
    return bool(np.allclose(one.detach().numpy(), other.detach().numpy(), rtol=0, atol=TOLERANCE * scale))


def _check_numbers(tensor: Tensor, name: str) -> None:
    if tensor.dtype != torch.float32:
        raise _refusal(name, f"must return float32, not {tensor.dtype}")
    if not torch.isfinite(tensor).all():
        raise _refusal(name, "returns numbers that are not finite for ordinary observations")


def _form(outputs: object) -> str:
    return str(tuple(outputs.shape)) if isinstance(outputs, Tensor) else type(outputs).__name__


def _refusal(name: str, text: str) -> ConfigError:
    return ConfigError("network", name, text)
