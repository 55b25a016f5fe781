"""One thread a worker, in this process."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar

from a3c_exp.backends import GRACE_SECONDS, MERGE_SECONDS, Ended, failure, merged
from a3c_exp.errors import RunError
from a3c_exp.events import Event
from a3c_exp.parameters import Layout, SharedParameters
from a3c_exp.worker import Setup, Worker

Messages = queue.SimpleQueue[Event | Ended]


@dataclass(frozen=True, kw_only=True)
class Threads:
    """Workers share memory and the interpreter: only one of them runs Python at any moment.

    What they do at once is what numpy and torch do outside the interpreter's lock: many environments in one array
    operation, large networks. Python environments gain nothing here; use processes.

    A thread cannot be ended from outside. One that hangs in its environment is left behind, and ends with the program.
    """

    deterministic: ClassVar[bool] = False

    def prepare(self) -> None:
        """Nothing to start."""

    def store(self, layout: Layout) -> SharedParameters:
        return SharedParameters(layout)

    def run(self, setup: Setup, store: SharedParameters) -> Generator[Event | None, None, None]:
        messages: Messages = queue.SimpleQueue()
        threads: list[threading.Thread] = []
        try:
            for index in range(setup.experiment.worker_count):
                arguments = setup, index, store, messages
                threads.append(threading.Thread(target=_work, args=arguments, daemon=True, name=f"worker {index}"))
                threads[-1].start()
            running = len(threads)
            while running:
                try:
                    message = messages.get(timeout=MERGE_SECONDS)
                except queue.Empty:
                    yield None
                    continue
                if not isinstance(message, Ended):
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


def _work(setup: Setup, index: int, store: SharedParameters, messages: Messages) -> None:
    last = Ended()
    try:
        worker = Worker(setup, index, store)
        try:
            for event in merged(worker.run()):
                messages.put(event)
        finally:
            worker.close()
    except BaseException as error:  # whatever ended this worker is the run's to report
        last = Ended(failure(f"worker {index}", error))
    messages.put(last)
