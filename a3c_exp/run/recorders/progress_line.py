"""The line that shows how far a run is."""

from __future__ import annotations

from collections import deque

from a3c_exp.common.log import log
from a3c_exp.core.run_view import RunView
from a3c_exp.run.console import LiveLineHandler, duration, return_text
from a3c_exp.run.files import amount
from a3c_exp.run.open_run import OpenRun
from a3c_exp.run.recorders.recorder import RunRecorder

LIVE_SECONDS = 0.2
PLAIN_SECONDS = 10.0
"""Seconds between two progress lines on a terminal, and in the log."""
SPEED_SECONDS = 10.0
"""The speed is that of so many last seconds."""


class ProgressLine(RunRecorder):
    """Shows how far the run is: steps, speed, mean return, best evaluation, time left.

    On a terminal it is one live line. The log gets a plain line every PLAIN_SECONDS.
    """

    def __init__(self, run: OpenRun, terminal: LiveLineHandler) -> None:
        super().__init__(run)
        self._terminal = terminal
        self._next = run.statistics.seconds
        self._first: tuple[float, float] | None = None  # (time, seconds of training)
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
        statistics = self._run.statistics
        total = self._run.experiment.total_steps
        best = self._run.milestones.best_return
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

        ends = self._seconds_to_limit()
        if speed > 0:
            ends.append((total - statistics.steps) / speed)
        if ends and not activity:
            parts.append(f"{duration(max(0.0, min(ends)))} left")
        return " | ".join(parts)

    def _seconds_to_limit(self) -> list[float]:
        """Return the real seconds until `stop.max_seconds`. A simulation's clock has another pace.
        Empty if there is no limit, or as long as the pace is not known."""
        most = self._run.experiment.stop.max_seconds
        trained = self._run.milestones.session_seconds
        if most is None or trained == 0:
            return []
        now = self._run.statistics.seconds
        self._first = self._first or (now, trained)
        earlier, trained_then = self._first
        if trained == trained_then:
            return []
        return [(most - trained) * (now - earlier) / (trained - trained_then)]

    def _speed(self, now: float) -> float:
        """Steps per second, over the last SPEED_SECONDS; 0 while there is one sample."""
        self._samples.append((now, self._run.statistics.steps))
        while self._samples[0][0] < now - SPEED_SECONDS and len(self._samples) > 2:
            self._samples.popleft()

        start, first_steps = self._samples[0]
        end, last_steps = self._samples[-1]
        return (last_steps - first_steps) / (end - start) if end > start else 0.0
