"""One thread for each worker, in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from typing import ClassVar

from a3c_exp.backends.messages import send_events
from a3c_exp.backends.processes.resources import allow_files
from a3c_exp.backends.supervision import (
    PipeSource,
    PipeSupervisor,
    RestartSettings,
    WorkerRun,
    run_worker,
)
from a3c_exp.core.events import Event
from a3c_exp.core.experiment import Backend, Experiment, RunContext
from a3c_exp.core.store import SharedStore


@dataclass(frozen=True, kw_only=True)
class Threads(RestartSettings, Backend):
    """Workers share memory and the interpreter: only one of them runs Python at any moment.

    Only what numpy and torch compute outside the interpreter's lock runs in parallel: operations on
    the arrays of many environments, large networks. Environments written in Python gain nothing
    here; use processes.

    A thread cannot be ended from outside. One that hangs in its environment ends the run, as a
    failure unless its work was over; it is left behind, and ends with the program.
    """

    has_order: ClassVar[bool] = True

    def check(self, experiment: Experiment) -> None:
        """Raise ConfigError if so many workers may not have a pipe each."""
        allow_files(experiment.worker_count, each=2)

    def run(self, context: RunContext, store: SharedStore) -> Generator[Event | None, None, None]:
        experiment = context.experiment
        workers = (
            ThreadSource(store=store, worker=index, run=partial(run_worker, context, index, store))
            for index in range(experiment.worker_count)
        )
        yield from PipeSupervisor(workers, self, store, experiment.envs_per_worker).run()


@dataclass(kw_only=True, eq=False)
class ThreadSource(PipeSource):
    """A thread. A network on a GPU belongs to the thread that uses it, so `run` is called there."""

    thread: threading.Thread = field(init=False)

    def begin(self, run: WorkerRun, writer: Connection) -> None:
        thread = threading.Thread(
            target=send_events, args=(self.name, writer, run), name=self.name, daemon=True
        )
        thread.start()
        self.thread = thread  # only now: one that has not started cannot be joined

    def join(self, deadline: float) -> bool:
        self.thread.join(max(0.0, deadline - time.monotonic()))
        return not self.thread.is_alive()
