"""The author's commands run: a part of each, in a small form. What they find is for their
tables."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from runs import LINUX, kill_all, processes, summary, train, wait_until

# evidence is not installed: it belongs to the checkout
sys.path.insert(0, str(Path(__file__).parent.parent))

from a3c_exp.cli.hydra_compose import compose_jobs, to_container
from a3c_exp.cli.hydra_session import hydra_session
from a3c_exp.config.builder import load_final
from a3c_exp.run.order_file import read_order
from evidence.bench import __main__ as bench
from evidence.bench import drawing, fuzz, peers, replay, size, soak, versus
from evidence.bench.checkout import HERE
from evidence.bench.compare import REQUIRED, difference, read_run
from evidence.bench.damage import flip_bits
from evidence.bench.drivers.changed import Change, changed
from evidence.bench.drivers.watch import Task, Watch
from evidence.bench.faults.bits import Checkpoint, Damage, cut_end
from evidence.bench.faults.cases import Row as FaultRow
from evidence.bench.faults.cases import try_row
from evidence.bench.rows import Measurement, Row
from evidence.study import order


def row(*against: Measurement, at_least: float | None = None) -> Row:
    return Row("name", "title", Measurement("ours", lambda _: 30.0), against, at_least=at_least)


def test_what_was_measured_stays_until_it_is_measured_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = iter([60.0, 120.0])
    other = Row("other", "another", Measurement("ours", lambda _: 1.0))
    monkeypatch.setattr(
        bench, "ROWS", (row(Measurement("theirs", lambda _: next(figures)), at_least=0.4), other)
    )
    monkeypatch.setattr(bench, "FOLDER", tmp_path)
    assert bench.main(["--rounds", "1"]) == 0
    before = (tmp_path / "RESULTS.md").read_text()
    assert "| title | 30 steps/s | theirs | 60 steps/s | 0.5 (0.5 - 0.5) | >= 0.4 | yes |" in before
    assert bench.main(["--only", "name", "--rounds", "1"]) == 0
    after = (tmp_path / "RESULTS.md").read_text()
    assert (
        "| title | 30 steps/s | theirs | 120 steps/s | 0.25 (0.25 - 0.25) | >= 0.4 | no |" in after
    )
    assert "theirs | 60 steps/s" not in after
    assert after.splitlines()[-1] == before.splitlines()[-1], "the other row is as it was"


def test_every_row_beside_a_checkout_is_a_run_that_can_be_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands: dict[str, list[str]] = {}
    for measure in ("training_speed", "seconds_to_first_update"):
        monkeypatch.setattr(versus, measure, lambda *overrides, **_: list(overrides))
    for name in versus.ROWS:
        commands[name] = versus.measure(name, HERE, ["seed=3"], 1.0)  # type: ignore[assignment]
    with hydra_session() as hydra:
        composed = [to_container(job.node) for job in compose_jobs(hydra, commands.values())]
    for config in composed:
        load_final(config)
    workers = {name: config["workers"] for name, config in zip(commands, composed, strict=True)}
    assert {name: count for name, count in workers.items() if count != 2} == {
        "lunar_16": 16,
        "pong_16": 16,
    }
    assert all(config["seed"] == 3 for config in composed)


def test_a_task_is_solved_by_a_hundred_episodes_and_one_of_every_environment() -> None:
    watch = Watch(goal=10.0, environments=2)
    for episode in range(120):
        watch.episode(0.0 if episode < 20 else 10.0, environment=0, steps=episode)
    assert watch.solved_steps is None, "nothing of the second environment"
    watch.episode(10.0, environment=1, steps=120)
    assert watch.solved_steps == 120
    assert watch.is_over


def test_a_speed_is_that_of_whole_iterations_after_the_first() -> None:
    watch = Watch(goal=None, environments=1, seconds=0.0)
    assert watch.iteration(1_000_000)
    first = watch.elapsed
    assert not watch.iteration(1_000_100)
    speed = watch.steps_per_second()
    assert speed is not None
    assert speed >= 100 / (watch.elapsed - first + 1e-3)


def test_every_peer_has_what_its_training_needs() -> None:
    for peer in peers.PEERS:
        assert (peers.FOLDER / "drivers" / f"{peer.driver}.py").is_file()
        assert peer.venv is None or peer.venv in peers.LISTS["venvs"]
        assert peer.file is None or peer.file in peers.LISTS["files"]
        assert set(peer.source) <= set(peer.settings) <= set(peers.LISTS["goals"])
        assert all(isinstance(peer.settings_in(name), dict) for name in peer.settings)


def test_a_driver_that_fails_says_why() -> None:
    python = Path(sys.executable)
    with pytest.raises(peers.DriverError, match="ppo"):
        peers.drive("cleanrl", python, Task("CartPole-v1"))


def test_an_interpreter_that_is_no_program_is_a_failure_of_its_library(tmp_path: Path) -> None:
    (tmp_path / "python").touch(mode=0o644)
    with pytest.raises(peers.DriverError, match="python"):
        peers.drive("a3c_exp", tmp_path / "python", Task("CartPole-v1"))


@pytest.mark.parametrize("flag", ["--rounds=0", "--seconds=-1", "--seeds=0", "--limit=nan"])
def test_measurements_of_peers_need_numbers_above_0(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        peers.main([flag, "--table"])
    assert flag.partition("=")[0] in capsys.readouterr().err


def test_this_project_is_measured_like_another_library() -> None:
    settings = {"overrides": "env=cartpole network.hidden_sizes=[8]"}
    task = Task("CartPole-v1", settings, goal=20.0)
    report = peers.drive("a3c_exp", Path(sys.executable), task)
    assert report["solved_seconds"] > 0
    assert report["steps"] >= report["solved_steps"]


@LINUX
def test_a_measurement_of_peers_that_is_terminated_leaves_no_process(tmp_path: Path) -> None:
    mark = f"A3C_EXP_TEST={tmp_path}"
    words = ["--only", peers.PEERS[0].name, "--env", "CartPole-v1", "--seconds", "1000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "evidence.bench.peers", *words],
        cwd=HERE,
        env=os.environ | {"A3C_EXP_TEST": str(tmp_path), "TMPDIR": str(tmp_path)},
    )
    try:
        wait_until(lambda: len(processes(mark)) > 1)
        process.terminate()
        assert process.wait() == 130
        wait_until(lambda: not processes(mark))
        assert not list(tmp_path.iterdir())
    finally:
        kill_all(mark)


def test_the_table_of_peers_shows_losses_as_large_as_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "FOLDER", tmp_path)
    ours, other = peers.PEERS[0].name, peers.PEERS[1].name

    def figure(name: str, seed: str = "", speed: str = "9000", solved: str = "") -> peers.Figure:
        return peers.Figure(name, "CartPole-v1", "1", seed, speed, "5", solved, "1", "2", "today")

    for name, speed, seconds in ((ours, "9000", "30.0"), (other, "800", "20.0")):
        trainings = [figure(name, seed="0", solved=seconds), figure(name, seed="1")]
        peers.record([figure(name, speed=speed), *trainings, figure(name, seed="2", solved="25.0")])

    rows = peers.table(peers.read()).splitlines()
    assert rows[2].startswith(f"| {ours} | **9,000** | 30.0 (2 of 3) | - |")
    assert rows[3].startswith(f"| {other} | 800 | **25.0 (2 of 3)** | - |")
    assert "30.0, not reached (1), 25.0" in (tmp_path / "PEERS.md").read_text()


def test_a_file_of_another_commit_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "ppo.py"
    path.write_text("a = 1\n")
    assert changed(path, [Change("why", "a = 1", "a = 2")]) == "a = 2\n"
    with pytest.raises(ValueError, match="ppo"):
        changed(path, [Change("why", "b = 1", "b = 2")])


SOURCE = '''"""Of a module."""

# a comment
LIMIT = 3  # with a comment behind it
"""Of a constant."""
TEXT = """no docstring

