"""A run's curves: TensorBoard's event file, and the points of metrics.jsonl and metrics.csv."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from a3c_exp.run.event_file import DASHBOARD, EventFile, dashboard, hparams, scalar, session_end, session_start, text
from a3c_exp.run.metrics import Metrics, ResumePoint
from a3c_exp.run.run_folder import config_text


class CurveWriter:
    """Writes a run's curves into its folder.

    folder: the run's folder, which exists.
    config: the run's configuration, for TensorBoard's text and HParams dashboards.
    resumed: where a resumed run continues; None for a new run. Points of later steps are void: they are dropped from
        the tables, and TensorBoard hides them, so that each curve stays one line.

    Every call leaves whole records on disk or raises OSError. What did not fit is written by a later call.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any], resumed: ResumePoint | None = None) -> None:
        self._metrics = Metrics(folder, resumed)
        self._events = EventFile(folder)
        self._events.session(0 if resumed is None else resumed.steps + 1)
        code = "\n".join(f"    {line}" for line in config_text(config).splitlines())  # indented: verbatim in Markdown
        self._events.summary(0, text("config", code), dashboard(DASHBOARD), session_start(hparams(config)))

    def log(self, step: int, values: Mapping[str, float], wall_seconds: float) -> None:
        """Write one point: `values` by name, at `step` of the run, after `wall_seconds`.

        An evaluation's point has the step of the evaluated parameters, which may lie before the last point's.
        """
        self._metrics.add(step, wall_seconds, values)
        self._events.summary(step, *(scalar(name, value) for name, value in values.items()))
        self._metrics.flush()

    def write_table(self) -> None:
        """Write metrics.csv."""
        self._metrics.write_table()

    def close(self, success: bool = True) -> None:
        """Finish the files, except for metrics.csv.

        success: mark the run as ended on the HParams dashboard. Other runs are left open there: they may be resumed,
            and the dashboard keeps the first record of how a run ended.
        """
        with ExitStack() as stack:
            stack.callback(self._metrics.close)
            stack.callback(self._events.close)
            if success:
                self._events.summary(0, session_end())
