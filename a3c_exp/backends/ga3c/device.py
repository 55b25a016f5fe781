"""A network that computes on a GPU, and is pulled and pushed as one on the CPU is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from a3c_exp.common.arrays import Array, Floats
from a3c_exp.errors import ConfigError
from a3c_exp.networks import ActorCritic, NetworkOutputs, OutputGradients
from a3c_exp.networks.recurrent import RecurrentInput
from a3c_exp.networks.torch_runtime import TorchRuntime

DeviceName = Literal["auto", "cpu", "cuda"]


def check_device(name: DeviceName) -> None:
    """Raise ConfigError if this machine has no such device."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("backend.device", name, "must be cpu or auto: torch finds no GPU here")


def uses_gpu(network: ActorCritic, name: DeviceName) -> bool:
    """Whether the network computes on a GPU. With `auto` it does if there is one, unless it is recurrent: the steps of
    LSTM cells are too small for a GPU."""
    return name == "cuda" or (name == "auto" and not network.recurrent and torch.cuda.is_available())


def on_device(network: ActorCritic, name: DeviceName) -> ActorCritic | DeviceNetwork:
    """The network, moved to the device. To be called by the thread that uses it."""
    return DeviceNetwork(network, torch.device("cuda")) if uses_gpu(network, name) else network


class DeviceNetwork:
    """A network with its parameters and gradients on a device.

    `vector` and `gradient` stay on the host, in pinned memory, which the device reads and writes by itself. `to_device`
    and `gradient_to_host` copy each of them in one operation. All work is queued on a stream of this thread's own, so
    that copies for one thread overlap with what another computes.

    device: a GPU; in tests also the CPU.
    """

    def __init__(self, network: ActorCritic, device: torch.device) -> None:
        self._network, self._device, self._pins = network, device, device.type == "cuda"
        self.distribution, self.param_slices = network.distribution, network.param_slices
        self._staging: dict[str, Tensor] = {}
        if self._pins:
            torch.cuda.set_stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
        self._host_vector, self._host_gradient = self._on_host(network.vector), self._on_host(network.gradient)
        self.vector, self.gradient = self._host_vector.numpy(), self._host_gradient.numpy()
        self._device_vector = self._host_vector.to(device, copy=True)
        self._device_gradient = self._host_gradient.to(device, copy=True)
        network.move_to(self._device_vector, self._device_gradient, TorchRuntime(network, self._transfer))

    @property
    def loss_module(self) -> nn.Module | None:
        return self._network.loss_module

    def _on_host(self, array: Floats) -> Tensor:
        tensor = torch.from_numpy(array).clone()
        return tensor.pin_memory() if self._pins else tensor

    def to_device(self) -> None:
        self._device_vector.copy_(self._host_vector, non_blocking=True)
        self._synchronize()  # `vector` may be written to again

    def gradient_to_host(self) -> None:
        self._host_gradient.copy_(self._device_gradient, non_blocking=True)
        self._synchronize()
        self._device_gradient.zero_()

    def initial_state(self, count: int) -> Floats | None:
        return self._network.initial_state(count)

    def act_forward(self, observations: Array, state: Array | None = None) -> tuple[Array, Array, Array | None]:
        return self._network.act_forward(observations, state)

    def values(self, observations: Array, state: Array | None = None) -> Array:
        return self._network.values(observations, state)

    def evaluate(
        self, observations: Array, actions: Array, recurrent_input: RecurrentInput | None = None
    ) -> tuple[NetworkOutputs, Callable[[OutputGradients], None]]:
        return self._network.evaluate(observations, actions, recurrent_input)

    def _transfer(self, purpose: str, tensor: Tensor) -> Tensor:
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
