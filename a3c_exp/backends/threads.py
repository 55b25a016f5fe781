"""One thread for each worker, in this process."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass

from a3c_exp.backends.messages import GRACE_SECONDS, MERGE_SECONDS, WorkerExit, batch_events, failure_text
from a3c_exp.core.events import Event
from a3c_exp.core.experiment import Backend, RunContext
from a3c_exp.core.parameters import StoreSpec
from a3c_exp.core.store import SharedStore
from a3c_exp.core.worker import Worker
from a3c_exp.errors import RunError

Messages = queue.SimpleQueue[Event | WorkerExit]


@dataclass(frozen=True, kw_only=True)
class Threads(Backend):
    """Workers share memory and the interpreter: only one of them runs Python at any moment.

    Only what numpy and torch compute outside the interpreter's lock runs in parallel: operations on the arrays of many
    environments, large networks. Environments written in Python gain nothing here; use processes.

    A thread cannot be ended from outside. One that hangs in its environment is left behind, and ends with the program.
    """

    def store(self, spec: StoreSpec) -> SharedStore:
        return SharedStore(spec)

    def run(self, context: RunContext, store: SharedStore) -> Generator[Event | None, None, None]:
        messages: Messages = queue.SimpleQueue()
        threads: list[threading.Thread] = []
        try:
            for index in range(context.experiment.worker_count):
                arguments = context, index, store, messages
                threads.append(
                    threading.Thread(target=_run_worker, args=arguments, daemon=True, name=f"worker {index}")
                )
                threads[-1].start()
            running = len(threads)
            while running:
                try:
                    message = messages.get(timeout=MERGE_SECONDS)
                except queue.Empty:
                    yield None
                    continue
                if not isinstance(message, WorkerExit):
                    yield message
                    continue
                running -= 1
                if message.failure is not None:
                    raise RunError(message.failure)
        finally:
            store.stop()
            deadline = time.monotonic() + GRACE_SECONDS
            for thread in threads:
                if thread.ident is not None:
                    thread.join(max(0.0, deadline - time.monotonic()))


def _run_worker(context: RunContext, index: int, store: SharedStore, messages: Messages) -> None:
    """The thread's main function: send the worker's events, and at last a WorkerExit."""
    last = WorkerExit()
    try:
        worker = Worker(context, index, store)
        try:
            for event in batch_events(worker.run()):
                messages.put(event)
        finally:
            worker.close()
    except BaseException as error:  # whatever ended this worker is the run's to report
        last = WorkerExit(failure_text(f"worker {index}", error))
    messages.put(last)
