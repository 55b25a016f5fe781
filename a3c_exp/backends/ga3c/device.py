"""Parameters and optimizer state on a GPU, for the threads of GA3C."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from a3c_exp.common.arrays import Floats, Vector
from a3c_exp.core.experiment import Experiment, build_network
from a3c_exp.core.parameters import SharedParameters
from a3c_exp.core.store import SharedStore
from a3c_exp.errors import ConfigError
from a3c_exp.networks import ActorCritic
from a3c_exp.networks.torch_runtime import TorchRuntime
from a3c_exp.optimizers import Optimizer

DeviceName = Literal["auto", "cpu", "cuda"]


def check_device(name: DeviceName) -> None:
    """Raise ConfigError if this machine has no such device."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("backend.device", name, "must be cpu or auto: torch finds no GPU here")


def find_device(network: ActorCritic, name: DeviceName) -> torch.device | None:
    """The device for network and optimizer; None for the host, without a copy of them elsewhere.

    `auto` is a GPU if there is one, but the host for a recurrent network: the steps of its cells are too small for a
    GPU.
    """
    gpu = name == "cuda" or (name == "auto" and not network.recurrent and torch.cuda.is_available())
    return torch.device("cuda", torch.cuda.current_device()) if gpu else None


class DeviceParameters(SharedParameters):
    """Parameters and optimizer state of a store on a device, stepped by threads of this process.

    The host keeps the version, which agents read, and a copy of the numbers that is as old as the last `state`.
    Without a lock (Hogwild) there is one vector, in which the networks of all threads have their parameters. A step
    changes it in place, also in the middle of another thread's forward or backward pass. With a lock, an update is
    prepared in a second vector, and `pull` copies the valid one into a vector of the thread's own: nobody sees half an
    update.

    host: has the numbers to start with. device: a GPU; in tests also the CPU.
    """

    def __init__(self, host: SharedParameters, device: torch.device) -> None:
        moved: dict[str, Any] = {
            "parameter_flags": host._flags,
            "parameters": torch.from_numpy(host._vectors).to(device, copy=True),
            "optimizer_state": torch.from_numpy(host._states).to(device, copy=True),
        }
        super().__init__(host.spec, moved, host._counters, host.lock)
        self.host, self.device = host, device
        self.optimizer_takes_tensors = takes_tensors(host.spec.optimizer, device)
        self._stepping_on_host = threading.Lock()
        synchronize(device)

    def place(self, network: ActorCritic, *, learns: bool) -> None:
        """Let a network of the calling thread compute on the device with these parameters, after its first pull."""
        transfers = ThreadTransfers(self.device)  # first: the thread's stream is that of all that follows
        vector = torch.empty_like(self._vectors[0]) if self._two_copies else self._vectors[0]
        gradient = torch.zeros_like(vector) if learns else None
        network.move_to(vector, gradient, TorchRuntime(network, transfers))

    def pull(self, into: Vector) -> int:
        """Return the version of the parameters, and copy them if the vector is not theirs anyway."""
        with self._update_lock:
            version = self.version
            if self._two_copies:
                into.copy_(self._vectors[version & 1])
                synchronize(self.device)  # a later step overwrites what is being copied
        return version

    def _step(self, parameters: Vector, state: Vector, gradient: Vector, rate: float | Vector, t: int) -> None:
        if self.optimizer_takes_tensors:
            super()._step(parameters, state, gradient, rate, t)
        else:
            with self._stepping_on_host:
                step_on_host(self.spec.optimizer, parameters, state, gradient, rate, t)
        synchronize(self.device)  # the version that is counted next is on the device

    def read(self) -> Floats:
        with self._update_lock:
            return array_of(self._vectors[self._active_copy]).copy()

    def state(self) -> dict[str, Any]:
        self._refresh_host()
        return self.host.state()

    def return_to_host(self) -> None:
        """Copy everything to the host, which goes on from there."""
        with self._update_lock:
            self._refresh_host()

    def _refresh_host(self) -> None:
        """Copy the active vector and state to the host. The caller holds the lock."""
        active = self._active_copy
        self.host._vectors[active] = array_of(self._vectors[active])
        self.host._states[active] = array_of(self._states[active])


