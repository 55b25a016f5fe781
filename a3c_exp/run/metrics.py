"""metrics.csv: the points of a run's curves. Imports neither torch nor TensorBoard."""

from __future__ import annotations

import csv
import heapq
import io
import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import IO

from a3c_exp.common.reading import UnreadableError
from a3c_exp.run.files import Appender, set_aside

STEP = "step"
SECONDS = "wall_seconds"

Point = dict[str, float]
"""A point of the curves: STEP, SECONDS of training (from the first step), and values by their names
in TensorBoard."""


class PointsTable(Appender):
    """The table in `path`: a row for each point, and a column for each name.

    A point without a value has an empty cell there. Where a point brings a new name the whole table
    is written again, which is rare. At the end the rows are put in the order of their steps: the
    point of an evaluation comes late. No row is kept in memory.

    steps, seconds: of the checkpoint that the run goes on from. Later points are dropped. A kept
    point may be younger than the checkpoint: that of an evaluation, or the last one before it. It
    gets the checkpoint's time, so that time never goes back.

    kept: the last values in kept points. dropped: the last step of those that are dropped; -1 if
        there is none.

    A table that another program has changed is set aside.
    """

    def __init__(self, path: Path, steps: int, seconds: float) -> None:
        self.kept: Point = {}
        self.dropped = -1.0
        try:
            for point in iterate_points(path):
                if point[STEP] <= steps:
                    self.kept |= point
                else:
                    self.dropped = max(self.dropped, point[STEP])
        except UnreadableError as error:
            set_aside(path, str(error))
            self.kept, self.dropped = {}, -1.0
        # in the order in which they came
        self._columns = dict.fromkeys((STEP, SECONDS, *self.kept))
        self._width = len(self._columns)  # of the table on disk
        latest = round(seconds, 3)
        earlier = (
            point | {SECONDS: min(point[SECONDS], latest)}
            for point in iterate_points(path)
            if point[STEP] <= steps
        )
        super().__init__(path, chain(self._header(), map(self._row, earlier)))

    def log(self, point: Point) -> None:
        """Write a point. Raises OSError if it does not fit: the next one, or the end, brings it
        along."""
        self._columns.update(dict.fromkeys(point))
        self.add(self._row(point))
        self.flush()

    def flush(self) -> None:
        if len(self._columns) > self._width:
            self._rewrite(self._rows())  # with all that has been added
            self._width = len(self._columns)
        super().flush()

    def close(self) -> None:
        """Write what has been added, put the rows in order, and close the file."""
        try:
            self.flush()
            if late := sorted((row for is_late, row in self._marked() if is_late), key=_step_of):
                in_time = (row for is_late, row in self._marked() if not is_late)
                self._rewrite(heapq.merge(in_time, late, key=_step_of))
        finally:
            super().close()

    def _header(self) -> list[bytes]:
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(self._columns)
        return [line.getvalue().encode()]

    def _row(self, point: Point) -> bytes:
        return f"{','.join(str(point.get(name, '')) for name in self._columns)}\n".encode()

    def _rows(self) -> Iterator[bytes]:
        """The rows on disk, and those that wait for it."""
        with open(self._path, "rb") as file:
            file.readline()
            yield from file
        yield from self._pending

    def _marked(self) -> Iterator[tuple[bool, bytes]]:
        """The rows, and whether each has an earlier step than one before it."""
        latest = -math.inf
        for row in self._rows():
            step = _step_of(row)
            yield step < latest, row
            latest = max(latest, step)

    def _rewrite(self, rows: Iterable[bytes]) -> None:
        last = len(self._columns) - 1
        wide = (row[:-1] + b"," * (last - row.count(b",")) + b"\n" for row in rows)
        self.replace(chain(self._header(), wide))


def _step_of(row: bytes) -> float:
    return float(row.partition(b",")[0])


def read_points(path: Path) -> list[Point]:
    """The points in a table: see `iterate_points`."""
    return list(iterate_points(path))


def iterate_points(path: Path) -> Iterator[Point]:
    """The points in a table, in the order in which they were written; none if there is no such
    file.

    An incomplete last line is skipped: the run may be writing it, or was killed while it did.
    Raises UnreadableError for any other line that is damaged, and OSError.
    """
    with suppress(FileNotFoundError), open(path, "rb") as file:
        yield from _points(file)


def _points(file: IO[bytes]) -> Iterator[Point]:
    text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline="")
    rows = csv.DictReader(line for line in text if line.endswith("\n"))
    try:
        for row in rows:
            point = {name: _cell_value(cell) for name, cell in row.items() if cell}
            yield {STEP: point[STEP], SECONDS: point[SECONDS], **point}
    except (
        ValueError,
        KeyError,
        AttributeError,
        csv.Error,
    ):  # also of a row with more cells than the header
        raise UnreadableError(f"line {rows.line_num} is no point of a curve") from None


def _cell_value(cell: str) -> float:
    """The number in a cell; a whole number where it is one, so that it is written as it was."""
    return int(cell) if cell.isdecimal() and len(cell) < 19 else float(cell)
