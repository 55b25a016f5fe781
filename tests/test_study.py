"""The study over seeds: what it keeps, what it does not do twice, and how it counts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs import wait_until

import a3c_exp
from a3c_exp.run import files

sys.path.insert(0, str(Path(__file__).parent.parent))  # study is not installed: it belongs to the checkout

from study import __main__ as study
from study import curves, runs, scaling
from study.document import document
from study.entries import Entry, Goals, RunFailedError, Source
from study.records import Record, Results
from study.runs import ROOT, Training
from study.table import SECTIONS

RECORD = Record(
    seed=0, steps=1000, seconds=2.0, steps_per_second=500.0, solved_steps=600, solved_seconds=1.2, last_100=480.5,
    greedy_return=500.0, greedy_deviation=0.0, greedy_episodes=100, best_return=490.0, staleness_mean=0.9,
    staleness_max=3, date="2026-01-01", commit="abc", machine="a processor, 2 cores", command="python -m a3c_exp",
)  # fmt: skip
SMALL = ("env=cartpole", "backend=serial", "workers=1", "envs_per_worker=2", "total_steps=64", "eval.every=null")


class Counting:
    """A recipe that notes which seeds it was asked for."""

    command = "python -m a3c_exp"

    def __init__(self, failing: int | None = None, rate: float = 0.1) -> None:
        self.seeds: list[int] = []
        self.failing, self.rate = failing, rate

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
    results.write({"a": 1}, [RECORD, unsolved])
    assert results.read({"a": 1}) == [RECORD, unsolved]


def test_records_of_other_settings_do_not_count(tmp_path: Path) -> None:
    results = Results(tmp_path, "name")
    assert results.read({}) == []
    results.write({"optimizer": {"rate": 0.1}, "gamma": 0.99}, [RECORD])
    assert results.read({"optimizer": {"rate": 0.2}, "gamma": 0.99}) == []
    assert results.read({"optimizer": {"rate": 0.1}}) == []
    assert results.changes({"optimizer": {"rate": 0.2}}) == ["gamma", "optimizer.rate"]
    assert results.changes({"optimizer": {"rate": 0.1}, "gamma": 0.99}) == []
    assert results.read({"optimizer": {"rate": 0.1, "new": False}, "gamma": 0.99}) == [RECORD], "it was not there then"
    env = {"_target_": "a3c_exp.envs.Gym", "id": "CartPole-v1"}
    results.write({"env": env}, [RECORD])
    assert results.changes({"env": {**env, "time_limit_is_terminal": False}}) == [], "its default"
    assert results.changes({"env": {**env, "time_limit_is_terminal": True}}) == ["env.time_limit_is_terminal"]
    results.write({"env": {"kwargs": {}}}, [RECORD])
    assert results.read({"env": {"kwargs": {}}}) == [RECORD]
    assert results.read({"env": {"kwargs": {"gravity": -5}}}) == [], "that it was empty was a setting"


def test_the_records_of_this_checkout_have_commands_that_run_today() -> None:
    for section in SECTIONS.values():
        for one in section:
            records = Results(ROOT / "results", one.name).read(one.recipe.settings())
            assert all(record.command.startswith(f"{one.recipe.command} ") for record in records), one.name


def test_records_are_never_those_of_other_settings_wherever_writing_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = Results(tmp_path, "name")
    results.write({"rate": 0.1}, [RECORD])
    write = files.write_text

    def full(path: Path, text: str) -> None:
        if path.suffix == ".csv":
            raise OSError("no space left on device")
        write(path, text)

    monkeypatch.setattr(files, "write_text", full)
    with pytest.raises(OSError, match="no space"):
        results.write({"rate": 0.2}, [replace(RECORD, seed=1)])
    assert results.read({"rate": 0.2}) == []


# What is run.


def test_a_failed_seed_is_reported_and_tried_again_next_time(places: Path) -> None:
    (failure,) = study.train(entry(Counting(failing=1)), 3)
    assert "seed 1" in failure and "exit code 1" in failure
    again = Counting()
    study.train(entry(again), 3)
    assert again.seeds == [1]


def test_the_command_trains_plays_and_writes(
    places: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = Entry("tiny", "cartpole", "Tiny", Training(SMALL), 1, Goals(9.0, worst_seed=1000))
    monkeypatch.setattr(study, "SECTIONS", {"One": (tiny,)})
    assert study.main([]) == 0
    assert "tiny, seed 0: greedy return" in capsys.readouterr().out
    (record,) = Results(places / "results", "tiny").read(tiny.recipe.settings())
    assert (record.seed, record.steps, record.greedy_episodes, record.solved_steps) == (0, 64, 100, None)
    assert record.command == f"python -m a3c_exp {' '.join(SMALL)} seed=0"
    text = (places / "RESULTS.md").read_text()
    assert "mean >= 9, worst >= 1000 | yes, no | 0 of 1 |" in text
    assert str(places) not in text

    (places / "results" / "tiny.csv").unlink()
    trained = (places / "runs" / "tiny_s0" / "summary.json").stat().st_mtime_ns
    assert study.main([]) == 0
    assert (places / "runs" / "tiny_s0" / "summary.json").stat().st_mtime_ns == trained, "finished: only played again"


def test_an_interrupted_study_leaves_no_run_behind(tmp_path: Path) -> None:
    """SIGTERM to the study alone, as a batch system sends it: the run under way ends too."""
    program = (
        "import sys; from pathlib import Path; from study import __main__ as study; from study.runs import Training\n"
        "from study.entries import Entry\n"
        f"study.RECORDS = study.RUNS = Path({str(tmp_path)!r}); study.DOCUMENT = study.RUNS / 'RESULTS.md'\n"
        f"recipe = Training({(*SMALL[:4], 'total_steps=1000000000', 'stop.mean_return=null')!r})\n"
        "study.SECTIONS = {'One': (Entry('endless', 'cartpole', 'Endless', recipe, 1),)}\n"
        "sys.exit(study.main([]))"
    )
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        points = tmp_path / "endless_s0" / "metrics.jsonl"
        wait_until(lambda: points.is_file() and points.read_text(), 60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 130
    finally:
        process.kill()
    assert '"stop_reason": "interrupted"' in (tmp_path / "endless_s0" / "summary.json").read_text()


@pytest.mark.parametrize(
    ("settings", "ended", "trains"),
    [
        ((), "max_seconds", None),
        ((), "interrupted", "resume="),
        (("stop.max_seconds=30",), "max_seconds", None),
        (("stop.max_seconds=30",), "interrupted", "env=cartpole"),
        ((), "failed", "env=cartpole"),
    ],
)
def test_what_is_done_with_the_run_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: tuple[str, ...], ended: str, trains: str | None
) -> None:
    """A run that ended is only evaluated, an interrupted one is resumed; but not one with a limit in seconds."""
    recipe, folder = Training((*SMALL, "checkpoint.every=32", *settings)), tmp_path / "run"
    summary = dict(a3c_exp.train([*recipe.overrides, "seed=0"], folder).summary)
    (folder / "summary.json").write_text(json.dumps(summary | {"stop_reason": ended}))
    called: list[Sequence[str]] = []

    def execute(arguments: Sequence[str], log: Path) -> None:
        called.append(arguments)
        folder.mkdir(exist_ok=True)
        (folder / "summary.json").write_text(json.dumps(summary))

    monkeypatch.setattr(runs, "execute", execute)
    monkeypatch.setattr(Training, "_returns", lambda *_, **__: np.array([9.0, 10.0]))
    assert recipe.run(0, folder).greedy_return == 9.5
    assert [arguments[2].startswith(trains or "") for arguments in called] == ([] if trains is None else [True])


def test_the_final_policy_is_played_with_drawn_actions_too(tmp_path: Path) -> None:
    """Within the time limit of the recipe: all policies fall after 8 steps or later."""
    recipe = Training(SMALL, drawn=3, max_episode_steps=7)
    record = recipe.run(0, tmp_path / "run")
    assert (record.drawn_episodes, record.drawn_return, record.drawn_lowest) == (3, 7.0, 7.0)
    assert record.greedy_return == 7.0
    assert record.stop_reason == "total_steps"


def test_curves_are_kept_and_drawn(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Training((*SMALL, "total_steps=1024"))
    monkeypatch.setattr(study, "SECTIONS", {"One": (Entry("tiny", "cartpole", "Tiny", recipe, 1, curve=True),)})
    assert study.main([]) == 0
    table = np.loadtxt(places / "results" / "curves" / "tiny_s0.csv", delimiter=",", skiprows=1, ndmin=2)
    assert 1 <= len(table) <= curves.POINTS
    assert np.all(np.diff(table[:, 0]) > 0)
    assert np.all((table[:, 2] >= 8) & (table[:, 2] <= 500)), "CartPole's returns"
    text = (places / "RESULTS.md").read_text()
    assert "](results/curves/curves.svg)" in text
    picture = (places / "results" / "curves" / "curves.svg").read_bytes()
    for label in (
        b"<!-- Tiny -->",
        b"<!-- cartpole: mean return of 100 episodes -->",
        b"<!-- million steps -->",
        b"<!-- minutes of training -->",
    ):
        assert label in picture
    study.write()
    assert (places / "results" / "curves" / "curves.svg").read_bytes() == picture, "git sees no change"
    monkeypatch.setattr(study, "SECTIONS", {"One": (Entry("other", "cartpole", "Other", recipe, 1, curve=True),)})
    study.write()
    assert "curves" not in (places / "RESULTS.md").read_text(), "a picture of runs whose records are gone"


# What is written.


def test_the_table_counts_seeds_that_never_solved_it_as_the_slowest() -> None:
    slow = replace(RECORD, seed=1, solved_steps=None, solved_seconds=None, greedy_return=400.0)
    lines = [(entry(Counting(), 2, Goals(450, seconds=5)), [RECORD, slow])]
    text = document({"One": lines}, 100)
    assert "450.0 [400.0, 500.0] | 450.0 | 400.0, 500.0" in text
    assert "mean >= 450, solved <= 5 s | yes, no | 1 of 2 | never (600 to 600) | never (1.2 to 1.2)" in text
    third = replace(RECORD, seed=2, solved_steps=800, solved_seconds=1.4)
    text = document({"One": [(entry(Counting(), 3), [RECORD, slow, third])]}, 100)
    assert "2 of 3 | 800 (600 to 800) | 1.4 (1.2 to 1.4)" in text


def test_presets_stand_beside_what_their_sources_report() -> None:
    preset = replace(entry(Counting(), 2), source=Source("[a paper](x)", "200 (its table 1)", "python -m a3c_exp"))
    drawn = replace(RECORD, drawn_return=470.0, drawn_lowest=12.0, drawn_episodes=100, stop_reason="total_steps")
    text = document(
        {"Presets": [(preset, [drawn, replace(RECORD, seed=1, last_100=470.5, seconds=4.0, best_return=480.0)])]}, 100
    )
    shown = "500.0 [500.0, 500.0] | 485.0, 480.0 | 470.0 (12) | 475.5 [470.5, 480.5]"
    row = f"| Title | [a paper](x) | 200 (its table 1) | 2 | {shown} |"
    assert f"{row} 2 of 2 | 1.2 (1.2 to 1.2) | `total_steps` 1, - 1 | 3 | 1,000 | 500 | 0.90 | 1 |" in text
    assert "shortened run):\n\n```sh\npython -m a3c_exp\n```" in text
    assert "| Title | [a paper](x) | 200 (its table 1) | 0 of 2, not run yet |" in document(
        {"Presets": [(preset, [])]}, 100
    )


def test_presets_are_a_study_of_their_own(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = Counting(), Counting()
    preset = Entry("preset", "cartpole", "Preset", other, 1, source=Source("paper", "-"))
    monkeypatch.setattr(study, "SECTIONS", {"One": (entry(one, 1),), "Presets": (preset,)})
    assert study.main([]) == 0
    assert (one.seeds, other.seeds) == ([0], [])
    assert study.main(["--presets"]) == 0
    assert study.main(["--only", "preset"]) == 0
    assert (one.seeds, other.seeds) == ([0], [0])


# The number of workers.


def test_workers_are_compared_with_one() -> None:
    """By medians over seeds; a seed that never reached the threshold counts as the slowest."""
    slow, fast = replace(RECORD, solved_steps=None, solved_seconds=None), replace(RECORD, steps_per_second=1000.0)
    quicker = replace(fast, solved_steps=900, solved_seconds=0.9)
    text = scaling.section({1: [RECORD, RECORD, slow], 2: [fast, quicker, quicker], 4: []})
    assert "| 1 | 3 | 500 | 600 | 1.2 | 1.00 | 1.00 | 1.00 |" in text
    assert "| 2 | 3 | 1,000 | 900 | 0.9 | 2.00 | 1.50 | 0.75 |" in text
    assert "| 4 |" not in text, "nothing has been run"
