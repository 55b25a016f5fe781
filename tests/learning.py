"""A network's gradient, of a weighted sum of what the network says: as it finds it, and as torch does."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, distributions

from a3c_exp.algorithms import Evaluation
from a3c_exp.networks import ActorCritic
from a3c_exp.networks.recurrent import RecurrentInput


def learned(
    network: ActorCritic,
    seen: np.ndarray,
    actions: np.ndarray,
    memory: RecurrentInput | None = None,
    *,
    log_probs: Any = 0.0,
    entropy: Any = 0.0,
    values: Any = 0.0,
) -> Evaluation:
    """What it says of observations [T, B, ...], once it has added the gradient of these weights' sum with that."""
    evaluation, add_gradient = network.evaluate(seen, actions, memory)
    rows = seen.shape[:2]
    add_gradient(Evaluation(*(np.full(rows, z, np.float32) for z in (log_probs, entropy, values))))
    return evaluation


def torchs_gradient(
    network: ActorCritic, seen: np.ndarray, actions: np.ndarray, space: spaces.Space[Any], weights: Evaluation
) -> np.ndarray:
    """The same gradient by torch's own graph, from the layers' torch forms and torch's distributions."""
    flat = torch.from_numpy(seen).flatten(0, 1)
    features = network.actor_body(flat)
    parameters = network.head.forward(features)
    values = network.value(features if network.shared else network.critic_body(flat))[:, 0]
    log_probs, entropy = evaluated_by_torch(space, parameters, torch.from_numpy(actions).flatten(0, 1))
    by = (torch.from_numpy(z.ravel()) for z in (weights.log_probs, weights.entropy, weights.values))
    loss = sum((weight * told).sum() for weight, told in zip(by, (log_probs, entropy, values), strict=True))
    network.gradient.fill(0)
    loss.backward()  # type: ignore[union-attr, no-untyped-call]
    return network.gradient.copy()


def evaluated_by_torch(space: spaces.Space[Any], parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies of torch's distributions: parameters [N, P], actions [N, ...] -> [N] each."""
    match space:
        case spaces.Discrete():
            parts: list[Any] = [distributions.Categorical(logits=parameters)]
            taken = [actions]
        case spaces.MultiDiscrete():
            pieces = parameters.split(space.nvec.tolist(), -1)
            parts, taken = [distributions.Categorical(logits=piece) for piece in pieces], list(actions.unbind(-1))
        case spaces.MultiBinary():
            parts, taken = [distributions.Independent(distributions.Bernoulli(logits=parameters), 1)], [actions.float()]
        case _:
            mean, log_std = parameters.chunk(2, -1)
            parts, taken = [distributions.Independent(distributions.Normal(mean, log_std.exp()), 1)], [actions]
    log_probs = [part.log_prob(action) for part, action in zip(parts, taken, strict=True)]
    return torch.stack(log_probs).sum(0), torch.stack([part.entropy() for part in parts]).sum(0)
