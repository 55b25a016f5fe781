"""A loss before training: its module, and a trial."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from torch import nn

from a3c_exp.algorithms.algorithm import (
    CURVE_NAME,
    RUN_METRICS,
    Algorithm,
    differentiate,
    has_closed_form,
)
from a3c_exp.algorithms.batch import BatchArrays
from a3c_exp.common.arrays import Floats
from a3c_exp.errors import ConfigError, refused
from a3c_exp.networks import ActorCritic
from a3c_exp.networks.components import BuildLoss
from a3c_exp.networks.inputs import sample_observations
from a3c_exp.networks.recurrent import RecurrentInput

_SHAPE = (3, 2)
# In the middle of a run: coefficients that follow a schedule may be 0 at either end.
_PROGRESS = 0.5


def loss_builder(algorithm: Algorithm) -> BuildLoss | None:
    """The function that makes the loss's own module; None if it has none. It raises ConfigError, in
    one line, if the user's `build` fails."""
    if type(algorithm).build is Algorithm.build:
        return None

    def build(features: int) -> nn.Module | None:
        with refused(
            "algorithm", type(algorithm).__name__, f"its build fails for {features} features"
        ):
            module: object = algorithm.build(features)
            if module is not None and not isinstance(module, nn.Module):
                raise TypeError(
                    f"it must return a torch module or None, not {type(module).__name__}"
                )
        return module

    return build


def check_loss(algorithm: Algorithm, network: ActorCritic, observation_space: Box) -> None:
    """Differentiate a user's loss for a small batch, with a row that is no transition.

    Raises ConfigError, in one line, if that fails, or if the gradient cannot be meant.
    """
    if type(algorithm).__module__.startswith("a3c_exp."):
        return
    rng, (length, count) = np.random.default_rng(0), _SHAPE
    observations = sample_observations(observation_space, length * count)
    observations = observations.reshape(*_SHAPE, *observations.shape[1:])
    state = network.initial_state(count)
    recurrent_input = None if state is None else RecurrentInput(state, np.zeros(_SHAPE, np.bool_))
    parameters, _, _ = network.act_forward(observations[0], state)
    actions = np.stack([network.distribution.sample(parameters, rng)[0] for _ in range(length)])
    mask = np.ones(_SHAPE, np.float32)
    mask[-1, -1] = 0
    drawn = zip(
        ("rewards", "advantages", "targets"),
        rng.standard_normal((3, *_SHAPE)).astype(np.float32),
        strict=True,
    )
    given = dict(drawn) | {"observations": observations, "actions": actions, "mask": mask}

    names = set[str]()

    def gradient(make: Callable[..., Any]) -> Floats:
        network.zero_grad()
        outputs, backward = network.evaluate(observations, actions, recurrent_input)
        own: dict[str, Any] = {
            "log_probs": outputs.log_probs.copy(),
            "values": outputs.values.copy(),
        }
        batch = BatchArrays(recurrent_input=recurrent_input, **given, **own)
        found, metrics = make(algorithm, outputs, batch, _PROGRESS, network.loss_module)
        names.update(metrics)
        backward(found)
        return np.copy(network.gradient)

    name = type(algorithm).__name__
    with refused("algorithm", name, f"its loss fails for a batch of [T, B] = {[*_SHAPE]}"):
        first = gradient(type(algorithm).gradient)
        second = gradient(type(algorithm).gradient)
        wanted = gradient(differentiate) if has_closed_form(type(algorithm)) else first
    network.zero_grad()
    unusable = sorted(
        each for each in names if each in RUN_METRICS or not CURVE_NAME.fullmatch(each)
    )
    if unusable:
        problem = (
            f"its metric {unusable[0]!r} needs another name, of letters, digits, "
            "spaces and _-./, that no run has"
        )
    elif not np.isfinite(first).all():
        problem = "its gradient is not finite for a small batch of ordinary numbers"
    elif not first.any():
        problem = "its loss has no gradient: it must be computed from the policy's outputs"
    elif not np.allclose(first, wanted, rtol=1e-3, atol=1e-4 * float(np.abs(wanted).max())):
        problem = "its closed_form has another gradient than its loss"
    elif not np.array_equal(first, second):
        problem = "its loss has another gradient when it is computed again (dropout, noise)"
    else:
        return
    raise ConfigError("algorithm", name, problem)
