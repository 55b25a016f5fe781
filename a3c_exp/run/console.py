"""The progress line of a run, and its log on stderr and in train.log."""

from __future__ import annotations

import logging
import math
import os
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from a3c_exp.errors import printable
from a3c_exp.run.statistics import RunStatistics

log = logging.getLogger("a3c_exp")

MOST_WARNINGS = 100

_PROGRESS = {"progress": True}  # attribute of log records that the live line already shows


class LiveLineHandler(logging.StreamHandler[TextIO]):
    """Log handler for a stream. On a terminal, log lines scroll above one live line, which stays last.

    live: whether the stream is a terminal that can rewrite a line.
    label: of a run beside others: the stream gets its warnings alone, with this in front.
    """

    def __init__(self, stream: TextIO, label: str = "") -> None:
        super().__init__(stream)
        self.live = _is_terminal(stream) and not label
        self._line = ""
        self.setFormatter(_Plain(f"{label}%(message)s"))
        if label:
            self.setLevel(logging.WARNING)
        self.addFilter(lambda record: not (self.live and getattr(record, "progress", False)))

    def show(self, line: str) -> None:
        """Replace the live line, cut to the terminal's width."""
        self.acquire()  # another thread may be in the middle of a log line
        try:
            self._line = line[: _columns(self.stream) - 1]
            self._put(f"\r{self._line}\x1b[K")
        finally:
            self.release()

    def clear(self) -> None:
        """Remove the live line."""
        self.acquire()
        try:
            if self._line:
                self._put("\r\x1b[K")
                self._line = ""
        finally:
            self.release()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a log line above the live line."""
        if self._line:
            self._put("\r\x1b[K")
        super().emit(record)
        if self._line:
            self._put(self._line)

    def _put(self, text: str) -> None:
        try:
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError):  # the terminal has gone, or the stream is closed
            self.live = False
            self._line = ""


class _Plain(logging.Formatter):
    """The message, with its level in front from WARNING on."""

    def format(self, record: logging.LogRecord) -> str:
        text = printable(super().format(record))
        return text if record.levelno < logging.WARNING else f"{record.levelname.lower()}: {text}"


class _Dated(logging.Formatter):
    """The message, with date and level in front."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class _File(logging.FileHandler):
    """train.log. A failed write (a full disk) is reported once on stderr and does not end the run."""

    failed = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's name)
        if not self.failed:
            self.failed = True
            with suppress(OSError, ValueError):
                sys.stderr.write(f"a3c_exp: {self.baseFilename} cannot be written: {sys.exc_info()[1]}\n")


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # closed
        return False


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


@contextmanager
def run_log(path: Path, stream: TextIO | None = None, label: str = "") -> Iterator[LiveLineHandler]:
    """Send the package's log and Python's warnings to `path` (appended) and to `stream` (default: stderr).

    label: see `LiveLineHandler`.
    Restores all logging settings on exit, so that the logs of several runs in one process do not mix.
    """
    terminal = LiveLineHandler(sys.stderr if stream is None else stream, label)
    file = _File(path, encoding="utf-8", delay=False)
    file.setFormatter(_Dated("%(asctime)s %(levelname)s %(message)s"))
    level, propagate, showwarning = log.level, log.propagate, warnings.showwarning

    def show_warning(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: object, **__: object
    ) -> None:
        log.warning("%s:%d: %s: %s", filename, lineno, category.__name__, message)

    for handler in (terminal, file):
        log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False  # otherwise handlers of the calling program would show every line a second time
    warnings.showwarning = show_warning
    try:
        yield terminal
    finally:
        terminal.clear()
        warnings.showwarning = showwarning
        log.setLevel(level)
        log.propagate = propagate
        for handler in (terminal, file):
            log.removeHandler(handler)
            with suppress(OSError):
                handler.close()


