"""How a network is computed on arrays: by kernels and torch, part by part, or by torch alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from a3c_exp.algorithms import Algorithm
from a3c_exp.common.arrays import Array, Floats
from a3c_exp.engine.arrays import NetworkOutputs, OutputGradients, log_softmax
from a3c_exp.engine.distribution_kernels import DISTRIBUTIONS, actions_evaluation
from a3c_exp.engine.kernels import (
    LinearKernel,
    SequenceKernel,
    add_gradients,
    array_of,
    find_obstacle,
    head_kernel,
)
from a3c_exp.engine.losses import LOSSES
from a3c_exp.engine.lstm import LstmKernel
from a3c_exp.networks import ActorCritic
from a3c_exp.networks.action_values import AveragedActorCritic, QNetwork
from a3c_exp.networks.composed import EncoderActorCritic
from a3c_exp.networks.distributions import FORBIDDEN
from a3c_exp.networks.inputs import ObservationInput
from a3c_exp.networks.recurrent import RecurrentInput

MOST_VALUED_LATER = 64
"""Environments whose states a critic values at the end of a rollout: with more of them its rows
leave the cache."""

TrainOutputs = tuple[Floats, Floats, Floats | None, Callable[[Floats, Floats, Floats | None], None]]
"""Parameters [T B, P], values [T B], features [T, B, F] if there are any, and the function that
adds the gradient of all parameters, given a loss's derivatives by parameters, values and, if the
loss uses them, features. It may be called once."""


class ArrayRuntime(ABC):
    """Computes a bound network on arrays: see `networks.actor_critic.Runtime`.

    description: a line for the log: what torch computes, and why.
    critic: computes the values of observations [N, ...] or [T, B, ...] alone; None if it is not
        apart from the policy.
    """

    description: str = ""
    critic: Callable[[Array], Array] | None = None

    def __init__(self, network: ActorCritic, kernels: bool) -> None:
        self._evaluate_actions = actions_evaluation(network, kernels)

    @abstractmethod
    def act_forward(
        self, observations: Array, state: Array | None
    ) -> tuple[Array, Array | None, Array | None]:
        """See `ActorCritic.policy_forward`."""

    @abstractmethod
    def train_forward(
        self, observations: Array, recurrent_input: RecurrentInput | None
    ) -> TrainOutputs:
        """Compute the steps of a rollout, observations [T, B, ...]: see `ActorCritic.unroll`."""

    def evaluate(
        self, observations: Array, actions: Array, recurrent_input: RecurrentInput | None = None
    ) -> tuple[NetworkOutputs, Callable[[OutputGradients], None]]:
        """Compute the outputs to learn from, for observations [T, B, ...] and actions [T, B, ...].
        Also returns the function that adds a loss's gradient to the network's `gradient`, given the
        loss's derivatives by the outputs. It may be called once.

        recurrent_input: of a network with a state; others ignore it.
        """
        shape = observations.shape[:2]
        parameters, values, features, backward = self.train_forward(observations, recurrent_input)
        flat_actions = actions.reshape(-1, *actions.shape[2:])
        log_probs, entropy, values, actions_backward = self._evaluate_actions(
            parameters, values, flat_actions
        )

        def add_gradient(grad: OutputGradients) -> None:
            grad_parameters, grad_values = actions_backward(
                grad.log_probs.ravel(), grad.entropy.ravel(), grad.values.ravel()
            )
            if grad.parameters is not None:
                by_loss = grad.parameters.reshape(parameters.shape)
                allowed = parameters != FORBIDDEN
                grad_parameters = grad_parameters + np.where(allowed, by_loss, np.float32(0))
            backward(grad_parameters, grad_values, grad.features)

        outputs = NetworkOutputs(
            log_probs=log_probs.reshape(shape),
            entropy=entropy.reshape(shape),
            values=values.reshape(shape),
            features=features,
            parameters=parameters.reshape(*shape, -1),
        )
        return outputs, add_gradient


class TorchRuntime(ArrayRuntime):
    """Computes any network by its own `forward` and `unroll`. device: where its parameters are."""

    def __init__(
        self, network: ActorCritic, kernels: bool = True, device: torch.device | None = None
    ) -> None:
        super().__init__(network, kernels)
        self._network = network
        self._device = device

    def act_forward(
        self, observations: Array, state: Array | None
    ) -> tuple[Array, Array, Array | None]:
        with torch.inference_mode():
            before = None if state is None else self._tensor(state)
            parameters, values, after = self._network(self._tensor(observations), before)
        return array_of(parameters), array_of(values), None if after is None else array_of(after)

    def train_forward(
        self, observations: Array, recurrent_input: RecurrentInput | None
    ) -> TrainOutputs:
        state = boundaries = None
        if recurrent_input is not None:
            state, boundaries = map(self._tensor, recurrent_input)
        parameters, values, features = self._network.unroll(
            self._tensor(observations), state, boundaries
        )

        def backward(
            grad_parameters: Floats, grad_values: Floats, grad_features: Floats | None
        ) -> None:
            pairs = [(parameters, grad_parameters), (values, grad_values)]
            if grad_features is not None and features is not None:
                pairs.append((features, grad_features))
            add_gradients(pairs)

        return (
            array_of(parameters),
            array_of(values),
            None if features is None else array_of(features),
            backward,
        )

    def _tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)


class PartRuntime(ArrayRuntime):
    """Computes an `EncoderActorCritic` part by part: by kernels, and by torch the encoders that
    kernels cannot run."""

    def __init__(self, network: EncoderActorCritic) -> None:
        super().__init__(network, kernels=True)
        self._action_mask = network.action_mask
        self._shared = network.shared
        self._actor = encoder_part(network.actor_encoder, network.observation_input)
        self._critic = self._actor
        if not network.shared:
            self._critic = encoder_part(network.critic_encoder, network.observation_input)
        self._core = None if network.core is None else LstmKernel(network.core)
        self._critic_core = None
        if network.critic_core is not None:
            self._critic_core = LstmKernel(network.critic_core)
        self._actor_state_size = network.actor_state_size
        self._head = head_kernel(network.head)
        self._value = LinearKernel(network.value)

        is_apart = not network.shared and not network.recurrent
        of_vectors = network.observation_input.axes == 1
        if is_apart and of_vectors and isinstance(self._critic, SequenceKernel):
            self.critic = self.critic_forward

    def act_forward(
        self, observations: Array, state: Array | None
    ) -> tuple[Array, Array | None, Array | None]:
        if self._critic_core is not None:
            assert state is not None
            critic_state = state[:, self._actor_state_size :]
            state = state[:, : self._actor_state_size]

        features = self._actor.act_forward(observations)
        if self._core is not None:
            assert state is not None
            features, state = self._core.act_forward(features, state)

        parameters = self._head.act_forward(features)
        if self._action_mask is not None:
            parameters = self._masked(parameters, observations)
        if self._shared:
            return parameters, _squeezed(self._value.act_forward(features)), state

        if self._critic_core is not None:
            hidden, critic_state = self._critic_core.act_forward(
                self._critic.act_forward(observations), critic_state
            )
            values = _squeezed(self._value.act_forward(hidden))
            return parameters, values, np.concatenate([state, critic_state], axis=1)

        later = self.critic is not None and len(observations) <= MOST_VALUED_LATER
        return parameters, None if later else self.critic_forward(observations), state

    def critic_forward(self, observations: Array) -> Floats:
        """Compute the values of observations, or their action values."""
        return _squeezed(self._value.act_forward(self._critic.act_forward(observations)))

    def train_forward(
        self, observations: Array, recurrent_input: RecurrentInput | None
    ) -> TrainOutputs:
        actor_input, critic_input = self._inputs_of_cells(recurrent_input)
        features, actor_backward = _train_features(
            self._actor, self._core, observations, actor_input
        )
        critic_features = features
        critic_backward = None
        if not self._shared:
            critic_features, critic_backward = _train_features(
                self._critic, self._critic_core, observations, critic_input
            )

        def backward(
            grad_parameters: Floats, grad_values: Floats, grad_by_time: Floats | None
        ) -> None:
            grad_features = self._head.backward(features, grad_parameters)
            by_outputs = grad_values if grad_values.ndim == 2 else grad_values[:, None]
            grad_critic_features = self._value.backward(critic_features, by_outputs)
            if critic_backward is None:
                grad_features += grad_critic_features
            else:
                critic_backward(grad_critic_features)

            if grad_by_time is not None:
                grad_features += grad_by_time.reshape(grad_features.shape)
            actor_backward(grad_features)

        values = _squeezed(self._value.act_forward(critic_features))
        parameters = self._head.act_forward(features)
        if self._action_mask is not None:
            flat = observations.reshape(-1, *observations.shape[2:])
            parameters = self._masked(parameters, flat)

        by_time = features.reshape(*observations.shape[:2], -1)
        return parameters, values, by_time, backward

    def _inputs_of_cells(
        self, recurrent_input: RecurrentInput | None
    ) -> tuple[RecurrentInput | None, RecurrentInput | None]:
        """Return what the actor's and the critic's cells begin with."""
        if self._critic_core is None or recurrent_input is None:
            return recurrent_input, None
        state, boundaries = recurrent_input
        of_actor = RecurrentInput(state[:, : self._actor_state_size], boundaries)
        of_critic = RecurrentInput(state[:, self._actor_state_size :], boundaries)
        return of_actor, of_critic

    def _masked(self, parameters: Floats, observations: Array) -> Floats:
        """See `ActorCritic.masked`."""
        forbidden = observations[:, self._action_mask] < 0.5
        return np.where(forbidden, FORBIDDEN, parameters)


def _train_features(
    encoder: EncoderPart,
    core: LstmKernel | None,
    observations: Array,
    recurrent_input: RecurrentInput | None,
) -> tuple[Floats, Callable[[Floats], None]]:
    """Return the features [T B, F] of observations [T, B, ...] by an encoder and the cells after
    it, and the function that adds the gradient, given a loss's derivatives by the features."""
    flat = observations.reshape(-1, *observations.shape[2:])
    features, encoder_backward = encoder.train_forward(flat)
    if core is None:
        return features, encoder_backward

    assert recurrent_input is not None
    by_time = features.reshape(*observations.shape[:2], -1)
    hidden, core_backward = core.train_forward(by_time, recurrent_input)

    def backward(grad_hidden: Floats) -> None:
        grad_features = core_backward(grad_hidden.reshape(hidden.shape))
        encoder_backward(grad_features.reshape(len(flat), -1))

    return hidden.reshape(len(flat), -1), backward


