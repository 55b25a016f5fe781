"""One thread a worker, in this process."""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from a3c_exp.backends import MERGE_SECONDS, merged
from a3c_exp.errors import RunError
from a3c_exp.events import Event
from a3c_exp.parameters import Layout, SharedParameters
from a3c_exp.worker import Setup, Worker

# A worker looks at the stop flag before each rollout; one that has not ended by then is left behind as a daemon.
JOIN_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class _Ended:
    """A worker's last message: the traceback that ended it, or None."""

    worker: int
    traceback: str | None = None


@dataclass(frozen=True, kw_only=True)
class Threads:
    """Workers share memory and the interpreter: only one of them runs Python at any moment.

    What they do at once is what numpy and torch do outside the interpreter's lock: many environments in one array
    operation, large networks. Python environments gain nothing here; use processes.
    """

    deterministic: ClassVar[bool] = False

    def prepare(self, modules: Iterable[str]) -> None:
        """Nothing to start."""

    def store(self, layout: Layout) -> SharedParameters:
        return SharedParameters(layout)

    def run(self, setup: Setup, store: SharedParameters) -> Iterator[Event | None]:
        messages: queue.SimpleQueue[Event | _Ended] = queue.SimpleQueue()
        threads = [
            threading.Thread(target=_work, args=(setup, index, store, messages), daemon=True, name=f"worker {index}")
            for index in range(setup.experiment.worker_count)
        ]
        for thread in threads:
            thread.start()
        running = len(threads)
        try:
            while running:
                try:
                    message = messages.get(timeout=MERGE_SECONDS)
                except queue.Empty:
                    yield None
                    continue
                if not isinstance(message, _Ended):
                    yield message
                    continue
                running -= 1
                if message.traceback is not None:
                    raise RunError(f"worker {message.worker} failed:\n{message.traceback}")
        finally:
            store.stop()
            for thread in threads:
                thread.join(JOIN_SECONDS)


def _work(setup: Setup, index: int, store: SharedParameters, messages: queue.SimpleQueue[Event | _Ended]) -> None:
    try:
        worker = Worker(setup, index, store)
        try:
            for event in merged(worker.run()):
                messages.put(event)
        finally:
            worker.close()
    except BaseException:  # noqa: BLE001 - whatever ended this worker is the run's to report
        messages.put(_Ended(index, traceback.format_exc()))
    else:
        messages.put(_Ended(index))
