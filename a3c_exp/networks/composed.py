"""Actor-critics around modules: encoders with cells, the policy's head and the value after them, or
a whole one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from a3c_exp.errors import ConfigError, refused
from a3c_exp.networks.actor_critic import ActorCritic, UnrollOutputs
from a3c_exp.networks.distributions import Distribution
from a3c_exp.networks.heads import PolicyHead
from a3c_exp.networks.inputs import ObservationInput
from a3c_exp.networks.recurrent import LstmCore


class EncoderActorCritic(ActorCritic):
    """Encoders for actor and critic, or a shared one, with optional LSTM cells after each; a head,
    and a value layer.

    A state has the numbers of the actor's cells, and after them those of cells that the critic has
    for itself.

    encoders: the actor's and the critic's, which may be one module: float32 [N, F] of observations.
    observation_input: the form in which the encoders take observations.
    cores: cells after each encoder, None where there are none. After a shared encoder both are one
        module.
    head: makes distribution parameters [N, P] of the actor's features.
    value: makes a value [N, 1] of the critic's, or action values [N, A]: see `AveragedActorCritic`.
    distribution: of the actions.
    loss_module: see `ActorCritic`.
    """

    def __init__(
        self,
        encoders: tuple[nn.Module, nn.Module],
        observation_input: ObservationInput,
        cores: tuple[LstmCore | None, LstmCore | None],
        head: PolicyHead,
        value: nn.Linear,
        distribution: Distribution,
        loss_module: nn.Module | None = None,
    ) -> None:
        super().__init__(observation_input, distribution, loss_module)
        self.shared = encoders[0] is encoders[1]
        self.encoders = encoders
        self.actor_encoder, self.critic_encoder = encoders
        self.core, self.critic_core = (cores[0], None) if self.shared else cores
        self.head = head
        self.value = value
        self.actor_state_size = 0 if self.core is None else 2 * self.core.hidden_size
        critic_cells = 0 if self.critic_core is None else self.critic_core.hidden_size
        self.state_size = self.actor_state_size + 2 * critic_cells
        for encoder in encoders:
            observation_input.share_pixels(encoder)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        core, critic_core = (
            [] if cells is None else list(cells.parameters())
            for cells in (self.core, self.critic_core)
        )
        actor = self.head.ordered_parameters()
        critic = list(self.value.parameters())
        if self.shared:
            return {
                "encoder": [*self.actor_encoder.parameters(), *core],
                "actor": actor,
                "critic": critic,
            }

        return {
            "actor": [*self.actor_encoder.parameters(), *core, *actor],
            "critic": [*self.critic_encoder.parameters(), *critic_core, *critic],
        }

    def forward(
        self, observations: Tensor, state: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        inputs = self.observation_input.prepare(observations)
        features = self.actor_encoder(inputs)
        if self.recurrent and state is None:
            state = features.new_zeros(len(features), self.state_size)
        state, critic_state = self._parts(state)
        if self.core is not None:
            features, state = self.core(features, state)

        critic_features = features if self.shared else self.critic_encoder(inputs)
        if self.critic_core is not None:
            critic_features, critic_state = self.critic_core(critic_features, critic_state)
            state = torch.cat([state, critic_state], dim=1)

        parameters = self.masked(self.head(features), observations)
        values = self.values_of(critic_features)
        return parameters, values, state

    def values_of(self, critic_features: Tensor) -> Tensor:
        """Compute values [N], or action values [N, A], of the critic's features."""
        values: Tensor = self.value(critic_features)
        return values[:, 0] if self.value.out_features == 1 else values

    def unroll(
        self, observations: Tensor, state: Tensor | None, boundaries: Tensor | None
    ) -> UnrollOutputs:
        length, count = observations.shape[:2]
        flat = observations.flatten(0, 1)
        inputs = self.observation_input.prepare(flat)
        state, critic_state = self._parts(state)
        features = self.actor_encoder(inputs)
        if self.core is not None:
            by_time = features.reshape(length, count, -1)
            (features,) = _unrolled(self.core, by_time, state, boundaries)

        critic_features = features if self.shared else self.critic_encoder(inputs)
        if self.critic_core is not None:
            by_time = critic_features.reshape(length, count, -1)
            (critic_features,) = _unrolled(self.critic_core, by_time, critic_state, boundaries)

        parameters = self.masked(self.head(features), flat)
        values = self.values_of(critic_features)
        return parameters, values, features.reshape(length, count, -1)

    def _parts(self, state: Tensor | None) -> tuple[Any, Any]:
        """Return what a state [N, S] has for the actor, and for a critic with cells of its own."""
        if self.critic_core is None or state is None:
            return state, None
        return state[:, : self.actor_state_size], state[:, self.actor_state_size :]


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
        if initial_state is None:
            return

        name = type(module).__name__
        with refused("network", name, "its initial_state failed for 1 episode"):
            state: Any = initial_state(1)
        is_state = isinstance(state, Tensor) and state.dtype == torch.float32 and state.dim() == 2
        if not is_state or state.any():
            problem = "its initial_state(count) must return zeros, float32 [count, S]"
            raise ConfigError("network", name, problem)

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
    """Return the outputs [T B, ...] of a module for rows [T, B, ...], one row after another.

    step: returns its outputs for a row, and at last the state after it. The next row begins with
        zeros where an episode has ended.
    """
    assert state is not None and boundaries is not None
    outputs_by_row = []
    for row, ends in zip(rows, boundaries, strict=True):
        *outputs, state = step(row, state)
        state = state.masked_fill(ends[:, None], 0.0)
        outputs_by_row.append(outputs)
    return map(torch.cat, zip(*outputs_by_row, strict=True))
