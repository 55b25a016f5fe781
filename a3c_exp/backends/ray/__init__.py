"""Parameter servers and workers as actors of a Ray cluster: on this machine, or on many."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from math import ceil
from typing import Annotated, ClassVar

from a3c_exp.algorithms import MinibatchAlgorithm
from a3c_exp.backends.ray.cluster import connected, find_fault
from a3c_exp.backends.ray.driver import CachedStore, Driver
from a3c_exp.backends.supervision import RestartSettings
from a3c_exp.common.ranges import NotNegative, whole
from a3c_exp.core.events import Event
from a3c_exp.core.experiment import Backend, Experiment, RunContext
from a3c_exp.core.parameters import StoreSpec
from a3c_exp.core.store import SharedStore
from a3c_exp.errors import ConfigError, require, require_package

MOST = 1024
"""The largest number of servers, and of pushes without a reply."""


@dataclass(frozen=True, kw_only=True)
class Ray(RestartSettings, Backend):
    """A parameter server holds the parameters and updates them; workers anywhere in a cluster pull
    and push (Dean et al. 2012, "Large Scale Distributed Deep Networks", section 4.1).

    address: 'local' starts Ray on this machine for this run, on loopback only; 'auto' joins the
        cluster that this machine is part of; or the address of a cluster's head, host:port. A
        program that has already joined a cluster uses that one.
    shards: number of servers that share the parameter vector.
    in_flight: pushes without a reply with which a worker goes on. With 0 it waits for each, and one
        worker does what one worker does on any backend. Synchronous rounds are always waited for.
    cpus_per_worker: CPUs that Ray reserves for a worker. A node takes as many workers as fit into
        its cores.
    """

    pushes_pulled: ClassVar[bool] = False

    address: str = "local"
    shards: Annotated[int, whole(1, MOST)] = 1
    in_flight: Annotated[int, whole(0, MOST)] = 1
    cpus_per_worker: NotNegative = 1.0

    def check(self, experiment: Experiment) -> None:
        """Raise ConfigError if Ray is missing, no cluster answers at the address, or shards cannot
        do what is asked.

        Servers know nothing of each other. Each would let other gradients into a round of a quorum,
        end a rollout of several gradients at another moment, and has one part of a network.
        """
        memory = experiment.memory
        allowed = "false with backend=ray: its workers may be on other machines"
        require(memory is None or not memory.save, "memory.save", True, allowed)
        algorithm = experiment.algorithm
        reason = None
        if experiment.quorum not in ("all", experiment.worker_count):
            reason = "a quorum: one server decides who is in a round"
        elif experiment.update == "sync" and _has_several_gradients(experiment):
            reason = (
                "update=sync and several gradients of a rollout: one server says when all have "
                "finished it"
            )
        elif algorithm.has_target:
            reason = "a target network: one server copies it"

        if self.shards > 1 and reason is not None:
            raise ConfigError("backend.shards", self.shards, f"must be 1 with {reason}")

        require_package("backend.address", self.address, "ray")
        fault = None if self.address == "local" else find_fault(self.address)
        if fault is not None:
            raise ConfigError(
                "backend.address",
                self.address,
                f"must be 'local', 'auto' or host:port of a cluster's head: {fault}",
            )

    def store(self, spec: StoreSpec) -> CachedStore:
        return CachedStore(spec)

    def run(self, context: RunContext, store: SharedStore) -> Generator[Event | None, None, None]:
        assert isinstance(store, CachedStore)
        workers = context.experiment.worker_count
        cpus = ceil(workers * self.cpus_per_worker) + 1
        vectors = 2 * (workers * (self.in_flight + 1) + 1)  # on their way
        memory = 2 * 4 * store.spec.size * vectors
        with connected(self.address, cpus, memory), closing(Driver(self, context, store)) as driver:
            yield from driver.run()


def _has_several_gradients(experiment: Experiment) -> bool:
    """Return whether a worker makes several gradients of a rollout."""
    return isinstance(experiment.algorithm, MinibatchAlgorithm) or experiment.memory is not None
