"""The command that kills workers of runs at random moments."""

from __future__ import annotations

import sys

import pytest

from bench import kills

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds workers in /proc")


def test_a_run_whose_workers_are_killed_passes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kills, "_random_pause", lambda: 0.2)
    monkeypatch.setitem(kills.RUNS, "async", (*kills.RUNS["async"], "backend.max_restarts=100", "total_steps=5e5"))
    code, output = kills.main(["--runs", "1", "--only", "async"]), capsys.readouterr().out
    assert code == 0, output
    (line,) = output.splitlines()
    assert line.startswith("async        1 of 1 passed; ")
    assert line.endswith("ended by total_steps")


def test_one_that_fails_is_told_with_what_it_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kills, "_random_pause", lambda: 5.0)  # the run ends before
    monkeypatch.setitem(kills.RUNS, "async", (*kills.RUNS["async"], "backend.max_restarts=0", "total_steps=1e9"))
    assert kills.main(["--runs", "1", "--only", "async"]) == 1
    output = capsys.readouterr().out
    assert "async        0 of 1 passed; 1 kills, 0 restarts; ended by failed" in output
    assert "was killed by SIGKILL" in output


def test_a_replacement_takes_its_first_step_soon(capsys: pytest.CaptureFixture[str]) -> None:
    assert kills.main(["--replacement", "--runs", "1"]) == 0
    assert "death to first step: median" in capsys.readouterr().out
