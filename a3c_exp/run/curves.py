"""A run's curves: TensorBoard's event file, and the points of metrics.jsonl and metrics.csv."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from a3c_exp.run.event_file import EventFile
from a3c_exp.run.files import Appender, write_text
from a3c_exp.run.metrics import SECONDS, STEP, Point, ResumePoint, earlier_points
from a3c_exp.run.run_folder import METRICS_FILE, POINTS_FILE


class CurveWriter:
    """Writes a run's curves into its folder: each point at once to the event file and to metrics.jsonl, and all of them
    to metrics.csv with `write_table`.

    folder: the run's folder, which exists. Of a new run, tables that are already there are set aside.
    resumed: where a resumed run continues; None for a new run. Points of later steps are void: they are dropped from
        the tables, and TensorBoard hides them, so that each curve stays one line.

    events: the event file, for what is no number.

    Every call leaves whole records on disk or raises OSError. What did not fit is written by a later call.
    """

    def __init__(self, folder: Path, resumed: ResumePoint | None = None) -> None:
        self._table = folder / METRICS_FILE
        self._columns: dict[str, None] = dict.fromkeys((STEP, SECONDS))  # in the order in which they came
        self._rows: list[str] = []
        self._points = Appender(folder / POINTS_FILE, [self._line(each) for each in earlier_points(folder, resumed)])
        if resumed is not None:
            self.write_table()
        self.events = EventFile(folder, start=0 if resumed is None else resumed.steps + 1)

    def log(self, step: int, values: Mapping[str, float], wall_seconds: float) -> None:
        """Write one point: `values` by name, at `step` of the run, after `wall_seconds`.

        An evaluation's point has the step of the evaluated parameters, which may lie before the last point's.
        """
        self._points.add(self._line({STEP: step, SECONDS: round(wall_seconds, 3), **values}))
        self.events.scalars(step, values)
        self._points.flush()

    def _line(self, point: Point) -> bytes:
        """A point as a line of metrics.jsonl. Keeps it for metrics.csv."""
        self._columns.update(dict.fromkeys(point))
        self._rows.append(",".join(str(point.get(name, "")) for name in self._columns))
        return f"{json.dumps(point, default=float)}\n".encode()

    def write_table(self) -> None:
        """Write metrics.csv, whole: a column for each name, and an empty cell where a point has no value."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(self._columns)
        commas = len(self._columns) - 1
        text.writelines(f"{row}{',' * (commas - row.count(','))}\n" for row in self._rows)
        write_text(self._table, text.getvalue())

    def close(self, success: bool = True) -> None:
        """Finish the files, except for metrics.csv.

        success: mark the run as ended on the HParams dashboard. Other runs are left open there: they may be resumed,
            and the dashboard keeps the first record of how a run ended.
        """
        with closing(self._points), closing(self.events):
            if success:
                self.events.success()
