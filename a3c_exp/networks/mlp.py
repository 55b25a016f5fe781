"""Multi-layer perceptrons for vector observations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from a3c_exp.errors import ConfigError, require
from a3c_exp.networks.actor_critic import ActorCritic
from a3c_exp.networks.heads import initialise_heads, make_head
from a3c_exp.networks.layers import ActivationName, Initialisation, Linear, MlpBody, initialise


@dataclass(frozen=True, kw_only=True)
class Mlp:
    """Fully connected bodies for the actor and the critic.

    sizes: units of each hidden layer, from the observation on.
    shared: one body for both; else each has its own.
    activation, init: see `networks.layers`. Orthogonal layers have gain sqrt(2), normalised columns 1; with both the
        policy's last layer starts near zero (`policy_gain`), so that the first policy is close to uniform.
    state_dependent_std: for continuous actions, whether the network or a free parameter gives the standard deviation.
    initial_std: where that standard deviation starts, as a share of half the action range.
    """

    sizes: tuple[int, ...] = (64, 64)
    shared: bool = False
    activation: ActivationName = "tanh"
    init: Initialisation = "orthogonal"
    policy_gain: float = 0.01
    state_dependent_std: bool = False
    initial_std: float = 1.0

    def __post_init__(self) -> None:
        require(all(size >= 1 for size in self.sizes), "sizes", self.sizes, "whole numbers >= 1")
        require(self.policy_gain > 0, "policy_gain", self.policy_gain, "a number > 0")
        require(0.01 <= self.initial_std <= 7, "initial_std", self.initial_std, "a number from 0.01 to 7")

    def check(self, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> None:
        shape = observation_space.shape
        if shape is None or len(shape) != 1:
            problem = f"must be a network for observations of shape {shape}: an MLP takes vectors"
            raise ConfigError("network", "mlp", problem)
        make_head(1, action_space, self.state_dependent_std, self.initial_std)

    def build(
        self, observation_space: gym.Space[Any], action_space: gym.Space[Any], rng: np.random.Generator
    ) -> ActorCritic:
        self.check(observation_space, action_space)
        assert observation_space.shape is not None
        inputs = observation_space.shape[0]
        actor_body = MlpBody(inputs, self.sizes, self.activation)
        critic_body = actor_body if self.shared else MlpBody(inputs, self.sizes, self.activation)
        head = make_head(actor_body.features, action_space, self.state_dependent_std, self.initial_std)
        value = Linear(critic_body.features, 1)

        generator = torch.Generator().manual_seed(int(rng.integers(2**63)))
        body_gain = math.sqrt(2) if self.init == "orthogonal" else 1.0
        for body in [actor_body] if self.shared else [actor_body, critic_body]:
            for layer in body.layers:
                initialise(layer, self.init, body_gain, generator)
        initialise_heads(head, value, self.init, self.policy_gain, generator)
        return ActorCritic(actor_body, critic_body, head, value)
