"""A loss before training: its module, and a trial."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from torch import nn

from a3c_exp.algorithms.algorithm import Algorithm, has_closed_form
from a3c_exp.algorithms.batch import BatchArrays
from a3c_exp.common.arrays import Array, Floats
from a3c_exp.errors import ConfigError, one_line
from a3c_exp.networks import ActorCritic
from a3c_exp.networks.components import BuildLoss, is_lack_of_memory
from a3c_exp.networks.inputs import sample_observations
from a3c_exp.networks.recurrent import RecurrentInput

_LENGTH, _COUNT = 3, 2


def loss_builder(algorithm: Algorithm) -> BuildLoss | None:
    """The function that makes the loss's own module; None if it has none. It raises ConfigError, in one line, if the
    user's `build` fails."""
    if type(algorithm).build is Algorithm.build:
        return None
    name = type(algorithm).__name__

    def build(features: int) -> nn.Module | None:
        try:
            module: object = algorithm.build(features)
        except Exception as error:  # a user's method may raise anything
            if is_lack_of_memory(error):
                raise
            problem = f"its build fails for {features} features: {one_line(error)}"
            raise ConfigError("algorithm", name, problem) from error
        if module is not None and not isinstance(module, nn.Module):
            problem = f"its build must return a torch module or None, not {type(module).__name__}"
            raise ConfigError("algorithm", name, problem)
        return module

    return build


def check_loss(algorithm: Algorithm, network: ActorCritic, observation_space: gym.Space[Any]) -> None:
    """Differentiate the loss for a small batch, with a row that is no transition. A closed form needs no trial.

    Raises ConfigError, in one line, if that fails.
    """
    if has_closed_form(type(algorithm)):
        return
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
        observations=observations, actions=actions, log_probs=outputs.log_probs, values=outputs.values,
        rewards=numbers[0], advantages=numbers[1], targets=numbers[2], mask=mask, recurrent_input=recurrent_input,
    )  # fmt: skip
    buffers = _buffers(network)

    def gradient() -> Floats:
        network.zero_grad()
        outputs, backward = network.evaluate(observations, actions, recurrent_input)
        backward(algorithm.gradient(outputs, batch, 0.0, network.loss_module)[0])
        result: Floats = network.gradient.copy()
        return result

    try:
        first, second = gradient(), gradient()
    except ConfigError as error:
        raise ConfigError(error.key, name, error.problem) from error
    except Exception as error:  # a user's loss may raise anything
        raise ConfigError("algorithm", name, f"its loss fails for a small batch: {one_line(error)}") from error
    network.gradient.fill(0)
    if not np.array_equal(first, second, equal_nan=True):
        raise ConfigError("algorithm", name, "its loss has another gradient when it is computed again (dropout, noise)")
    if any(not np.array_equal(buffer, buffers[key]) for key, buffer in _buffers(network).items()):
        raise ConfigError(
            "algorithm", name, "its module changes a buffer (batch normalization): each worker has its own"
        )


def _buffers(network: ActorCritic) -> dict[str, Array]:
    return {name: buffer.numpy().copy() for name, buffer in network.named_buffers()}
