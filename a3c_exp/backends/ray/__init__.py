"""Parameter servers and workers as actors of a Ray cluster: on this machine, or on many."""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from a3c_exp.errors import ConfigError, require

if TYPE_CHECKING:
    from a3c_exp.backends.ray.driver import Mirror
    from a3c_exp.core.events import Event
    from a3c_exp.core.experiment import Experiment
    from a3c_exp.core.store import StoreSpec
    from a3c_exp.core.worker import RunContext

CONNECT_SECONDS = 5.0
INSTALL = "pip install 'a3c-exp[ray]'"


@dataclass(frozen=True, kw_only=True)
class Ray:
    """A parameter server holds the parameters and steps them; workers anywhere in a cluster pull from it and push to it
    (Dean et al. 2012, "Large Scale Distributed Deep Networks", section 4.1).

    address: 'local' starts Ray on this machine, on loopback alone, for this run; 'auto' joins the cluster that this
        machine is part of; or the address of a cluster's head, host:port. A program that has joined one uses that.
    shards: servers that share the vector between them.
    in_flight: pushes that a worker may have under way while it goes on. With 0 it waits for each, and one worker
        does what one on any backend does. Synchronous rounds are waited for in any case.
    wire: what gradients and parameters are sent as; bfloat16 is half as many bytes, and has 8 bits of precision.
    local_epochs: an algorithm that learns from a rollout in minibatches does so on a copy of the worker's own, and
        pushes what that has changed, once a rollout. Each worker then has moments of its own, which are not saved.
    cpus_per_worker: what a worker is counted as where it is placed; a node takes as many as it has cores.
    placement: 'spread' over the nodes, or 'pack' onto few.
    """

    deterministic: ClassVar[bool] = False

    address: str = "local"
    shards: int = 1
    in_flight: int = 1
    wire_dtype: Literal["float32", "bfloat16"] = "float32"
    local_epochs: bool = False
    cpus_per_worker: float = 1.0
    placement: Literal["spread", "pack"] = "spread"

    def __post_init__(self) -> None:
        require(bool(self.address), "address", self.address, "'local', 'auto' or the address of a cluster's head")
        require(self.shards >= 1, "shards", self.shards, "a whole number >= 1")
        require(self.in_flight >= 0, "in_flight", self.in_flight, "a whole number >= 0")
        require(self.cpus_per_worker >= 0, "cpus_per_worker", self.cpus_per_worker, "a number >= 0")

    def check(self, experiment: Experiment) -> None:
        """Raise ConfigError for what this backend cannot run, or not here."""
        from a3c_exp.algorithms import Reusing

        if importlib.util.find_spec("ray") is None:
            raise ConfigError("backend.address", self.address, f"needs Ray: {INSTALL}")
        self._check_address()
        if self.local_epochs and not isinstance(experiment.algorithm, Reusing):
            name = type(experiment.algorithm).__name__
            raise ConfigError("backend.local_epochs", True, f"must be false with {name}, which takes a rollout once")

    def _check_address(self) -> None:
        """Raise ConfigError where nobody answers: Ray itself would try for minutes."""
        if self.address in ("local", "auto"):
            return
        host, _, port = self.address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
        except (OSError, ValueError, OverflowError) as error:
            problem = f"must be 'local', 'auto' or host:port of a cluster's head; this one does not answer ({error})"
            raise ConfigError("backend.address", self.address, problem) from None

    def prepare(self) -> None:
        """Nothing to start: a cluster is started once the run is known to be sound."""

    def store(self, layout: StoreSpec) -> Mirror:
        from a3c_exp.backends.ray.driver import Mirror

        return Mirror(layout)

    def run(self, context: RunContext, store: Any) -> Generator[Event | None, None, None]:
        from a3c_exp.backends.ray.cluster import connected
        from a3c_exp.backends.ray.driver import Crew

        with connected(self, context.experiment.worker_count, store.layout):
            crew = Crew(self, context, store)
            try:
                yield from crew.work()
            finally:
                crew.close()
