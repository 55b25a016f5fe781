"""What every network with a body for the actor and one for the critic has in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from torch import nn

from a3c_exp.errors import require
from a3c_exp.networks.actor_critic import ActorCritic, Body
from a3c_exp.networks.heads import initialise_heads, make_head
from a3c_exp.networks.layers import Initialisation, Linear, initialise, torch_generator


class LayeredBody(Body, Protocol):
    """A body whose layers are all drawn in the same way."""

    @property
    def layers(self) -> Sequence[nn.Linear | nn.Conv2d]: ...


@dataclass(frozen=True, kw_only=True)
class Bodies:
    """The part of a network's settings that does not depend on what it observes.

    shared: one body for actor and critic; else each has its own.
    init: see `networks.layers`. Orthogonal layers have gain sqrt(2), normalised columns 1; with both the policy's last
        layer starts near zero (`policy_gain`), so that the first policy is close to uniform.
    state_dependent_std: for continuous actions, whether the network or a free parameter gives the standard deviation.
    initial_std: where that standard deviation starts, as a share of half the action range.
    """

    shared: bool = False
    init: Initialisation = "orthogonal"
    policy_gain: float = 0.01
    state_dependent_std: bool = False
    initial_std: float = 1.0

    def __post_init__(self) -> None:
        require(self.policy_gain > 0, "policy_gain", self.policy_gain, "a number > 0")
        require(0.01 <= self.initial_std <= 7, "initial_std", self.initial_std, "a number from 0.01 to 7")

    def check_actions(self, action_space: gym.Space[Any]) -> None:
        """Raise ConfigError where no head fits."""
        make_head(1, action_space, self.state_dependent_std, self.initial_std)

    def assemble(
        self,
        make_body: Callable[[], LayeredBody],
        action_space: gym.Space[Any],
        rng: np.random.Generator | None,
        make_critic_body: Callable[[], LayeredBody] | None = None,
    ) -> ActorCritic:
        """Bodies, the head that fits the actions, and the value. rng: see `Network.build`.

        make_critic_body: where the critic's own body is not made as the actor's.
        """
        actor_body = make_body()
        critic_body = actor_body if self.shared else (make_critic_body or make_body)()
        head = make_head(actor_body.features, action_space, self.state_dependent_std, self.initial_std)
        value = Linear(critic_body.features, 1)

        generator = torch_generator(rng)
        body_gain = math.sqrt(2) if self.init == "orthogonal" else 1.0
        for body in [actor_body] if self.shared else [actor_body, critic_body]:
            for layer in body.layers:
                initialise(layer, self.init, body_gain, generator)
        initialise_heads(head, value, self.init, self.policy_gain, generator)
        return ActorCritic(actor_body, critic_body, head, value)
