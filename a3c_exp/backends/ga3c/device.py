"""Parameters and optimizer state on a GPU, for the threads of GA3C."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

from a3c_exp.core.experiment import Experiment
from a3c_exp.core.parameters import LARGE_ARRAYS, SharedParameters
from a3c_exp.core.store import SharedStore
from a3c_exp.engine.runtime import TorchRuntime
from a3c_exp.envs import EnvBatch
from a3c_exp.errors import ConfigError, RunError, one_line
from a3c_exp.networks import ActorCritic

DeviceName = Literal["auto", "cpu", "cuda"]


def check_device(name: DeviceName) -> None:
    """Raise ConfigError if this machine has no such device."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("backend.device", name, "must be cpu or auto: torch finds no GPU here")


def find_device(network: ActorCritic, name: DeviceName) -> torch.device | None:
    """Return the device for network and optimizer; None for the host, without a copy of them
    elsewhere.

    `auto` is a GPU if there is one, but the host for a recurrent network: the steps of its cells
    are too small for a GPU.
    """
    prefers_gpu = name == "auto" and not network.recurrent
    if name == "cuda" or (prefers_gpu and torch.cuda.is_available()):
        return torch.device("cuda", torch.cuda.current_device())
    return None


class DeviceParameters(SharedParameters):
    """Parameters and optimizer state of a store on a device, stepped there by threads of this
    process.

    The host keeps the version, which agents read, and a copy of the numbers that is as old as the
    last `state`.

    host: has the numbers to start with. device: a GPU; in tests the CPU.
    """

    def __init__(self, host: SharedParameters, device: torch.device) -> None:
        moved: dict[str, Any] = {
            name: torch.from_numpy(host.arrays[name]).to(device, copy=True) for name in LARGE_ARRAYS
        }
        super().__init__(host.spec, host.arrays | moved, host.counters, host.lock)
        self.host = host
        self.device = device

        # Not in the middle of the run: an optimizer that takes arrays alone raises here.
        vectors, states = moved.values()
        gradient = vectors[0, :1]
        host.spec.optimizer.step(gradient.clone(), states[0, 0, :, :1].clone(), gradient, 0.0, 1)

    def state(self) -> dict[str, Any]:
        """Refresh the host's copy, and return its state. Whole if no update was made meanwhile."""
        for name in LARGE_ARRAYS:
            on_device = torch.as_tensor(self.arrays[name])
            torch.from_numpy(self.host.arrays[name]).copy_(on_device)
        return self.host.state()


@contextmanager
def parameters_on(device: torch.device, store: SharedStore) -> Iterator[None]:
    """Keep the store's parameters and optimizer state on a device within this context.

    Raises RunError if the device fails. The store then has the numbers of its last `state`.
    """
    host = store.parameters
    with _failures_of(device):
        moved = DeviceParameters(host, device)
    store.parameters = moved
    try:
        yield
    finally:
        store.parameters = host
        with _failures_of(device):
            moved.state()


@contextmanager
def _failures_of(device: torch.device) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # of torch, of CUDA, or of an optimizer that takes arrays alone
        raise RunError(
            f"device {device} failed (backend.device=cpu does without it): {one_line(error)}"
        ) from error


def build_thread_network(experiment: Experiment, store: SharedStore, env: EnvBatch) -> ActorCritic:
    """Build a network for the calling thread, which computes where the store's parameters are.

    env: has the spaces of the network.
    """
    network = experiment.build_network(env, None)
    parameters = store.parameters
    if isinstance(parameters, DeviceParameters):
        vector = torch.zeros(parameters.spec.size, device=parameters.device)
        runtime = TorchRuntime(network, experiment.kernels, parameters.device)
        network.move_to(vector, torch.zeros_like(vector), runtime)
    return network
