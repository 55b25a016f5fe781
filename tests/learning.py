"""The gradient of a weighted sum of a network's outputs: by the network itself, and by torch's
graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from nets import draw_actions, normal
from torch import Tensor, distributions
from torch.nn import functional

from a3c_exp.common.arrays import Array, Floats
from a3c_exp.engine.arrays import NetworkOutputs, OutputGradients
from a3c_exp.networks import ActorCritic
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
    features: Floats | None = None,
) -> NetworkOutputs:
    """The outputs for observations [T, B, ...]. Adds the gradient of their sum with these weights
    to the network's.

    features: weights [T, B, F]; None: they do not count.
    """
    outputs, add_gradient = network.runtime.evaluate(observations, actions, recurrent_input)
    rows = observations.shape[:2]
    by_rows = {"log_probs": log_probs, "entropy": entropy, "values": values}
    weights = {name: np.full(rows, weight, np.float32) for name, weight in by_rows.items()}
    add_gradient(OutputGradients(**weights, features=features))
    returned: NetworkOutputs = outputs
    return returned


def evaluated_by_torch(
    space: spaces.Space[Any],
    parameters: Tensor,
    actions: Tensor,
    continuous: str = "gaussian",
    **settings: bool,
) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies of torch's distributions: parameters [N, P], actions [N, ...]
    -> [N] each.

    continuous, settings: as `make_distribution` takes them.
    """
    match space:
        case spaces.Discrete():
            parts: list[Any] = [distributions.Categorical(logits=parameters)]
            taken = [actions]
        case spaces.MultiDiscrete():
            pieces = torch.split(parameters, space.nvec.tolist(), -1)
            parts = [distributions.Categorical(logits=piece) for piece in pieces]
            taken = list(actions.unbind(-1))
        case spaces.MultiBinary():
            parts = [distributions.Independent(distributions.Bernoulli(logits=parameters), 1)]
            taken = [actions.float()]
        case _ if continuous == "beta":
            alpha, beta = (1 + functional.softplus(parameters)).chunk(2, -1)
            parts = [distributions.Independent(distributions.Beta(alpha, beta), 1)]
            taken = [actions]
        case _:
            mean, spread = parameters.chunk(2, -1)
            std = functional.softplus(spread) if settings.get("softplus_std") else spread.exp()
            normal: Any = distributions.Normal(
                mean.tanh() if settings.get("squash_mean") else mean, std
            )
            if continuous == "squashed_gaussian":
                squashed: Any = distributions.TransformedDistribution(
                    normal, [distributions.TanhTransform()]
                )
                log_probs = squashed.log_prob(actions.tanh()).sum(-1)
                return log_probs, _entropy_by_integration(normal).sum(-1)
            parts = [distributions.Independent(normal, 1)]
            taken = [actions]
    log_probs = [part.log_prob(action) for part, action in zip(parts, taken, strict=True)]
    return torch.stack(log_probs).sum(0), torch.stack([part.entropy() for part in parts]).sum(0)


def _entropy_by_integration(normal: Any) -> Any:
    """The entropy of tanh u, that of u and E[ln(1 - tanh^2 u)], by a sum over 4,000 points."""
    x = torch.linspace(-9, 9, 4001, dtype=normal.mean.dtype)
    u = normal.mean[..., None] + normal.stddev[..., None] * x
    squash: Any = distributions.TanhTransform()
    return normal.entropy() + (
        squash.log_abs_det_jacobian(u, None) * torch.softmax(-0.5 * x * x, 0)
    ).sum(-1)


def compare_gradients(
    network: ActorCritic,
    observations: Array,
    space: spaces.Space[Any],
    recurrent_input: RecurrentInput | None = None,
) -> None:
    """Hold a network's gradient for observations [T, B, ...], drawn actions and drawn weights equal
    to torch's.

    That is of torch's own graph: of the network's forward, row after row, and torch's
    distributions.
    """
    actions = draw_actions(network, observations)
    weights = dict(
        zip(
            ("log_probs", "entropy", "values"),
            normal(3, *observations.shape[:2], seed=4),
            strict=True,
        )
    )
    network.gradient.fill(0)
    learned(network, observations, actions, recurrent_input, **weights)
    network_gradient = network.gradient.copy()

    state = None
    ends = np.zeros(observations.shape[:2], np.bool_)
    if recurrent_input is not None:
        state, ends = torch.from_numpy(recurrent_input.state), recurrent_input.episode_boundaries
    loss = torch.zeros(())
    for t in range(len(observations)):
        parameters, values, state = network(torch.from_numpy(observations[t]), state)
        log_probs, entropy = evaluated_by_torch(space, parameters, torch.from_numpy(actions[t]))
        outputs = {"log_probs": log_probs, "entropy": entropy, "values": values}
        loss = loss + sum(
            (torch.from_numpy(weights[name][t]) * numbers).sum()
            for name, numbers in outputs.items()
        )
        if state is not None:
            state = state * torch.from_numpy(~ends[t]).float()[:, None]
    network.gradient.fill(0)
    torch.autograd.backward(loss)
    largest = float(np.abs(network.gradient).max())
    assert largest > 0.01
    np.testing.assert_allclose(
        network_gradient, network.gradient, rtol=1e-4, atol=2e-5 * max(largest, 0.5)
    )
