"""metrics.csv: the points of a run's curves. Imports neither torch nor TensorBoard."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from a3c_exp.common.reading import UnreadableError, open_regular
from a3c_exp.run.files import Appender, set_aside

STEP = "step"
SECONDS = "wall_seconds"

MOST_BYTES = 2**30
"""Of a table that is read. That of a run of a day has 1 MB."""

Point = dict[str, float]
"""A point of the curves: STEP, SECONDS of training (from the first step), and values by their names
in TensorBoard."""


class PointsTable(Appender):
    """The table in `path`, which begins with some points: a row for each point, and a column for
    each name.

    A point without a value has an empty cell there. Where a point brings a new name the whole table
    is written again, which is rare.
    """

    def __init__(self, path: Path, points: Iterable[Point]) -> None:
        # in the order in which they came
        self._columns: dict[str, None] = dict.fromkeys((STEP, SECONDS))
        self._rows: list[str] = []
        for point in points:
            self._note(point)
        super().__init__(path, self._lines())
        self._width = len(self._columns)  # of the table on disk

    def log(self, point: Point) -> None:
        """Write a point. Raises OSError if it does not fit: the next one, or the end, brings it
        along."""
        self.add(f"{self._note(point)}\n".encode())
        self.flush()

    def flush(self) -> None:
        if len(self._columns) > self._width:
            self.replace(self._lines())  # with all that has been added
            self._width = len(self._columns)
        super().flush()

    def _note(self, point: Point) -> str:
        self._columns.update(dict.fromkeys(point))
        self._rows.append(",".join(str(point.get(name, "")) for name in self._columns))
        return self._rows[-1]

    def _lines(self) -> Iterator[bytes]:
        header = io.StringIO()
        csv.writer(header, lineterminator="\n").writerow(self._columns)
        yield header.getvalue().encode()
        for row in self._rows:
            yield f"{row}{',' * (len(self._columns) - 1 - row.count(','))}\n".encode()


def read_points(path: Path) -> list[Point]:
    """The points in a table, in the order in which they were written; none if there is no such
    file.

    An incomplete last line is skipped: the run may be writing it, or was killed while it did.
    Raises UnreadableError for any other line that is damaged, and OSError.
    """
    with suppress(FileNotFoundError), open_regular(path, MOST_BYTES) as file:
        return list(_points(file))
    return []


def earlier_points(path: Path, steps: int, seconds: float) -> list[Point]:
    """The points of a run up to its checkpoint, of so many steps and seconds; none of a new run.

    A kept point may be younger than the checkpoint: that of an evaluation, or the last one before
    it. It gets the checkpoint's time, so that time never goes back. A table that another program
    has changed is set aside.
    """
    try:
        points = read_points(path)
    except UnreadableError as error:
        set_aside(path, str(error))
        return []
    latest = round(seconds, 3)
    return [
        point | {SECONDS: min(point[SECONDS], latest)} for point in points if point[STEP] <= steps
    ]


def _points(file: IO[bytes]) -> Iterator[Point]:
    text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline="")
    rows = csv.DictReader(line for line in text if line.endswith("\n"))
    try:
        for row in rows:
            point = {name: _number(cell) for name, cell in row.items() if cell}
            yield {STEP: point[STEP], SECONDS: point[SECONDS], **point}
    except (
        ValueError,
        KeyError,
        AttributeError,
        csv.Error,
    ):  # also of a row with more cells than the header
        raise UnreadableError(f"line {rows.line_num} is no point of a curve") from None


def _number(cell: str) -> float:
    """The number in a cell; a whole number where it is one, so that it is written as it was."""
    return int(cell) if cell.isdecimal() and len(cell) < 19 else float(cell)