class Progress:
    """The progress line: steps, speed, mean return, best evaluation, time left.

    On a terminal it is one live line. The log gets a plain line every `interval` seconds, and a last one.

    total_steps, max_seconds: limits of the run, for the time left. Both include earlier sessions of a resumed run.
    interval: seconds between plain lines.
    """

    def __init__(
        self,
        terminal: LiveLineHandler,
        total_steps: int,
        *,
        max_seconds: float | None = None,
        interval: float = 10.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._terminal = terminal
        self._total_steps = total_steps
        self._max_seconds = max_seconds
        self._interval = interval
        self._clock = clock
        self._next = clock()
        self._next_plain = self._next + interval
        self._samples: deque[tuple[float, int]] = deque()  # (time, steps) of the last seconds

    def update(self, statistics: RunStatistics, best_eval: float | None = None) -> None:
        """Show the progress. Cheap enough to call for every event: mostly it only reads the clock."""
        now = self._clock()
        if now < self._next:
            return
        self._sample(now, statistics)
        self._show(now, self.line(statistics, best_eval))

    def wait(
        self, statistics: RunStatistics, best_eval: float | None, steps_per_second: float | None, activity: str
    ) -> None:
        """Show what training waits for, in place of the time left. steps_per_second: of the training."""
        now = self._clock()
        if now >= self._next:
            self._show(now, self.line(statistics, best_eval, steps_per_second, activity))

    def _show(self, now: float, line: str) -> None:
        self._next = now + _LIVE_INTERVAL
        if self._terminal.live:
            self._terminal.show(line)
        if now >= self._next_plain:
            self._next_plain = now + self._interval
            log.info(line, extra=_PROGRESS)

    def close(
        self, statistics: RunStatistics, best_eval: float | None = None, steps_per_second: float | None = None
    ) -> None:
        """Replace the live line by a last plain one. steps_per_second: of the training; None: of the last seconds."""
        self._sample(self._clock(), statistics)
        self._terminal.clear()
        log.info(self.line(statistics, best_eval, steps_per_second))

    def _sample(self, now: float, statistics: RunStatistics) -> None:
        self._samples.append((now, statistics.steps))
        while self._samples[0][0] < now - _SPEED_SECONDS and len(self._samples) > 2:
            self._samples.popleft()

    def line(
        self,
        statistics: RunStatistics,
        best_eval: float | None,
        steps_per_second: float | None = None,
        activity: str = "",
    ) -> str:
        """The text of the line, which fits into 80 columns without an activity. See `wait` and `close`."""
        speed = self._speed() if steps_per_second is None else steps_per_second
        parts = [
            f"{_amount(statistics.steps)} / {_amount(self._total_steps)} steps",
            f"{_amount(speed)}/s",
            f"return {_number(statistics.mean_return)}",
        ]
        if best_eval is not None:
            parts.append(f"best eval {_number(best_eval)}")
        left = self._seconds_left(statistics, speed)
        if activity:
            parts.append(activity)
        elif left is not None:
            parts.append(f"{duration(left)} left")
        if rejected := statistics.counts.get("rejected"):
            parts.append(f"{rejected:,} updates rejected")
        return " | ".join(parts)

    def _speed(self) -> float:
        """Steps per second, over the last _SPEED_SECONDS."""
        if len(self._samples) < 2:
            return 0.0
        (start, steps), (end, steps_now) = self._samples[0], self._samples[-1]
        return (steps_now - steps) / (end - start) if end > start else 0.0

    def _seconds_left(self, statistics: RunStatistics, speed: float) -> float | None:
        """Seconds until the first limit of the run at this speed; None while they are unknown."""
        ends = []
        if speed > 0:
            ends.append((self._total_steps - statistics.steps) / speed)
        if self._max_seconds is not None:
            ends.append(self._max_seconds - statistics.seconds)
        return max(0.0, min(ends)) if ends else None


_LIVE_INTERVAL = 0.2
_SPEED_SECONDS = 10.0


class LimitedWarnings:
    """Warnings about failed workers, of which a run may have thousands: the log shows the first MOST_WARNINGS."""

    def __init__(self) -> None:
        self._count = 0

    def warn(self, text: str) -> None:
        self._count += 1
        if self._count <= MOST_WARNINGS:
            log.warning("%s", text)
        if self._count == MOST_WARNINGS:
            log.warning("further failures of workers are not shown; async/restarts counts them")


def duration(seconds: float) -> str:
    """Seconds as text, rounded up: 0:07, 12:34, 1:02:03."""
    whole = math.ceil(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _amount(value: float) -> str:
    """A count or a speed with three digits: 950, 1.23k, 117k, 2.5M."""
    for limit, unit in ((999.5, ""), (999.5e3, "k"), (999.5e6, "M")):
        if value < limit:
            return f"{value / (limit / 999.5):.3g}{unit}"
    return f"{value / 1e9:.4g}G"


def _number(value: float | None) -> str:
    """A return: -1234, 123.4, 0.714; None is a dash."""
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 999.95 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"
