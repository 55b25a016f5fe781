"""Actor-critics around modules: encoders with cells, the policy's head and the value after them, or
a whole one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from a3c_exp.common.arrays import Array, Floats
from a3c_exp.errors import ConfigError, refused
from a3c_exp.networks.actor_critic import ActorCritic, Runtime, TrainOutputs, UnrollOutputs
from a3c_exp.networks.distributions import Distribution
from a3c_exp.networks.heads import PolicyHead
from a3c_exp.networks.inputs import ObservationInput
from a3c_exp.networks.kernels import LinearKernel, SequenceKernel, find_obstacle
from a3c_exp.networks.recurrent import LstmCore, LstmKernel, RecurrentInput

MOST_VALUED_LATER = 64
"""Environments whose states a critic values at the end of a rollout: with more of them its rows
leave the cache."""


class EncoderActorCritic(ActorCritic):
    """Encoders for actor and critic, or a shared one with optional LSTM cells after it; a head, and
    a value layer.

    core: only after a shared encoder.
    observation_input: the form in which the encoders take observations.
    """

    def __init__(
        self,
        encoders: tuple[nn.Module, nn.Module],
        observation_input: ObservationInput,
        core: LstmCore | None,
        head: PolicyHead,
        value: nn.Linear,
        distribution: Distribution,
        loss_module: nn.Module | None = None,
    ) -> None:
        super().__init__(observation_input, distribution, loss_module)
        self.shared = encoders[0] is encoders[1]
        self.encoders = encoders
        self.actor_encoder, self.critic_encoder = encoders
        self.core = core
        self.head = head
        self.value = value
        self.state_size = 0 if core is None else 2 * core.hidden_size
        for encoder in encoders:
            observation_input.share_pixels(encoder)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        actor = self.head.ordered_parameters()
        critic = list(self.value.parameters())
        if self.shared:
            core = [] if self.core is None else list(self.core.parameters())
            return {
                "encoder": [*self.actor_encoder.parameters(), *core],
                "actor": actor,
                "critic": critic,
            }
        return {
            "actor": [*self.actor_encoder.parameters(), *actor],
            "critic": [*self.critic_encoder.parameters(), *critic],
        }

    def forward(
        self, observations: Tensor, state: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        inputs = self.observation_input.prepare(observations)
        features = self.actor_encoder(inputs)
        if self.core is not None:
            state = features.new_zeros(len(features), self.state_size) if state is None else state
            features, state = self.core(features, state)
        critic_features = features if self.shared else self.critic_encoder(inputs)
        return (
            self.masked(self.head(features), observations),
            self.value(critic_features)[:, 0],
            state,
        )

    def unroll(
        self, observations: Tensor, state: Tensor | None, boundaries: Tensor | None
    ) -> UnrollOutputs:
        length, count = observations.shape[:2]
        flat = observations.flatten(0, 1)
        inputs = self.observation_input.prepare(flat)
        features = self.actor_encoder(inputs)
        if self.core is not None:
            (features,) = _unrolled(
                self.core, features.reshape(length, count, -1), state, boundaries
            )
        critic_features = features if self.shared else self.critic_encoder(inputs)
        by_time = features.reshape(length, count, -1)
        return self.masked(self.head(features), flat), self.value(critic_features)[:, 0], by_time

    def make_runtime(self) -> Runtime:
        return PartRuntime(self)


class WholeActorCritic(ActorCritic):
    """A module whose `forward(observations, state)` returns (parameters [N, P], values [N], state
    [N, S] or None).

    The module's `initial_state(count)`, if it has one, gives the zeros [count, S] with which
    episodes begin.
    """

    def __init__(
        self, module: nn.Module, observation_input: ObservationInput, distribution: Distribution
    ) -> None:
        super().__init__(observation_input, distribution, None)
        self.module = module
        observation_input.share_pixels(module)
        initial_state: Any = getattr(module, "initial_state", None)
        if initial_state is not None:
            name = type(module).__name__
            with refused("network", name, "its initial_state failed for 1 episode"):
                state: object = initial_state(1)
            if (
                not isinstance(state, Tensor)
                or state.dtype != torch.float32
                or state.dim() != 2
                or state.any()
            ):
                raise ConfigError(
                    "network",
                    name,
                    "its initial_state(count) must return zeros, float32 [count, S]",
                )
            self.state_size = state.shape[1]

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        return {"network": list(self.module.parameters())}

    def forward(
        self, observations: Tensor, state: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        inputs = self.observation_input.prepare(observations)
        if self.recurrent and state is None:
            state = observations.new_zeros(len(observations), self.state_size, dtype=torch.float32)
        outputs = self.module(inputs, state)
        if not isinstance(outputs, tuple) or len(outputs) != 3:
            raise TypeError(
                "forward must return the parameters, the values and the next state (or None)"
            )
        parameters, values, after = outputs
        return self.masked(parameters, observations), values, after

    def unroll(
        self, observations: Tensor, state: Tensor | None, boundaries: Tensor | None
    ) -> UnrollOutputs:
        if not self.recurrent:
            parameters, values, _ = self(observations.flatten(0, 1))
        else:
            parameters, values = _unrolled(self, observations, state, boundaries)
        return parameters, values, None


def _unrolled(
    step: nn.Module, rows: Tensor, state: Tensor | None, boundaries: Tensor | None
) -> Iterator[Tensor]:
    """The outputs [T B, ...] of a module for rows [T, B, ...], one after another. It returns its
    state at last."""
    assert state is not None and boundaries is not None
    outputs = []
    for row, ends in zip(rows, boundaries, strict=True):
        *found, state = step(row, state)
        state = state.masked_fill(ends[:, None], 0.0)
        outputs.append(found)
    return map(torch.cat, zip(*outputs, strict=True))


class PartRuntime:
    """Computes an `EncoderActorCritic` part by part: by kernels, and by torch the encoders that
    kernels cannot run."""

    def __init__(self, network: EncoderActorCritic) -> None:
        self.description = describe(
            network.observation_input, network.actor_encoder, network.critic_encoder
        )
        self._masked = network.masked
        self._shared = network.shared
        self._actor = self._critic = encoder_part(network.actor_encoder, network.observation_input)
        if not network.shared:
            self._critic = encoder_part(network.critic_encoder, network.observation_input)
        self._core = None if network.core is None else LstmKernel(network.core)
        self._head = network.head.kernel()
        self._value = LinearKernel(network.value)
        of_vectors = (
            isinstance(self._critic, SequenceKernel) and network.observation_input.axes == 1
        )
        self.critic = self._critic_forward if of_vectors and not network.shared else None

    def act_forward(
        self, observations: Array, state: Array | None
    ) -> tuple[Array, Array | None, Array | None]:
        features = self._actor.act_forward(observations)
        if self._core is not None:
            assert state is not None
            features, state = self._core.act_forward(features, state)
        parameters = self._masked(self._head.act_forward(features), observations)
        if self._shared:
            return parameters, self._value.act_forward(features)[:, 0], state
        later = self.critic is not None and len(observations) <= MOST_VALUED_LATER
        return parameters, None if later else self._critic_forward(observations), state

    def _critic_forward(self, observations: Array) -> Floats:
        return self._value.act_forward(self._critic.act_forward(observations)).squeeze(-1)

    def train_forward(
        self, observations: Array, recurrent_input: RecurrentInput | None
    ) -> TrainOutputs:
        length, count = observations.shape[:2]
        flat = observations.reshape(-1, *observations.shape[2:])
        features, encoder_backward = self._actor.train_forward(flat)
        by_time = features.reshape(length, count, -1)
        if self._core is not None:
            assert recurrent_input is not None
            by_time, core_backward = self._core.train_forward(by_time, recurrent_input)
            features = by_time.reshape(len(flat), -1)
        critic_features, critic_backward = (
            (features, None) if self._shared else self._critic.train_forward(flat)
        )

        def backward(
            grad_parameters: Floats, grad_values: Floats, grad_by_time: Floats | None
        ) -> None:
            grad_features = self._head.backward(features, grad_parameters)
            grad_critic_features = self._value.backward(critic_features, grad_values[:, None])
            if critic_backward is None:
                grad_features += grad_critic_features
            else:
                critic_backward(grad_critic_features)
            if grad_by_time is not None:
                grad_features += grad_by_time.reshape(grad_features.shape)
            if self._core is not None:
                grad_features = core_backward(grad_features.reshape(by_time.shape)).reshape(
                    len(flat), -1
                )
            encoder_backward(grad_features)

        values = self._value.act_forward(critic_features)[:, 0]
        return self._masked(self._head.act_forward(features), flat), values, by_time, backward


class _TorchEncoder:
    """An encoder that torch runs, on arrays."""

    def __init__(self, encoder: nn.Module, observation_input: ObservationInput) -> None:
        self._encoder = encoder
        self._input = observation_input

    def act_forward(self, observations: Array) -> Floats:
        with torch.inference_mode():
            features: Floats = self._encoder(
                self._input.prepare(torch.from_numpy(observations))
            ).numpy()
        return features

    def train_forward(self, observations: Array) -> tuple[Floats, Callable[[Floats], None]]:
        features = self._encoder(self._input.prepare(torch.from_numpy(observations)))

        def backward(grad: Floats) -> None:
            if features.requires_grad:  # the encoder has parameters
                # `features.backward(grad)` imports sympy: 34 MB and a second in each process.
                torch.autograd.backward((features * torch.from_numpy(grad)).sum())

        return features.detach().numpy(), backward


def describe(observation_input: ObservationInput, *encoders: nn.Module) -> str:
    """A line for the log: whether kernels run all encoders, or why not."""
    obstacles = (find_obstacle(encoder, observation_input.axes) for encoder in encoders)
    obstacle = next(filter(None, obstacles), None)
    return "kernels: numpy" + (f", but torch for an encoder ({obstacle})" if obstacle else "")


def encoder_part(
    encoder: nn.Module, observation_input: ObservationInput
) -> SequenceKernel | _TorchEncoder:
    """An encoder on arrays: by kernels if they can run it."""
    if find_obstacle(encoder, observation_input.axes) is not None:
        return _TorchEncoder(encoder, observation_input)
    if observation_input.axes == 1:
        return SequenceKernel(encoder)
    return SequenceKernel(
        encoder, lambda x: observation_input.prepare(torch.from_numpy(x)).flatten(1).float().numpy()
    )
