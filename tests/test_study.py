"""The study over seeds: what it keeps, what it does not do twice, and how it counts."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import a3c_exp
from a3c_exp.__main__ import main
from a3c_exp.cli.hydra_compose import compose_jobs, hydra_session, to_container
from a3c_exp.config.builder import load_experiment
from a3c_exp.errors import ConfigError
from a3c_exp.run import files

sys.path.insert(0, str(Path(__file__).parent.parent))  # study is not installed: it belongs to the checkout

from study import __main__ as study
from study import curves, figures, runs
from study.entries import SECTIONS, Entry, Goals
from study.figures import Figure, Panel
from study.records import Record, Results
from study.runs import ROOT, RunFailedError, Training, Trial

SPEED: dict[str, Any] = {"steps": 1000, "seconds": 2.0, "steps_per_second": 500.0, "staleness_mean": 0.9}
SOLVED: dict[str, Any] = {"solved_steps": 600, "solved_seconds": 1.2, "last_100": 480.5, "best_return": 490.0}
GREEDY: dict[str, Any] = {"greedy_return": 500.0, "greedy_deviation": 0.0, "greedy_episodes": 100}
ORIGIN: dict[str, Any] = {"date": "2026-01-01", "commit": "abc", "machine": "one, 2 cores", "command": "python -m x"}
RECORD = Record(seed=0, staleness_max=3, **SPEED, **SOLVED, **GREEDY, **ORIGIN)
SMALL = ("env=cartpole", "backend=serial", "workers=1", "envs_per_worker=2", "total_steps=64", "eval.every=null")


class Counting:
    """A recipe that notes which seeds it was asked for."""

    command = "python -m a3c_exp"

    def __init__(self, failing: int | None = None, rate: float = 0.1) -> None:
        self.seeds: list[int] = []
        self.failing = failing
        self.rate = rate

    def settings(self) -> Mapping[str, Any]:
        return {"optimizer": {"rate": self.rate}}

    def run(self, seed: int, folder: Path) -> Record:
        self.seeds.append(seed)
        if seed == self.failing:
            raise RunFailedError("exit code 1")
        return replace(RECORD, seed=seed)


def entry(recipe: Any, seeds: int = 3, goals: Goals | None = None) -> Entry:
    return Entry("name", "cartpole", "Title", recipe, seeds, goals)


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The study's files, in a folder of the test's own."""
    monkeypatch.setattr(study, "RECORDS", tmp_path / "results")
    monkeypatch.setattr(study, "DOCUMENT", tmp_path / "RESULTS.md")
    monkeypatch.setattr(study, "RUNS", tmp_path / "runs")
    return tmp_path


# Records.


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    results = Results(tmp_path / "results", "name")
    unsolved = replace(
        RECORD, seed=1, solved_steps=None, solved_seconds=None, last_100=None, command='a "quoted", command'
    )
    results.write({"a": 1}, [unsolved, RECORD])
    assert results.read() == [RECORD, unsolved]
    assert results.settings() == {"a": 1}


ENV = {"_target_": "a3c_exp.envs.Gym", "id": "CartPole-v1"}


@pytest.mark.parametrize(
    ("then", "now", "others"),
    [
        ({"rate": {"x": 0.1}, "gamma": 0.9}, {"rate": {"x": 0.2}}, "(gamma, rate.x)"),
        ({"env": ENV}, {"env": {**ENV, "time_limit_is_terminal": True}}, "(env.time_limit_is_terminal)"),
        ({"env": ENV}, {"env": {**ENV, "time_limit_is_terminal": False}}, None),  # its default
        ({"rate": 0.1}, {"rate": 0.1, "new": False}, None),  # it was not there then
        ({"env": {"normalize_observations": False}}, {"env": {"normalize_observations": "auto"}}, None),
    ],
)
def test_records_are_not_added_to_those_of_other_settings(
    tmp_path: Path, then: dict[str, Any], now: dict[str, Any], others: str | None
) -> None:
    """What has changed is named in one line, and nothing is deleted."""
    results = Results(tmp_path, "name")
    results.check(now)  # without records
    results.write(then, [RECORD])
    if others is None:
        results.check(now)
    else:
        with pytest.raises(ConfigError) as refused:
            results.check(now)
        assert others in str(refused.value) and "\n" not in str(refused.value)
    assert results.read() == [RECORD]


