"""A network that computes on a GPU, and is pulled and pushed as one on the CPU is."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from a3c_exp.common.arrays import Array, Floats
from a3c_exp.errors import ConfigError
from a3c_exp.networks import ActorCritic
from a3c_exp.networks.layers import through_torch
from a3c_exp.networks.recurrent import RecurrentInput

DeviceName = Literal["auto", "cpu", "cuda"]


def check_device(name: DeviceName) -> None:
    """Raise ConfigError if this machine has no such device."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("backend.device", name, "must be cpu or auto: torch finds no GPU here")


def check_network(network: ActorCritic, name: DeviceName) -> None:
    """Raise ConfigError if the network cannot compute on the device."""
    if name == "cuda" and network.core is not None:
        raise ConfigError("backend.device", name, "must be cpu or auto: the cells of network=lstm compute on the CPU")


def uses_gpu(network: ActorCritic, name: DeviceName) -> bool:
    """Whether the network computes on a GPU. With `auto` it does if there is one, unless it is recurrent: LSTM cells
    compute on the CPU."""
    return name == "cuda" or (name == "auto" and network.core is None and torch.cuda.is_available())


def on_device(network: ActorCritic, name: DeviceName) -> ActorCritic:
    """The network, moved to the device. To be called by the thread that uses it."""
    return CudaActorCritic(network, torch.device("cuda")) if uses_gpu(network, name) else network


class CudaActorCritic(ActorCritic):
    """The modules of a network, with their parameters and gradients on a device.

    `vector` and `gradient` stay on the host, in pinned memory, which the device reads and writes by itself. `load` and
    `fetch_gradient` copy each of them in one operation. All work is queued on a stream of this thread's own, so that
    copies for one thread overlap with what another computes.

    device: a GPU; in tests also the CPU.
    """

    def __init__(self, network: ActorCritic, device: torch.device) -> None:
        self.actor_body, self.critic_body = network.actor_body, network.critic_body
        self.head, self.value, self.core, self.shared = network.head, network.value, None, network.shared
        self.param_slices = network.param_slices
        self._device, self._pins = device, device.type == "cuda"
        self._staging: dict[str, Tensor] = {}
        if self._pins:
            torch.cuda.set_stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
        self._host_vector, self._host_gradient = self._on_host(network.vector), self._on_host(network.gradient)
        self.vector, self.gradient = self._host_vector.numpy(), self._host_gradient.numpy()
        self._device_vector = self._host_vector.to(device, copy=True)
        self._device_gradient = self._host_gradient.to(device, copy=True)
        network.place(self._device_vector, self._device_gradient)

    def _on_host(self, array: Floats) -> Tensor:
        tensor = torch.from_numpy(array).clone()
        return tensor.pin_memory() if self._pins else tensor

    def load(self) -> None:
        self._device_vector.copy_(self._host_vector, non_blocking=True)
        self._synchronize()  # `vector` may be written to again

    def fetch_gradient(self) -> None:
        self._host_gradient.copy_(self._device_gradient, non_blocking=True)
        self._synchronize()
        self._device_gradient.zero_()

    def _outputs(
        self, observations: Array, memory: RecurrentInput | None
    ) -> tuple[Array, Array, Callable[[Array, Array], None]]:
        flat = observations.reshape(-1, *observations.shape[2:])
        outputs, backward_through_torch = through_torch(partial(self._forward, "train"), flat)

        def backward(grad_parameters: Array, grad_values: Array) -> None:
            backward_through_torch(np.column_stack([grad_parameters, grad_values]))

        return outputs[:, :-1], outputs[:, -1], backward

    def infer(self, observations: Array, state: Array | None = None) -> tuple[Array, Array, Array | None]:
        with torch.inference_mode():
            outputs: Floats = self._forward("act", torch.from_numpy(observations)).numpy()
        return outputs[:, :-1], outputs[:, -1], None

    def values(self, observations: Array, state: Array | None = None) -> Array:
        return self.infer(observations, state)[1]

    def _forward(self, purpose: str, observations: Tensor) -> Tensor:
        """Distribution parameters and values side by side, on the host: [N, P + 1]."""
        inputs = self._to_device(purpose, observations)
        features = self.actor_body(inputs)
        critic_features = features if self.shared else self.critic_body(inputs)
        return torch.cat([self.head.forward(features), self.value(critic_features)], dim=1).cpu()

    def _to_device(self, purpose: str, tensor: Tensor) -> Tensor:
        """Copy through a pinned buffer, which the device reads by itself.

        The next call for the same purpose overwrites the buffer. By then the result of this one has been waited for.
        """
        count = tensor.numel()
        buffer = self._staging.get(purpose)
        if buffer is None or len(buffer) < count:
            buffer = self._staging[purpose] = torch.empty(count, dtype=tensor.dtype, pin_memory=self._pins)
        staged = buffer[:count].view(tensor.shape)
        staged.copy_(tensor)
        return staged.to(self._device, non_blocking=True)

    def _synchronize(self) -> None:
        if self._pins:
            torch.cuda.current_stream().synchronize()
