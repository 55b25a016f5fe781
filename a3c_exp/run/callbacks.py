"""The package's own callbacks of a run, but for evaluations."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from a3c_exp.common.reading import open_regular
from a3c_exp.core.callback import Callback, EvalResult, Media, RunView
from a3c_exp.core.events import Episodes
from a3c_exp.core.experiment import Experiment
from a3c_exp.ending import StopReason
from a3c_exp.envs.info import EPISODE_COLUMNS
from a3c_exp.run import files, outcome, run_folder
from a3c_exp.run.console import LiveLineHandler, duration, return_text
from a3c_exp.run.event_file import EventFile, header
from a3c_exp.run.files import Appender, RunOutput, amount, log, set_aside
from a3c_exp.run.hooks import Hooks
from a3c_exp.run.interruption import Interruption
from a3c_exp.run.metrics import SECONDS, STEP, PointsTable
from a3c_exp.run.run_folder import BEST, CHECKPOINTS, EPISODES_FILE, LATEST, METRICS_FILE
from a3c_exp.run.statistics import RunStatistics

# Between points of the curves are LOG_SECONDS plus LOG_SHARE of the time since the start: a run of
# an hour has two
# thousand points, and a run of a day five thousand.
LOG_SECONDS = 0.5
LOG_SHARE = 1 / 1000
LIVE_SECONDS = 0.2
PLAIN_SECONDS = 10.0
"""Seconds between two progress lines on a terminal, and in the log."""
SPEED_SECONDS = 10.0
"""The speed is that of so many last seconds."""


class OwnView(RunView, Protocol):
    """A run as the package's own callbacks see it: the trainer, and what is one for all of them.

    best_return: of all evaluations; None before the first.
    """

    experiment: Experiment
    statistics: RunStatistics
    output: RunOutput
    interruption: Interruption
    best_return: float | None
    hooks: Hooks

    @property
    def session_seconds(self) -> float: ...

    def checkpoint(self, state: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The content of a checkpoint, as of now. state: of the store; None: its present one."""

    def write(self, name: str, state: Mapping[str, Any]) -> None:
        """Write a checkpoint."""


class Own(Callback):
    """One of the package's own callbacks. Its errors are the run's."""

    on_error = "raise"

    def __init__(self, run: OwnView) -> None:
        self._run = run

    def flush(self) -> None:
        """Write what has come in: a checkpoint is next, and a resumed run has no other record of
        what was before it."""

    def close(self, finished: bool) -> None:
        """Write the last of it. finished: whether the run has neither failed nor been
        interrupted."""


class Every:
    """A rule for when a task is due: a multiple of `interval` has been passed since it was last
    asked. None: never.

    start: value from which counting begins; a multiple at `start` itself counts as done.
    """

    def __init__(self, interval: int | None, start: int = 0) -> None:
        self._interval = interval
        self._last = start

    def __call__(self, value: int) -> bool:
        before, self._last = self._last, value
        return self._interval is not None and value // self._interval > before // self._interval


class StopRules(Own):
    """Ends a run by the rules of `stop`."""

    def on_tick(self, run: RunView) -> None:
        stop, statistics = self._run.experiment.stop, self._run.statistics
        if stop.mean_return is not None and statistics.reached(stop.mean_return, stop.window):
            run.stop(StopReason.MEAN_RETURN)
        if stop.max_episodes is not None and statistics.episodes >= stop.max_episodes:
            run.stop(StopReason.MAX_EPISODES)
        if stop.max_seconds is not None and self._run.session_seconds >= stop.max_seconds:
            run.stop(StopReason.MAX_SECONDS)

    def leaving_rule(self) -> StopReason:
        """The rule by which all workers have left before the total steps: that of most of those
        that say why."""
        # On Ray, one that had finished all its episodes in an earlier session says nothing.
        silent = (
            StopReason.TOTAL_STEPS
            if self._run.experiment.stop.worker_episodes is None
            else StopReason.WORKER_EPISODES
        )
        ((rule, _),) = self._run.statistics.left.most_common(1) or [(silent, 0)]
        return StopReason(rule)


class CollapseWarning(Own):
    """Says once that training returns have fallen far below what the run had reached."""

    _is_said = False

    def on_tick(self, run: RunView) -> None:
        statistics = self._run.statistics
        if self._is_said or not statistics.peak.has_collapsed(statistics.steps):
            return

        self._is_said = True
        mean = statistics.mean_return
        highest = statistics.peak.highest
        assert mean is not None
        assert highest is not None
        log.warning("%s", outcome.collapse(run.folder, mean, highest))


