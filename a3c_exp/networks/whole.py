"""A whole actor-critic of the user's own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from a3c_exp.errors import ConfigError, refused
from a3c_exp.networks.actor_critic import ActorCritic, Kernels, Runtime, UnrollOutputs
from a3c_exp.networks.distributions import Distribution, Gaussian
from a3c_exp.networks.heads import bound_log_std
from a3c_exp.networks.inputs import ObservationInput
from a3c_exp.networks.torch_runtime import TorchRuntime


class WholeActorCritic(ActorCritic):
    """A module whose `forward(observations, state)` returns (parameters [N, P], values [N], state [N, S] or None).

    The module's `initial_state(count)`, if it has one, gives the zeros [count, S] with which episodes begin.
    The log standard deviations among a Gaussian's parameters are kept within `heads.LOG_STD_RANGE`.
    """

    def __init__(self, module: nn.Module, observation_input: ObservationInput, distribution: Distribution) -> None:
        super().__init__(distribution, None)
        self.module = module
        self.observation_input = observation_input
        observation_input.share_pixels(module)
        self._state_size = 0
        initial_state: Any = getattr(module, "initial_state", None)
        if initial_state is not None:
            name = type(module).__name__
            with refused("network", name, "its initial_state failed for 1 episode"):
                state: object = initial_state(1)
            if not isinstance(state, Tensor) or state.dtype != torch.float32 or state.dim() != 2 or state.any():
                raise ConfigError("network", name, "its initial_state(count) must return zeros, float32 [count, S]")
            self._state_size = state.shape[1]

    @property
    def state_size(self) -> int:
        return self._state_size

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        return {"network": list(self.module.parameters())}

    def forward(self, observations: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
        inputs = self.observation_input.prepare(observations)
        if self.recurrent and state is None:
            state = inputs.new_zeros(inputs.shape[0], self.state_size, dtype=torch.float32)
        outputs = self.module(inputs, state)
        if not isinstance(outputs, tuple) or len(outputs) != 3:
            raise TypeError("forward must return the parameters, the values and the next state (or None)")
        parameters, values, after = outputs
        if isinstance(self.distribution, Gaussian):
            parameters = bound_log_std(parameters)
        return parameters, values, after

    def unroll(self, observations: Tensor, state: Tensor | None, boundaries: Tensor | None) -> UnrollOutputs:
        if not self.recurrent:
            parameters, values, _ = self(observations.flatten(0, 1))
            return UnrollOutputs(parameters, values, None)
        assert state is not None and boundaries is not None
        all_parameters, all_values = [], []
        for row, ends in zip(observations, boundaries, strict=True):
            parameters, values, state = self(row, state)
            assert state is not None
            state = state.masked_fill(ends[:, None], 0.0)
            all_parameters.append(parameters)
            all_values.append(values)
        return UnrollOutputs(torch.cat(all_parameters), torch.cat(all_values), None)

    def make_runtime(self, kernels: Kernels) -> Runtime:
        return TorchRuntime(self)

    def describe_kernels(self) -> str:
        return "torch computes the network"
