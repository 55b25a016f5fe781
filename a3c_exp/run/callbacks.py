"""The package's own callbacks for stop rules, curves and checkpoints. Others have modules of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from a3c_exp.core.callback import EvalResult, Media, RunView
from a3c_exp.run import checkpoint, files, run_folder
from a3c_exp.run.callback_list import Every, Own, Training
from a3c_exp.run.event_file import EventFile, header
from a3c_exp.run.metrics import SECONDS, STEP, PointsTable, ResumePoint, earlier_points
from a3c_exp.run.run_folder import BEST, CHECKPOINTS, LATEST, METRICS_FILE

# Between points of the curves are LOG_SECONDS plus LOG_SHARE of the time since the start: a run of an hour has two
# thousand points, and a run of a day five thousand.
LOG_SECONDS, LOG_SHARE = 0.5, 1 / 1000


class StopRules(Own):
    """Ends a run by the rules of `stop`."""

    def on_tick(self, run: RunView) -> None:
        if rule := self.rule():
            run.stop(rule)

    def rule(self) -> str | None:
        """The rule that ends the run now; None if there is none."""
        stop, statistics = self._run.experiment.stop, self._run.statistics
        if stop.mean_return is not None and statistics.reached(stop.mean_return, stop.window):
            return "mean_return"
        if stop.max_episodes is not None and statistics.episodes >= stop.max_episodes:
            return "max_episodes"
        if stop.max_seconds is not None and self._run.clock.session >= stop.max_seconds:
            return "max_seconds"
        return None

    def leaving_rule(self) -> str:
        """The rule by which all workers have left before the total steps: that of most of those that say why."""
        # One that had finished all its episodes in an earlier session says nothing.
        silent = "total_steps" if self._run.experiment.stop.worker_episodes is None else "worker_episodes"
        ((rule, _),) = self._run.statistics.left.most_common(1) or [(silent, 0)]
        return rule


class Curves(Own):
    """Logs a point of the statistics now and then, and writes every point to metrics.csv and to TensorBoard's file.

    resumed: where a resumed run continues; None for a new run. Points of later steps are void: they are dropped from
    the table, and TensorBoard hides them, so that each curve stays one line.
    """

    def __init__(self, run: Training, resumed: ResumePoint | None) -> None:
        super().__init__(run)
        every = run.experiment.log.every
        assert every != "auto"  # of a final configuration
        path = run.folder / METRICS_FILE
        self._table = PointsTable(path, earlier_points(path, resumed))
        self._events = EventFile(run.folder, start=0 if resumed is None else resumed.steps + 1)
        self._events.write(summary=header(run.config))
        self._by_time = every is None
        self._due = Every(every, run.statistics.steps)
        self._next = 0.0  # in seconds

    def on_tick(self, run: RunView) -> None:
        statistics = self._run.statistics
        if self._by_time and (now := statistics.seconds) >= self._next and statistics.has_new_data:
            self._next = now + LOG_SECONDS + LOG_SHARE * now
            self.log_new()
        elif self._due(statistics.steps):
            self.log_new()

    def log_new(self) -> None:
        """Log a point of what is new since the last one."""
        if self._run.statistics.has_new_data:
            self._run.log(self._run.statistics.window(self._run.clock.session))

    def on_point(self, run: RunView, step: int, values: Mapping[str, float]) -> None:
        """An evaluation's point has the step of the evaluated parameters, which may lie before the last point's."""
        point = {STEP: step, SECONDS: round(self._run.statistics.seconds, 3), **values}
        self._run.output.write(METRICS_FILE, self._table.log, point)
        self._run.output.write(self._events.path.name, self._events.scalars, step, values)

    def on_media(self, run: RunView, step: int, kind: Media, name: str, value: Any) -> None:
        self._run.output.write(self._events.path.name, self._events.media, step, kind, name, value)

    def on_evaluation(self, run: RunView, result: EvalResult) -> None:
        values = {"eval/mean_reward": result.mean_return, "eval/mean_ep_length": result.mean_length}
        run.log(values | {f"eval/{name}": number for name, number in result.numbers.items()}, result.steps)

    def close(self, finished: bool) -> None:
        output, name = self._run.output, self._events.path.name
        if finished:  # others may be resumed, and TensorBoard keeps the first record of how a run has ended
            output.write(name, self._events.success)
        output.write(name, self._events.close)
        output.write(METRICS_FILE, self._table.close)


class Checkpoints(Own):
    """Saves the latest state every so many steps, and when SIGUSR1 asks for it. Keeps as many as are asked for."""

    def __init__(self, run: Training) -> None:
        super().__init__(run)
        self._settings = run.experiment.checkpoint
        self._folder = run.folder / CHECKPOINTS
        self._due = Every(self._settings.every, run.steps)

    def on_tick(self, run: RunView) -> None:
        if self._due(run.steps) or self._run.interruption.save_requested:
            self._run.interruption.save_requested = False
            run.save()

    def write(self, name: str, state: Mapping[str, Any]) -> bool:
        """Write a checkpoint, whole or not at all."""
        output = self._run.output
        output.write(name, checkpoint.save, self._folder / name, state)
        written = name not in output.unwritten
        if name == LATEST and written:
            output.write("numbered checkpoints", self._number_latest, state["store"]["steps"])
        return written

    def _number_latest(self, steps: int) -> None:
        """Keep the latest checkpoint by its steps, and delete numbered ones that are too many.

        Two are kept at least: the next save may leave a damaged latest one. Those of later steps are of a part of the
        run that was lost.
        """
        files.copy_as(self._folder / LATEST, self._folder / f"step_{steps}.ckpt")
        numbers = run_folder.numbered_checkpoints(self._run.folder)
        kept = [path for path, number in numbers.items() if number <= steps][: max(2, self._settings.last)]
        for path in numbers.keys() - set(kept):
            path.unlink()

    def close(self, finished: bool) -> None:
        """Delete the checkpoints that a finished run does not leave. Numbered ones stay with the latest.

        A latest checkpoint that could not be written leaves everything.
        """
        if LATEST not in self._run.output.unwritten:
            self._run.output.write("checkpoints", self._leave, self._settings.keep if finished else "both")

    def _leave(self, keep: str) -> None:
        if keep == "best" and not (self._folder / BEST).exists():
            keep = "latest"
        kept = {"both": {LATEST, BEST}, "latest": {LATEST}, "best": {BEST}, "none": set[str]()}[keep]
        numbered = [path.name for path in run_folder.numbered_checkpoints(self._run.folder)]
        for name in {LATEST, BEST, *numbered[self._settings.last if LATEST in kept else 0 :]} - kept:
            (self._folder / name).unlink(missing_ok=True)
