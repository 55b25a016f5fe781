"""The command that watches runs under load: a leak and a slowdown are found, and nothing else is called one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from runs import LINUX

sys.path.insert(0, str(Path(__file__).parent.parent))  # bench is not installed: it belongs to the checkout

from bench import soak
from bench.soak import SPEEDS, Sample

LEAKING = """
import os, threading, time

kept = []

def leak():
    while True:
        kept.append((bytearray(os.urandom(1_000_000)), open(__file__)))
        time.sleep(0.01)

threading.Thread(target=leak, daemon=True).start()
"""


@LINUX
@pytest.mark.slow
def test_a_run_that_leaks_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "leaking.py").write_text(LEAKING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    overrides = "backend=serial workers=1 envs_per_worker=2 plugins=[leaking]"
    found = soak.steady(argparse.Namespace(minutes=0.025), label="leaking", overrides=overrides)
    lines = {line.what: line for line in found}
    assert lines["leaking: memory"].problem.startswith("memory grew by ")
    assert lines["leaking: descriptors"].problem.endswith(" descriptors more")
    assert not lines["leaking: threads"].problem
    assert "leaking: steps/s" in lines


@pytest.mark.parametrize(
    ("held", "problem"),
    [
        (lambda number: min(10**8, 10**6 * number), ""),  # it settles within the first third
        (lambda number: 10**8 + 10**4 * number, "memory grew by 1.8%"),
    ],
)
def test_memory_may_grow_at_first_alone(held: Callable[[int], int], problem: str) -> None:
    samples = [Sample(memory=held(number), descriptors=20, threads=9) for number in range(300)]
    assert [line.problem for line in soak.held_lines("run", 30.0, samples)] == [problem, "", ""]


def test_speeds_are_those_of_equal_parts_of_the_time(tmp_path: Path) -> None:
    points = [(0, 0), (3, 900), (4, 1000), (6, 1200), (9, 1500), (12, 1650)]
    file = tmp_path / "metrics.csv"
    file.write_text("wall_seconds,step\n" + "".join(f"{second},{step}\n" for second, step in points))
    assert soak.speeds(file, 3, skip=0.25).tolist() == [100, 100, 50]


def test_a_run_that_becomes_slower_is_told_from_one_that_varies() -> None:
    rng = np.random.default_rng(0)
    first = rng.normal(1000, 20, SPEEDS)
    assert soak.speed_line("run", 30.0, first, rng.normal(950, 20, SPEEDS)).problem.startswith("slower by ")
    assert not soak.speed_line("run", 30.0, first, rng.normal(1000, 20, SPEEDS)).problem


def test_a_missed_bar_ends_the_command_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = soak.Line(what="a", minutes=1, before="1", after="1")
    bad = soak.Line(what="c", minutes=1, before="1", after="0", problem="slower")
    monkeypatch.setitem(soak.ROWS, "runs", lambda flags: iter([good]))
    monkeypatch.setitem(soak.ROWS, "workers", lambda flags: iter([bad]))
    assert soak.main(["--only", "runs"]) == 0
    assert soak.main(["--only", "runs", "--only", "workers"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "| c | 1.0 | 1 | 0 | **slower** |"
