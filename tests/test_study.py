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
from a3c_exp.cli.startup import conf_folder
from a3c_exp.run import checkpoint, files

sys.path.insert(0, str(Path(__file__).parent.parent))  # study is not installed: it belongs to the checkout

from study import __main__ as study
from study import curves, runs, scaling
from study.document import document
from study.entries import Entry, Goals, RunFailedError, Source
from study.presets import PRESETS
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


def test_records_of_before_a_column_was_added_are_read(tmp_path: Path) -> None:
    results = Results(tmp_path, "name")
    results.write({}, [replace(RECORD, best_return=None)])
    lines = [line.split(",") for line in (tmp_path / "name.csv").read_text().splitlines()]
    column = lines[0].index("best_return")
    older = [",".join(cell for place, cell in enumerate(line) if place != column) for line in lines]
    (tmp_path / "name.csv").write_text("\n".join(older))
    assert results.read({}) == [replace(RECORD, best_return=None)]


# What is run.


def test_a_finished_seed_is_not_run_again(places: Path) -> None:
    recipe = Counting()
    assert study.train(entry(recipe), 2) == []
    assert study.train(entry(recipe), 3) == []
    assert recipe.seeds == [0, 1, 2]


def test_other_settings_are_run_anew(places: Path) -> None:
    study.train(entry(Counting(rate=0.1)), 2)
    changed = Counting(rate=0.2)
    study.train(entry(changed), 2)
    assert changed.seeds == [0, 1]


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


def test_the_best_parameters_kept_are_played_too(tmp_path: Path) -> None:
    recipe = Training((*SMALL[:-1], "eval.every=32", "eval.episodes=1"))
    record = recipe.run(0, tmp_path / "run")
    assert record.best_return is not None
    (tmp_path / "run" / "checkpoints" / "best.ckpt").unlink()
    with pytest.raises(a3c_exp.ConfigError, match="best"):
        recipe.run(0, tmp_path / "run")


def test_a_run_that_cannot_be_made_ends_in_one_line(
    places: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = Training((*SMALL, "env.id=Nowhere-v0"))
    monkeypatch.setattr(study, "SECTIONS", {"One": (entry(broken, seeds=1),)})
    assert study.main([]) == 1
    assert "exit code 2" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--env", "chess"], ["--only", "chess"], ["--seeds", "0"], ["--seeds", "two"]])
def test_bad_arguments_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        study.main(arguments)
    assert refused.value.code == 2
    assert arguments[0] in capsys.readouterr().err


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


def test_a_second_signal_reaches_the_run_too(tmp_path: Path) -> None:
    """A user who does not want to wait for the run's orderly end presses Ctrl-C again; no process is left."""
    signals_file = tmp_path / "signals"
    run = (
        "import signal, time; from pathlib import Path\n"
        f"signals_file = Path({str(signals_file)!r}); received = []\n"
        "def note(*_):\n"
        "    received.append(1); signals_file.write_text(str(len(received)))\n"
        "    if len(received) == 2: raise SystemExit\n"
        "signal.signal(signal.SIGINT, note); signals_file.write_text('0')\n"
        "for _ in range(6000): time.sleep(0.01)\n"
    )
    study = (
        "import signal; from pathlib import Path; from study.runs import execute\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell lets what it starts with & ignore it
        f"execute(['-c', {run!r}], Path({str(tmp_path / 'log')!r}))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", study], cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        for signals in ("0", "1"):
            wait_until(lambda: signals_file.exists() and signals_file.read_text() == signals)  # noqa: B023
            process.send_signal(signal.SIGINT)
        assert process.wait(30) == -signal.SIGINT
    finally:
        process.kill()
    assert signals_file.read_text() == "2"


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_was_cut_off_goes_on_from_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: signal.Signals
) -> None:
    """Hours of training are not done again, whether or not the run could still write its summary."""
    monkeypatch.setattr(runs, "EPISODES", 2)
    recipe, folder = Training((*SMALL, "total_steps=12800", "checkpoint.every=640")), tmp_path / "run"
    latest = folder / "checkpoints" / "latest.ckpt"
    command = [sys.executable, "-m", "a3c_exp", *recipe.overrides, "seed=0", f"hydra.run.dir={folder}"]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        wait_until(latest.exists, 60)
        process.send_signal(how)
        process.wait(30)
    finally:
        process.kill()
    assert (folder / "summary.json").exists() == (how == signal.SIGTERM)
    assert recipe.run(0, folder).steps == 12800
    assert checkpoint.load(latest)["resumed"] == 1


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


