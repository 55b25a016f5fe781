"""What a person sees of a run: a live line on a terminal, plain lines elsewhere, and train.log."""

from __future__ import annotations

import io
import logging
import os
import re
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from a3c_exp.core.events import Episodes, Event
from a3c_exp.run.console import LiveLineHandler, Progress, duration, run_log
from a3c_exp.run.statistics import RunStatistics

log = logging.getLogger("a3c_exp")


class Screen(io.StringIO):
    """A terminal in memory."""

    def isatty(self) -> bool:
        return True


def seen(written: str) -> list[str]:
    rows, column = [""], 0
    for piece in re.findall(r"\x1b\[K|[\r\n]|[^\r\n\x1b]+", written):
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
    """A run's log and progress line on a stream, with a clock."""

    def __init__(self, folder: Path, stream: io.StringIO | None = None, **ends: float | None) -> None:
        self.stream = Screen() if stream is None else stream
        self.now = 100.0
        self.statistics = RunStatistics(clock=lambda: self.now)
        self._folder = folder
        self._ends = ends

    def __enter__(self) -> Shown:
        self._log = run_log(self._folder / "train.log", self.stream)
        terminal = self._log.__enter__()
        self.progress = Progress(terminal, 1_000_000, clock=lambda: self.now, **self._ends)  # type: ignore[arg-type]
        return self

    def __exit__(self, *error: Any) -> None:
        self._log.__exit__(*error)

    def pass_by(self, seconds: float, count: int, returns: tuple[float, ...] = (), best: float | None = None) -> None:
        """Steps that take some seconds."""
        self.now += seconds
        ends = np.full(len(returns), self.statistics.steps)
        ended = Episodes(np.array(returns), np.ones(len(returns), np.int64), ends)
        self.statistics.add(Event(0, steps=count, episodes=ended))
        self.progress.update(self.statistics, best)

    def rows(self) -> list[str]:
        """What one sees: a carriage return goes back to the start of the row, ESC [ K clears the rest of it."""
        return seen(self.stream.getvalue())


# -- the line --------------------------------------------------------------------------------------


def test_the_line_tells_steps_speed_mean_return_best_evaluation_and_time_left(tmp_path: Path) -> None:
    with Shown(tmp_path) as shown:
        shown.progress.update(shown.statistics)
        for _ in range(5):
            shown.pass_by(1, 50_000, (10.0, 20.0), best=123.4)
        assert shown.rows() == ["250k / 1M steps | 50k/s | return 15.0 | best eval 123.4 | 0:15 left"]


def test_the_speed_is_that_of_the_last_seconds_not_of_the_whole_run(tmp_path: Path) -> None:
    with Shown(tmp_path) as shown:
        for second in range(40):
            shown.pass_by(1, 1000 if second < 20 else 100)
        assert "| 100/s |" in shown.rows()[-1]


@pytest.mark.parametrize(
    ("ends", "left"),
    [
        ({}, "1:30 left"),  # 900,000 steps at 10,000 a second
        ({"max_seconds": 25}, "0:15 left"),
        ({"max_seconds": 5}, "0:00 left"),
    ],
)
def test_the_time_left_is_until_the_first_of_the_runs_ends(tmp_path: Path, ends: dict[str, float], left: str) -> None:
    with Shown(tmp_path, **ends) as shown:  # type: ignore[arg-type]
        shown.progress.update(shown.statistics)
        for _ in range(10):
            shown.pass_by(1, 10_000, (1.0,))
        assert left in shown.rows()[-1]


def test_what_is_not_known_is_not_made_up_and_rejected_updates_are_shown(tmp_path: Path) -> None:
    with Shown(tmp_path) as shown:
        shown.progress.update(shown.statistics)
        assert shown.rows() == ["0 / 1M steps | 0/s | return -"]
        shown.statistics.add(Event(0, counts={"rejected": 3}))
        shown.pass_by(1, 0)
        assert "| 3 updates rejected" in shown.rows()[-1]


def test_steps_and_durations_are_read_at_a_glance() -> None:
    statistics = RunStatistics()
    progress = Progress(LiveLineHandler(Screen()), 10**7)
    for steps, shown in ((0, "0"), (999, "999"), (1234, "1.23k"), (99_999, "100k"), (999_999, "1M"), (2 * 10**9, "2G")):
        statistics.steps = steps
        assert progress.line(statistics, None).startswith(f"{shown} / 10M steps | ")
    assert [duration(seconds) for seconds in (6.2, 59.5, 3723)] == ["0:07", "1:00", "1:02:03"]


