"""The files that a run writes: curves, checkpoints, the summary. A full disk does not end the training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from a3c_exp.core.events import Episodes
from a3c_exp.run import checkpoint, files
from a3c_exp.run.curves import CurveWriter
from a3c_exp.run.episode_log import EpisodeLog
from a3c_exp.run.metrics import ResumePoint
from a3c_exp.run.run_folder import BEST, CHECKPOINTS, EPISODES_FILE, LATEST, METRICS_FILE, PREVIOUS, SUMMARY_FILE

log = logging.getLogger("a3c_exp")


class RunOutput:
    """The files of one run.

    Curves and the record of episodes are written by a thread, in the order of the calls: a slow disk does not keep the
    trainer from taking the workers' events. Checkpoints and the summary are on disk when their call returns.

    folder, config, resumed: see `CurveWriter`. episode_rows: most rows of episodes.csv; 0: no such file.
    lost: whether the folder was renamed, moved or deleted. Nothing is written any more: another run may be there.
    unwritten: names of the files whose last write failed. Each failure is logged once. Earlier content stays whole,
        and the next write tries again.
    """

    def __init__(
        self, folder: Path, config: Mapping[str, Any], resumed: ResumePoint | None, episode_rows: int = 0
    ) -> None:
        self._folder = folder
        self._identity = files.identity(folder)
        self.lost = False
        self._writer = CurveWriter(folder, config, resumed)
        self._episodes = EpisodeLog(folder / EPISODES_FILE, episode_rows, resumed) if episode_rows else None
        self._thread = CallThread("curves")
        self.unwritten: set[str] = set()

    def log(self, step: int, values: dict[str, float], seconds: float) -> None:
        """Write a point of the curves, later: see `CurveWriter.log`."""
        self._write_later("curves", lambda: self._writer.log(step, values, seconds))
        self._flush_episodes()

    @property
    def busy(self) -> bool:
        """Whether something that was given earlier is still being written to the curves or the record of episodes."""
        return self._thread.busy

    def add_episodes(self, worker: int, episodes: Episodes, seconds: float) -> None:
        """Record episodes of a worker: see `EpisodeLog`. They are written with the next point of the curves."""
        if self._episodes is not None:
            self._episodes.add(worker, episodes, seconds)

    def _flush_episodes(self) -> None:
        if self._episodes is not None:
            self._write_later(EPISODES_FILE, self._episodes.flush)

    def _write_later(self, what: str, write: Callable[[], None]) -> None:
        def written() -> None:
            if self._is_lost(what):
                return
            with self._writing(what):
                write()

        self._thread.call(written)

    def save(self, name: str, state: Mapping[str, Any]) -> None:
        """Write a checkpoint, whole or not at all, and metrics.csv. The latest one before it stays as previous.ckpt."""
        self._flush_episodes()  # a resumed run has no other record of those before the checkpoint
        self._write_later(METRICS_FILE, self._writer.write_table)
        if self._is_lost(name):
            return
        folder = self._folder / CHECKPOINTS
        copy = files.keeping_copy(folder / LATEST, folder / PREVIOUS) if name == LATEST else nullcontext()
        with self._writing(name), copy:
            checkpoint.save(folder / name, state)

    def keep_checkpoints(self, keep: str) -> None:
        """Delete the checkpoints that a run does not leave. keep: both, latest, best (latest if there is none) or none.

        A latest checkpoint that could not be written leaves everything.
        """
        folder = self._folder / CHECKPOINTS
        if LATEST in self.unwritten or self._is_lost(LATEST):
            return
        kept = {"both": {LATEST, BEST}, "latest": {LATEST}, "best": {BEST}, "none": set[str]()}[keep]
        if keep == "best" and not (folder / BEST).exists():
            kept = {LATEST}
        for name in {LATEST, PREVIOUS, BEST} - kept:
            with self._writing(name):
                (folder / name).unlink(missing_ok=True)

    def close_curves(self, success: bool) -> None:
        """Write what is left of the curves and the record of episodes. success: see `CurveWriter.close`."""
        self._write_later(METRICS_FILE, self._writer.write_table)
        self._write_later("curves", lambda: self._writer.close(success))
        if self._episodes is not None:
            self._write_later(EPISODES_FILE, self._episodes.close)
        self._thread.close()

    def write_summary(self, summary: dict[str, Any]) -> dict[str, Any]:
        """Write summary.json; return the summary with `unwritten` as it is after that."""
        if not self._is_lost(SUMMARY_FILE):
            with self._writing(SUMMARY_FILE):
                files.write_json(self._folder / SUMMARY_FILE, summary)
        return summary | {"unwritten": sorted(self.unwritten)}

    def _is_lost(self, what: str) -> bool:
        """Return whether the folder's name is that of another folder now, or of none."""
        if files.identity(self._folder) != self._identity:
            self.lost = True
            self.unwritten.add(what)
        return self.lost

    @contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if what not in self.unwritten:
                log.error("%s cannot be written: %s", what, error)
            self.unwritten.add(what)
        else:
            self.unwritten.discard(what)


class CallThread:
    """A thread that makes calls one after another, in the order in which they were given.

    Begun by the first call. A daemon, unlike those of `concurrent.futures`: these take no call once the program's main
    thread is through, and a run in another thread may go on.
    """

    def __init__(self, name: str) -> None:
        self._thread = Thread(target=self._work, name=name, daemon=True)
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._given = self._done = 0  # each is counted by one thread
        self._error: Exception | None = None

    def call(self, function: Callable[[], None]) -> None:
        """Make this call after those that were given before it. Returns at once."""
        if not self._given:
            self._thread.start()
        self._given += 1
        self._calls.put(function)

    @property
    def busy(self) -> bool:
        """Whether a call has not ended yet. Raises the first error of those that have, once."""
        self._raise_error()
        return self._done < self._given

    def close(self) -> None:
        """Wait for all calls, and end the thread. Raises the first error of those that none was raised for."""
        if self._given:
            self._calls.put(None)
            self._thread.join()
        self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _work(self) -> None:
        while (function := self._calls.get()) is not None:
            try:
                function()
            except Exception as error:  # for the thread that gave the call
                self._error = self._error or error
            self._done += 1
