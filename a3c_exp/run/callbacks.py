"""The package's own callbacks: curves, episodes.csv, evaluations, checkpoints, stop rules and the progress line."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, Protocol

from a3c_exp.core.callback import Callback, EvalResult, Media, RunView
from a3c_exp.core.events import Episodes
from a3c_exp.core.experiment import Checkpoint, Eval, Stop
from a3c_exp.run import checkpoint, files, run_folder
from a3c_exp.run.console import Progress
from a3c_exp.run.curves import CurveWriter
from a3c_exp.run.episode_log import EpisodeLog
from a3c_exp.run.evaluator import Evaluator
from a3c_exp.run.interruption import Interruption
from a3c_exp.run.output import RunOutput
from a3c_exp.run.run_folder import BEST, CHECKPOINTS, EPISODES_FILE, LATEST, METRICS_FILE, PREVIOUS
from a3c_exp.run.statistics import RunStatistics, TrainingClock

log = logging.getLogger("a3c_exp")

# Between points of the curves are LOG_SECONDS plus LOG_SHARE of the time since the start: a run of an hour has two
# thousand points, and a run of a day five thousand.
LOG_SECONDS, LOG_SHARE = 0.5, 1 / 1000


class Own(Callback):
    """One of these callbacks. Its errors are the run's."""

    on_error = "raise"

    def flush(self) -> None:
        """Write what has come in: a checkpoint is next, and a resumed run has no other record of what was before it."""

    def close(self, finished: bool) -> None:
        """Write the last of it. finished: whether the run has neither failed nor been interrupted."""


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


class Every:
    """A rule for when a task is due: a multiple of `interval` has been passed since it was last due. None: never.

    start: value from which counting begins; a multiple at `start` itself counts as done.
    """

    def __init__(self, interval: int | None, start: int = 0) -> None:
        self._interval = interval
        self._next = self._multiple_after(start)

    def __call__(self, value: int) -> bool:
        due = value >= self._next
        if due:
            self._next = self._multiple_after(value)
        return due

    def _multiple_after(self, value: int) -> float:
        return math.inf if self._interval is None else (value // self._interval + 1) * self._interval


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


class Owner(Protocol):
    """The trainer, as its own callbacks need it beside what every callback may do."""

    def checkpoint(self) -> dict[str, Any]:
        """The content of a checkpoint, as of now."""

    def write(self, name: str, state: Mapping[str, Any]) -> None:
        """Write a checkpoint."""

    def tell(self, moment: str, *arguments: object) -> None:
        """Call the method of that name of all callbacks that have one."""


class Evaluations(Own):
    """Evaluates every so many steps beside the training, and at its end; keeps the best policy in a checkpoint.

    best_return: of all evaluations; None before the first.
    """

    def __init__(
        self,
        trainer: Owner,
        limits: Eval,
        evaluator: Evaluator,
        output: RunOutput,
        statistics: RunStatistics,
    ) -> None:
        self._trainer = trainer
        self._limits = limits
        self._due = Every(limits.every, statistics.steps)
        self._evaluator = evaluator
        self._output = output
        self._statistics = statistics
        self._evaluated: dict[str, Any] = {}  # the checkpoint of what is being evaluated
        self.asked = False
        self.best_return: float | None = None

    def on_tick(self, run: RunView) -> None:
        self.take()
        if not self._evaluator.busy and not run.stopping and (self._due(run.steps) or self.asked):
            self._submit()
            self.take()

    def on_trained(self, run: RunView) -> None:
        """Evaluate the final parameters, unless they have been evaluated."""
        if self._limits.every is None:
            return
        self.take(block=True)
        if self._evaluator.last_steps != run.steps:
            self._submit()
            self.take(block=True)

    def record(self) -> None:
        """See `RunView.record_evaluations`."""
        self._evaluator.record(self._output.folder / run_folder.VIDEOS)

    def end(self) -> None:
        """Take a last evaluation that has ended, and end the one that is under way."""
        self.take()
        self._evaluator.close()

    @property
    def activity(self) -> str:
        """Text about the evaluation that is under way."""
        return self._evaluator.activity

    def _submit(self) -> None:
        self.asked = False
        self._evaluated = self._trainer.checkpoint()  # as of now: the run goes on meanwhile
        self._evaluator.submit(self._evaluated["store"])

    def take(self, block: bool = False) -> None:
        """Tell of an evaluation that has ended; save its parameters if they are the best so far."""
        result = self._evaluator.result(block)
        if result is None:
            return
        if result.cut:
            if not self._statistics.counts["cut_eval_episodes"]:
                most = f"{self._limits.max_steps} steps (eval.max_steps)"
                cut = f"{result.cut} of {self._limits.episodes} episodes were cut after {most}"
                log.warning("evaluation at step %d: %s", result.steps, cut)
            self._statistics.counts["cut_eval_episodes"] += result.cut
        self._trainer.tell("on_evaluation", result)
        mean, best = result.mean_return, -math.inf if self.best_return is None else self.best_return
        if mean > best or (mean == best and BEST in self._output.unwritten):
            self.best_return = mean
            self._trainer.write(BEST, self._evaluated | {"best_eval_return": mean})
        self._evaluated = {}


class ProgressLine(Own):
    """Shows how far the run is."""

    def __init__(self, progress: Progress, evaluations: Evaluations) -> None:
        self._progress = progress
        self._evaluations = evaluations

    def on_tick(self, run: RunView) -> None:
        self._progress.update(self._evaluations.best_return)