# -- on a terminal ---------------------------------------------------------------------------------


def test_on_a_terminal_the_line_is_written_over_below_the_log_and_a_last_one_stays(tmp_path: Path) -> None:
    with Shown(tmp_path) as shown:
        for _ in range(100):
            shown.pass_by(1, 1000)
        assert len(shown.rows()) == 1
        log.info("something happened")
        log.warning("beware")
        shown.pass_by(1, 0)
        assert shown.rows()[:2] == ["something happened", "warning: beware"]
        shown.progress.close(shown.statistics)
    assert shown.rows()[2].startswith("100k / 1M steps")
    assert shown.rows()[3:] == [""]


def test_the_live_line_is_cut_to_the_terminals_width(tmp_path: Path) -> None:
    """On a real terminal: one that wrapped could not be written over."""
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 30, 0, 0))
    with open(theirs, "w") as stream:
        terminal = LiveLineHandler(stream)
        assert terminal.live
        terminal.show("0123456789" * 10)
        assert os.read(ours, 1000) == b"\r" + b"0123456789" * 2 + b"012345678\x1b[K"
        terminal.clear()
        assert os.read(ours, 1000) == b"\r\x1b[K"
    os.close(ours)


def test_a_terminal_that_goes_away_does_not_end_the_run(tmp_path: Path) -> None:
    class Gone(Screen):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    with Shown(tmp_path, Gone()) as shown:
        for _ in range(30):
            shown.pass_by(1, 0)
        shown.progress.close(shown.statistics)
    assert (tmp_path / "train.log").read_text().count("1M steps") == 4


@pytest.mark.parametrize(
    ("terminal", "stream", "live"), [("xterm", Screen, True), ("dumb", Screen, False), ("xterm", io.StringIO, False)]
)
def test_a_stream_that_cannot_rewrite_a_line_gets_none(
    terminal: str, stream: type[io.StringIO], live: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", terminal)
    assert LiveLineHandler(stream()).live == live


# -- in a log --------------------------------------------------------------------------------------


def test_in_a_log_there_is_a_plain_line_with_its_time_now_and_then_and_a_last_one(tmp_path: Path) -> None:
    with Shown(tmp_path, io.StringIO()) as shown:
        for _ in range(50):
            shown.pass_by(0.5, 5000)
        shown.progress.close(shown.statistics)
    lines = (tmp_path / "train.log").read_text().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO \d+k / 1M steps[^\x1b]*$", line) for line in lines)
    assert [line.split()[3] for line in lines] == ["100k", "200k", "250k"]
    assert [line.split(" /")[0] for line in shown.stream.getvalue().splitlines()] == ["100k", "200k", "250k"]


# -- the log ---------------------------------------------------------------------------------------


def test_warnings_of_libraries_are_in_the_log(tmp_path: Path) -> None:
    stream = io.StringIO()
    for message in ("out of date", "really"):  # the second run goes on in the same file
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            with run_log(tmp_path / "train.log", stream):
                warnings.warn(message, DeprecationWarning, stacklevel=1)
    for text in (stream.getvalue(), (tmp_path / "train.log").read_text()):
        assert "DeprecationWarning: out of date" in text and "DeprecationWarning: really" in text


def test_nothing_is_left_set_when_the_log_ends_however_it_ends(tmp_path: Path) -> None:
    before = (list(log.handlers), log.level, log.propagate, warnings.showwarning, list(logging.root.handlers))

    def fail() -> None:
        with run_log(tmp_path / "train.log", Screen()) as terminal:
            terminal.show("half way")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert before == (list(log.handlers), log.level, log.propagate, warnings.showwarning, list(logging.root.handlers))


def test_threads_do_not_mix_their_lines_with_the_live_one(tmp_path: Path) -> None:
    screen = Screen()
    with run_log(tmp_path / "train.log", screen) as terminal:

        def chatter(name: int) -> None:
            for _ in range(50):
                log.info("%d says something", name)

        threads = [threading.Thread(target=chatter, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for count in range(200):
            terminal.show(f"live {count}")
        for thread in threads:
            thread.join()
    assert sorted(seen(screen.getvalue())[:-1]) == sorted(
        f"{name} says something" for name in range(4) for _ in range(50)
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_log_that_cannot_be_written_is_reported_once_and_ends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.log").symlink_to("/dev/full")
    with run_log(tmp_path / "train.log", io.StringIO()):
        for _ in range(3):
            log.info("line")
    assert capsys.readouterr().err.count("train.log cannot be written") == 1