class Curves(Own):
    """Logs a point of the statistics now and then, and writes every point to metrics.csv and to
    TensorBoard's file.

    Where a run is resumed, points of later steps are void: they are dropped from the table, and
    TensorBoard hides them, so that each curve stays one line.
    """

    def __init__(self, run: OwnView) -> None:
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
        if self._by_time and (now := statistics.seconds) >= self._next and statistics.has_new_data:
            self._next = now + LOG_SECONDS + LOG_SHARE * now
            self.log_new()
        elif self._due(statistics.steps):
            self.log_new()

    def log_new(self) -> None:
        """Log a point of what is new since the last one."""
        if self._run.statistics.has_new_data:
            self._run.log(self._run.statistics.window(self._run.session_seconds))

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
        run.log(
            values | {f"eval/{name}": number for name, number in result.numbers.items()},
            result.steps,
        )

    def close(self, finished: bool) -> None:
        output, name = self._run.output, self._events.path.name
        # others may be resumed, and TensorBoard keeps the first record of how a run has ended
        if finished:
            output.write(name, self._events.success)
        output.write(name, self._events.close)
        output.write(METRICS_FILE, self._table.close)


class EpisodeTable(Own):
    """Writes episodes.csv with each point of the curves. It has at most `record_episodes` rows.

    step: environment steps of the run, of all workers, at which the episode ended, as its worker
    knew them. worker: its index. return: sum of the environment's own rewards. length: transitions.
    seconds: of training, when the run learned of the episode. After them come the environment's own
    numbers by name, with empty cells where an episode has none. Those of `env.info_keys` have a
    column; without it the first episode decides. A resumed run keeps those that it has.

    A resumed run keeps the rows of those episodes that its checkpoint knows of.
    """

    def __init__(self, run: OwnView) -> None:
        super().__init__(run)
        path = run.folder / EPISODES_FILE
        lines = _earlier_lines(path, run.statistics.episodes)
        # of the environment's own numbers
        self._names = lines[0].split(",")[len(EPISODE_COLUMNS) :] if lines else None
        self._rows = max(0, len(lines) - 1)
        self._warned = False
        self._file = Appender(path, [f"{line}\n".encode() for line in lines])

    def on_episodes(self, run: RunView, worker: int, episodes: Episodes) -> None:
        most = self._run.experiment.record_episodes
        left = most - self._rows
        if left <= 0:
            return
        names = self._decided(episodes)
        columns = (episodes.end_steps[:left], episodes.returns[:left], episodes.lengths[:left])
        numbers = (map(_cell, episodes.column(name)[:left].tolist()) for name in names)
        rows = list(zip(*(column.tolist() for column in columns), *numbers, strict=True))
        # One format for all rows takes half the time of one for each.
        template = f"%d,{worker},%.10g,%d,{run.seconds:.3f}{',%s' * len(names)}\n" * len(rows)
        self._file.add((template % tuple(cell for row in rows for cell in row)).encode())
        self._rows += len(rows)
        if self._rows >= most:
            log.warning(
                "episodes.csv has %d rows (record_episodes): later episodes are not recorded",
                self._rows,
            )

    def on_point(self, run: RunView, step: int, values: Mapping[str, float]) -> None:
        self.flush()

    def flush(self) -> None:
        self._run.output.write(EPISODES_FILE, self._file.flush)

    def close(self, finished: bool) -> None:
        """Write what has been added, at least the header."""
        self._decided(Episodes())
        self._run.output.write(EPISODES_FILE, self._file.close)

    def _decided(self, episodes: Episodes) -> list[str]:
        """The names of the environment's own numbers that have a column."""
        if self._names is None:
            self._names = list(
                dict.fromkeys([*(self._run.experiment.env.info_keys or ()), *episodes.numbers])
            )
            self._file.add(f"{','.join([*EPISODE_COLUMNS, *self._names])}\n".encode())
        others = [name for name in episodes.numbers if name not in self._names]
        if others and not self._warned:
            self._warned = True
            log.warning("episodes.csv has no column for %s, which came later", ", ".join(others))
        return self._names


def _earlier_lines(path: Path, episodes: int) -> list[str]:
    """The header of a run's table and its first rows, of so many episodes; nothing if there is no
    such row.

    Another program's table is set aside. A last line without its end is that of a writer that was
    killed.
    """
    if not (episodes and path.exists()):
        return []
    with open_regular(path) as file:
        lines = file.read().decode(errors="replace").split("\n")[:-1]
    if lines and lines[0].split(",")[: len(EPISODE_COLUMNS)] == EPISODE_COLUMNS:
        return lines[: 1 + episodes] if len(lines) > 1 else []
    set_aside(path, "is of another program")
    return []


def _cell(number: float) -> str:
    return "" if math.isnan(number) else f"{number:.10g}"


