"""What a person sees of a run: a live line on a terminal, plain lines elsewhere, and train.log."""

from __future__ import annotations

import fcntl
import io
import logging
import os
import pty
import re
import resource
import struct
import termios
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from a3c_exp.core.events import Episodes, Event
from a3c_exp.run.console import LiveLineHandler, duration, run_log
from a3c_exp.run.files import amount
from a3c_exp.run.recorders.progress_line import ProgressLine
from a3c_exp.run.statistics import RunStatistics

log = logging.getLogger("a3c_exp")


class Screen(io.StringIO):
    """A terminal in memory."""

    def isatty(self) -> bool:
        return True

    def rows(self) -> list[str]:
        """What one sees: a carriage return goes back to the start of the row, ESC [ K clears the
        rest of it."""
        rows = [""]
        column = 0
        for piece in re.findall(r"\x1b\[K|[\r\n]|[^\r\n\x1b]+", self.getvalue()):
            if piece == "\x1b[K":
                rows[-1] = rows[-1][:column]
            elif piece == "\r":
                column = 0
            elif piece == "\n":
                rows.append("")
                column = 0
            else:
                rows[-1] = rows[-1][:column] + piece + rows[-1][column + len(piece) :]
                column += len(piece)
        return rows


@pytest.fixture(autouse=True)
def an_ordinary_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")


class Shown:
    """A run's progress line on a stream, with a clock."""

    def __init__(self, stream: io.StringIO | None = None, max_seconds: float | None = None) -> None:
        self.screen = Screen()
        self.now = 100.0
        self.statistics = RunStatistics(clock=lambda: self.now)
        handler = LiveLineHandler(self.screen if stream is None else stream)
        experiment = SimpleNamespace(
            total_steps=1_000_000, stop=SimpleNamespace(max_seconds=max_seconds)
        )
        run = SimpleNamespace(
            statistics=self.statistics,
            experiment=experiment,
            milestones=SimpleNamespace(best_return=None, session_seconds=0.0),
        )
        self.run = cast(Any, run)
        self.progress = ProgressLine(self.run, handler)
        self.progress.update()

    def pass_by(
        self,
        seconds: float,
        count: int,
        returns: tuple[float, ...] = (),
        best: float | None = None,
        pace: float = 1.0,
    ) -> None:
        """Steps that take some seconds. pace: seconds of training in each of them."""
        self.now += seconds
        ends = np.full(len(returns), self.statistics.steps)
        ended = Episodes(np.array(returns), np.ones(len(returns), np.int64), ends)
        self.statistics.add(Event(0, steps=count, episodes=ended))
        self.run.milestones.best_return = best
        self.run.milestones.session_seconds += pace * seconds
        self.progress.update()


def test_the_line_tells_steps_speed_mean_return_best_evaluation_and_time_left() -> None:
    shown = Shown()
    assert shown.screen.rows() == ["0 / 1M steps | 0/s | return -"]
    for _ in range(5):
        shown.pass_by(1, 50_000, (10.0, 20.0), best=123.4)
    assert shown.screen.rows() == [
        "250k / 1M steps | 50k/s | return 15.0 | best eval 123.4 | 0:15 left"
    ]
    shown.now += 1
    shown.run.milestones.best_return = None
    shown.progress.update("evaluation")
    assert shown.screen.rows() == ["250k / 1M steps | 41.7k/s | return 15.0 | evaluation"]


def test_the_speed_is_that_of_the_last_seconds_not_of_the_whole_run() -> None:
    shown = Shown()
    for second in range(40):
        shown.pass_by(1, 1000 if second < 20 else 100)
    assert "| 100/s |" in shown.screen.rows()[-1]


@pytest.mark.parametrize(
    ("max_seconds", "left"), [(None, "1:30 left"), (25, "0:15 left"), (5, "0:00 left")]
)
def test_the_time_left_is_until_the_first_of_the_runs_ends(
    max_seconds: float | None, left: str
) -> None:
    shown = Shown(max_seconds=max_seconds)
    for _ in range(10):
        shown.pass_by(1, 10_000)
    assert left in shown.screen.rows()[-1]


def test_the_time_left_of_a_simulation_is_real_time() -> None:
    shown = Shown(max_seconds=100)
    for _ in range(10):
        shown.pass_by(1, 10, pace=5.0)
    assert "0:10 left" in shown.screen.rows()[-1]


def test_amounts_and_durations_are_read_at_a_glance() -> None:
    amounts = {0: "0", 999: "999", 1234: "1.23k", 99_999: "100k", 999_999: "1M", 2 * 10**9: "2G"}
    assert {number: amount(number) for number in amounts} == amounts
    assert [duration(seconds) for seconds in (6.2, 59.5, 3723)] == ["0:07", "1:00", "1:02:03"]


def test_on_a_terminal_the_line_is_written_over_below_the_log_and_goes_at_the_end(
    tmp_path: Path,
) -> None:
    screen = Screen()
    with run_log(tmp_path / "train.log", screen) as terminal:
        terminal.show("10 steps")
        assert screen.rows() == ["10 steps"]
        log.info("something happened")
        log.warning("beware")
        assert screen.rows() == ["something happened", "warning: beware", "10 steps"]
    assert screen.rows()[2:] == [""], "how the run has ended is said in other lines"