@contextmanager
def parameters_on(device: torch.device, store: SharedStore) -> Iterator[DeviceParameters]:
    """Within: the store's parameters and optimizer state are on a device."""
    host = store.parameters
    store.parameters = moved = DeviceParameters(host, device)
    try:
        yield moved
    finally:
        store.parameters = host  # a checkpoint of the last numbers that it has can be saved even if the device fails
        moved.return_to_host()


def build_thread_network(experiment: Experiment, store: SharedStore, *, learns: bool) -> ActorCritic:
    """A network for the calling thread, which computes where the store's parameters are."""
    network, _ = build_network(experiment, draw=False)
    if isinstance(store.parameters, DeviceParameters):
        store.parameters.place(network, learns=learns)
    return network


def describe(parameters: SharedParameters) -> str:
    """A line for the log: the device on which network and optimizer compute."""
    if not isinstance(parameters, DeviceParameters):
        return "the network and the optimizer compute on the CPU"
    device, optimizer = parameters.device, type(parameters.spec.optimizer).__name__
    name = f"the GPU ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else f"device {device}"
    if parameters.optimizer_takes_tensors:
        return f"the network and the optimizer compute on {name}, by torch"
    return f"the network computes on {name}, by torch; the optimizer on the CPU: {optimizer} takes no tensors"


# -- optimizers that are written for arrays alone ---------------------------------------------------------------------


def takes_tensors(optimizer: Optimizer, device: torch.device) -> bool:
    """Return whether an optimizer steps tensors as it steps arrays. One that calls numpy by name does not."""
    parameters, state, gradient = np.ones(2, np.float32), optimizer.initial_state(2), np.array([0.5, -2.0], np.float32)
    tensors = [torch.from_numpy(array.copy()).to(device) for array in (parameters, state, gradient)]
    try:
        optimizer.step(tensors[0], tensors[1], tensors[2], 0.1, 1)
    except Exception:  # whatever numpy, torch or the optimizer says to a tensor
        return False
    optimizer.step(parameters, state, gradient, 0.1, 1)
    pairs = zip((parameters, state), tensors[:2], strict=True)
    return all(np.allclose(array, array_of(tensor), rtol=1e-4) for array, tensor in pairs)


def step_on_host(
    optimizer: Optimizer, parameters: Tensor, state: Tensor, gradient: Tensor, rate: float | Tensor, t: int
) -> None:
    """`Optimizer.step` of tensors, by arrays on the host."""
    arrays = array_of(parameters), array_of(state)
    host_rate = array_of(rate) if isinstance(rate, Tensor) else rate
    optimizer.step(*arrays, array_of(gradient), host_rate, t)
    for tensor, array in zip((parameters, state), arrays, strict=True):
        tensor.copy_(torch.from_numpy(array))


def array_of(tensor: Tensor) -> Floats:
    """A tensor's numbers on the host, copied only if it is on a device other than the CPU."""
    array: Floats = tensor.cpu().numpy()
    return array


# -- what CUDA alone has: streams and pinned memory -------------------------------------------------------------------


class ThreadTransfers:
    """Transfers of one thread's tensors to a device. To be made and used by that thread.

    On a GPU all work of the thread is queued on a stream of its own, so that copies for one thread overlap with what
    another computes.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._pins = device, device.type == "cuda"
        self._staging: dict[str, Tensor] = {}
        if self._pins:
            torch.cuda.set_stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]

    def __call__(self, purpose: str, tensor: Tensor) -> Tensor:
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


def synchronize(device: torch.device) -> None:
    """Wait for what the calling thread has queued on a device."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