class Checkpoints(Own):
    """Saves the latest state every so many steps, and when SIGUSR1 asks for it. Keeps as many as
    are asked for."""

    def __init__(self, run: OwnView) -> None:
        super().__init__(run)
        self._settings = run.experiment.checkpoint
        self._folder = run.folder / CHECKPOINTS
        self._due = Every(self._settings.every, run.steps)

    def on_tick(self, run: RunView) -> None:
        if self._due(run.steps) or self._run.interruption.save_requested:
            self._run.interruption.save_requested = False
            run.save()

    def number_latest(self, steps: int) -> None:
        """Keep the latest checkpoint by its steps, and delete numbered ones that are too many.

        Two are kept at least: the next save may leave a damaged latest one. Those of later steps
        are of a part of the run that was lost.
        """
        files.copy_as(self._folder / LATEST, self._folder / f"step_{steps}.ckpt")
        numbers = run_folder.numbered_checkpoints(self._run.folder)
        kept = [path for path, number in numbers.items() if number <= steps][
            : max(2, self._settings.last)
        ]
        for path in numbers.keys() - set(kept):
            path.unlink()

    def close(self, finished: bool) -> None:
        """Delete the checkpoints that a finished run does not leave. Numbered ones stay with the
        latest.

        A checkpoint that could not be written leaves everything.
        """
        if finished and not {LATEST, BEST} & self._run.output.unwritten:
            self._run.output.write("checkpoints", self._leave, self._settings.keep)

    def _leave(self, keep: str) -> None:
        if keep == "best" and not (self._folder / BEST).exists():
            keep = "latest"
        kept = {"both": {LATEST, BEST}, "latest": {LATEST}, "best": {BEST}, "none": set[str]()}[
            keep
        ]
        numbered = [path.name for path in run_folder.numbered_checkpoints(self._run.folder)]
        for name in {
            LATEST,
            BEST,
            *numbered[self._settings.last if LATEST in kept else 0 :],
        } - kept:
            (self._folder / name).unlink(missing_ok=True)


class ProgressLine(Own):
    """Shows how far the run is: steps, speed, mean return, best evaluation, time left.

    On a terminal it is one live line. The log gets a plain line every PLAIN_SECONDS.
    """

    def __init__(self, run: OwnView, terminal: LiveLineHandler) -> None:
        super().__init__(run)
        self._terminal = terminal
        self._next = run.statistics.seconds
        # The limit is for this session; the seconds of the statistics include earlier ones.
        most = run.experiment.stop.max_seconds
        self._end = None if most is None else self._next + most
        self._next_plain = self._next + PLAIN_SECONDS
        self._samples: deque[tuple[float, int]] = deque()  # (time, steps) of the last seconds

    def on_tick(self, run: RunView) -> None:
        self.update()

    def update(self, activity: str = "") -> None:
        """Show the progress, if it is time for that. Cheap enough to call for every event.

        activity: what training waits for, in place of the time left.
        """
        now = self._run.statistics.seconds
        if now < self._next:
            return
        self._next = now + LIVE_SECONDS
        line = self._line(self._speed(now), activity)
        if self._terminal.live:
            self._terminal.show(line)
        if now >= self._next_plain:
            self._next_plain = now + PLAIN_SECONDS
            log.info(line, extra={"progress": True})

    def close(self, finished: bool) -> None:
        """Remove the live line."""
        self._terminal.clear()

    def _line(self, speed: float, activity: str) -> str:
        """The text of the line, which fits into 80 columns without an activity."""
        statistics, total, best = (
            self._run.statistics,
            self._run.experiment.total_steps,
            self._run.best_return,
        )
        mean = statistics.mean_return
        parts = [
            f"{amount(statistics.steps)} / {amount(total)} steps",
            f"{amount(speed)}/s",
            f"return {'-' if mean is None else return_text(mean)}",
        ]
        if activity:
            parts.append(activity)
        if best is not None:
            parts.append(f"best eval {return_text(best)}")
        ends = [] if self._end is None else [self._end - statistics.seconds]
        if speed > 0:
            ends.append((total - statistics.steps) / speed)
        if ends and not activity:
            parts.append(f"{duration(max(0.0, min(ends)))} left")
        return " | ".join(parts)

    def _speed(self, now: float) -> float:
        """Steps per second, over the last SPEED_SECONDS; 0 while there is one sample."""
        self._samples.append((now, self._run.statistics.steps))
        while self._samples[0][0] < now - SPEED_SECONDS and len(self._samples) > 2:
            self._samples.popleft()
        (start, steps), (end, steps_now) = self._samples[0], self._samples[-1]
        return (steps_now - steps) / (end - start) if end > start else 0.0
