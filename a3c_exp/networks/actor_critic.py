"""The policy and the value function, and the flat vector that holds all their parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, runtime_checkable

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from a3c_exp.common.arrays import Array
from a3c_exp.networks.heads import Head
from a3c_exp.networks.layers import Linear
from a3c_exp.networks.outputs import OutputGradients, PolicyOutputs
from a3c_exp.networks.recurrent import LstmCore, RecurrentInput


class Part(Protocol):
    """Something with parameters. They are moved, and `bind` tells when they lie where they will stay."""

    def parameters(self) -> Iterable[nn.Parameter]: ...

    def bind(self) -> None: ...


class Body(Part, Protocol):
    """From observations [N, ...] to features [N, F]."""

    features: int

    def infer(self, observations: Array, /) -> Array:
        """To act."""
        ...

    def learn(self, observations: Array, /) -> tuple[Array, Callable[[Array], None]]:
        """To learn: what is called with the loss's derivatives by the features adds those by the parameters to their
        gradients. It is called once."""
        ...

    def __call__(self, observations: Tensor, /) -> Tensor:
        """On a GPU, for both."""
        ...


@runtime_checkable
class Network(Protocol):
    """A component that builds an ActorCritic."""

    def check(self, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> None:
        """Raise ConfigError if this network cannot serve these spaces."""

    def build(
        self, observation_space: gym.Space[Any], action_space: gym.Space[Any], rng: np.random.Generator | None
    ) -> ActorCritic:
        """A network with freshly drawn parameters; without `rng`, with some that the caller is about to overwrite."""


class ActorCritic:
    """pi(a | s) and V(s), with bodies of their own or one in common; a common one may have a recurrent core behind it.

    On construction all parameters are moved into `vector`, one contiguous float32 array, and all gradients into
    `gradient`, another: pulling, clipping, stepping, sending and saving are then each one operation. The modules
    hold views; whoever writes to `vector` has changed the network.

    parts: where the actor, the critic and the body that they share (if they do), its core included, lie in the vector.
    A state is float32 [B, S], what each environment's episode has left in the core's memory; None without a core.
    """

    def __init__(
        self, actor_body: Body, critic_body: Body, head: Head, value: Linear, core: LstmCore | None = None
    ) -> None:
        self.actor_body, self.critic_body, self.head, self.value = actor_body, critic_body, head, value
        self.core = core
        self.shared = actor_body is critic_body
        if self.shared:
            body: list[Part] = [actor_body] if core is None else [actor_body, core]
            self._flatten({"encoder": body, "actor": [head], "critic": [value]})
        elif core is not None:
            raise ValueError("a core stands behind a body that actor and critic share")
        else:
            self._flatten({"actor": [actor_body, head], "critic": [critic_body, value]})

    def _flatten(self, members: dict[str, list[Part]]) -> None:
        of_parts = {name: [p for owner in owners for p in owner.parameters()] for name, owners in members.items()}
        self._parameters = [parameter for parameters in of_parts.values() for parameter in parameters]
        self.param_slices: dict[str, slice] = {}
        start = 0
        for name, parameters in of_parts.items():
            end = start + sum(parameter.numel() for parameter in parameters)
            self.param_slices[name] = slice(start, end)
            start = end
        self.vector: NDArray[np.float32] = np.empty(start, np.float32)
        self.gradient: NDArray[np.float32] = np.zeros_like(self.vector)
        self.place(torch.from_numpy(self.vector), torch.from_numpy(self.gradient))
        for owners in members.values():
            for owner in owners:
                owner.bind()

    def place(self, vector: Tensor, gradient: Tensor) -> None:
        """Move all parameters into a vector [P] and let their gradients be views of another."""
        start = 0
        for parameter in self._parameters:
            end = start + parameter.numel()
            place = vector[start:end].view_as(parameter)
            place.copy_(parameter.detach())
            parameter.data = place
            # A gradient that is there is added to in place, by torch too, so that it lands in the flat vector. The
            # network's zero_grad() would cut that link (it sets gradients to None): `gradient.fill(0)` is the way.
            parameter.grad = gradient[start:end].view_as(parameter)
            start = end

    def load(self) -> None:
        """To be called when `vector` has been written to. For networks that compute elsewhere than it lies."""

    def fetch_gradient(self) -> None:
        """To be called before `gradient` is read, if it has been 0 since it was last called. For the same."""

    def initial_state(self, count: int) -> Array | None:
        """The state of `count` environments whose episodes begin."""
        return None if self.core is None else self.core.initial_state(count)

    def evaluate(
        self, observations: Array, actions: Array, memory: RecurrentInput | None = None
    ) -> tuple[PolicyOutputs, Callable[[OutputGradients], None]]:
        """To learn: observations [T, B, ...], actions [T, B, ...] -> what the network says of them, [T, B] each; and
        what adds a loss's gradient to `gradient`, given its derivatives by that. It may be called once.

        memory: with a core, the state at t = 0 and the rows behind which episodes begin; without one, not looked at.
        """
        shape = observations.shape[:2]
        parameters, values, backward = self._outputs(observations, memory)
        taken = actions.reshape(-1, *actions.shape[2:])
        log_probs, entropy, by_parameters = self.head.evaluate(parameters, taken)

        def add_gradient(by: OutputGradients) -> None:
            backward(by_parameters(by.log_probs.ravel(), by.entropy.ravel()), by.values.ravel())

        return PolicyOutputs(log_probs.reshape(shape), entropy.reshape(shape), values.reshape(shape)), add_gradient

    def _outputs(
        self, observations: Array, memory: RecurrentInput | None
    ) -> tuple[Array, Array, Callable[[Array, Array], None]]:
        """[T, B, ...] -> distribution parameters [T B, P], values [T B], and the way back from both."""
        flat = observations.reshape(-1, *observations.shape[2:])
        features, through_body = self.actor_body.learn(flat)
        if self.core is not None:
            assert memory is not None
            by_time, through_core = self.core.learn(features.reshape(*observations.shape[:2], -1), memory)
            features = by_time.reshape(len(flat), -1)
        critic_features, through_critic_body = (features, None) if self.shared else self.critic_body.learn(flat)
        parameters, through_head = self.head.learn(features)

        def backward(by_parameters: Array, by_values: Array) -> None:
            by_features = through_head(by_parameters)
            by_critic_features = self.value.backward(critic_features, by_values[:, None])
            if through_critic_body is None:
                by_features += by_critic_features
            else:
                through_critic_body(by_critic_features)
            if self.core is not None:
                by_features = through_core(by_features.reshape(by_time.shape)).reshape(len(flat), -1)
            through_body(by_features)

        return parameters, self.value.infer(critic_features)[:, 0], backward

    def infer(self, observations: Array, state: Array | None = None) -> tuple[Array, Array, Array | None]:
        """The acting forward pass: [B, ...] -> distribution parameters [B, P], values [B], the state after."""
        features = self.actor_body.infer(observations)
        if self.core is not None:
            assert state is not None
            features, state = self.core.infer(features, state)
        critic_features = features if self.shared else self.critic_body.infer(observations)
        return self.head.infer(features), self.value.infer(critic_features)[:, 0], state

    def values(self, observations: Array, state: Array | None = None) -> Array:
        """V(s) for observations [B, ...]: float32 [B]."""
        features = self.critic_body.infer(observations)
        if self.core is not None:
            assert state is not None
            features, _ = self.core.infer(features, state)
        return self.value.infer(features)[:, 0]
