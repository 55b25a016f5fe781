"""A loss before training: its module, and a trial."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from torch import nn

from a3c_exp.algorithms.algorithm import Algorithm, differentiate, has_closed_form
from a3c_exp.algorithms.batch import BatchArrays
from a3c_exp.common.arrays import Floats
from a3c_exp.errors import FAILURES, ConfigError, one_line
from a3c_exp.networks import ActorCritic
from a3c_exp.networks.components import BuildLoss
from a3c_exp.networks.inputs import sample_observations
from a3c_exp.networks.recurrent import RecurrentInput

_LENGTH, _COUNT = 3, 2
# In the middle of a run: coefficients that follow a schedule may be 0 at either end.
_PROGRESS = 0.5


def loss_builder(algorithm: Algorithm) -> BuildLoss | None:
    """The function that makes the loss's own module; None if it has none. It raises ConfigError, in one line, if the
    user's `build` fails."""
    if type(algorithm).build is Algorithm.build:
        return None
    name = type(algorithm).__name__

    def build(features: int) -> nn.Module | None:
        try:
            module: object = algorithm.build(features)
        except FAILURES as error:
            problem = f"its build fails for {features} features: {one_line(error)}"
            raise ConfigError("algorithm", name, problem) from error
        if module is not None and not isinstance(module, nn.Module):
            problem = f"its build must return a torch module or None, not {type(module).__name__}"
            raise ConfigError("algorithm", name, problem)
        return module

    return build


def check_loss(algorithm: Algorithm, network: ActorCritic, observation_space: gym.Space[Any]) -> None:
    """Differentiate a user's loss for a small batch, with a row that is no transition.

    Raises ConfigError, in one line, if that fails, or if the gradient cannot be meant.
    """
    if type(algorithm).__module__.startswith("a3c_exp."):
        return
    if algorithm.reduction not in ("mean", "sum"):
        raise ConfigError("algorithm", type(algorithm).__name__, "its reduction must be 'mean' or 'sum'")
    name, rng = type(algorithm).__name__, np.random.default_rng(0)
    observations = sample_observations(observation_space, _LENGTH * _COUNT)
    observations = observations.reshape(_LENGTH, _COUNT, *observations.shape[1:])
    state = network.initial_state(_COUNT)
    recurrent_input = None if state is None else RecurrentInput(state, np.zeros((_LENGTH, _COUNT), np.bool_))
    parameters, _, _ = network.act_forward(observations[0], state)
    actions = np.stack([network.distribution.sample(parameters, rng)[0] for _ in range(_LENGTH)])
    outputs, _ = network.evaluate(observations, actions, recurrent_input)
    mask = np.ones((_LENGTH, _COUNT), np.float32)
    mask[-1, -1] = 0
    numbers = rng.standard_normal((3, _LENGTH, _COUNT)).astype(np.float32)
    batch = BatchArrays(
        observations=observations,
        actions=actions,
        log_probs=outputs.log_probs,
        values=outputs.values,
        rewards=numbers[0],
        advantages=numbers[1],
        targets=numbers[2],
        mask=mask,
        recurrent_input=recurrent_input,
    )

    def gradient(make: Callable[..., Any] | None = None) -> Floats:
        network.zero_grad()
        outputs, backward = network.evaluate(observations, actions, recurrent_input)
        make = make or type(algorithm).gradient
        backward(make(algorithm, outputs, batch, _PROGRESS, network.loss_module)[0])
        result: Floats = network.gradient.copy()
        return result

    try:
        first, second = gradient(), gradient()
        wanted = gradient(differentiate) if has_closed_form(type(algorithm)) else first
    except ConfigError as error:
        raise ConfigError(error.key, name, error.problem) from error
    except FAILURES as error:
        raise ConfigError("algorithm", name, f"its loss fails for a small batch: {one_line(error)}") from error
    network.zero_grad()
    if not np.isfinite(first).all():
        raise ConfigError("algorithm", name, "its gradient is not finite for a small batch of ordinary numbers")
    if not first.any():
        raise ConfigError("algorithm", name, "its loss has no gradient: it must be computed from the policy's outputs")
    if not np.allclose(first, wanted, rtol=1e-3, atol=1e-4 * float(np.abs(wanted).max())):
        raise ConfigError("algorithm", name, "its closed_form has another gradient than its loss")
    if not np.array_equal(first, second, equal_nan=True):
        raise ConfigError("algorithm", name, "its loss has another gradient when it is computed again (dropout, noise)")
