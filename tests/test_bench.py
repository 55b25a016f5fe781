"""The benchmark runs. What it finds is for its table; here only that each way of measuring gives a figure."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from a3c_exp.run import provenance

sys.path.insert(0, str(Path(__file__).parent.parent))  # bench is not installed: it belongs to the checkout

from bench import __main__ as bench
from bench import arithmetic, backgrounds, gradients, pictures
from bench.peers import UnavailableError
from bench.rows import ROWS, Measurement, Row
from bench.runs import curve, peak_memory, training_speed
from bench.stepping import atari_random_stepping, random_stepping


def row(*against: Measurement, at_least: float | None = None) -> Row:
    return Row("name", "title", Measurement("ours", lambda _: 30.0), against, at_least=at_least)


def missing(_: float) -> float:
    raise UnavailableError("not installed: pip install it")


def unwanted(_: float) -> float:
    pytest.fail("measured, though there is nothing to compare it with")


def test_a_row_runs_beside_what_it_is_compared_with() -> None:
    ours = Measurement(
        "serial", lambda seconds: training_speed("env=cartpole", "backend=serial", "workers=1", seconds=seconds)
    )
    theirs = Measurement("random stepping", lambda seconds: random_stepping("CartPole-v1", seconds))
    (line,) = bench.table_lines(Row("name", "title", ours, (theirs,), at_least=1e-9), rounds=1, seconds=0.2)
    assert len(line) == len(bench.HEADER) - 1, "the last one says when"
    assert line[0] == "title" and line[-1] == "yes"


def test_a_curve_of_a_run_has_a_mean() -> None:
    overrides = ("env=cartpole", "backend=ga3c", "workers=2", "envs_per_worker=4", "network.hidden_sizes=[8]")
    assert 1 <= curve("ga3c/prediction_batch", *overrides, seconds=2.0) <= 8


def test_what_is_not_there_is_reported_in_place_of_its_figure() -> None:
    """The peer was not waited for either: there is nothing that it could be compared with."""
    subject = Row("name", "title", Measurement("on a GPU", missing), (Measurement("peer", unwanted),), at_least=2.0)
    (line,) = bench.table_lines(subject, rounds=2, seconds=0.0)
    assert line == ["title", "not installed: pip install it", "", "", "", ">= 2", "not measured"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_row_of_a_gpu_says_that_there_is_none() -> None:
    rows = [row for row in ROWS if row.name.startswith("ga3c_gpu")]
    assert len(rows) == 8
    for one in rows:
        (line,) = bench.table_lines(one, rounds=1, seconds=0.1)
        assert line[1].startswith("no GPU here")


def test_a_bar_may_be_for_a_figure_of_its_own() -> None:
    (line,) = bench.table_lines(row(at_least=40.0), rounds=1, seconds=0.0)
    assert line[1:] == ["30 steps/s", "", "", "", ">= 40", "no"]


def test_atari_games_are_stepped() -> None:
    pytest.importorskip("ale_py", reason="Atari games: pip install 'a3c-exp[atari]'")
    assert atari_random_stepping("pong", 2, 0.1) > 0


def test_a_picture_has_a_cost_in_each_arithmetic(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ale_py", reason="Atari games: pip install 'a3c-exp[atari]'")
    assert pictures.main(["--turns", "1", "--pictures", "2"]) == 0
    lines = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines[2:]] == list(pictures.NETWORKS)
    for line in lines[2:]:
        assert all(float(figure) > 0 for cell in line[2:] for figure in cell.split(","))


def test_the_background_of_a_game_is_its_most_frequent_gray(capsys: pytest.CaptureFixture[str]) -> None:
    """Those with which env=pong and env=breakout begin."""
    pytest.importorskip("ale_py", reason="Atari games: pip install 'a3c-exp[atari]'")
    assert backgrounds.main(["--steps", "40", "pong", "breakout"]) == 0
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[:2] for row in rows] == [["pong", "87"], ["breakout", "0"]]
    assert all(float(row[3]) > float(row[1]) for row in rows), "the mean is no background"
    with pytest.raises(SystemExit, match="2"):
        backgrounds.main(["--steps", "40", "pnog"])
    assert "game = 'pnog': there is no such game: did you mean 'pong'?" in capsys.readouterr().err


def test_a_gradient_has_a_cost_in_each_way(capsys: pytest.CaptureFixture[str]) -> None:
    assert gradients.main(["--turns", "1", "--seconds", "0.01", "--transitions", "5", "20"]) == 0
    lines = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [line[0] for line in lines] == ["5", "20"]
    assert all(float(figure) > 0 for line in lines for figure in line[1:])


def test_what_ga3c_may_gain_is_worked_out(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ale_py", reason="Atari games: pip install 'a3c-exp[atari]'")
    assert arithmetic.main(["--seconds", "0.01"]) == 0
    small, large = (line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[2:])
    assert [small[0], large[0]] == ["cnn", "cnn_nature"]
    emulator, worker, ga3c, gain = (float(large[column]) for column in (1, 4, 5, 6))
    assert min(worker, ga3c) > emulator
    assert gain == pytest.approx(worker / ga3c, rel=0.01)


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="only Linux tells what a process holds")
def test_the_memory_of_a_run_is_that_of_all_its_processes() -> None:
    """Two workers and their server: more than the command alone, whose libraries take less than two hundred megabytes,
    and less than if nothing were shared."""
    held = peak_memory("env=cartpole", "workers=2", seconds=0.1)
    assert 5e7 < held < 2e9


def test_figures_are_medians_and_the_ratio_is_that_of_the_rounds() -> None:
    figures = iter([10.0, 20.0, 60.0])
    (line,) = bench.table_lines(row(Measurement("other", lambda _: next(figures)), at_least=1.0), rounds=3, seconds=0.0)
    assert line[1:] == ["30 steps/s", "other", "20 steps/s", "1.5 (0.5 - 3)", ">= 1", "yes"]


def test_a_bar_that_is_missed_is_reported() -> None:
    (line,) = bench.table_lines(row(Measurement("other", lambda _: 60.0), at_least=0.6), rounds=1, seconds=0.0)
    assert line[-2:] == [">= 0.6", "no"]


def test_a_system_that_is_not_installed_has_a_line_that_says_how_to_get_it() -> None:
    lines = bench.table_lines(row(Measurement("peer", missing), Measurement("other", lambda _: 60.0)), 2, 0.0)
    assert lines[0][2:4] == ["peer", "not installed: pip install it"]
    assert lines[1][4] == "0.5 (0.5 - 0.5)"


def test_what_was_measured_stays_until_it_is_measured_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = iter([60.0, 60.0, 120.0])
    other = Row("other", "another", Measurement("ours", lambda _: 1.0))
    monkeypatch.setattr(bench, "ROWS", (row(Measurement("theirs", lambda _: next(figures)), at_least=0.4), other))
    monkeypatch.setattr(bench, "FOLDER", tmp_path)
    assert bench.main(["--quick"]) == 0
    assert not list(tmp_path.iterdir()), "one short round is for seeing that it works"

    assert bench.main(["--rounds", "1"]) == 0
    before = (tmp_path / "RESULTS.md").read_text()
    assert "| title | 30 steps/s | theirs | 60 steps/s | 0.5 (0.5 - 0.5) | >= 0.4 | yes |" in before
    assert str(provenance.machine()["processor"]) in before.splitlines()[-1]

    capsys.readouterr()
    assert bench.main(["--only", "name", "--rounds", "1"]) == 0
    table = "| title | 30 steps/s | theirs | 120 steps/s | 0.25 (0.25 - 0.25) | >= 0.4 | no |"
    assert table in capsys.readouterr().out
    after = (tmp_path / "RESULTS.md").read_text()
    assert table in after and "theirs | 60 steps/s" not in after
    assert after.splitlines()[-1] == before.splitlines()[-1], "the other row is as it was"


def test_rows_have_names_of_their_own() -> None:
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)


def test_an_unknown_row_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.main(["--only", "nonsense"])
    assert ended.value.code == 2
    assert "lunar" in capsys.readouterr().err
