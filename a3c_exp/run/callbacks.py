"""The package's own callbacks, but evaluations: curves, episodes.csv, checkpoints, stop rules and the progress line."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from a3c_exp.core.callback import EvalResult, Media, RunView
from a3c_exp.core.events import Episodes
from a3c_exp.core.experiment import Checkpoint, Stop
from a3c_exp.run import checkpoint, files, run_folder
from a3c_exp.run.callback_list import Every, Own
from a3c_exp.run.console import Progress
from a3c_exp.run.curves import CurveWriter
from a3c_exp.run.episode_log import EpisodeLog
from a3c_exp.run.evaluations import Evaluations
from a3c_exp.run.files import RunOutput
from a3c_exp.run.interruption import Interruption
from a3c_exp.run.run_folder import BEST, CHECKPOINTS, EPISODES_FILE, LATEST, METRICS_FILE, PREVIOUS
from a3c_exp.run.statistics import RunStatistics, TrainingClock

log = logging.getLogger("a3c_exp")

# Between points of the curves are LOG_SECONDS plus LOG_SHARE of the time since the start: a run of an hour has two
# thousand points, and a run of a day five thousand.
LOG_SECONDS, LOG_SHARE = 0.5, 1 / 1000


class StopRules(Own):
    """Ends a run by the rules of `stop`."""

    def __init__(self, stop: Stop, statistics: RunStatistics, clock: TrainingClock) -> None:
        self._stop = stop
        self._statistics = statistics
        self._clock = clock

    def on_start(self, run: RunView) -> None:
        if self._statistics.steps and (rule := self.rule(wait_for_all=False)):
            log.warning("stop.%s holds already: stop.%s=null goes on past it", rule, rule)

    def on_tick(self, run: RunView) -> None:
        if rule := self.rule():
            run.stop(rule)

    def rule(self, wait_for_all: bool = True) -> str | None:
        """The rule that ends the run now; None if there is none. wait_for_all: see `RunStatistics.reached`."""
        stop, statistics = self._stop, self._statistics
        if stop.mean_return is not None and statistics.reached(stop.mean_return, wait_for_all, stop.window):
            return "mean_return"
        if stop.max_episodes is not None and statistics.episodes >= stop.max_episodes:
            return "max_episodes"
        if stop.max_seconds is not None and self._clock.session >= stop.max_seconds:
            return "max_seconds"
        return None


def leaving_rule(stop: Stop, statistics: RunStatistics) -> str:
    """The rule by which a run has ended before its total steps: that of most of the workers that say why they leave."""
    # One that had finished all its episodes in an earlier session says nothing.
    silent = "total_steps" if stop.worker_episodes is None else "worker_episodes"
    ((rule, _),) = statistics.left.most_common(1) or [(silent, 0)]
    return rule


class Curves(Own):
    """Logs a point of the statistics now and then, and writes every point."""

    def __init__(
        self,
        output: RunOutput,
        writer: CurveWriter,
        statistics: RunStatistics,
        clock: TrainingClock,
        every: int | Literal["auto"] | None,
    ) -> None:
        assert every != "auto"  # of a final configuration
        self._output = output
        self._writer = writer
        self._statistics = statistics
        self._clock = clock
        self._by_time = every is None
        self._due = Every(every, statistics.steps)
        self._next = 0.0  # in seconds

    def on_tick(self, run: RunView) -> None:
        if self._by_time and (now := self._statistics.seconds) >= self._next and self._statistics.has_new_data:
            self._next = now + LOG_SECONDS + LOG_SHARE * now
            self.log_new(run)
        elif self._due(self._statistics.steps):
            self.log_new(run)

    def log_new(self, run: RunView) -> None:
        """Log a point of what is new since the last one."""
        if self._statistics.has_new_data:
            run.log(self._statistics.window(self._clock.session))

    def on_point(self, run: RunView, step: int, values: Mapping[str, float]) -> None:
        self._output.write("curves", partial(self._writer.log, step, values, self._statistics.seconds))

    def on_media(self, run: RunView, step: int, kind: Media, name: str, value: Any) -> None:
        self._output.write("curves", partial(self._writer.events.media, step, kind, name, value))

    def on_evaluation(self, run: RunView, result: EvalResult) -> None:
        values = {"eval/mean_reward": result.mean_return, "eval/mean_ep_length": result.mean_length}
        run.log(values | {f"eval/{name}": number for name, number in result.numbers.items()}, result.steps)

    def flush(self) -> None:
        self._output.write(METRICS_FILE, self._writer.write_table)

    def close(self, finished: bool) -> None:
        self.flush()
        self._output.write("curves", partial(self._writer.close, finished))


class EpisodeTable(Own):
    """Writes the episodes of training with each point of the curves."""

    def __init__(self, output: RunOutput, table: EpisodeLog) -> None:
        self._output = output
        self._table = table

    def on_episodes(self, run: RunView, worker: int, episodes: Episodes) -> None:
        self._table.record(worker, episodes, run.seconds)

    def on_point(self, run: RunView, step: int, values: Mapping[str, float]) -> None:
        self.flush()

    def flush(self) -> None:
        self._output.write(EPISODES_FILE, self._table.flush)

    def close(self, finished: bool) -> None:
        self._output.write(EPISODES_FILE, self._table.close)


class Checkpoints(Own):
    """Saves the latest state every so many steps, and when SIGUSR1 asks for it. Keeps as many as are asked for."""

    def __init__(self, output: RunOutput, settings: Checkpoint, steps: int, interruption: Interruption) -> None:
        self._output = output
        self._settings = settings
        self._folder = output.folder / CHECKPOINTS
        self._due = Every(settings.every, steps)
        self._interruption = interruption

    def on_tick(self, run: RunView) -> None:
        if self._due(run.steps) or self._interruption.save_requested:
            self._interruption.save_requested = False
            run.save()

    def write(self, name: str, state: Mapping[str, Any]) -> bool:
        """Write a checkpoint, whole or not at all. The latest one before it stays as previous.ckpt."""
        before = self._folder / PREVIOUS if name == LATEST else None
        self._output.write(name, partial(checkpoint.save, self._folder / name, state, before))
        written = name not in self._output.unwritten
        if name == LATEST and written:
            self._output.write("numbered checkpoints", partial(self._number_latest, state["store"]["steps"]))
        return written

    def _number_latest(self, steps: int) -> None:
        """Keep the latest checkpoint by its steps, and delete numbered ones that are too many.

        Those of later steps are of a part of the run that was lost.
        """
        if self._settings.last:
            files.copy_as(self._folder / LATEST, run_folder.numbered_checkpoint(self._output.folder, steps))
        numbers = run_folder.numbered_checkpoints(self._output.folder)
        kept = [path for path, number in numbers.items() if number <= steps][: self._settings.last]
        for path in numbers.keys() - set(kept):
            path.unlink()

    def close(self, finished: bool) -> None:
        """Delete the checkpoints that a finished run does not leave. Numbered ones stay with the latest.

        A latest checkpoint that could not be written leaves everything.
        """
        if LATEST in self._output.unwritten:
            return
        keep = self._settings.keep if finished else "both"
        if keep == "best" and not (self._folder / BEST).exists():
            keep = "latest"
        kept = {"both": {LATEST, BEST}, "latest": {LATEST}, "best": {BEST}, "none": set[str]()}[keep]
        numbered = (
            () if LATEST in kept else (path.name for path in run_folder.numbered_checkpoints(self._output.folder))
        )
        for name in {LATEST, PREVIOUS, BEST, *numbered} - kept:
            self._output.write(name, partial((self._folder / name).unlink, missing_ok=True))


class ProgressLine(Own):
    """Shows how far the run is."""

    def __init__(self, progress: Progress, evaluations: Evaluations) -> None:
        self._progress = progress
        self._evaluations = evaluations

    def on_tick(self, run: RunView) -> None:
        self._progress.update(self._evaluations.best_return)
