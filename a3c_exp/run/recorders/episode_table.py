"""The table of a run's episodes, episodes.csv."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from a3c_exp.common.log import log
from a3c_exp.core.events import Episodes
from a3c_exp.core.run_view import RunView
from a3c_exp.envs.info import EPISODE_COLUMNS
from a3c_exp.run.files import Appender, set_aside
from a3c_exp.run.open_run import OpenRun
from a3c_exp.run.recorders.recorder import RunRecorder
from a3c_exp.run.run_folder import EPISODES_FILE


class EpisodeTable(RunRecorder):
    """Writes episodes.csv with each point of the curves. It has at most `record_episodes` rows.

    step: environment steps of the run, of all workers, at which the episode ended, as its worker
    knew them. worker: its index. return: sum of the environment's own rewards. length: transitions.
    seconds: of training, when the run learned of the episode. After them come the environment's own
    numbers by name, with empty cells where an episode has none. Those of `env.info_keys` have a
    column; without it the first episode decides. A resumed run keeps those that it has.

    A resumed run keeps the rows of those episodes that its checkpoint knows of.
    """

    def __init__(self, run: OpenRun) -> None:
        super().__init__(run)
        path = run.folder / EPISODES_FILE
        lines = _earlier_lines(path, run.statistics.episodes)
        # of the environment's own numbers
        self._names = lines[0].split(",")[len(EPISODE_COLUMNS) :] if lines else None
        self._rows = max(0, len(lines) - 1)
        self._warned = False
        self._file = Appender(path, [f"{line}\n".encode() for line in lines])

    def on_episodes(self, run: RunView, worker: int, episodes: Episodes) -> None:
        most = self._run.experiment.record_episodes
        room = most - self._rows
        if room <= 0:
            return

        names = self._column_names(episodes)
        columns = (episodes.end_steps[:room], episodes.returns[:room], episodes.lengths[:room])
        numbers = (map(_cell, episodes.column(name)[:room].tolist()) for name in names)
        rows = list(zip(*(column.tolist() for column in columns), *numbers, strict=True))

        # One format for all rows takes half the time of one for each.
        template = f"%d,{worker},%.10g,%d,{run.seconds:.3f}{',%s' * len(names)}\n" * len(rows)
        self._file.add((template % tuple(cell for row in rows for cell in row)).encode())

        self._rows += len(rows)
        if self._rows >= most:
            log.warning(
                "episodes.csv has %d rows (record_episodes): later episodes are not recorded",
                self._rows,
            )

    def on_point(self, run: RunView, step: int, values: Mapping[str, float]) -> None:
        self.flush()

    def flush(self) -> None:
        """Write what has come in: a checkpoint is next, and a resumed run has no other record of
        what was before it."""
        self._run.output.write(EPISODES_FILE, self._file.flush)

    def close(self, finished: bool) -> None:
        """Write what has been added, at least the header."""
        self._column_names(Episodes())
        self._run.output.write(EPISODES_FILE, self._file.close)

    def _column_names(self, episodes: Episodes) -> list[str]:
        """Return the names of the environment's own numbers that have a column. The first episodes
        decide."""
        if self._names is None:
            keys = self._run.experiment.env.info_keys or ()
            self._names = list(dict.fromkeys([*keys, *episodes.numbers]))
            self._file.add(f"{','.join([*EPISODE_COLUMNS, *self._names])}\n".encode())
        new_names = [name for name in episodes.numbers if name not in self._names]
        if new_names and not self._warned:
            self._warned = True
            log.warning("episodes.csv has no column for %s, which came later", ", ".join(new_names))
        return self._names


def _earlier_lines(path: Path, episodes: int) -> list[str]:
    """Return the header of a run's table and its first rows, of so many episodes; nothing if there
    is no such row.

    Another program's table is set aside. A last line without its end is that of a writer that was
    killed.
    """
    if not (episodes and path.exists()):
        return []
    lines = path.read_bytes().decode(errors="replace").split("\n")[:-1]
    if lines and lines[0].split(",")[: len(EPISODE_COLUMNS)] == EPISODE_COLUMNS:
        return lines[: 1 + episodes] if len(lines) > 1 else []
    set_aside(path, "is of another program")
    return []


def _cell(number: float) -> str:
    return "" if math.isnan(number) else f"{number:.10g}"
