"""The benchmark runs. What it finds is for its table; here only that each way of measuring gives a figure."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from runs import LINUX

sys.path.insert(0, str(Path(__file__).parent.parent))  # bench is not installed: it belongs to the checkout

from bench import __main__ as bench
from bench.peers import UnavailableError
from bench.rows import Measurement, Row
from bench.runs import peak_memory, training_speed
from bench.stepping import random_stepping


def row(*against: Measurement, at_least: float | None = None) -> Row:
    return Row("name", "title", Measurement("ours", lambda _: 30.0), against, at_least=at_least)


def missing(_: float) -> float:
    raise UnavailableError("not installed: pip install it")


@pytest.mark.slow
def test_a_row_runs_beside_what_it_is_compared_with() -> None:
    ours = Measurement(
        "serial", lambda seconds: training_speed("env=cartpole", "backend=serial", "workers=1", seconds=seconds)
    )
    theirs = Measurement("random stepping", lambda seconds: random_stepping("CartPole-v1", seconds))
    (line,) = bench.table_lines(Row("name", "title", ours, (theirs,), at_least=1e-9), rounds=1, seconds=0.2)
    assert len(line) == len(bench.HEADER) - 1, "the last one says when"
    assert line[0] == "title" and line[-1] == "yes"


@pytest.mark.slow
@LINUX
def test_the_memory_of_a_run_is_that_of_all_its_processes() -> None:
    """Two workers and their server: more than the command alone, and less than if nothing were shared."""
    assert 5e7 < peak_memory("env=cartpole", "workers=2", seconds=0.1) < 2e9


def test_figures_are_medians_and_the_ratio_is_that_of_the_rounds() -> None:
    figures = iter([10.0, 20.0, 60.0])
    lines = bench.table_lines(row(Measurement("other", lambda _: next(figures)), at_least=1.6), rounds=3, seconds=0.0)
    assert lines[0][1:] == ["30 steps/s", "other", "20 steps/s", "1.5 (0.5 - 3)", ">= 1.6", "no"]


def test_a_system_that_is_not_installed_has_a_line_that_says_how_to_get_it() -> None:
    lines = bench.table_lines(row(Measurement("peer", missing), Measurement("other", lambda _: 60.0)), 2, 0.0)
    assert lines[0][2:4] == ["peer", "not installed: pip install it"]
    assert lines[1][4] == "0.5 (0.5 - 0.5)"


def test_what_was_measured_stays_until_it_is_measured_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = iter([60.0, 120.0])
    other = Row("other", "another", Measurement("ours", lambda _: 1.0))
    monkeypatch.setattr(bench, "ROWS", (row(Measurement("theirs", lambda _: next(figures)), at_least=0.4), other))
    monkeypatch.setattr(bench, "FOLDER", tmp_path)
    assert bench.main(["--rounds", "1"]) == 0
    before = (tmp_path / "RESULTS.md").read_text()
    assert "| title | 30 steps/s | theirs | 60 steps/s | 0.5 (0.5 - 0.5) | >= 0.4 | yes |" in before
    assert bench.main(["--only", "name", "--rounds", "1"]) == 0
    after = (tmp_path / "RESULTS.md").read_text()
    assert "| title | 30 steps/s | theirs | 120 steps/s | 0.25 (0.25 - 0.25) | >= 0.4 | no |" in after
    assert "theirs | 60 steps/s" not in after
    assert after.splitlines()[-1] == before.splitlines()[-1], "the other row is as it was"