def test_a_run_that_cannot_go_on_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checkpoint may be one of an older version."""
    monkeypatch.setattr(runs, "EPISODES", 2)
    recipe, folder = Training((*SMALL, "checkpoint.every=32")), tmp_path / "run"
    summary = dict(a3c_exp.train([*recipe.overrides, "seed=0"], folder).summary)
    (folder / "summary.json").write_text(json.dumps(summary | {"stop_reason": "interrupted"}))
    (folder / "checkpoints" / "latest.ckpt").write_bytes(b"of another time")
    assert recipe.run(0, folder).steps == 64
    assert checkpoint.load(folder / "checkpoints" / "latest.ckpt")["resumed"] == 0


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


def test_reports_are_drawn_of_curves_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    folder = tmp_path / "results" / "curves"
    folder.mkdir(parents=True)
    monkeypatch.setattr(curves, "REPORTED", {"Env-v0": {"one worker": "a", "two workers": "b"}})
    configs: Any = {name: {"env": {"id": "Env-v0"}, "reward_threshold": 5.0} for name in ("a", "b")}
    for seed in range(2):
        (folder / f"a_s{seed}.csv").write_text(f"{','.join(curves.COLUMNS)}\n0,0.0,1.0\n100,1.0,{seed}\n")
    assert curves.reports(folder, configs) == [], "the other configuration has not been run"
    (folder / "b_s0.csv").write_text(f"{','.join(curves.COLUMNS)}\n0,0.0,1.0\n100,1.0,9\n")
    [section] = curves.reports(folder, configs)
    assert "](results/curves/Env-v0.png)" in section
    assert "a run of two workers ends higher than one of one worker: 1.00" in section
    assert (folder / "Env-v0.png").read_bytes().startswith(b"\x89PNG")


def test_the_document_is_written_without_what_draws_curves(
    places: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may stand for hours of training."""
    monkeypatch.setattr(study, "SECTIONS", {"One": (replace(entry(Counting(), 0), curve=True),)})
    (places / "results").mkdir()
    Results(places / "results", "name").write(Counting().settings(), [RECORD])
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert study.main([]) == 0
    assert "matplotlib" in capsys.readouterr().err
    assert "| Title | 1 of 0 |" in (places / "RESULTS.md").read_text()


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


def test_a_row_says_which_machine_its_seconds_are_of() -> None:
    other = replace(RECORD, seed=1, machine="another")
    rows = [(entry(Counting(), 1), [RECORD]), (entry(Counting(), 2), [RECORD, other])]
    text = document({"One": rows, "Two": [(entry(Counting(), 1), [other])]}, 100)
    one, two = text.split("## Two")
    assert "| 0.90 | 1 |" in one
    assert "| 0.90 | 1, 2 |" in one
    assert f"Machine 1: {RECORD.machine}; 2: another. " in one
    assert "| 0.90 | 2 |" in two
    assert "Machine 2: another. " in two


def test_where_there_is_no_goal_none_is_missed() -> None:
    aimless = Counting()
    aimless.settings = lambda: {"reward_threshold": None}  # type: ignore[method-assign]
    record = replace(RECORD, solved_steps=None, solved_seconds=None)
    assert "| no threshold | - | - |" in document({"One": [(entry(aimless, 1), [record])]}, 100)


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


def test_every_preset_is_studied_over_enough_seeds() -> None:
    studied = {word for entry in PRESETS for word in entry.recipe.command.split() if word.startswith("experiment=")}
    ours = {f"experiment={path.stem}" for path in (conf_folder() / "experiment").glob("*.yaml")}
    assert ours - studied == {"experiment=paper", "experiment=ppo"}, "which are for any environment"
    hours = {"pong", "breakout", "space_invaders", "seaquest"}  # that a run takes
    assert all(entry.seeds >= 5 for entry in PRESETS if entry.env not in hours)
    assert {entry.name: entry.seeds for entry in PRESETS if entry.env == "pong"} == {
        "pong_a3c": 5,
        "preset_pong": 3,
        "preset_universe_pong_15_10000000": 2,
        "preset_ga3c_pong_15_5000000": 2,
        "preset_a3c_paper_atari_5000000": 1,
        "preset_a3c_paper_atari_lstm_2000000": 1,
    }
    assert len({entry.name for entry in PRESETS}) == len(PRESETS)


def test_presets_are_a_study_of_their_own(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = Counting(), Counting()
    preset = Entry("preset", "cartpole", "Preset", other, 1, source=Source("paper", "-"))
    monkeypatch.setattr(study, "SECTIONS", {"One": (entry(one, 1),), "Presets": (preset,)})
    assert study.main([]) == 0
    assert (one.seeds, other.seeds) == ([0], [])
    assert study.main(["--presets"]) == 0
    assert study.main(["--only", "preset"]) == 0
    assert (one.seeds, other.seeds) == ([0], [0])


def test_where_nothing_is_to_be_trained_it_says_so(places: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert study.main(["--env", "pong"]) == 2
    assert "no entry fits these arguments; presets are run with --presets" in capsys.readouterr().err


def test_an_entry_without_records_says_so() -> None:
    assert "| Title | 0 of 3, not run yet |" in document({"One": [(entry(Counting()), [])]}, 100)


def test_an_entry_whose_records_have_other_settings_says_so() -> None:
    one = entry(Counting())
    text = document({"One": [(one, [])]}, 100, outdated={one.name})
    assert "| Title | 0 of 3, not run with these settings yet |" in text


# The number of workers.


def test_workers_are_compared_with_one() -> None:
    """By medians over seeds; a seed that never reached the threshold counts as the slowest."""
    slow, fast = replace(RECORD, solved_steps=None, solved_seconds=None), replace(RECORD, steps_per_second=1000.0)
    quicker = replace(fast, solved_steps=900, solved_seconds=0.9)
    text = scaling.section({1: [RECORD, RECORD, slow], 2: [fast, quicker, quicker], 4: []})
    assert "| 1 | 3 | 500 | 600 | 1.2 | 1.00 | 1.00 | 1.00 |" in text
    assert "| 2 | 3 | 1,000 | 900 | 0.9 | 2.00 | 1.50 | 0.75 |" in text
    assert "| 4 |" not in text, "nothing has been run"
