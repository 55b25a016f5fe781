"""episodes.csv: one row for each training episode."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from pathlib import Path

from a3c_exp.core.callback import RunView
from a3c_exp.core.events import Episodes
from a3c_exp.envs.info import EPISODE_COLUMNS, is_usable_name
from a3c_exp.run.callback_list import Own, Training
from a3c_exp.run.files import Appender, log, set_aside
from a3c_exp.run.metrics import ResumePoint
from a3c_exp.run.run_folder import EPISODES_FILE


class EpisodeTable(Own):
    """Writes episodes.csv with each point of the curves. It has at most `record_episodes` rows.

    step: environment steps of the run, of all workers, at which the episode ended, as its worker knew them. worker: its
    index. return: sum of the environment's own rewards. length: transitions. seconds: of training, when the run learned
    of the episode. After them come the environment's own numbers by name, with empty cells where an episode has none.
    The first episode decides which names have a column; a resumed run keeps those that it has.

    resumed: where a resumed run continues: rows after the checkpoint are dropped. These are of later steps, or the run
    learned of them later: rollouts that were under way at the checkpoint are lost, and episodes in them may have ended
    at a step before it. None for a new run.
    """

    def __init__(self, run: Training, resumed: ResumePoint | None) -> None:
        super().__init__(run)
        path = run.folder / EPISODES_FILE
        lines = [] if resumed is None else _earlier_lines(path, resumed)
        self._names = lines[0].split(",")[len(EPISODE_COLUMNS) :] if lines else None  # of the environment's own numbers
        self._rows = max(0, len(lines) - 1)
        self._warned = False
        self._file = Appender(path, [f"{line}\n".encode() for line in lines])

    def on_episodes(self, run: RunView, worker: int, episodes: Episodes) -> None:
        most = self._run.experiment.record_episodes
        left = most - self._rows
        if left <= 0:
            return
        names = self._decided(episodes)
        columns = (episodes.end_steps[:left], episodes.returns[:left], episodes.lengths[:left])
        numbers = (map(_cell, episodes.column(name)[:left].tolist()) for name in names)
        rows = list(zip(*(column.tolist() for column in columns), *numbers, strict=True))
        # One format for all rows takes half the time of one for each.
        template = f"%d,{worker},%.10g,%d,{run.seconds:.3f}{',%s' * len(names)}\n" * len(rows)
        self._file.add((template % tuple(cell for row in rows for cell in row)).encode())
        self._rows += len(rows)
        if self._rows >= most:
            log.warning("episodes.csv has %d rows (record_episodes): later episodes are not recorded", self._rows)

    def on_point(self, run: RunView, step: int, values: Mapping[str, float]) -> None:
        self.flush()

    def flush(self) -> None:
        self._run.output.write(EPISODES_FILE, self._file.flush)

    def close(self, finished: bool) -> None:
        """Write what has been added, at least the header."""
        self._decided(Episodes())
        self._run.output.write(EPISODES_FILE, self._file.close)

    def _decided(self, episodes: Episodes) -> list[str]:
        """The names of the environment's own numbers that have a column, which the first episodes decide."""
        if self._names is None:
            self._names = list(episodes.numbers)
            self._file.add(f"{','.join([*EPISODE_COLUMNS, *self._names])}\n".encode())
        others = [name for name in episodes.numbers if name not in self._names]
        if others and not self._warned:
            self._warned = True
            log.warning("episodes.csv has no column for %s, which came later", ", ".join(others))
        return self._names


def _earlier_lines(path: Path, resumed: ResumePoint) -> list[str]:
    """The header of a run's table and its rows up to the checkpoint; nothing if there is no such row.

    A table that another program has changed is set aside, and its rows are kept as far as they can be read. A last line
    without its end is that of a writer that was killed.
    """
    text = path.read_bytes().decode(errors="replace") if path.exists() else ""
    if not text:
        return []
    header, *rows = text.split("\n")[:-1] or [""]
    names, fixed = header.split(","), len(EPISODE_COLUMNS)
    is_ours = names[:fixed] == EPISODE_COLUMNS and all(map(is_usable_name, names[fixed:]))
    places = [_place(row, len(names)) if is_ours else None for row in rows]
    if not is_ours or None in places:
        set_aside(path, "has lines that cannot be read")
    latest = round(resumed.training_seconds, 3)
    near = [at is not None and at[0] <= resumed.steps and at[1] <= latest for at in places]
    kept = list(itertools.compress(rows, near))
    return [header, *kept] if kept else []


def _place(row: str, count: int) -> tuple[int, float] | None:
    """The step and the seconds of a row; None if it lacks one of them, or has another number of cells."""
    cells = row.split(",")
    try:
        return (int(cells[0]), float(cells[4])) if len(cells) == count else None
    except ValueError:
        return None


def _cell(number: float) -> str:
    return "" if math.isnan(number) else f"{number:.10g}"