class QRuntime(ArrayRuntime):
    """Computes a `QNetwork` by kernels, or both of its networks by torch."""

    def __init__(self, network: QNetwork) -> None:
        super().__init__(network, kernels=True)
        self._network = network
        self._online = encoder_part(network.online, network.observation_input)
        self._target = encoder_part(network.target, network.observation_input)

    def act_forward(
        self, observations: Array, state: Array | None
    ) -> tuple[Array, Array, Array | None]:
        action_values = self._online.act_forward(observations)
        target_values = self._target.act_forward(observations)
        values = target_values.max(1)
        if self._network.is_double:
            best = action_values.argmax(1)
            values = target_values[np.arange(len(best)), best]
        return np.concatenate([action_values, target_values], axis=1), values, None

    def train_forward(
        self, observations: Array, recurrent_input: RecurrentInput | None
    ) -> TrainOutputs:
        """See `QNetwork.unroll`."""
        flat = observations.reshape(-1, *observations.shape[2:])
        action_values, add_gradient = self._online.train_forward(flat)
        return action_values, action_values.max(1), None, lambda grad, *_: add_gradient(grad)


class AveragedRuntime(ArrayRuntime):
    """Computes an `AveragedActorCritic` by the runtimes of its two networks."""

    def __init__(self, network: AveragedActorCritic) -> None:
        super().__init__(network, kernels=True)
        self._online = PartRuntime(network.online)
        self._target = PartRuntime(network.target)

    def act_forward(
        self, observations: Array, state: Array | None
    ) -> tuple[Array, Array, Array | None]:
        logits, action_values, after = self._online.act_forward(observations, state)
        if action_values is None:
            action_values = self._online.critic_forward(observations)
        return logits, _mean_action_values(logits, action_values), after

    def train_forward(
        self, observations: Array, recurrent_input: RecurrentInput | None
    ) -> TrainOutputs:
        """See `AveragedActorCritic.unroll`."""
        logits, action_values, _, add_gradient = self._online.train_forward(
            observations, recurrent_input
        )
        with torch.no_grad():
            average, _, _, _ = self._target.train_forward(observations, recurrent_input)

        def backward(grad_parameters: Floats, grad_values: Floats, _: Floats | None) -> None:
            by_logits, by_values, _ = np.split(grad_parameters, 3, axis=1)
            add_gradient(np.ascontiguousarray(by_logits), np.ascontiguousarray(by_values), None)

        parameters = np.concatenate([logits, action_values, average], axis=1)
        return parameters, _mean_action_values(logits, action_values), None, backward


