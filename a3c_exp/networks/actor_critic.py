"""The policy and the value function, and the flat vector that holds all their parameters."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from a3c_exp.algorithms import Evaluation
from a3c_exp.networks.heads import Head
from a3c_exp.networks.layers import Linear

Array = NDArray[Any]


class Body(Protocol):
    """From observations to features, in torch to learn and on arrays to act."""

    features: int

    def __call__(self, observations: Tensor) -> Tensor: ...

    def infer(self, observations: Array) -> Array: ...

    def bind(self) -> None: ...


@runtime_checkable
class Network(Protocol):
    """A component that builds an ActorCritic."""

    def check(self, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> None:
        """Raise ConfigError if this network cannot serve these spaces."""

    def build(
        self, observation_space: gym.Space[Any], action_space: gym.Space[Any], rng: np.random.Generator
    ) -> ActorCritic:
        """A network with freshly drawn parameters."""


class ActorCritic(nn.Module):
    """pi(a | s) and V(s), with bodies of their own or one in common.

    On construction all parameters are moved into `vector`, one contiguous float32 array, and all gradients into
    `gradient`, another: pulling, clipping, stepping, sending and saving are then each one operation. The modules
    hold views; whoever writes to `vector` has changed the network.

    parts: where the actor, the critic and the body that they share (if they do) lie in the vector.
    """

    def __init__(self, actor_body: Body, critic_body: Body, head: Head, value: Linear) -> None:
        super().__init__()
        self.actor_body, self.critic_body, self.head, self.value = actor_body, critic_body, head, value
        self.shared = actor_body is critic_body
        groups = {"actor": [head], "critic": [value]}
        if self.shared:
            groups = {"body": [actor_body], **groups}
        else:
            groups["actor"].insert(0, actor_body)  # type: ignore[arg-type]
            groups["critic"].insert(0, critic_body)  # type: ignore[arg-type]
        self._flatten({name: [p for m in modules for p in m.parameters()] for name, modules in groups.items()})  # type: ignore[attr-defined]

    def _flatten(self, parts: dict[str, list[nn.Parameter]]) -> None:
        parameters = [p for part in parts.values() for p in part]
        self.vector: NDArray[np.float32] = np.empty(sum(p.numel() for p in parameters), np.float32)
        self.gradient: NDArray[np.float32] = np.zeros_like(self.vector)
        self.parts: dict[str, slice] = {}
        start = 0
        for name, members in parts.items():
            first = start
            for parameter in members:
                end = start + parameter.numel()
                place = torch.from_numpy(self.vector[start:end]).view_as(parameter)
                place.copy_(parameter.detach())
                parameter.data = place
                # A gradient that is there is added to in place, so backward writes into the flat vector. The network's
                # zero_grad() would cut that link (it sets gradients to None): `gradient.fill(0)` is the way.
                parameter.grad = torch.from_numpy(self.gradient[start:end]).view_as(parameter)
                start = end
            self.parts[name] = slice(first, start)
        for module in {id(m): m for m in (self.actor_body, self.critic_body, self.head, self.value)}.values():
            module.bind()
        # Held, because looking up a module inside a module takes as long as a small matrix product.
        self._infer = self.actor_body.infer, self.critic_body.infer, self.head.infer, self.value.infer

    def evaluate(self, observations: Tensor, actions: Tensor) -> Evaluation:
        """The learner's forward pass. observations [T, B, ...], actions [T, B, ...] -> [T, B] each, with gradients."""
        time, batch = observations.shape[:2]
        flat = observations.flatten(0, 1)
        features = self.actor_body(flat)
        parameters = self.head.forward(features)
        values = self.value(features if self.shared else self.critic_body(flat))
        log_probs, entropy = self.head.log_prob_and_entropy(parameters, actions.flatten(0, 1))
        return Evaluation(log_probs.view(time, batch), entropy.view(time, batch), values.view(time, batch))

    def infer(self, observations: Array) -> tuple[Array, Array]:
        """The acting forward pass: [B, ...] -> distribution parameters [B, P], values [B]."""
        actor_body, critic_body, head, value = self._infer
        features = actor_body(observations)
        values = value(features if self.shared else critic_body(observations))
        return head(features), values[:, 0]

    def values(self, observations: Array) -> Array:
        """V(s) for observations [B, ...]: float32 [B]."""
        _, critic_body, _, value = self._infer
        return value(critic_body(observations))[:, 0]
