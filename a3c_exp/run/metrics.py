"""The points of a run's curves as numbers: metrics.jsonl, which grows by a line for each, and metrics.csv, their table.

Imports neither torch nor TensorBoard.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, NamedTuple

from a3c_exp.common.reading import LARGEST, UnreadableError, open_regular
from a3c_exp.run.files import Appender, atomic_write, kept_lines, set_aside, write_text
from a3c_exp.run.run_folder import METRICS_FILE, POINTS_FILE

STEP, SECONDS = "step", "wall_seconds"

MOST_BYTES = 2**30
"""Of a file of points that is read. That of a run of a day has 1 MB."""

Point = dict[str, float]
"""A point of the curves: STEP, SECONDS, and values by their names in TensorBoard."""


class ResumePoint(NamedTuple):
    """Where a resumed run goes on: the moment of its checkpoint.

    steps: of the run. wall_seconds: since its start. training_seconds: of these, those of training.
    """

    steps: int
    wall_seconds: float = math.inf
    training_seconds: float = math.inf


class Metrics:
    """Writes the points of a run: each at once to metrics.jsonl, and all of them to metrics.csv with `write_table`.

    folder: of the run. resumed: where a resumed run continues: later points are dropped. A kept point may be younger
        than the checkpoint: that of an evaluation, or the last one before it. It gets the checkpoint's time, so that
        time never goes back. None for a new run: files that are already there are set aside.
    """

    def __init__(self, folder: Path, resumed: ResumePoint | None) -> None:
        self._table = folder / METRICS_FILE
        self._columns: dict[str, None] = dict.fromkeys((STEP, SECONDS))  # in the order in which they came
        self._rows: list[str] = []
        lines = [self._line(point) for point in _earlier_points(folder, resumed)]
        path = folder / POINTS_FILE
        atomic_write(path, lambda file: file.writelines(lines))
        self._file = Appender(path)
        if resumed is not None:
            self.write_table()

    def add(self, step: int, wall_seconds: float, values: Mapping[str, float]) -> None:
        """Add a point, which the next `flush` writes."""
        self._file.add(self._line({STEP: step, SECONDS: round(wall_seconds, 3), **values}))

    def _line(self, point: Point) -> bytes:
        """A point as a line of metrics.jsonl. Keeps it for metrics.csv."""
        self._columns.update(dict.fromkeys(point))
        self._rows.append(",".join(str(point.get(name, "")) for name in self._columns))
        return f"{json.dumps(point, default=float)}\n".encode()

    def flush(self) -> None:
        """Write the points since the last call. Raises OSError if they do not fit: see `Appender`."""
        self._file.flush()

    def write_table(self) -> None:
        """Write metrics.csv, whole: a column for each name, and an empty cell where a point has no value. OSError."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(self._columns)
        commas = len(self._columns) - 1
        text.writelines(f"{row}{',' * (commas - row.count(','))}\n" for row in self._rows)
        write_text(self._table, text.getvalue())

    def close(self) -> None:
        self._file.close()


def points_file(folder: Path) -> Path:
    """The file with the points of the run in `folder`. An earlier version's has metrics.csv alone."""
    path = folder / POINTS_FILE
    return path if path.exists() else folder / METRICS_FILE


def read_points(path: Path) -> list[Point]:
    """The points in a file, in the order in which they were written; none if there is no such file.

    path: metrics.jsonl, or a table as metrics.csv is, of any other name. An incomplete last line is skipped: the run
    may be writing it, or was killed while it did. Raises UnreadableError for any other line that is damaged, and
    OSError.
    """
    try:
        with open_regular(path, MOST_BYTES) as file:
            return list(_lines(file) if path.suffix == ".jsonl" else _table_rows(file))
    except FileNotFoundError:
        return []


def _earlier_points(folder: Path, resumed: ResumePoint | None) -> list[Point]:
    """The points that a run has before its first one. A file that another program has changed is set aside."""
    path = points_file(folder)
    if resumed is None:
        for each in (path, folder / METRICS_FILE):
            if each.exists():
                set_aside(each, "is of another run")
        return []
    try:
        points = kept_lines(path, _parsed) if path.name == POINTS_FILE else read_points(path)
    except UnreadableError as error:
        set_aside(path, str(error))
        return []
    latest = round(resumed.wall_seconds, 3)
    return [point | {SECONDS: min(point[SECONDS], latest)} for point in points if point[STEP] <= resumed.steps]


def _lines(file: IO[bytes]) -> Iterator[Point]:
    for number, line in enumerate(file, 1):
        if not line.endswith(b"\n"):
            return
        point = _parsed(line)
        if point is None:
            raise UnreadableError(f"line {number} is no point of a curve")
        yield point


def _parsed(line: bytes) -> Point | None:
    """The point in a line; None if it holds none."""
    try:
        point = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(point, dict) or not all(_is_number(value) for value in point.values()):
        return None
    return point if STEP in point and SECONDS in point else None


def _is_number(value: object) -> bool:
    return isinstance(value, float) or (type(value) is int and abs(value) <= LARGEST)


def _table_rows(file: IO[bytes]) -> Iterator[Point]:
    text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline="")
    rows = csv.DictReader(line for line in text if line.endswith("\n"))
    try:
        for row in rows:
            point = {name: _number(cell) for name, cell in row.items() if cell}
            yield {STEP: point[STEP], SECONDS: point[SECONDS], **point}
    except (ValueError, KeyError, AttributeError, csv.Error):  # also of a row with more cells than the header
        raise UnreadableError(f"line {rows.line_num} is no point of a curve") from None


def _number(cell: str) -> float:
    """The number in a cell; a whole number where it is one, so that it is written as it was."""
    return int(cell) if cell.isdecimal() and len(cell) < 19 else float(cell)
