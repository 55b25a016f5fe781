"""Networks with a memory, for observations that do not say everything."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from a3c_exp.errors import ConfigError, require
from a3c_exp.networks.actor_critic import ActorCritic, Network
from a3c_exp.networks.heads import initialise_heads, make_head
from a3c_exp.networks.layers import Initialisation, Linear, torch_generator
from a3c_exp.networks.mlp import Mlp
from a3c_exp.networks.recurrent import LstmCore


@dataclass(frozen=True, kw_only=True)
class Lstm:
    """An encoder, LSTM cells behind it, and the heads of actor and critic on those (Mnih et al. 2016).

    encoder: any network without a memory. What the cells are given is its body, the actor's where it has two; its own
        heads are left out, and so whatever it says about them.
    hidden_size: how many cells; the memory has two numbers for each.
    init: of the cells, with gain 1, and of the heads, as for an MLP: see `networks.layers`.
    forget_bias: where the bias of the forget gates starts. At 1 a new network remembers for a few steps, which lets it
        find out what is worth remembering (Jozefowicz et al. 2015).
    policy_gain, state_dependent_std, initial_std: of the policy's last layer, as for an MLP.
    """

    encoder: Network = field(default_factory=Mlp)
    hidden_size: int = 64
    init: Initialisation = "orthogonal"
    forget_bias: float = 1.0
    policy_gain: float = 0.01
    state_dependent_std: bool = False
    initial_std: float = 1.0

    def __post_init__(self) -> None:
        require(self.hidden_size >= 1, "hidden_size", self.hidden_size, "a whole number >= 1")
        require(abs(self.forget_bias) <= 10, "forget_bias", self.forget_bias, "a number from -10 to 10")
        require(self.policy_gain > 0, "policy_gain", self.policy_gain, "a number > 0")
        require(0.01 <= self.initial_std <= 7, "initial_std", self.initial_std, "a number from 0.01 to 7")

    def check(self, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> None:
        try:
            self.encoder.check(observation_space, action_space)
        except ConfigError as error:
            key = error.key.replace("network", "network.encoder", 1)
            raise ConfigError(key, error.value, error.problem) from error
        make_head(1, action_space, self.state_dependent_std, self.initial_std)

    def build(
        self, observation_space: gym.Space[Any], action_space: gym.Space[Any], rng: np.random.Generator | None
    ) -> ActorCritic:
        self.check(observation_space, action_space)
        encoder = self.encoder.build(observation_space, action_space, rng)
        if encoder.core is not None:
            raise ConfigError("network.encoder", type(self.encoder).__name__, "must be a network without a memory")
        body = encoder.actor_body
        generator = torch_generator(rng)
        core = LstmCore(body.features, self.hidden_size)
        core.initialise(self.init, self.forget_bias, generator)
        head = make_head(self.hidden_size, action_space, self.state_dependent_std, self.initial_std)
        value = Linear(self.hidden_size, 1)
        initialise_heads(head, value, self.init, self.policy_gain, generator)
        return ActorCritic(body, body, head, value, core)
