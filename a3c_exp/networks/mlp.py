"""Multi-layer perceptrons for vector observations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from a3c_exp.errors import ConfigError, require
from a3c_exp.networks.actor_critic import ActorCritic
from a3c_exp.networks.bodies import Bodies
from a3c_exp.networks.layers import ActivationName, MlpBody


@dataclass(frozen=True, kw_only=True)
class Mlp(Bodies):
    """Fully connected bodies for the actor and the critic.

    hidden_sizes: units of each hidden layer, from the observation on.
    critic_hidden_sizes: those of the critic's own body; None: as the actor's.
    activation: behind each of them; see `networks.layers`. The other settings are those of `Bodies`.
    """

    hidden_sizes: tuple[int, ...] = (64, 64)
    critic_hidden_sizes: tuple[int, ...] | None = None
    activation: ActivationName = "tanh"

    def __post_init__(self) -> None:
        sizes, critic = self.hidden_sizes, self.critic_hidden_sizes
        require(all(size >= 1 for size in sizes), "hidden_sizes", sizes, "whole numbers >= 1")
        require(all(size >= 1 for size in critic or ()), "critic_hidden_sizes", critic, "whole numbers >= 1, or null")
        require(critic is None or not self.shared, "critic_hidden_sizes", critic, "null where shared=true")
        super().__post_init__()

    def check(self, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> None:
        shape = observation_space.shape
        if shape is None or len(shape) != 1:
            problem = f"must be a network for observations of shape {shape}: an MLP takes vectors"
            pictures = "network=cnn (in front of LSTM cells network@network.encoder=cnn)"
            image = shape is not None and len(shape) == 3 and observation_space.dtype == np.uint8
            others = "" if image else ", for other arrays env.wrappers=[FlattenObservation]"
            raise ConfigError("network", type(self).__name__, f"{problem}. For pictures {pictures}{others}")
        self.check_actions(action_space)

    def build(
        self, observation_space: gym.Space[Any], action_space: gym.Space[Any], rng: np.random.Generator | None
    ) -> ActorCritic:
        self.check(observation_space, action_space)
        assert observation_space.shape is not None
        inputs = observation_space.shape[0]
        critic_sizes = self.hidden_sizes if self.critic_hidden_sizes is None else self.critic_hidden_sizes
        return self.assemble(
            lambda: MlpBody(inputs, self.hidden_sizes, self.activation),
            action_space,
            rng,
            lambda: MlpBody(inputs, critic_sizes, self.activation),
        )
