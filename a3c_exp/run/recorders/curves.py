"""The curves of a run: points in metrics.csv and in TensorBoard's file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from a3c_exp.core.run_view import EvalResult, Media, RunView
from a3c_exp.run.event_file import EventFile, header
from a3c_exp.run.metrics import SECONDS, STEP, PointsTable
from a3c_exp.run.open_run import OpenRun
from a3c_exp.run.recorders.recorder import Every, RunRecorder
from a3c_exp.run.run_folder import METRICS_FILE

# Between points of the curves are LOG_SECONDS plus LOG_SHARE of the time since the start: a run of
# an hour has two thousand points, and a run of a day five thousand.
LOG_SECONDS = 0.5
LOG_SHARE = 1 / 1000


class Curves(RunRecorder):
    """Logs a point of the statistics now and then, and writes every point to metrics.csv and to
    TensorBoard's file.

    Where a run is resumed, points of later steps are void: they are dropped from the table, and
    TensorBoard hides them, so that each curve stays one line.
    """

    def __init__(self, run: OpenRun) -> None:
        super().__init__(run)
        every = run.experiment.log.every
        assert every != "auto"  # of a final configuration

        self._table = PointsTable(run.folder / METRICS_FILE, run.steps, run.seconds)
        run.statistics.catch_up(self._table.kept)
        self.dropped = self._table.dropped
        self._events = EventFile(run.folder, start=run.steps + 1)
        self._events.write(summary=header(run.config))
        self._by_time = every is None
        self._due = Every(every, run.statistics.steps)
        self._next = 0.0  # in seconds

    def on_tick(self, run: RunView) -> None:
        statistics = self._run.statistics
        if self._by_time:
            now = statistics.seconds
            if now >= self._next and statistics.has_new_data:
                self._next = now + LOG_SECONDS + LOG_SHARE * now
                self.log_new()
        elif self._due(statistics.steps):
            self.log_new()

    def log_new(self) -> None:
        """Log a point of what is new since the last one."""
        statistics = self._run.statistics
        if statistics.has_new_data:
            self._run.log(statistics.window(self._run.milestones.session_seconds))

    def on_point(self, run: RunView, step: int, values: Mapping[str, float]) -> None:
        """An evaluation's point has the step of the evaluated parameters, which may lie before the
        last point's."""
        point = {STEP: step, SECONDS: round(self._run.seconds, 3), **values}
        self._run.output.write(METRICS_FILE, self._table.log, point)
        self._run.output.write(self._events.path.name, self._events.scalars, step, values)

    def on_media(self, run: RunView, step: int, kind: Media, name: str, value: Any) -> None:
        self._run.output.write(self._events.path.name, self._events.media, step, kind, name, value)

    def on_evaluation(self, run: RunView, result: EvalResult) -> None:
        values = {"eval/mean_reward": result.mean_return, "eval/mean_ep_length": result.mean_length}
        values |= {f"eval/{name}": number for name, number in result.numbers.items()}
        run.log(values, result.steps)

    def close(self, finished: bool) -> None:
        output = self._run.output
        name = self._events.path.name
        # others may be resumed, and TensorBoard keeps the first record of how a run has ended
        if finished:
            output.write(name, self._events.success)
        output.write(name, self._events.close)
        output.write(METRICS_FILE, self._table.close)
