"""What a person sees of a run: a live line on a terminal, plain lines elsewhere, and train.log."""

from __future__ import annotations

import io
import logging
import os
import re
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from a3c_exp.core.events import Episodes, Event
from a3c_exp.run.console import LiveLineHandler, Progress, duration, run_log
from a3c_exp.run.statistics import RunStatistics

log = logging.getLogger("a3c_exp")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Screen(io.StringIO):
    """A terminal in memory."""

    def isatty(self) -> bool:
        return True

    def rows(self) -> list[str]:
        """What one sees: a carriage return goes back to the start of the row, ESC [ K clears the rest of it."""
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


def drive(
    stream: io.StringIO, folder: Path, show: Callable[[Progress, RunStatistics, Clock], None], **ends: float | None
) -> RunStatistics:
    clock = Clock()
    statistics = RunStatistics(clock=clock)
    with run_log(folder / "train.log", stream) as terminal:
        progress = Progress(terminal, 1_000_000, clock=clock, **ends)  # type: ignore[arg-type]
        show(progress, statistics, clock)
    return statistics


def steps(statistics: RunStatistics, count: int, returns: tuple[float, ...] = ()) -> None:
    ended = Episodes(np.array(returns), np.ones(len(returns), np.int64), np.full(len(returns), statistics.steps))
    statistics.add(Event(0, steps=count, episodes=ended))


# -- the line --------------------------------------------------------------------------------------


def test_the_line_tells_steps_speed_mean_return_best_evaluation_and_time_left(tmp_path: Path) -> None:
    screen = Screen()

    def show(progress: Progress, statistics: RunStatistics, clock: Clock) -> None:
        progress.update(statistics)
        for _ in range(5):
            clock.now += 1
            steps(statistics, 50_000, (10.0, 20.0))
            progress.update(statistics, 123.4)
        shown = "250k / 1M steps | 50k/s | return 15.0 | best eval 123.4 | 0:15 left"
        assert screen.rows() == [shown]

    drive(screen, tmp_path, show)


def test_the_speed_is_that_of_the_last_seconds_not_of_the_whole_run(tmp_path: Path) -> None:
    screen = Screen()

    def show(progress: Progress, statistics: RunStatistics, clock: Clock) -> None:
        for second in range(40):
            progress.update(statistics)
            clock.now += 1
            steps(statistics, 1000 if second < 20 else 100)
        progress.update(statistics)
        assert "| 100/s |" in screen.rows()[-1]

    drive(screen, tmp_path, show)


@pytest.mark.parametrize(
    ("ends", "left"),
    [
        ({}, "1:30 left"),  # 900,000 steps at 10,000 a second
        ({"max_seconds": 25}, "0:15 left"),
        ({"max_episodes": 60}, "0:50 left"),
        ({"max_seconds": 25, "max_episodes": 60}, "0:15 left"),
        ({"max_seconds": 5}, "0:00 left"),
    ],
)
def test_the_time_left_is_until_the_first_of_the_runs_ends(tmp_path: Path, ends: dict[str, float], left: str) -> None:
    screen = Screen()

    def show(progress: Progress, statistics: RunStatistics, clock: Clock) -> None:
        progress.update(statistics)
        for _ in range(10):
            clock.now += 1
            steps(statistics, 10_000, (1.0,))
            progress.update(statistics)
        assert left in screen.rows()[-1]

    drive(screen, tmp_path, show, **ends)


def test_before_anything_is_known_nothing_is_made_up(tmp_path: Path) -> None:
    screen = Screen()
    drive(screen, tmp_path, lambda progress, statistics, clock: progress.update(statistics))
    assert "0 / 1M steps | 0/s | return -\x1b[K" in screen.getvalue()
    assert "left" not in screen.getvalue()


def test_rejected_updates_are_shown(tmp_path: Path) -> None:
    screen = Screen()

    def show(progress: Progress, statistics: RunStatistics, clock: Clock) -> None:
        statistics.add(Event(0, rejected=3))
        progress.update(statistics)
        assert "| 3 updates rejected" in screen.rows()[-1]

    drive(screen, tmp_path, show)


@pytest.mark.parametrize(
    ("steps", "shown"),
    [(0, "0"), (999, "999"), (1234, "1.23k"), (99_999, "100k"), (999_999, "1M"), (12_345_678, "12.3M"), (2e9, "2G")],
)
def test_steps_are_read_at_a_glance(tmp_path: Path, steps: int, shown: str) -> None:
    statistics = RunStatistics()
    statistics.steps = steps
    assert Progress(LiveLineHandler(Screen()), 10**7).line(statistics, None).startswith(f"{shown} / 10M steps | ")