def test_the_live_line_is_cut_to_the_terminals_width() -> None:
    """On a real terminal: one that wrapped could not be written over."""

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 30, 0, 0))
    with open(theirs, "w") as stream:
        terminal = LiveLineHandler(stream)
        assert terminal.live
        terminal.show("0123456789" * 10)
        assert os.read(ours, 1000) == b"\r" + b"0123456789" * 2 + b"012345678\x1b[K"
        terminal.show("12345678 | 12345678 | 123456789")
        assert os.read(ours, 1000) == b"\r12345678 | 12345678\x1b[K", (
            "whole parts, where there are some"
        )
        terminal.clear()
        assert os.read(ours, 1000) == b"\r\x1b[K"
    os.close(ours)


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), RuntimeError("its own")])
def test_a_stream_that_fails_does_not_end_the_run(error: Exception) -> None:
    """A terminal that goes away, and a program's own stream."""

    class Gone(Screen):
        def write(self, text: str) -> int:
            raise error

    shown = Shown(Gone())
    shown.pass_by(1, 0)
    shown.progress.close(True)


@pytest.mark.parametrize(("terminal", "stream"), [("dumb", Screen), ("xterm", io.StringIO)])
def test_a_stream_that_cannot_rewrite_a_line_gets_none(
    terminal: str, stream: type[io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", terminal)
    assert not LiveLineHandler(stream()).live


def test_in_a_log_there_is_a_plain_line_with_its_time_now_and_then(tmp_path: Path) -> None:
    stream = io.StringIO()
    with run_log(tmp_path / "train.log", stream):
        shown = Shown(stream)
        for _ in range(50):
            shown.pass_by(0.5, 5000)
        shown.progress.close(True)
    lines = (tmp_path / "train.log").read_text().splitlines()
    assert all(
        re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO \d+k / 1M steps[^\x1b]*$", line)
        for line in lines
    )
    assert [line.split()[3] for line in lines] == ["100k", "200k"]
    assert [line.split(" /")[0] for line in stream.getvalue().splitlines()] == ["100k", "200k"]


def test_warnings_of_libraries_are_in_the_log_and_deprecations_in_the_file_alone(
    tmp_path: Path,
) -> None:
    stream = io.StringIO()
    for message in ("odd", "really"):  # the second run goes on in the same file
        with warnings.catch_warnings(), run_log(tmp_path / "train.log", stream):
            warnings.simplefilter("always")
            warnings.warn(message, UserWarning, stacklevel=1)
            warnings.warn("out of date", DeprecationWarning, stacklevel=1)
    for text in (stream.getvalue(), (tmp_path / "train.log").read_text()):
        assert "UserWarning: odd" in text and "UserWarning: really" in text
    assert (tmp_path / "train.log").read_text().count("DeprecationWarning: out of date") == 2
    assert "out of date" not in stream.getvalue()


def test_nothing_is_left_set_when_the_log_ends_however_it_ends(tmp_path: Path) -> None:
    before = (
        list(log.handlers),
        log.level,
        log.propagate,
        warnings.showwarning,
        list(logging.root.handlers),
    )
    with pytest.raises(KeyboardInterrupt), run_log(tmp_path / "train.log", Screen()) as terminal:
        terminal.show("half way")
        raise KeyboardInterrupt
    assert before == (
        list(log.handlers),
        log.level,
        log.propagate,
        warnings.showwarning,
        list(logging.root.handlers),
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_log_that_cannot_be_written_is_reported_once_and_ends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with run_log(tmp_path / "train.log", io.StringIO()):
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))  # stands for a full disk
        try:
            for _ in range(3):
                log.info("line")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert capsys.readouterr().err.count("train.log cannot be written") == 1


class WithoutIsatty:
    """A program's own stream, as a logging framework puts it in the place of stderr."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        pass


@pytest.mark.parametrize("stream", [None, WithoutIsatty()])
def test_a_program_need_not_have_whole_standard_streams(
    stream: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr", stream)
    with run_log(tmp_path / "train.log") as terminal:
        terminal.show("a line")
        log.warning("told")
    assert "told" in (tmp_path / "train.log").read_text()


def test_nobody_waits_for_a_stream_that_takes_nothing(tmp_path: Path) -> None:
    """A pipe that nobody reads, a terminal after Ctrl-S: lines are lost there, and train.log has
    them."""
    reader, writer = os.pipe()
    size = fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    with open(writer, "w") as stream, run_log(tmp_path / "train.log", stream):
        os.write(writer, b"x" * size)
        log.warning("%s", "lost " * 2000)
        os.read(reader, size)
        log.warning("seen")
    assert os.read(reader, size) == b"warning: seen\n"
    os.close(reader)
    assert "lost" in (tmp_path / "train.log").read_text()


def test_a_sweeps_run_may_have_a_percent_sign_in_its_label(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stream = io.StringIO()
    record = logging.LogRecord("a3c_exp", logging.WARNING, "", 0, "told", None, None)
    LiveLineHandler(stream, "fmt=a%s: ").handle(record)
    assert "fmt=a%s: " in stream.getvalue() and not capsys.readouterr().err


def test_a_notebook_gets_the_log_on_stdout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its stderr is red."""
    red = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    plain = io.StringIO()
    monkeypatch.setattr("sys.stderr", red)
    monkeypatch.setattr("sys.stdout", plain)
    with run_log(tmp_path / "train.log"):
        log.info("a line")
    assert (plain.getvalue(), red.getvalue()) == ("a line\n", "")
