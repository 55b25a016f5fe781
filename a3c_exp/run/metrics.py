"""Reads the points of a run's curves: metrics.jsonl, which has a line for each, and metrics.csv, their table.

Imports neither torch nor TensorBoard.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from a3c_exp.common.reading import LARGEST, UnreadableError, open_regular
from a3c_exp.run.files import kept_lines, set_aside
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


def earlier_points(folder: Path, resumed: ResumePoint | None) -> list[Point]:
    """The points that a run has before its first one: none of a new run, those up to the checkpoint of a resumed one.

    A kept point may be younger than the checkpoint: that of an evaluation, or the last one before it. It gets the
    checkpoint's time, so that time never goes back. A file that another program has changed is set aside.
    """
    if resumed is None:
        return []
    path = points_file(folder)
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