def _squeezed(values: Floats) -> Floats:
    """Return values [..., 1] as [...], and action values [..., A] as they are."""
    return values[..., 0] if values.shape[-1] == 1 else values


def _mean_action_values(logits: Floats, action_values: Floats) -> Floats:
    """Return V(s) = sum_a pi(a | s) Q(s, a), float32 [N]."""
    values: Floats = (np.exp(log_softmax(logits)) * action_values).sum(1)
    return values


RUNTIMES: dict[type[ActorCritic], Callable[[Any], ArrayRuntime]] = {
    EncoderActorCritic: PartRuntime,
    QNetwork: QRuntime,
    AveragedActorCritic: AveragedRuntime,
}
"""The networks with a fast runtime: what makes it of a network of exactly this class."""


def make_runtime(
    network: ActorCritic, kernels: bool = True, algorithm: Algorithm | None = None
) -> ArrayRuntime:
    """Return the runtime of a bound network.

    kernels: False: torch computes all of it.
    algorithm: of the loss, for the description.
    """
    make = RUNTIMES.get(type(network)) if kernels else None
    runtime = TorchRuntime(network, kernels) if make is None else make(network)
    runtime.description = "kernels: none, since kernels=false: torch computes everything"
    if kernels:
        runtime.description = _describe(network, algorithm)
    return runtime


