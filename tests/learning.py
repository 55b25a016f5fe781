"""The gradient of a weighted sum of a network's outputs: by the network itself, and by torch's graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, distributions

from a3c_exp.common.arrays import Array, Floats
from a3c_exp.networks import ActorCritic, OutputGradients, PolicyOutputs
from a3c_exp.networks.recurrent import RecurrentInput


def learned(
    network: ActorCritic,
    observations: Array,
    actions: Array,
    recurrent_input: RecurrentInput | None = None,
    *,
    log_probs: Any = 0.0,
    entropy: Any = 0.0,
    values: Any = 0.0,
) -> PolicyOutputs:
    """The outputs for observations [T, B, ...]. Adds the gradient of their sum with these weights to the network's."""
    outputs, add_gradient = network.evaluate(observations, actions, recurrent_input)
    rows = observations.shape[:2]
    add_gradient(OutputGradients(*(np.full(rows, weight, np.float32) for weight in (log_probs, entropy, values))))
    return outputs


def torchs_gradient(
    network: ActorCritic, observations: Array, actions: Array, space: spaces.Space[Any], weights: OutputGradients
) -> Floats:
    """The same gradient by torch's own graph, from the layers' torch forms and torch's distributions."""
    flat = torch.from_numpy(observations).flatten(0, 1)
    features = network.actor_body(flat)
    parameters = network.head.forward(features)
    values = network.value(features if network.shared else network.critic_body(flat))[:, 0]
    log_probs, entropy = evaluated_by_torch(space, parameters, torch.from_numpy(actions).flatten(0, 1))
    loss = torch.zeros(())
    for outputs, weight in ((log_probs, weights.log_probs), (entropy, weights.entropy), (values, weights.values)):
        loss = loss + (torch.from_numpy(weight.ravel()) * outputs).sum()
    network.gradient.fill(0)
    torch.autograd.backward(loss)
    return network.gradient.copy()


def evaluated_by_torch(space: spaces.Space[Any], parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies of torch's distributions: parameters [N, P], actions [N, ...] -> [N] each."""
    match space:
        case spaces.Discrete():
            parts: list[Any] = [distributions.Categorical(logits=parameters)]
            taken = [actions]
        case spaces.MultiDiscrete():
            pieces = torch.split(parameters, space.nvec.tolist(), -1)
            parts, taken = [distributions.Categorical(logits=piece) for piece in pieces], list(actions.unbind(-1))
        case spaces.MultiBinary():
            parts, taken = [distributions.Independent(distributions.Bernoulli(logits=parameters), 1)], [actions.float()]
        case _:
            mean, log_std = parameters.chunk(2, -1)
            parts, taken = [distributions.Independent(distributions.Normal(mean, log_std.exp()), 1)], [actions]
    log_probs = [part.log_prob(action) for part, action in zip(parts, taken, strict=True)]
    return torch.stack(log_probs).sum(0), torch.stack([part.entropy() for part in parts]).sum(0)
