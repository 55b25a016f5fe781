"""One process for each worker, with the parameters in shared memory."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import ClassVar, Literal

from a3c_exp.backends.processes.children import Child, end_children
from a3c_exp.backends.processes.resources import check_processes, shared_store
from a3c_exp.backends.supervision import (
    PipeSupervisor,
    RestartSettings,
    WorkerRun,
    run_worker,
)
from a3c_exp.backends.turns import run_in_turns
from a3c_exp.common.ranges import Count
from a3c_exp.core.cpu import cores_of_a_run
from a3c_exp.core.events import Event
from a3c_exp.core.experiment import Backend, Experiment, RunContext
from a3c_exp.core.parameters import StoreSpec
from a3c_exp.core.store import SharedStore
from a3c_exp.errors import require


@dataclass(frozen=True, kw_only=True)
class Processes(RestartSettings, Backend):
    """Workers are forked from a server process that has imported everything once, so a worker
    starts in milliseconds and shares the libraries' memory with the others. (A plain fork of a
    program that has used its OpenMP threads would hang at the first forward pass.)

    The parameters lie in anonymous shared memory, which the system frees with the last process that
    maps it. A worker ends itself when this process has ended. So not even SIGKILL leaves anything
    behind. The server stays until this process ends, so that the next run of the same program
    starts at once.

    processes: number of processes, in each of which several workers take turns in a random order,
        as on `serial`; 'auto' is one for each core of the run. A process that dies, or one of whose
        workers fails or hangs, is replaced with all of its workers, which counts as one
        replacement. None: one process for each worker.
    """

    has_order: ClassVar[bool] = True

    processes: Count | Literal["auto"] | None = None

    def check(self, experiment: Experiment) -> None:
        """Raise ConfigError if the worker processes could not be started, or if workers that share
        a process may leave it one by one."""
        check_processes(experiment, files_each=3)
        stop = experiment.stop
        is_shared = self._process_count(experiment) < experiment.worker_count
        allowed = "null with stop.worker_episodes or stop.worker_return"
        require(
            not is_shared or stop.worker_episodes is stop.worker_return is None,
            "backend.processes",
            self.processes,
            allowed,
        )

    def store(self, spec: StoreSpec) -> SharedStore:
        return shared_store(spec)

    def run(self, context: RunContext, store: SharedStore) -> Generator[Event | None, None, None]:
        experiment = context.experiment
        workers = range(experiment.worker_count)
        processes = self._process_count(experiment)
        bounds = [len(workers) * index // processes for index in range(processes + 1)]
        groups = [workers[first:end] for first, end in pairwise(bounds)]
        environments = max(map(len, groups)) * experiment.envs_per_worker
        sources = _sources(groups, context, store)
        yield from PipeSupervisor(sources, self, store, environments).run(end_children)

    def _process_count(self, experiment: Experiment) -> int:
        processes = cores_of_a_run() if self.processes == "auto" else self.processes
        return min(processes or experiment.worker_count, experiment.worker_count)


def _sources(
    groups: Sequence[Sequence[int]], context: RunContext, store: SharedStore
) -> Iterator[Child]:
    """Make a process for each group of workers."""
    for first, *others in groups:
        run: WorkerRun = partial(run_worker, context, first, store)
        if others:
            run = partial(run_in_turns, context, (first, *others), store)
        yield Child(store=store, worker=first, others=others, run=run)
