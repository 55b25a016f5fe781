"""The log of a run on stderr, with a live line on a terminal, and in train.log."""

from __future__ import annotations

import io
import logging
import math
import os
import select
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from a3c_exp.common.log import log
from a3c_exp.errors import printable, say

ONLY_FILE = {"only_file": True}
"""`extra` of a log line for train.log alone."""
STREAM_SECONDS = 0.05
PIECE = 1024
"""How long a line waits for a stream to take something, and characters that one that does so takes:
a pipe takes 4096 bytes then."""


class LiveLineHandler(logging.StreamHandler[TextIO]):
    """Log handler for a stream. On a terminal, log lines scroll above one live line, which stays
    last.

    live: whether the stream is a terminal that can rewrite a line.
    label: of a run beside others: the stream gets its warnings alone, with this in front.

    A stream that takes nothing (Ctrl-S, a pipe that nobody reads) loses lines; nobody waits for it.
    """

    def __init__(self, stream: TextIO, label: str = "") -> None:
        super().__init__(stream)
        self.live = _is_terminal(stream) and not label
        self._line = ""
        self._poll = _polling(stream)
        self.setFormatter(_Printable(f"%(prefix)s{label.replace('%', '%%')}%(message)s"))
        if label:
            self.setLevel(logging.WARNING)
        # A progress line is shown as the live line already.
        unseen = ("only_file", "progress") if self.live else ("only_file",)
        self.addFilter(lambda record: not any(hasattr(record, name) for name in unseen))

    def show(self, line: str) -> None:
        """Replace the live line, without the last of its parts where it is wider than the
        terminal."""
        self.acquire()  # another thread may be in the middle of a log line
        try:
            width = _columns(self.stream) - 1
            self._line = (
                line
                if len(line) <= width
                else line[: width + 3].rpartition(" | ")[0] or line[:width]
            )
            self._put(f"\r{self._line}\x1b[K")
        finally:
            self.release()

    def clear(self) -> None:
        """Remove the live line."""
        if self._line:
            self.show("")

    def emit(self, record: logging.LogRecord) -> None:
        """Write a log line above the live line."""
        try:
            text = self.format(record)
        except Exception:  # logging's own way with a record that cannot be formatted
            self.handleError(record)
            return
        self._put(f"\r\x1b[K{text}\n{self._line}" if self._line else f"{text}\n")

    def _put(self, text: str) -> None:
        try:
            for start in range(0, len(text), PIECE):
                if self._poll is not None and not self._poll.poll(1000 * STREAM_SECONDS):
                    return
                self.stream.write(text[start : start + PIECE])
                self.stream.flush()
        except Exception:  # the terminal has gone, or a program's own stream fails
            self.live = False
            self._line = ""


class _Printable(logging.Formatter):
    """A log line whose control characters are escaped."""

    def format(self, record: logging.LogRecord) -> str:
        record.prefix = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        return printable(super().format(record))


class _File(logging.FileHandler):
    """train.log. A failed write (a full disk) is reported once on stderr and does not end the
    run."""

    _failed = False

    def _open(self) -> io.TextIOWrapper:
        return open(self.baseFilename, "a", encoding=self.encoding, errors=self.errors)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        if not self._failed:
            self._failed = True
            say(f"a3c_exp: {self.baseFilename} cannot be written: {sys.exc_info()[1]}")

    def close(self) -> None:
        with suppress(OSError):
            super().close()


def _polling(stream: TextIO) -> select.poll | None:
    """What tells whether a stream takes something; None if it is no file of the system's."""
    with suppress(Exception):
        poll = select.poll()
        poll.register(stream.fileno(), select.POLLOUT)
        return poll
    return None


def _is_terminal(stream: TextIO) -> bool:
    with suppress(Exception):  # a program's own stream, or a closed one
        return stream.isatty() and os.environ.get("TERM") != "dumb"
    return False


def _columns(stream: TextIO) -> int:
    with suppress(Exception):
        return os.get_terminal_size(stream.fileno()).columns or 80
    return 80


@contextmanager
def run_log(path: Path, stream: TextIO | None = None, label: str = "") -> Iterator[LiveLineHandler]:
    """Send the package's log and Python's warnings to `path` (appended) and to `stream` (default:
    stderr).

    label: see `LiveLineHandler`.
    Restores all logging settings on exit, so that the logs of several runs in one process do not
    mix.
    """
    terminal = LiveLineHandler(stream or _console(), label)
    file = _File(path, encoding="utf-8", errors="backslashreplace")
    file.setFormatter(_Printable("%(asctime)s %(levelname)s %(message)s"))
    level = log.level
    propagate = log.propagate
    showwarning = warnings.showwarning

    def show_warning(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        *_: object,
        **__: object,
    ) -> None:
        outdated = issubclass(
            category, (DeprecationWarning, PendingDeprecationWarning, FutureWarning)
        )
        extra = ONLY_FILE if outdated else None  # it is for whoever writes the code that it names
        log.warning("%s:%d: %s: %s", filename, lineno, category.__name__, message, extra=extra)

    for handler in (terminal, file):
        log.addHandler(handler)
    log.setLevel(logging.INFO)
    # otherwise handlers of the calling program would show every line a second time
    log.propagate = False
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
            handler.close()


def _console() -> TextIO:
    """The stream of a program's messages: stderr, which a notebook would show in red, so that
    stdout there."""
    is_notebook = type(sys.stderr).__module__.startswith("ipykernel.")
    stream = sys.stdout if is_notebook else sys.stderr
    return stream or io.StringIO()  # a program without a console has none


def duration(seconds: float) -> str:
    """Seconds as text, rounded up: 0:07, 12:34, 1:02:03."""
    minutes, seconds = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def return_text(value: float) -> str:
    """A return: -1234, 123.4, 0.714."""
    return (
        f"{value:.0f}"
        if abs(value) >= 999.95
        else f"{value:.1f}"
        if abs(value) >= 10
        else f"{value:.3g}"
    )