but data"""
'''


def test_tokens_are_those_of_code() -> None:
    assert size.code_tokens(SOURCE) == 3 + 3, "LIMIT, TEXT"


@pytest.mark.parametrize(
    ("damage", "happened"), [(flip_bits, {"refused", "read as it was"}), (cut_end, {"refused"})]
)
def test_a_damaged_checkpoint_is_refused_or_read_as_it_was(
    damage: Damage, happened: set[str], tmp_path: Path
) -> None:
    outcomes = try_row("bits", FaultRow("", 50, Checkpoint(damage)), 50, 0, tmp_path)
    assert {outcome.happened for outcome in outcomes} == happened
    assert not any(outcome.fault for outcome in outcomes)


def test_overrides_at_random_are_accepted_or_refused_in_one_line(tmp_path: Path) -> None:
    with hydra_session() as hydra:
        outcomes = fuzz.try_all("overrides", fuzz.Overrides(hydra), 100, 1, tmp_path)
    assert set(outcomes) <= {"accepted", "one line"}, sorted(tmp_path.iterdir())
    assert len(outcomes) == 2, "both happen"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fuzz.finished_run(tmp_path_factory.mktemp("fuzz") / "run")


@pytest.mark.parametrize("name", fuzz.FILES)
def test_a_damaged_file_is_used_or_refused_in_one_line(
    name: str, whole: Path, tmp_path: Path
) -> None:
    outcomes = fuzz.try_all(name, fuzz.DamagedFile(whole, name), 2, 1, tmp_path)
    assert set(outcomes) <= {"ran", "one line", "left out by name"}, sorted(tmp_path.iterdir())


def test_equal_means_the_same_bits() -> None:
    values = np.array([[0.0, 1.0], [np.nan, 3.0]], np.float32)
    assert difference(values, values.copy()) is None
    other = values.copy()
    other[1, 1] = np.nextafter(other[1, 1], np.float32(9))
    assert str(difference(values, other)) == "3.0 here, 3.000000238418579 there; 1 of 4"
    assert difference(np.array(0.0), np.array(-0.0)) == "0.0 here, -0.0 there; 1 of 1"
    assert difference(values, values.astype(np.float64)) == "float32 here, float64 there"
    assert difference(values, values[:1]) == "shape [2, 2] here, [1, 2] there"
    assert (
        difference(np.array(["", "0.1"]), np.array(["", "0.100"]))
        == "0.1 here, 0.100 there; 1 of 2"
    )


def test_a_run_is_read_whole_but_for_times_and_the_machine(tmp_path: Path) -> None:
    train(tmp_path, "CartPole-v1", plugins=[])
    found = read_run(tmp_path)
    assert set(REQUIRED) <= found.keys()
    assert found["latest.ckpt/store/parameters"].size > 100
    times = ("summary.json/machine", "metrics.csv/time/")
    assert not [name for name in found if "seconds" in name or name.startswith(times)]


def test_speeds_are_those_of_equal_parts_of_the_time(tmp_path: Path) -> None:
    points = [(0, 0), (3, 900), (4, 1000), (6, 1200), (9, 1500), (12, 1650)]
    file = tmp_path / "metrics.csv"
    file.write_text(
        "wall_seconds,step\n" + "".join(f"{second},{step}\n" for second, step in points)
    )
    assert soak.speeds(file, 3, skip=0.25).tolist() == [100, 100, 50]


def test_a_recorded_run_is_compared_with_its_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = "env=cartpole backend=threads workers=2 envs_per_worker=1 rollout_length=8"
    monkeypatch.setattr(replay, "ROWS", {"small": f"{small} total_steps=400"})
    monkeypatch.setattr(replay, "UPDATES", 40)
    outcome = replay.outcome_of("small", tmp_path)
    assert outcome.problem == ""
    assert outcome.updates >= 50
    assert outcome.episodes > 0

    (tmp_path / "again" / "episodes.csv").write_text("step,worker,return,length\n")
    assert "episodes of worker" in replay.problem_of(
        tmp_path / "recorded", tmp_path / "again", is_killed=False
    )


def test_the_order_of_a_run_is_plotted_with_its_staleness(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folder = train(tmp_path / "run", workers=3, lock=True, record="order").folder
    picture = tmp_path / "order.png"
    assert order.main([str(folder), str(picture), "--updates", "1", "9"]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")

    [session] = read_order(folder).sessions
    staleness = [bar.staleness for bar in order.bars(session)]
    found = summary(folder)
    assert len(staleness) == found["updates"]
    assert np.mean(staleness) == pytest.approx(found["staleness_mean"])
    assert max(staleness) == found["staleness_max"]


def test_an_image_of_a_race_costs_more_than_its_physics(capsys: pytest.CaptureFixture[str]) -> None:
    drawing.main(["--steps", "20"])
    whole, physics = map(float, re.findall(r"([\d.]+) ms", capsys.readouterr().out))
    assert whole > 5 * physics > 0
