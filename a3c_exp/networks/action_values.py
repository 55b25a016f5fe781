"""Networks of action values: Q(s, .) and its target network, for Q-learning and Sarsa."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from a3c_exp.common.arrays import Array
from a3c_exp.networks.actor_critic import (
    ActorCritic,
    NetworkOutputs,
    OutputGradients,
    TrainOutputs,
    UnrollOutputs,
)
from a3c_exp.networks.composed import describe, encoder_part
from a3c_exp.networks.distributions import Greedy
from a3c_exp.networks.inputs import ObservationInput
from a3c_exp.networks.recurrent import RecurrentInput


class QNetwork(ActorCritic):
    """Q(s, .), and Q^-(s, .) of a target network: an older copy of the same network, which no
    gradient moves.

    Both lie in the vector, as the groups `online` and `target`, so that whoever pulls, saves or
    sends the vector has both. `core.parameters` copies one to the other.

    To act, it is an `ActorCritic` whose parameters [N, 2 A] are Q(s, .) and Q^-(s, .), see
    `Greedy`, and whose values are max_a Q^-(s, a). To learn, its values are Q(s_t, a_t): see
    `evaluate`.

    encoder: of observations, with features [N, F]. last: from features to the values of A actions.
    """

    def __init__(
        self,
        encoder: nn.Module,
        last: nn.Linear,
        observation_input: ObservationInput,
        distribution: Greedy,
    ) -> None:
        super().__init__(observation_input, distribution, None)
        self.encoders = (encoder,)
        self.online = nn.Sequential(encoder, last)
        self.target = copy.deepcopy(self.online)
        for network in (self.online, self.target):
            observation_input.share_pixels(network[0])

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        return {"online": list(self.online.parameters()), "target": list(self.target.parameters())}

    def forward(
        self, observations: Tensor, state: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        inputs = self.observation_input.prepare(observations)
        target_values = self.target(inputs)
        return torch.cat([self.online(inputs), target_values], dim=1), target_values.amax(1), None

    def unroll(
        self, observations: Tensor, state: Tensor | None, boundaries: Tensor | None
    ) -> UnrollOutputs:
        """Q(s, .) alone: [T B, A], and its largest numbers in the place of values."""
        action_values = self.online(self.observation_input.prepare(observations.flatten(0, 1)))
        return action_values, action_values.detach().amax(1), None

    def evaluate(
        self, observations: Array, actions: Array, recurrent_input: RecurrentInput | None = None
    ) -> tuple[NetworkOutputs, Callable[[OutputGradients], None]]:
        """See `ActorCritic.evaluate`. The values are Q(s_t, a_t), of which alone there are
        derivatives. The policy has none: log-probabilities and entropy are 0."""
        action_values, _, _, backward = self.runtime.train_forward(observations, None)
        rows = np.arange(len(action_values))
        taken = actions.ravel()

        def add_gradient(grad: OutputGradients) -> None:
            grad_values = grad.values.ravel()
            grad_action_values = np.zeros_like(action_values)
            grad_action_values[rows, taken] = grad_values
            backward(grad_action_values, grad_values, None)

        shape = observations.shape[:2]
        nothing = np.zeros(shape, np.float32)
        return NetworkOutputs(
            nothing, nothing, action_values[rows, taken].reshape(shape)
        ), add_gradient

    def make_runtime(self) -> QRuntime:
        return QRuntime(self)


class QRuntime:
    """Computes a `QNetwork` by kernels, or both of its networks by torch."""

    critic = None

    def __init__(self, network: QNetwork) -> None:
        self.description = describe(network.observation_input, network.online)
        self._online = encoder_part(network.online, network.observation_input)
        self._target = encoder_part(network.target, network.observation_input)

    def act_forward(
        self, observations: Array, state: Array | None
    ) -> tuple[Array, Array, Array | None]:
        target_values = self._target.act_forward(observations)
        parameters = np.concatenate([self._online.act_forward(observations), target_values], axis=1)
        return parameters, target_values.max(1), None

    def train_forward(
        self, observations: Array, recurrent_input: RecurrentInput | None
    ) -> TrainOutputs:
        """See `QNetwork.unroll`."""
        action_values, add_gradient = self._online.train_forward(
            observations.reshape(-1, *observations.shape[2:])
        )
        return action_values, action_values.max(1), None, lambda grad, *_: add_gradient(grad)
