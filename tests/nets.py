"""Networks of torch modules for tests, and the loss of drawn weights by which their gradients are
compared."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete
from torch import nn

from a3c_exp.common.arrays import Array, Floats
from a3c_exp.config.modules import network_of
from a3c_exp.engine.runtime import make_runtime
from a3c_exp.networks import ActorCritic, Lstm
from a3c_exp.networks.recurrent import RecurrentInput

VECTORS = Box(-1, 1, (4,), np.float32)
CHOICES = Discrete(2)


def make_network(
    module: type[nn.Module],
    observation_space: Box = VECTORS,
    action_space: gym.Space[Any] = CHOICES,
    *,
    rng_seed: int | None = 1,
    seed: int = 0,
    **settings: Any,
) -> ActorCritic:
    """The network around a module, with settings as YAML has them: those of every network, and the
    constructor's.

    rng_seed: of the generator that draws parameters; None: nothing is drawn. seed: of constructors.
    """
    rng = None if rng_seed is None else np.random.default_rng(rng_seed)
    return with_runtime(
        network_of(module, settings).build(observation_space, action_space, rng, seed=seed)
    )


def make_lstm(
    module: type[nn.Module],
    observation_space: Box = VECTORS,
    action_space: gym.Space[Any] = CHOICES,
    *,
    encoder: dict[str, Any] | None = None,
    **settings: Any,
) -> ActorCritic:
    """LSTM cells after a module. encoder: settings of the module."""
    network = Lstm(encoder=network_of(module, encoder or {}), **settings)
    return with_runtime(network.build(observation_space, action_space, np.random.default_rng(1)))


def with_runtime(network: ActorCritic) -> ActorCritic:
    """The network, computed as in a run."""
    network.runtime = make_runtime(network)
    return network


def by_torch(network: ActorCritic) -> ActorCritic:
    """The network, computed by torch alone from now on."""
    network.runtime = make_runtime(network, kernels=False)
    return network


def normal(*shape: int, seed: int = 2) -> Floats:
    """float32 numbers, normally distributed."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def draw_actions(network: ActorCritic, observations: Array, seed: int = 3) -> Array:
    """Actions of the policy for observations [T, B, ...], each as in an episode's first step."""
    flat = observations.reshape(-1, *observations.shape[2:])
    parameters, _, _ = network.act_forward(flat, network.initial_state(len(flat)))
    actions, _ = network.distribution.sample(parameters, np.random.default_rng(seed))
    return actions.reshape(*observations.shape[:2], *actions.shape[1:])


def draw_recurrent_input(
    network: ActorCritic, length: int, count: int, share: float = 0.3
) -> RecurrentInput | None:
    """A first state, and a share of rows in which episodes end; None for a network without a
    state."""
    if not network.recurrent:
        return None
    ends = np.random.default_rng(5).random((length, count)) < share
    return RecurrentInput(0.5 * normal(count, network.state_size, seed=6), ends)
