"""episodes.csv: one row for each training episode."""

from __future__ import annotations

import logging
from pathlib import Path

from a3c_exp.core.events import Episodes
from a3c_exp.run.files import Appender, atomic_write, kept_lines
from a3c_exp.run.metrics import ResumePoint

log = logging.getLogger("a3c_exp")

HEADER = b"step,worker,return,length,seconds"


class EpisodeLog(Appender):
    """Writes episodes.csv: `record` adds rows, which the next `flush` writes.

    step: environment steps of the run, of all workers, at which the episode ended, as its worker knew them. worker: its
    index. return: sum of the environment's own rewards. length: transitions. seconds: of training, when the run learned
    of the episode.

    path: of the file. most: rows that it may have. resumed: where a resumed run continues: rows after the checkpoint
    are dropped. These are of later steps, or the run learned of them later: rollouts that were under way at the
    checkpoint are lost, and episodes in them may have ended at a step before it. None for a new run.
    """

    def __init__(self, path: Path, most: int, resumed: ResumePoint | None) -> None:
        rows = kept_lines(path, _parsed)
        if resumed is not None:
            latest = round(resumed.training_seconds, 3)
            rows = [row for row in rows if row[1] <= resumed.steps and row[2] <= latest]
        lines = [HEADER, *(line for line, _, _ in rows if line != HEADER)]
        atomic_write(path, lambda file: file.writelines(line + b"\n" for line in lines))
        self._most = most
        self._rows = len(lines) - 1
        super().__init__(path)

    def record(self, worker: int, episodes: Episodes, seconds: float) -> None:
        """Add the episodes of an event."""
        left = self._most - self._rows
        if left <= 0:
            return
        columns = (episodes.end_steps[:left], episodes.returns[:left], episodes.lengths[:left])
        rows = list(zip(*(column.tolist() for column in columns), strict=True))
        # One format for all rows takes half the time of one for each.
        template = f"%d,{worker},%.10g,%d,{seconds:.3f}\n" * len(rows)
        self.add((template % tuple(cell for row in rows for cell in row)).encode())
        self._rows += len(rows)
        if self._rows >= self._most:
            log.warning("episodes.csv has %d rows (record_episodes): later episodes are not recorded", self._rows)


def _parsed(line: bytes) -> tuple[bytes, int, float] | None:
    """A line with its step and its seconds; None if it lacks one of them, or has another number of cells than the
    header."""
    if line == HEADER:
        return line, 0, 0.0
    cells = line.split(b",")
    if len(cells) != 5 or not cells[0].isdigit():
        return None
    try:
        return line, int(cells[0]), float(cells[4])
    except ValueError:
        return None
