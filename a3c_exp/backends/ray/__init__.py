"""Parameter servers and workers as actors of a Ray cluster: on this machine, or on many."""

from __future__ import annotations

import importlib.util
from collections.abc import Generator
from dataclasses import dataclass

from a3c_exp.backends.ray.cluster import connected, find_fault
from a3c_exp.backends.ray.driver import CachedStore, Driver
from a3c_exp.backends.ray.settings import RaySettings
from a3c_exp.core.events import Event
from a3c_exp.core.experiment import Backend, Experiment, RunContext
from a3c_exp.core.parameters import StoreSpec
from a3c_exp.core.store import SharedStore
from a3c_exp.errors import ConfigError

INSTALL = "pip install 'a3c-exp[ray]'"


@dataclass(frozen=True, kw_only=True)
class Ray(RaySettings, Backend):
    """A parameter server holds the parameters and updates them; workers anywhere in a cluster pull and push
    (Dean et al. 2012, "Large Scale Distributed Deep Networks", section 4.1).

    See `RaySettings` for the settings.
    """

    def check(self, experiment: Experiment) -> None:
        """Raise ConfigError if Ray is missing, no cluster answers at the address, or shards had rounds of a quorum.

        Servers know nothing of each other: each would let other gradients into a round.
        """
        if self.shards > 1 and experiment.quorum not in ("all", experiment.worker_count):
            raise ConfigError(
                "backend.shards", self.shards, "must be 1 with a quorum: one server decides who is in a round"
            )
        if importlib.util.find_spec("ray") is None:
            raise ConfigError("backend.address", self.address, f"needs Ray: {INSTALL}")
        fault = None if self.address == "local" else find_fault(self.address)
        if fault is not None:
            problem = f"must be 'local', 'auto' or host:port of a cluster's head: {fault}"
            raise ConfigError("backend.address", self.address, problem)

    def settings_to_trust(self) -> dict[str, object]:
        """The address of a cluster, which may run any program in this process. A plain word may be one."""
        return {} if self.address == "local" else {"address": self.address}

    def store(self, spec: StoreSpec) -> CachedStore:
        return CachedStore(spec)

    def run(self, context: RunContext, store: SharedStore) -> Generator[Event | None, None, None]:
        assert isinstance(store, CachedStore)
        with connected(self, context.experiment.worker_count, store.spec):
            driver = Driver(self, context, store)
            try:
                yield from driver.run()
            finally:
                driver.close()
