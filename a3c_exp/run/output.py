"""The files that a run writes: curves, checkpoints, the summary. A full disk does not end the training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from a3c_exp.core.callback import Media
from a3c_exp.core.events import Episodes
from a3c_exp.run import checkpoint, files
from a3c_exp.run.curves import CurveWriter
from a3c_exp.run.episode_log import EpisodeLog
from a3c_exp.run.run_folder import (
    BEST,
    CHECKPOINTS,
    EPISODES_FILE,
    LATEST,
    METRICS_FILE,
    PREVIOUS,
    SUMMARY_FILE,
    numbered_checkpoint,
    numbered_checkpoints,
)

log = logging.getLogger("a3c_exp")


class RunOutput:
    """The files of the run in `folder`. episodes: None if the run has no record of them.

    last_checkpoints: numbered ones that are kept: see `Checkpoint.last`.

    lost: whether the folder was renamed, moved or deleted. Nothing is written any more: another run may be there.
    unwritten: names of the files whose last write failed. Each failure is logged once. Earlier content stays whole,
        and the next write tries again.
    """

    def __init__(
        self, folder: Path, curves: CurveWriter, episodes: EpisodeLog | None = None, last_checkpoints: int = 0
    ) -> None:
        self.folder = folder
        self._identity = files.identity(folder)
        self.lost = False
        self._curves = curves
        self._episodes = episodes
        self._last_checkpoints = last_checkpoints
        self.unwritten: set[str] = set()

    def log(self, step: int, values: Mapping[str, float], seconds: float) -> None:
        """Write a point of the curves: see `CurveWriter.log`."""
        self._write("curves", lambda: self._curves.log(step, values, seconds))
        self._flush_episodes()

    def log_media(self, step: int, kind: Media, name: str, value: Any) -> None:
        """Write anything but numbers: see `EventFile.media`."""
        self._write("curves", lambda: self._curves.events.media(step, kind, name, value))

    def add_episodes(self, worker: int, episodes: Episodes, seconds: float) -> None:
        """Record episodes of a worker: see `EpisodeLog`. They are written with the next point of the curves."""
        if self._episodes is not None:
            self._episodes.record(worker, episodes, seconds)

    def _flush_episodes(self) -> None:
        if self._episodes is not None:
            self._write(EPISODES_FILE, self._episodes.flush)

    def save(self, name: str, state: Mapping[str, Any]) -> None:
        """Write a checkpoint, whole or not at all, and metrics.csv. The latest one before it stays as previous.ckpt."""
        self._flush_episodes()  # a resumed run has no other record of those before the checkpoint
        self._write(METRICS_FILE, self._curves.write_table)
        folder = self.folder / CHECKPOINTS

        def write() -> None:
            with files.keeping_copy(folder / LATEST, folder / PREVIOUS) if name == LATEST else nullcontext():
                checkpoint.save(folder / name, state)

        self._write(name, write)
        if name == LATEST and LATEST not in self.unwritten:
            self._write("numbered checkpoints", partial(self._number_latest, state))

    def _number_latest(self, state: Mapping[str, Any]) -> None:
        """Keep the latest checkpoint, which holds `state`, by its steps, and delete numbered ones that are too many.

        Those of later steps are of a part of the run that was lost.
        """
        numbers = numbered_checkpoints(self.folder)
        if not self._last_checkpoints and not numbers:
            return
        steps = state["store"]["steps"]
        if self._last_checkpoints:
            files.copy_as(self.folder / CHECKPOINTS / LATEST, numbered_checkpoint(self.folder, steps))
        numbers = numbered_checkpoints(self.folder)
        kept = [path for path, number in numbers.items() if number <= steps][: self._last_checkpoints]
        for path in numbers.keys() - set(kept):
            path.unlink()

    def keep_checkpoints(self, keep: str) -> None:
        """Delete the checkpoints that a run does not leave. keep: both, latest, best (latest if there is none) or none.
        Numbered ones stay with the latest.

        A latest checkpoint that could not be written leaves everything.
        """
        folder = self.folder / CHECKPOINTS
        if LATEST in self.unwritten:
            return
        kept = {"both": {LATEST, BEST}, "latest": {LATEST}, "best": {BEST}, "none": set[str]()}[keep]
        if keep == "best" and not (folder / BEST).exists():
            kept = {LATEST}
        numbered = () if LATEST in kept else (path.name for path in numbered_checkpoints(self.folder))
        for name in {LATEST, PREVIOUS, BEST, *numbered} - kept:
            self._write(name, partial((folder / name).unlink, missing_ok=True))

    def close_curves(self, success: bool) -> None:
        """Write what is left of the curves and the record of episodes. success: see `CurveWriter.close`."""
        self._write(METRICS_FILE, self._curves.write_table)
        self._write("curves", lambda: self._curves.close(success))
        if self._episodes is not None:
            self._write(EPISODES_FILE, self._episodes.close)

    def write_summary(self, summary: dict[str, Any]) -> dict[str, Any]:
        """Write summary.json; return the summary with `unwritten` as it is after that."""
        self._write(SUMMARY_FILE, lambda: files.write_json(self.folder / SUMMARY_FILE, summary))
        return summary | {"unwritten": sorted(self.unwritten)}

    def _write(self, what: str, write: Callable[[], object]) -> None:
        """Call `write`, unless the folder's name is that of another folder now, or of none."""
        self.lost = self.lost or files.identity(self.folder) != self._identity
        if self.lost:
            self.unwritten.add(what)
            return
        try:
            write()
        except (OSError, RuntimeError, MemoryError) as error:  # a RuntimeError: no thread is to be had
            if what not in self.unwritten:
                log.error("%s cannot be written: %s", what, error)
            self.unwritten.add(what)
        else:
            self.unwritten.discard(what)
