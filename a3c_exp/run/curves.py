"""A run's curves: TensorBoard's event file, and metrics.csv."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from a3c_exp.run.event_file import EventFile
from a3c_exp.run.metrics import SECONDS, STEP, PointsTable, ResumePoint, earlier_points
from a3c_exp.run.run_folder import METRICS_FILE


class CurveWriter:
    """Writes a run's curves into its folder, each point at once.

    folder: the run's folder, which exists.
    resumed: where a resumed run continues; None for a new run. Points of later steps are void: they are dropped from
        the table, and TensorBoard hides them, so that each curve stays one line.

    events: the event file, for what is no number.

    Every call leaves whole records on disk or raises OSError. What did not fit is written by a later call.
    """

    def __init__(self, folder: Path, resumed: ResumePoint | None = None) -> None:
        path = folder / METRICS_FILE
        self._table = PointsTable(path, earlier_points(path, resumed))
        self.events = EventFile(folder, start=0 if resumed is None else resumed.steps + 1)

    def log(self, step: int, values: Mapping[str, float], wall_seconds: float) -> None:
        """Write one point: `values` by name, at `step` of the run, after `wall_seconds`.

        An evaluation's point has the step of the evaluated parameters, which may lie before the last point's.
        """
        try:
            self.events.scalars(step, values)
        finally:
            self._table.log({STEP: step, SECONDS: round(wall_seconds, 3), **values})

    def close(self, success: bool = True) -> None:
        """Finish the files.

        success: mark the run as ended on the HParams dashboard. Other runs are left open there: they may be resumed,
            and the dashboard keeps the first record of how a run ended.
        """
        with closing(self._table), closing(self.events):
            if success:
                self.events.success()
