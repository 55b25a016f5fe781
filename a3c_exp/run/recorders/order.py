"""The order of a run's pulls and pushes, order.bin."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from a3c_exp.core.order import Kind, Order, SavedState, row_words
from a3c_exp.core.run_view import RunView
from a3c_exp.errors import FolderError
from a3c_exp.run import provenance
from a3c_exp.run.files import Appender, set_aside
from a3c_exp.run.open_run import OpenRun
from a3c_exp.run.order_file import FIRST_LINE, Framer, read_order
from a3c_exp.run.recorders.recorder import RunRecorder
from a3c_exp.run.run_folder import ORDER_FILE

WRITE_SECONDS = 0.1
"""Time between two writes."""


class OrderFile(RunRecorder):
    """Takes the rows out of the store's ring, and writes them to order.bin: at least before each
    checkpoint. So what a checkpoint has, the file has too, however the run ends.

    order: that of the run's store.
    """

    def __init__(self, run: OpenRun, order: Order) -> None:
        super().__init__(run)
        self._order = order
        self._next = 0.0

        before = FIRST_LINE
        checksum = 0
        start = None
        state = run.store.state()
        if run.milestones.resumed:
            before, checksum = _earlier(run.folder)
            start = {
                name: value.tolist() if isinstance(value, np.ndarray) else value
                for name, value in state.items()
                if name not in ("parameters", "optimizer_state")
            }

        self._framer = Framer(checksum)
        self._file = Appender(run.folder / ORDER_FILE, [before])
        versions = provenance.versions()
        description = {"config": dict(run.config), "versions": versions, "start": start}
        self._file.add(self._framer.session(description))
        order.start(state["version"])
        self.save({"store": state})

    def on_tick(self, run: RunView) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + WRITE_SECONDS
            self._take()
            self._flush()

    def save(self, state: Mapping[str, Any]) -> None:
        """Write all rows, and one for a checkpoint of this state, which is written next."""
        saved = SavedState.of_state(state["store"])
        self._order.wait_for(saved.version)
        self._take()
        words = row_words(Kind.SAVED, 0, saved.words())
        self._file.add(self._framer.rows(np.array(words, np.uint32)))
        self._flush()

    def close(self, finished: bool) -> None:
        self._take()
        self._run.output.write(ORDER_FILE, self._file.close)

    def _take(self) -> None:
        words = self._order.take()
        if len(words):
            self._file.add(self._framer.rows(words))

    def _flush(self) -> None:
        self._run.output.write(ORDER_FILE, self._file.flush)


def _earlier(folder: Path) -> tuple[bytes, int]:
    """Return the content of a resumed run's file, and its checksum. One that cannot be read is set
    aside."""
    path = folder / ORDER_FILE
    if path.exists():
        try:
            recorded = read_order(folder)
            return recorded.content, recorded.checksum
        except FolderError as error:
            set_aside(path, error.problem.removeprefix(f"{ORDER_FILE} "))
    return FIRST_LINE, 0
