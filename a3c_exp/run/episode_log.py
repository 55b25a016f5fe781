"""episodes.csv: one row for each training episode."""

from __future__ import annotations

import logging
import math
from pathlib import Path

from a3c_exp.core.events import Episodes
from a3c_exp.envs.info import EPISODE_COLUMNS, is_usable_name
from a3c_exp.run.files import Appender, kept_lines
from a3c_exp.run.metrics import ResumePoint

log = logging.getLogger("a3c_exp")


class EpisodeLog(Appender):
    """Writes episodes.csv: `record` adds rows, which the next `flush` writes.

    step: environment steps of the run, of all workers, at which the episode ended, as its worker knew them. worker: its
    index. return: sum of the environment's own rewards. length: transitions. seconds: of training, when the run learned
    of the episode. After them come the environment's own numbers by name, with empty cells where an episode has none.
    The first episode decides which names have a column; a resumed run keeps those that it has.

    path: of the file. most: rows that it may have. resumed: where a resumed run continues: rows after the checkpoint
    are dropped. These are of later steps, or the run learned of them later: rollouts that were under way at the
    checkpoint are lost, and episodes in them may have ended at a step before it. None for a new run.
    """

    def __init__(self, path: Path, most: int, resumed: ResumePoint | None) -> None:
        self._names: list[str] | None = None  # of the environment's own numbers
        rows = kept_lines(path, self._parsed)
        if resumed is not None:
            latest = round(resumed.training_seconds, 3)
            rows = [row for row in rows if row[1] <= resumed.steps and row[2] <= latest]
        self._most = most
        self._rows = sum(step >= 0 for _, step, _ in rows)
        if not self._rows:
            self._names = None
        self._warned = False
        super().__init__(path, [line + b"\n" for line, _, _ in rows] if self._rows else [])

    def record(self, worker: int, episodes: Episodes, seconds: float) -> None:
        """Add the episodes of an event."""
        left = self._most - self._rows
        if left <= 0:
            return
        names = self._decided(episodes)
        columns = (episodes.end_steps[:left], episodes.returns[:left], episodes.lengths[:left])
        numbers = (map(_cell, episodes.column(name)[:left].tolist()) for name in names)
        rows = list(zip(*(column.tolist() for column in columns), *numbers, strict=True))
        # One format for all rows takes half the time of one for each.
        template = f"%d,{worker},%.10g,%d,{seconds:.3f}{',%s' * len(names)}\n" * len(rows)
        self.add((template % tuple(cell for row in rows for cell in row)).encode())
        self._rows += len(rows)
        if self._rows >= self._most:
            log.warning("episodes.csv has %d rows (record_episodes): later episodes are not recorded", self._rows)

    def close(self) -> None:
        """Write what has been added, at least the header, and close the file."""
        self._decided(Episodes())
        super().close()

    def _decided(self, episodes: Episodes) -> list[str]:
        """The names of the environment's own numbers that have a column, which the first episodes decide."""
        if self._names is None:
            self._names = list(episodes.numbers)
            self.add(f"{','.join([*EPISODE_COLUMNS, *self._names])}\n".encode())
        others = [name for name in episodes.numbers if name not in self._names]
        if others and not self._warned:
            self._warned = True
            log.warning("episodes.csv has no column for %s, which came later", ", ".join(others))
        return self._names

    def _parsed(self, line: bytes) -> tuple[bytes, int, float] | None:
        """A line with its step and its seconds; of the header -1 and 0. None if it lacks one of them, or has another
        number of cells than the header."""
        cells = line.decode(errors="replace").split(",")
        first, rest = cells[: len(EPISODE_COLUMNS)], cells[len(EPISODE_COLUMNS) :]
        if self._names is None and first == EPISODE_COLUMNS and all(map(is_usable_name, rest)):
            self._names = rest
            return line, -1, 0.0
        if self._names is None or len(cells) != len(EPISODE_COLUMNS) + len(self._names) or not cells[0].isdecimal():
            return None
        try:
            return line, int(cells[0]), float(cells[4])
        except ValueError:
            return None


def _cell(number: float) -> str:
    return "" if math.isnan(number) else f"{number:.10g}"
