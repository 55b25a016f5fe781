"""Parameter servers and workers as actors of a Ray cluster: on this machine, or on many."""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Generator
from dataclasses import dataclass

from a3c_exp.algorithms import MinibatchAlgorithm
from a3c_exp.backends.ray.cluster import connected, find_fault, find_fault_now, is_joined
from a3c_exp.backends.ray.driver import CachedStore, Driver
from a3c_exp.backends.ray.settings import RaySettings
from a3c_exp.core.events import Event
from a3c_exp.core.experiment import Backend, Experiment, RunContext
from a3c_exp.core.parameters import StoreSpec
from a3c_exp.core.store import SharedStore
from a3c_exp.errors import ConfigError, RunError

CONNECT_SECONDS = 5.0
INSTALL = "pip install 'a3c-exp[ray]'"


@dataclass(frozen=True, kw_only=True)
class Ray(RaySettings, Backend):
    """A parameter server holds the parameters and updates them; workers anywhere in a cluster pull and push
    (Dean et al. 2012, "Large Scale Distributed Deep Networks", section 4.1).

    See `RaySettings` for the settings.
    """

    def check(self, experiment: Experiment) -> None:
        """Raise ConfigError for what this backend cannot run, or not here."""
        if importlib.util.find_spec("ray") is None:
            raise ConfigError("backend.address", self.address, f"needs Ray: {INSTALL}")
        self._check_address()
        if self.local_epochs and not isinstance(experiment.algorithm, MinibatchAlgorithm):
            name = type(experiment.algorithm).__name__
            raise ConfigError("backend.local_epochs", True, f"must be false with {name}, which uses a rollout once")

    def settings_to_trust(self) -> dict[str, object]:
        """The address of a cluster, which may run any program in this process. A plain word may be one."""
        return {} if self.address == "local" else {"address": self.address}

    def _check_address(self) -> None:
        """Raise ConfigError for an address at which no cluster answers: Ray itself would try for minutes."""
        if self.address == "local" or is_joined():
            return
        fault: str | None = None
        if self.address != "auto":
            host, _, port = self.address.rpartition(":")
            try:
                socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
            except (OSError, ValueError, OverflowError) as error:
                fault = f"this one does not answer ({error})"
        if fault is None:
            fault = find_fault_now(self.address)
        if fault is not None:
            problem = f"must be 'local', 'auto' or host:port of a cluster's head: {fault}"
            raise ConfigError("backend.address", self.address, problem)

    def store(self, spec: StoreSpec) -> CachedStore:
        return CachedStore(spec)

    def run(self, context: RunContext, store: SharedStore) -> Generator[Event | None, None, None]:
        assert isinstance(store, CachedStore)
        if self.address != "local" and not is_joined():  # it answered once, but the run may begin hours later
            fault = yield from find_fault(self.address, lambda: store.stopped)
            if store.stopped:
                return
            if fault is not None:
                raise RunError(f"backend.address = {self.address!r}: there is no Ray cluster: {fault}")
        with connected(self, context.experiment.worker_count, store.spec):
            driver = Driver(self, context, store)
            try:
                yield from driver.run()
            finally:
                driver.close()
