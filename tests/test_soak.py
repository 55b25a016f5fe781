"""The command that watches runs under load: a leak and a slowdown are found, and nothing else is called one."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from runs import LINUX

sys.path.insert(0, str(Path(__file__).parent.parent))  # bench is not installed: it belongs to the checkout

from bench import soak
from bench.watching import SPEEDS, Sample, first_and_last, ratio_interval, speeds

LEAKING = """
import os, threading, time

kept = []

def leak():
    while True:
        kept.append((bytearray(os.urandom(200_000)), open(__file__)))
        time.sleep(0.01)

threading.Thread(target=leak, daemon=True).start()
"""
SERIAL = ("backend=serial", "workers=1", "envs_per_worker=2")


@LINUX
def test_a_run_that_leaks_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "leaking.py").write_text(LEAKING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    row = soak.steady("leaking", *SERIAL, "plugins=[leaking]")
    lines = {line.what: line for line in row(soak.Limits(minutes=0.025, runs=0))}
    assert lines["leaking: memory"].problem.startswith("memory grew by ")
    assert lines["leaking: descriptors"].problem.endswith(" descriptors more")
    assert not lines["leaking: threads"].problem
    assert "leaking: steps/s" in lines


def samples(held: Callable[[int], int]) -> list[Sample]:
    return [Sample(processes=3, memory=held(number), descriptors=20, threads=9) for number in range(300)]


@pytest.mark.parametrize(
    ("held", "problem"),
    [
        (lambda number: 10**8, ""),
        (lambda number: min(10**8, 10**6 * number), ""),  # it settles within the first third
        (lambda number: 10**8 + 10**7 * (number % 2), ""),
        (lambda number: 10**8 + 10**4 * number, "memory grew by 1.8%"),
    ],
)
def test_memory_may_grow_at_first_alone(held: Callable[[int], int], problem: str) -> None:
    memory, *others = soak.held_lines("run", 30.0, samples(held))
    assert memory.problem == problem
    assert [line.problem for line in others] == ["", ""]
    assert [line.cells[-1] for line in others] == ["ok", "ok"]


def test_one_thread_more_is_too_many() -> None:
    threads = [9] * 250 + [10] * 50
    assert first_and_last(threads) == (9, 10)
    grown = [Sample(3, 10**8, 20, each) for each in threads]
    assert [line.problem for line in soak.held_lines("run", 30.0, grown)] == ["", "", "1 threads more"]


def test_speeds_are_those_of_equal_parts_of_the_time(tmp_path: Path) -> None:
    table = tmp_path / "metrics.csv"
    points = [(0, 0), (3, 900), (4, 1000), (6, 1200), (9, 1500), (12, 1650)]
    table.write_text("step,wall_seconds\n" + "".join(f"{step},{second}\n" for second, step in points))
    assert speeds(table, 3, skip=0.25).tolist() == [100, 100, 50]


def test_a_run_that_becomes_slower_is_told_from_one_that_varies() -> None:
    rng = np.random.default_rng(0)
    first = rng.normal(1000, 20, SPEEDS)
    line = soak.speed_line("run: steps/s", 30.0, rng.normal(950, 20, SPEEDS), first)
    assert line.problem.startswith("slower by ")
    assert not soak.speed_line("run: steps/s", 30.0, rng.normal(1000, 20, SPEEDS), first).problem
    ratio, low, high = ratio_interval(first, first)
    assert ratio == 1 and low < 1 < high


def test_episodes_are_counted_and_their_order_is_looked_at(tmp_path: Path) -> None:
    table = tmp_path / "episodes.csv"
    table.write_text(
        "step,worker,return,length,seconds\n8,0,1,4,0.1\n4,1,1,4,0.1\n12,0,1,4,0.2\n6,0,1,4,0.2\n8,1,1,4,0.3\n"
    )
    assert soak.count_episodes(table) == (5, 1)


def test_a_slow_disk_takes_200_ms_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from a3c_exp.run.files import Appender

    monkeypatch.setattr(Appender, "flush", Appender.flush)  # is put back after the test
    sys.modules.pop("bench.slow_disk", None)
    __import__("bench.slow_disk")
    appender, start = Appender(tmp_path / "log"), time.perf_counter()
    appender.add(b"one\n")
    appender.close()
    assert time.perf_counter() - start >= 0.2
    assert (tmp_path / "log").read_bytes() == b"one\n"
    sys.modules.pop("bench.slow_disk")


def test_a_missed_bar_ends_the_command_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        soak.Line(what="a", minutes=1, before="1", after="1"),
        soak.Line(what="b", minutes=1, before="1", after="2"),
    ]
    monkeypatch.setitem(soak.ROWS, "runs", lambda limits: iter(lines))
    assert soak.main(["--only", "runs"]) == 0
    monkeypatch.setitem(
        soak.ROWS,
        "disk",
        lambda limits: iter([soak.Line(what="c", minutes=1, before="1", after="0", problem="slower")]),
    )
    assert soak.main(["--only", "runs", "--only", "disk"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "| c | 1.0 | 1 | 0 | **slower** |"