def test_records_of_other_settings_are_refused_before_anything_is_trained(
    places: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Results(places / "results", "name").write({"optimizer": {"rate": 0.1}}, [RECORD])
    changed = Counting(rate=0.2)
    monkeypatch.setattr(study, "SECTIONS", {"One": (entry(changed),)})
    assert study.main([]) == 2
    assert "optimizer.rate" in capsys.readouterr().err and changed.seeds == []
    assert study.main(["--table"]) == 0
    assert "| Title | 1 of 3 |" in (places / "RESULTS.md").read_text()


def test_the_records_of_this_checkout_give_its_table_and_nothing_is_composed(monkeypatch: pytest.MonkeyPatch) -> None:
    written = dict[Path, str]()
    monkeypatch.setattr(a3c_exp, "compose", pytest.fail)
    monkeypatch.setattr(curves, "draw", lambda *_: None)
    monkeypatch.setattr(curves, "draw_report", lambda *_: None)
    monkeypatch.setattr(figures, "draw", lambda *_: None)
    monkeypatch.setattr(files, "write_text", written.__setitem__)
    assert study.main(["--table"]) == 0
    assert written == {ROOT / "RESULTS.md": (ROOT / "RESULTS.md").read_text()}


def test_the_records_of_this_checkout_have_commands_that_run_today() -> None:
    for one in [entry for section in SECTIONS.values() for entry in section]:
        records = Results(ROOT / "results", one.name).read()
        assert all(record.command.startswith(f"{one.recipe.command} ") for record in records), one.name


# What is run.


def test_a_failed_seed_is_reported_and_tried_again_next_time(places: Path) -> None:
    failures = [study.train(entry(Counting(failing=1)), seed) for seed in range(4)]
    assert [len(lines) for lines in failures] == [0, 1, 0, 0] and "seed 1: exit code 1" in failures[1][0]
    again = Counting()
    for seed in range(4):
        study.train(entry(again), seed)
    assert again.seeds == [1], "neither one with a record, nor a fourth seed of three"


def test_the_command_trains_plays_and_writes(
    places: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Within the time limit of the recipe: all policies fall after 8 steps or later."""
    recipe = Training((*SMALL, "total_steps=1024"), drawn=3, max_episode_steps=7)
    tiny = Entry("tiny", "cartpole", "Tiny", recipe, 1, Goals(7.0, worst_seed=1000), curve=True)
    monkeypatch.setattr(runs, "execute", lambda arguments, log: main(arguments[2:]))
    monkeypatch.setattr(study, "SECTIONS", {"One": (tiny,)})
    assert study.main([]) == 0
    assert "tiny, seed 0: return 7.0" in capsys.readouterr().out
    (record,) = Results(places / "results", "tiny").read()
    assert (record.seed, record.steps, record.greedy_episodes, record.solved_steps) == (0, 1024, 100, None)
    assert (record.greedy_return, record.drawn_return, record.drawn_lowest, record.drawn_episodes) == (7.0, 7.0, 7.0, 3)
    assert record.stop_reason == "total_steps"
    assert record.command == f"python -m a3c_exp {' '.join(recipe.overrides)} seed=0"
    text = (places / "RESULTS.md").read_text()
    assert "mean >= 7, worst >= 1000 | yes, no | 0 of 1 |" in text
    assert "](results/curves/curves.svg)" in text
    assert str(places) not in text

    table = np.loadtxt(places / "results" / "curves" / "tiny_s0.csv", delimiter=",", skiprows=1, ndmin=2)
    assert 1 <= len(table) <= curves.POINTS
    assert np.all(np.diff(table[:, 0]) > 0)
    assert np.all((table[:, 2] >= 8) & (table[:, 2] <= 500)), "CartPole's returns"
    picture = (places / "results" / "curves" / "curves.svg").read_bytes()
    assert b"<!-- cartpole: mean return of 100 episodes -->" in picture
    study.write()
    assert (places / "results" / "curves" / "curves.svg").read_bytes() == picture, "git sees no change"
    monkeypatch.setattr(study, "SECTIONS", {"One": (replace(tiny, name="other"),)})
    study.write()
    assert "curves" not in (places / "RESULTS.md").read_text(), "nothing has been run"
    assert (places / "results" / "curves" / "curves.svg").exists(), "nothing is deleted"


class Endless(Counting):
    def run(self, seed: int, folder: Path) -> Record:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
        runs.execute(["-c", "import time; time.sleep(60)"], folder.with_suffix(".log"))
        return RECORD


def test_an_interrupted_study_ends_its_run(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM to the study alone, as a batch system sends it: the run under way gets Ctrl-C."""
    monkeypatch.setattr(study, "SECTIONS", {"One": (entry(Endless(), 1),)})
    assert study.main([]) == 130
    assert (places / "runs" / "name_s0.log").read_text().endswith("KeyboardInterrupt\n")


@pytest.mark.parametrize(("limit", "existing"), [("null", "resume"), ("30", "restart")])
def test_a_run_that_is_there_continues_unless_its_seconds_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, existing: str
) -> None:
    execute = Mock(side_effect=RunFailedError)
    monkeypatch.setattr(runs, "execute", execute)
    with pytest.raises(RunFailedError):
        Training((*SMALL, f"stop.max_seconds={limit}")).run(0, tmp_path / "run")
    assert execute.call_args.args[0][-1] == f"existing={existing}"


# Figures.


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands that figures run. N workers take 4 / N seconds."""
    made = list[str]()

    def run(trial: Trial, seed: int, folder: Path) -> Record:
        settings = dict(word.split("=") for word in trial.overrides)
        made.append(f"{trial.command} seed={seed}")
        folder.mkdir(parents=True)
        (folder / "metrics.csv").write_text(f"{','.join(curves.COLUMNS)}\n10,1,20\n20,2,475\n")
        seconds = 4.0 / int(settings.get("workers", 1))
        return replace(RECORD, seed=seed, command=made[-1], solved_seconds=seconds)

    monkeypatch.setattr(Trial, "run", run)
    return made


def test_speeds_are_those_of_one_machine_with_two_workers_for_each_core(
    places: Path, trials: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    panel = Panel("cartpole", "CartPole", "cartpole", 1, "env=cartpole")
    scaling = Figure(
        "scaling", [panel], {"A3C": ""}, ("solved_seconds",), "workers", (1, 2, 4), timed=True, curves=True
    )
    monkeypatch.setattr(figures, "FIGURES", {"scaling": scaling})
    monkeypatch.setattr(figures, "usable_cores", lambda: 1)
    monkeypatch.setattr(figures, "describe", lambda machine: "One, 1 core")
    assert study.main(["--scaling"]) == 0
    assert [command.split()[-2] for command in trials] == ["workers=1", "workers=2"]
    monkeypatch.setattr(figures, "describe", lambda machine: "Another, 1 core")
    assert study.main(["--scaling"]) == 0
    assert len(trials) == 4, "seconds of another machine are no reason not to measure this one"
    text = (places / "RESULTS.md").read_text()
    row = "| CartPole | workers=2 | 1 | 1 of 1 | 500 | 600 | 2.0 | 1.00 [1.00, 1.00] |"
    assert text.count(f"{row} 1.00 [1.00, 1.00] | 2.00 [2.00, 2.00] |") == 2
    assert "](results/curves/scaling_one-1-core.svg)" in text
    assert (places / "results/curves/scaling_another-1-core_cartpole_workers-2_s0.csv").exists()


def test_methods_are_compared_over_time_by_an_entry_alone(
    places: Path, trials: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Figure 1 of Mnih et al. 2016: a line is a method, and has no axis."""
    panel = Panel("cartpole", "CartPole", "cartpole", 1, "env=cartpole")
    methods = Figure("scaling", [panel], {"A3C": "", "PPO": "algorithm=ppo"}, timed=True, curves=True)
    monkeypatch.setattr(figures, "FIGURES", {"scaling": methods})
    assert study.main(["--scaling"]) == 0
    assert "| CartPole | PPO | 1 | 1 of 1 |" in (places / "RESULTS.md").read_text()
    [picture] = (places / "results/curves").glob("*.svg")
    assert b"<!-- PPO -->" in picture.read_bytes()


def test_the_runs_of_all_figures_can_be_made(tmp_path: Path) -> None:
    """A point of each panel: of its last line."""
    rows = [figures.points(figure, panel, tmp_path) for figure in figures.FIGURES.values() for panel in figure.panels]
    first = [row[-1] for row in rows]
    with hydra_session() as hydra:
        for node in compose_jobs(hydra, [point.entry.recipe.command.split()[3:] for point in first]):
            load_experiment(to_container(node), check=False)
    assert {point.entry.env for point in first} == {"cartpole", "lunar", "pong"}
    names = [point.entry.name for row in rows for point in row]
    assert len(set(names)) == len(names), "each has a folder"
