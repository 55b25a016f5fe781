"""One process for each worker, with the parameters in shared memory."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar

from a3c_exp.backends.processes.children import Child, end_children
from a3c_exp.backends.processes.resources import check_processes, shared_store
from a3c_exp.backends.supervision import PipeSupervisor, RestartSettings, worker_sources
from a3c_exp.core.events import Event
from a3c_exp.core.experiment import Backend, Experiment, RunContext
from a3c_exp.core.parameters import StoreSpec
from a3c_exp.core.store import SharedStore


@dataclass(frozen=True, kw_only=True)
class Processes(RestartSettings, Backend):
    """Workers are forked from a server process that has imported everything once, so a worker
    starts in milliseconds and shares the libraries' memory with the others. (A plain fork of a
    program that has used its OpenMP threads would hang at the first forward pass.)

    The parameters lie in anonymous shared memory, which the system frees with the last process that
    maps it. A worker ends itself when this process has ended. So not even SIGKILL leaves anything
    behind. The server stays until this process ends, so that the next run of the same program
    starts at once.
    """

    has_order: ClassVar[bool] = True

    def check(self, experiment: Experiment) -> None:
        """Raise ConfigError if the worker processes could not be started."""
        check_processes(experiment, files_each=3)

    def store(self, spec: StoreSpec) -> SharedStore:
        return shared_store(spec)

    def run(self, context: RunContext, store: SharedStore) -> Generator[Event | None, None, None]:
        workers = worker_sources(Child, context, store)
        environments = context.experiment.envs_per_worker
        yield from PipeSupervisor(workers, self, store, environments).run(end_children)