def _describe(network: ActorCritic, algorithm: Algorithm | None) -> str:
    parts = list(_without_kernels(network, algorithm))
    return "kernels: numpy" + (f", but torch for {', '.join(parts)}" if parts else "")


def _without_kernels(network: ActorCritic, algorithm: Algorithm | None) -> Iterator[str]:
    """What torch computes although a run uses kernels, and why."""
    if type(network) not in RUNTIMES:
        yield f"the network ({type(network).__name__})"

    axes = network.observation_input.axes
    obstacles = (find_obstacle(encoder, axes) for encoder in network.encoders)
    obstacle = next(filter(None, obstacles), None)
    if obstacle is not None:
        yield f"an encoder ({obstacle})"

    has_policy = type(network) is not QNetwork
    if has_policy and type(network.distribution) not in DISTRIBUTIONS:
        yield f"the distribution ({type(network.distribution).__name__})"

    if algorithm is not None and type(algorithm) not in LOSSES:
        yield f"the loss ({type(algorithm).__name__} has no derivatives written out)"


class EncoderPart(Protocol):
    """An encoder on arrays."""

    def act_forward(self, observations: Array, /) -> Floats:
        """Return the features [N, F] of observations [N, ...]."""

    def train_forward(self, observations: Array, /) -> tuple[Floats, Callable[[Floats], None]]:
        """Return the features, and the function that adds the gradient, given a loss's derivatives
        by the features."""


class _TorchEncoder:
    """An encoder that torch runs."""

    def __init__(self, encoder: nn.Module, observation_input: ObservationInput) -> None:
        self._encoder = encoder
        self._input = observation_input

    def act_forward(self, observations: Array) -> Floats:
        with torch.inference_mode():
            inputs = self._input.prepare(torch.from_numpy(observations))
            features: Floats = self._encoder(inputs).numpy()
        return features

    def train_forward(self, observations: Array) -> tuple[Floats, Callable[[Floats], None]]:
        features = self._encoder(self._input.prepare(torch.from_numpy(observations)))

        def backward(grad: Floats) -> None:
            add_gradients([(features, grad)])

        return features.detach().numpy(), backward


def encoder_part(encoder: nn.Module, observation_input: ObservationInput) -> EncoderPart:
    """Return an encoder on arrays, by kernels if they can run it."""
    if find_obstacle(encoder, observation_input.axes) is not None:
        return _TorchEncoder(encoder, observation_input)
    if observation_input.axes == 1:
        return SequenceKernel(encoder)

    def flat_rows(observations: Array) -> Floats:
        inputs = observation_input.prepare(torch.from_numpy(observations))
        rows: Floats = inputs.flatten(1).float().numpy()
        return rows

    return SequenceKernel(encoder, flat_rows)
