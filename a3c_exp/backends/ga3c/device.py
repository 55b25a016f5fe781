"""A network that computes on a GPU, and is pulled and pushed as one on the CPU is."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from a3c_exp.errors import ConfigError
from a3c_exp.networks import ActorCritic
from a3c_exp.networks.layers import through_torch
from a3c_exp.networks.recurrent import RecurrentInput

Array = NDArray[Any]
DeviceName = Literal["auto", "cpu", "cuda"]


def check_device(name: DeviceName) -> None:
    """Raise ConfigError where this machine has no such device."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("backend.device", name, "must be cpu or auto: torch finds no GPU here")


def check_network(network: ActorCritic, name: DeviceName) -> None:
    """Raise ConfigError where the network cannot compute there."""
    if name == "cuda" and network.core is not None:
        raise ConfigError("backend.device", name, "must be cpu or auto: the cells of network=lstm compute on the CPU")


def on_gpu(network: ActorCritic, name: DeviceName) -> bool:
    """Whether the network is to compute there. `auto`: where there is one, unless the network has a memory, whose cells
    compute on the CPU."""
    return name == "cuda" or (name == "auto" and network.core is None and torch.cuda.is_available())


def placed(network: ActorCritic, name: DeviceName) -> ActorCritic:
    """The network, where it is to compute. To be called by the thread that uses it."""
    return OnDevice(network, torch.device("cuda")) if on_gpu(network, name) else network


class OnDevice(ActorCritic):
    """The modules of a network, with their parameters and gradients on a device.

    `vector` and `gradient` stay on this side, in memory that the device reads and writes by itself (pinned): `load` and
    `fetch_gradient` copy them, each at once. What goes there and comes back is queued on a stream of this thread's own,
    so that copies for one thread go on while another computes.
    """

    def __init__(self, network: ActorCritic, device: torch.device) -> None:
        self.actor_body, self.critic_body = network.actor_body, network.critic_body
        self.head, self.value, self.core, self.shared = network.head, network.value, None, network.shared
        self.param_slices = network.param_slices
        self._device, self._pins = device, device.type == "cuda"
        self._staging: dict[str, Tensor] = {}
        if self._pins:
            torch.cuda.set_stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
        here = [torch.from_numpy(array).clone() for array in (network.vector, network.gradient)]
        self._here = [tensor.pin_memory() for tensor in here] if self._pins else here
        self.vector, self.gradient = (tensor.numpy() for tensor in self._here)
        self._there = [tensor.to(device, copy=True) for tensor in here]
        network.place(*self._there)

    def load(self) -> None:
        self._there[0].copy_(self._here[0], non_blocking=True)
        self._wait()  # `vector` may be written to again

    def fetch_gradient(self) -> None:
        self._here[1].copy_(self._there[1], non_blocking=True)
        self._wait()
        self._there[1].zero_()

    def _outputs(
        self, observations: Array, memory: RecurrentInput | None
    ) -> tuple[Array, Array, Callable[[Array, Array], None]]:
        flat = observations.reshape(-1, *observations.shape[2:])
        found, through = through_torch(partial(self._both, "learned"), flat)

        def backward(by_parameters: Array, by_values: Array) -> None:
            through(np.column_stack([by_parameters, by_values]))

        return found[:, :-1], found[:, -1], backward

    def infer(self, observations: Array, state: Array | None = None) -> tuple[Array, Array, Array | None]:
        with torch.inference_mode():
            found: NDArray[np.float32] = self._both("seen", torch.from_numpy(observations)).numpy()
        return found[:, :-1], found[:, -1], None

    def _both(self, name: str, observations: Tensor) -> Tensor:
        """Parameters and values side by side, here: [N, P + 1]."""
        seen = self._send(name, observations)
        features = self.actor_body(seen)
        critic_features = features if self.shared else self.critic_body(seen)
        return torch.cat([self.head.forward(features), self.value(critic_features)], dim=1).cpu()

    def values(self, observations: Array, state: Array | None = None) -> Array:
        return self.infer(observations, state)[1]

    def _send(self, name: str, tensor: Tensor) -> Tensor:
        """By way of a buffer that the device reads by itself. It is written to again by the next call for that name: by
        then what was computed from this one has been waited for."""
        count = tensor.numel()
        buffer = self._staging.get(name)
        if buffer is None or len(buffer) < count:
            buffer = self._staging[name] = torch.empty(count, dtype=tensor.dtype, pin_memory=self._pins)
        staged = buffer[:count].view(tensor.shape)
        staged.copy_(tensor)
        return staged.to(self._device, non_blocking=True)

    def _wait(self) -> None:
        if self._pins:
            torch.cuda.current_stream().synchronize()
