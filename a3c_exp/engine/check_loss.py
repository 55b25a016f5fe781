"""A loss before training: its module, and the check of a user's own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from gymnasium.spaces import Box
from torch import nn

from a3c_exp.algorithms.algorithm import CURVE_NAME, RUN_METRICS, Algorithm
from a3c_exp.common.arrays import Floats
from a3c_exp.engine.arrays import BatchArrays
from a3c_exp.engine.losses import loss_gradient
from a3c_exp.errors import ConfigError, refused
from a3c_exp.networks import ActorCritic
from a3c_exp.networks.components import BuildLoss
from a3c_exp.networks.inputs import sample_observations
from a3c_exp.networks.recurrent import RecurrentInput

_SHAPE = (3, 2)
# In the middle of a run: coefficients that follow a schedule may be 0 at either end.
_PROGRESS = 0.5


def loss_builder(algorithm: Algorithm) -> BuildLoss | None:
    """Return the function that makes the loss's own module; None if it has none. It raises
    ConfigError, in one line, if the user's `build` fails."""
    if type(algorithm).build is Algorithm.build:
        return None

    name = type(algorithm).__name__

    def build(features: int) -> nn.Module | None:
        with refused("algorithm", name, f"its build fails for {features} features"):
            module: object = algorithm.build(features)
            if module is not None and not isinstance(module, nn.Module):
                raise TypeError(
                    f"it must return a torch module or None, not {type(module).__name__}"
                )
        return module

    return build


def check_loss(
    algorithm: Algorithm, network: ActorCritic, observation_space: Box, kernels: bool = True
) -> None:
    """Differentiate a user's loss for a small batch, with a row that is no transition.

    kernels: whether the run would use a closed form of the loss.
    Raises ConfigError, in one line, if that fails, or if the gradient cannot be meant.
    """
    if type(algorithm).__module__.startswith("a3c_exp."):
        return

    name = type(algorithm).__name__
    batch = _small_batch(network, observation_space)
    metric_names = set[str]()

    def gradient(kernels: bool) -> Floats:
        network.zero_grad()
        outputs, backward = network.runtime.evaluate(
            batch.observations, batch.actions, batch.recurrent_input
        )
        by_actor = replace(batch, log_probs=outputs.log_probs.copy(), values=outputs.values.copy())
        differentiate = loss_gradient(algorithm, network.loss_module, kernels)
        by_outputs, metrics = differentiate(outputs, by_actor, _PROGRESS)
        metric_names.update(metrics)
        backward(by_outputs)

        return np.copy(network.gradient)

    with refused("algorithm", name, f"its loss fails for a batch of [T, B] = {[*_SHAPE]}"):
        first = gradient(kernels)
        second = gradient(kernels)
        by_torch = gradient(False)

    network.zero_grad()
    _check_metric_names(name, metric_names)
    _check_gradients(name, first, second, by_torch)


def _check_metric_names(name: str, metrics: Iterable[str]) -> None:
    unusable = sorted(
        metric for metric in metrics if metric in RUN_METRICS or not CURVE_NAME.fullmatch(metric)
    )
    if unusable:
        problem = (
            f"its metric {unusable[0]!r} needs another name, of letters, digits, "
            "spaces and _-./, that no run has"
        )
        raise ConfigError("algorithm", name, problem)


def _check_gradients(name: str, first: Floats, second: Floats, by_torch: Floats) -> None:
    """Raise ConfigError unless the gradient is finite, and is the same twice and by torch."""
    if not np.isfinite(first).all():
        problem = "its gradient is not finite for a small batch of ordinary numbers"
        raise ConfigError("algorithm", name, problem)
    if not first.any():
        problem = "its loss has no gradient: it must be computed from the policy's outputs"
        raise ConfigError("algorithm", name, problem)
    if not np.array_equal(first, second):
        problem = "its loss has another gradient when it is computed again (dropout, noise)"
        raise ConfigError("algorithm", name, problem)

    largest = float(np.abs(by_torch).max())
    if not np.allclose(first, by_torch, rtol=1e-3, atol=1e-4 * largest):
        problem = "its closed form has another gradient than its loss"
        raise ConfigError("algorithm", name, problem)


def _small_batch(network: ActorCritic, observation_space: Box) -> BatchArrays:
    """A batch without the actor's log-probabilities and values, which are 0."""
    length, count = _SHAPE
    rng = np.random.default_rng(0)
    rows = sample_observations(observation_space, length * count)
    observations = rows.reshape(*_SHAPE, *rows.shape[1:])
    state = network.initial_state(count)
    recurrent_input = None if state is None else RecurrentInput(state, np.zeros(_SHAPE, np.bool_))
    parameters, _, _ = network.act_forward(observations[0], state)
    actions = np.stack([network.distribution.sample(parameters, rng)[0] for _ in range(length)])
    rewards, advantages, targets = rng.standard_normal((3, *_SHAPE)).astype(np.float32)
    valid = np.ones(_SHAPE, np.bool_)
    valid[-1, -1] = False
    nothing = np.zeros(_SHAPE, np.float32)

    return BatchArrays(
        observations=observations,
        actions=actions,
        log_probs=nothing,
        values=nothing,
        rewards=rewards,
        advantages=advantages,
        targets=targets,
        valid=valid,
        recurrent_input=recurrent_input,
    )