def test_a_long_line_fits_an_old_terminal() -> None:
    clock = Clock()
    progress = Progress(LiveLineHandler(Screen()), 123_000_000, clock=clock)
    statistics = RunStatistics(clock=clock)
    statistics.steps = 12_345_678
    progress.update(statistics)
    clock.now += 1
    steps(statistics, 1_117, (-1234.5,))
    progress.update(statistics)
    assert len(progress.line(statistics, -1234.5)) < 80


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0:00"), (6.2, "0:07"), (59.5, "1:00"), (754, "12:34"), (3723, "1:02:03")]
)
def test_durations_are_read_at_a_glance(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


# -- on a terminal ---------------------------------------------------------------------------------


def test_on_a_terminal_the_line_is_written_over_and_a_last_one_stays(tmp_path: Path) -> None:
    screen = Screen()

    def show(progress: Progress, statistics: RunStatistics, clock: Clock) -> None:
        for _ in range(100):
            clock.now += 1
            steps(statistics, 1000)
            progress.update(statistics)
        assert len(screen.rows()) == 1
        progress.close(statistics)

    drive(screen, tmp_path, show)
    rows = screen.rows()
    assert rows[0].startswith("100k / 1M steps")
    assert rows[1:] == [""]


def test_log_lines_pass_above_the_live_line(tmp_path: Path) -> None:
    screen = Screen()

    def show(progress: Progress, statistics: RunStatistics, clock: Clock) -> None:
        progress.update(statistics)
        log.info("something happened")
        log.warning("beware")
        assert screen.rows()[:2] == ["something happened", "warning: beware"]
        assert screen.rows()[2].startswith("0 / 1M steps")

    drive(screen, tmp_path, show)


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


def test_a_terminal_that_goes_away_does_not_end_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Gone(Screen):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    def show(progress: Progress, statistics: RunStatistics, clock: Clock) -> None:
        for _ in range(30):
            clock.now += 1
            progress.update(statistics)
        progress.close(statistics)

    drive(Gone(), tmp_path, show)
    assert (tmp_path / "train.log").read_text().count("1M steps") == 4
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"TERM": "xterm"}])
def test_a_stream_that_cannot_rewrite_a_line_gets_none(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", environment["TERM"])
    assert LiveLineHandler(Screen()).live == (environment["TERM"] != "dumb")
    assert not LiveLineHandler(io.StringIO()).live


# -- in a log --------------------------------------------------------------------------------------


def test_in_a_log_there_is_a_plain_line_now_and_then_and_a_last_one(tmp_path: Path) -> None:
    stream = io.StringIO()

    def show(progress: Progress, statistics: RunStatistics, clock: Clock) -> None:
        for _ in range(50):
            clock.now += 0.5
            steps(statistics, 5000)
            progress.update(statistics)
        progress.close(statistics)

    drive(stream, tmp_path, show)
    lines = stream.getvalue().splitlines()
    assert [line.split(" /")[0] for line in lines] == ["100k", "200k", "250k"]
    assert not re.search(r"[\r\x1b]", stream.getvalue())


@pytest.mark.parametrize("stream", [Screen, io.StringIO])
def test_train_log_has_plain_lines_with_times_whatever_the_stream(
    tmp_path: Path, stream: Callable[[], io.StringIO]
) -> None:
    def show(progress: Progress, statistics: RunStatistics, clock: Clock) -> None:
        log.info("begun")
        clock.now += 11
        progress.update(statistics)
        progress.close(statistics)

    drive(stream(), tmp_path, show)
    lines = (tmp_path / "train.log").read_text().splitlines()
    assert len(lines) == 3
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO ", line) for line in lines)
    assert "\x1b" not in "".join(lines)


# -- the log ---------------------------------------------------------------------------------------


def test_a_resumed_runs_log_goes_on_in_the_same_file(tmp_path: Path) -> None:
    for message in ("first", "second"):
        with run_log(tmp_path / "train.log", io.StringIO()):
            log.info(message)
    assert [line.split()[-1] for line in (tmp_path / "train.log").read_text().splitlines()] == ["first", "second"]


def test_warnings_of_libraries_are_in_the_log(tmp_path: Path) -> None:
    stream = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with run_log(tmp_path / "train.log", stream):
            warnings.warn("this environment is out of date", DeprecationWarning, stacklevel=1)
    assert "DeprecationWarning: this environment is out of date" in stream.getvalue()
    assert "out of date" in (tmp_path / "train.log").read_text()


def test_nothing_is_left_set_when_the_log_ends_however_it_ends(tmp_path: Path) -> None:
    before = (list(log.handlers), log.level, log.propagate, warnings.showwarning, list(logging.root.handlers))

    def fail() -> None:
        with run_log(tmp_path / "train.log", Screen()) as terminal:
            terminal.show("half way")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert before == (list(log.handlers), log.level, log.propagate, warnings.showwarning, list(logging.root.handlers))


def test_a_second_run_of_a_process_does_not_write_into_the_log_of_the_first(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with run_log(tmp_path / name, io.StringIO()):
            log.info("this is %s", name)
    assert "two" not in (tmp_path / "one").read_text()


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
    assert sorted(screen.rows()[:-1]) == sorted(f"{name} says something" for name in range(4) for _ in range(50))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_log_that_cannot_be_written_is_reported_once_and_ends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.log").symlink_to("/dev/full")
    with run_log(tmp_path / "train.log", io.StringIO()):
        for _ in range(3):
            log.info("line")
    assert capsys.readouterr().err.count("train.log cannot be written") == 1


def test_by_default_the_log_goes_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with run_log(tmp_path / "train.log"):
        log.info("hello")
    assert capsys.readouterr() == ("", "hello\n")
