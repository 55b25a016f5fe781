"""The files that a run writes: curves, checkpoints, the summary. A full disk does not end the training."""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from a3c_exp.run import checkpoint, files, tensorboard
from a3c_exp.run.files import Appender
from a3c_exp.run.run_folder import CHECKPOINTS, SUMMARY_FILE, config_text
from a3c_exp.run.tensorboard import EventFile

log = logging.getLogger("a3c_exp")


class RunOutput:
    """The files of one run.

    folder, config, purge_step: see `CurveWriter`.
    unwritten: names of the files whose last write failed. Each failure is logged once. Earlier content stays whole,
        and the next write tries again.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any], purge_step: int | None) -> None:
        self._folder = folder
        self._writer = CurveWriter(folder, config, purge_step)
        self.unwritten: set[str] = set()

    def log(self, step: int, values: dict[str, float], seconds: float) -> None:
        """Write a point of the curves: see `CurveWriter.log`."""
        with self._writing("curves"):
            self._writer.log(step, values, seconds)

    def save(self, name: str, state: Mapping[str, Any]) -> None:
        """Write a checkpoint, whole or not at all."""
        with self._writing(name):
            checkpoint.save(self._folder / CHECKPOINTS / name, state)

    def close_curves(self, success: bool) -> None:
        """Finish the curves. success: see `CurveWriter.close`."""
        with self._writing("curves"):
            self._writer.close(success)

    def write_summary(self, summary: dict[str, Any]) -> dict[str, Any]:
        """Write summary.json; return the summary with `unwritten` as it is after that."""
        with self._writing(SUMMARY_FILE):
            files.write_json(self._folder / SUMMARY_FILE, summary)
        return summary | {"unwritten": sorted(self.unwritten)}

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


class CurveWriter:
    """Writes a run's curves into its folder: an event file for TensorBoard, and metrics.csv.

    folder: the run's folder, which exists.
    config: the run's configuration, for TensorBoard's text and HParams dashboards.
    purge_step: the step from which a resumed run continues; None for a new run. Points of later steps are void: their
        rows of metrics.csv are dropped, and TensorBoard hides them, so that each curve stays one line.

    Every call leaves whole records on disk or raises OSError. A full disk damages no earlier record.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any], purge_step: int | None = None) -> None:
        self._table = CsvLog(folder / "metrics.csv", purge_step)
        self._events = EventFile(folder)
        self._events.session(0 if purge_step is None else purge_step + 1)
        code = "\n".join(f"    {line}" for line in config_text(config).splitlines())  # indented: verbatim in Markdown
        self._events.summary(
            0,
            tensorboard.text("config", code),
            tensorboard.dashboard(tensorboard.DASHBOARD),
            tensorboard.session_start(tensorboard.hparams(config)),
        )

    def log(self, step: int, values: Mapping[str, float], wall_seconds: float) -> None:
        """Write one point: `values` by name, at `step` of the run, after `wall_seconds`.

        An evaluation's point has the step of the evaluated parameters, which may lie before the last point's.
        """
        self._events.summary(step, *(tensorboard.scalar(name, value) for name, value in values.items()))
        self._table.append(step, wall_seconds, values)

    def close(self, success: bool = True) -> None:
        """Finish the files.

        success: mark the run as ended on the HParams dashboard. Other runs are left open there: they may be resumed,
            and the dashboard keeps the first record of how a run ended.
        """
        try:
            if success:
                self._events.summary(0, tensorboard.session_end())
        finally:
            self._events.close()
            self._table.close()


class CsvLog:
    """metrics.csv: `step`, `wall_seconds` and one column for each name; a cell without a value is empty.

    A new name adds a column. The file is then rewritten and replaced atomically.
    """

    def __init__(self, path: Path, purge_step: int | None) -> None:
        """Open the file at `path`, new or existing. Its broken rows, and those after `purge_step`, are dropped."""
        self._path = path
        self._file = Appender(path)
        self._columns = ["step", "wall_seconds"]
        rows = list(_read(path))
        if rows:
            self._columns = list(rows[0])
        if purge_step is not None:
            rows = [row for row in rows if int(row["step"]) <= purge_step]
        self._replace(self._columns, rows)

    def append(self, step: int, wall_seconds: float, values: Mapping[str, float]) -> None:
        """Add a row. Raises OSError if it does not fit on the disk, and leaves the file as it was."""
        new = [name for name in values if name not in self._columns]
        if new:
            self._replace([*self._columns, *new], list(_read(self._path)))
        row = {"step": step, "wall_seconds": round(wall_seconds, 3), **values}
        self._file.write(_line([row.get(name, "") for name in self._columns]))

    def _replace(self, columns: list[str], rows: Sequence[Mapping[str, str]]) -> None:
        lines = [_line(columns), *(_line([row.get(name, "") for name in columns]) for row in rows)]
        files.atomic_write(self._path, lambda file: file.writelines(lines))
        self._file.close()
        self._columns = columns
        self._file = Appender(self._path)

    def close(self) -> None:
        self._file.close()


def _read(path: Path) -> Iterator[dict[str, str]]:
    """The complete rows of a table. Rows that a killed process or a full disk left incomplete are skipped."""
    with open(path, newline="", encoding="utf-8", errors="replace") as file:
        for row in csv.DictReader(line for line in file if line.endswith("\n")):
            with suppress(KeyError, ValueError, TypeError):
                int(row["step"])
                if None not in row and None not in row.values():
                    yield row


def _line(cells: Sequence[object]) -> bytes:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue().encode()
