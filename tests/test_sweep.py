"""Sweeps: names, lines, exit codes, and going on with a sweep that was cut. Runs are on the serial backend."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from runs import QUICK, latest, same, wait_until
from sweeping import start

import a3c_exp.__main__ as program
from a3c_exp.cli.existing import clear
from a3c_exp.cli.hydra_compose import compose_jobs, compose_node, hydra_session, sweep, to_container
from a3c_exp.cli.job import SIGNALS, SweepJobs, stop_requests
from a3c_exp.cli.journal import Journal
from a3c_exp.cli.names import folder_names, labels
from a3c_exp.config import builder
from a3c_exp.config.checks import check_environment_and_network
from a3c_exp.core.experiment import Experiment
from a3c_exp.errors import PREEMPTED
from a3c_exp.networks import ActorCritic
from a3c_exp.run.files import exclusive_folder
from a3c_exp.run.interruption import Interruption, interruptions

TWO = [*QUICK, "-m", "sweep=two", "seed=0,1"]


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def summary(run: Path) -> dict[str, object]:
    read: dict[str, object] = json.loads((run / "summary.json").read_text())
    return read


def runs(sweep: Path) -> list[str]:
    return sorted(path.parent.name for path in sweep.glob("*/summary.json"))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a sweep of two runs, called `two`, has finished."""
    folder = tmp_path_factory.mktemp("finished")
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert program.main(TWO) == 0
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def again(two: Path, here: Path) -> Path:
    """The folder of that sweep, in a copy that a test may change."""
    shutil.copytree(two / "two", here / "two")
    return here / "two"


# Names.


@pytest.mark.parametrize(
    ("jobs", "names"),
    [
        ([["env=lunar", "returns=gae", "seed=0"], ["env=lunar", "returns=n_step", "seed=0"]], "gae n_step"),
        ([["optimizer.learning_rate=0.001"], ["optimizer.learning_rate=1e-4"]], "0.001 1e-4"),
        ([["a.n=1", "b.n=2"], ["a.n=2", "b.n=3"]], "a.n-1_b.n-2 a.n-2_b.n-3"),
        ([["network.hidden_sizes=[32,32]"], ["network.hidden_sizes=[8]"]], "32-32 8"),
        ([["returns={_target_:a3c_exp.returns.NStep,n:3}"], ["returns=gae"]], "NStep-n-3 gae"),
        ([["env.id=../ä/b c"], ["env.id=x"]], "b-c x"),
        ([["+env.kwargs.g=A"], ["+env.kwargs.g=a"]], "A a_2"),
        ([["seed=0"], ["seed=0"]], "run run_2"),
    ],
)
def test_runs_are_named_by_what_differs(jobs: list[list[str]], names: str) -> None:
    found = folder_names(jobs)
    assert all(name.endswith(end) for name, end in zip(found, names.split(), strict=True)), found
    assert all(re.fullmatch(r"[A-Za-z0-9._-]{1,104}", name) for name in found)
    assert len({name.lower() for name in found}) == len(jobs)


def test_a_long_name_is_cut_and_stays_unique() -> None:
    names = folder_names([[f"{key}={'x' * 90}{end}" for key in ("a", "b", "c")] for end in "12"])
    assert len(set(names)) == 2
    assert max(map(len, names)) < 130
    assert labels([["a=1", "b=2"], ["a=1", "b=3"]]) == ["b=2", "b=3"]


# What a sweep prints, and leaves.


def test_every_job_has_a_line_at_its_start_and_at_its_end(two: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(two / "other", ignore_errors=True)
    command = [*QUICK, "-m", f"sweep={two}/other", "returns=gae,n_step", "seed=1"]
    assert program.main(command) == 0
    lines = capfd.readouterr().err.splitlines()
    assert "1 of 2: returns=gae" in lines
    assert "2 of 2: returns=n_step" in lines
    assert [line for line in lines if re.fullmatch(r"2 of 2: total_steps.*, \d+\.\d s", line)]
    assert re.match(r"2 of 2 runs have finished; .*other holds \d+ kB", lines[-1])
    assert runs(two / "other") == ["returns-gae", "returns-n_step"]
    assert not (two / "other" / ".jobs").exists()


def test_a_run_knows_the_overrides_as_they_were_typed(two: Path) -> None:
    assert runs(two / "two") == ["seed-0", "seed-1"]
    assert summary(two / "two" / "seed-1")["overrides"] == [*QUICK, "seed=1"]


def test_failed_runs_are_listed_at_the_end(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    env = ["plugins=[scripted]", "env=gym", "env.id=Scripted-v0", "+env.kwargs.fails_at=3,null"]
    command = [*QUICK, "sweep=folder", *env, "env.on_error=stop"]
    assert program.main(command) == 1
    first, last = capfd.readouterr().err.splitlines()[-2:]
    assert first.startswith("1 of 2 runs have finished; ")
    assert re.match(r"failed: folder/fails_at-3: env_errors.*: \S", last)
    assert program.main([*command, "env.on_error=stop"]) == 1, "a failed run begins anew, and fails again"
    assert "2 of 2: env.kwargs.fails_at=null: has finished before" in capfd.readouterr().err


def test_the_runs_of_a_sweep_start_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are composed for each distinct choice, and one environment and network are made for each distinct pair."""
    made: list[object] = []
    original = check_environment_and_network

    def check(experiment: Experiment) -> ActorCritic:
        made.append(experiment)
        return original(experiment)

    monkeypatch.setattr(builder, "check_environment_and_network", check)
    networks: dict[str, ActorCritic] = {}
    words = ["returns=gae,n_step", "optimizer.learning_rate=1e-3,1e-2", "seed=range(25)"]
    with hydra_session() as hydra:
        jobs = sweep(hydra, words)
        start = time.process_time()
        for node in compose_jobs(hydra, jobs, "config"):
            builder.load_experiment(to_container(node), made=networks)
        seconds = time.process_time() - start
    assert len(jobs) == 100
    assert len(made) == 1
    assert seconds < 5


@pytest.mark.parametrize(
    "words",
    [
        ["experiment=pong", "algorithm=a3c,ppo", "algorithm.entropy_coefficient=1,2", "stop.window=5,6"],
        ["stop={window:5},{window:7,max_episodes:3}", "network.hidden_sizes=[3],[4,5]", "stop.window=1,2"],
        ["env.kwargs.b=1,2", "gamma=0.5,null", "reward_threshold=3,null"],
    ],
)
def test_jobs_that_share_a_composition_are_those_that_hydra_composes(words: list[str]) -> None:
    with hydra_session() as hydra:
        jobs = sweep(hydra, words)
        shared = [OmegaConf.to_container(node) for node in compose_jobs(hydra, jobs, "config")]
        single = [OmegaConf.to_container(compose_node(hydra, job)) for job in jobs]
    for number, node in enumerate(single):
        assert isinstance(node, dict)
        node["hydra"]["job"] |= {"num": number, "id": str(number)}
    assert shared == single


# Runs that are there already.


def test_a_finished_sweep_stays_byte_for_byte(again: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = {name: bytes_ for name, bytes_ in content(again).items() if name != "multirun.yaml"}
    assert program.main(TWO) == 0
    assert "2 of 2: seed=1: has finished before" in capfd.readouterr().err
    assert {name: bytes_ for name, bytes_ in content(again).items() if name != "multirun.yaml"} == before


def test_a_larger_sweep_adds_runs_to_a_folder(again: Path) -> None:
    assert program.main([*QUICK, "sweep=two", "seed=0,1,2"]) == 0
    assert runs(again) == ["seed-0", "seed-1", "seed-2"]


def test_a_run_with_other_settings_is_refused_by_name(again: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = content(again)
    assert program.main([*TWO, "gamma=0.5"]) == 2
    err = capfd.readouterr().err
    assert "two/seed-0': has a run with other settings: gamma=0.99, not 0.5; existing=restart begins it anew" in err
    assert err.count("\n") == 1
    assert content(again) == before


def test_existing_restart_begins_all_anew_and_existing_refuse_none(
    again: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert program.main([*TWO, "existing=refuse"]) == 2
    assert "seed-0': must be without a run" in capfd.readouterr().err
    (again / "seed-0" / "notes.txt").write_text("of my own")
    before = latest(again / "seed-0")
    log = (again / "seed-0" / "train.log").read_text()
    assert program.main([*TWO, "existing=restart"]) == 0
    assert same(latest(again / "seed-0")["store"], before["store"])
    assert log not in (again / "seed-0" / "train.log").read_text()
    assert len(list((again / "seed-0").glob("events*"))) == 1
    assert (again / "seed-0" / "notes.txt").exists()


def test_a_folder_is_treated_by_what_is_in_it(again: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A run that was cut continues from its checkpoint. Without one, or where it failed, it begins anew."""
    finished = latest(again / "seed-0")

    def set_summary(run: Path, **values: object) -> None:
        (run / "summary.json").write_text(json.dumps(summary(run) | values))

    def kill_early(run: Path) -> None:
        shutil.rmtree(run / "checkpoints")
        (run / "summary.json").unlink()

    cases = {
        "no config": (lambda run: (run / "config.yaml").unlink(), 0),
        "killed": (lambda run: (run / "summary.json").unlink(), 1),
        "killed before a checkpoint": (kill_early, 0),
        "interrupted": (lambda run: set_summary(run, stop_reason="interrupted"), 1),
        "failed": (lambda run: set_summary(run, stop_reason="failed"), 0),
        "not written in full": (lambda run: set_summary(run, unwritten=["curves"]), 1),
    }  # fmt: skip
    for name, (change, resumed) in cases.items():
        change(again / "seed-0")  # type: ignore[no-untyped-call]
        assert program.main(TWO) == 0, name
        assert summary(again / "seed-0")["resumed"] in (resumed, resumed + 1), name
        assert summary(again / "seed-0")["stop_reason"] == "total_steps"
        assert same(latest(again / "seed-0")["store"]["parameters"], finished["store"]["parameters"]), name


def test_a_single_run_continues_only_if_it_is_asked_to(again: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = [*QUICK, "hydra.run.dir=two/seed-0"]
    assert program.main(command) == 2
    assert program.main([*command, "existing=resume"]) == 0
    assert "two/seed-0: has finished before" in capfd.readouterr().err
    (again / "seed-0" / "summary.json").unlink()
    assert program.main([*command, "existing=resume"]) == 0
    assert summary(again / "seed-0")["resumed"] == 1
    assert program.main([*command, "existing=restart"]) == 0
    assert summary(again / "seed-0")["resumed"] == 0


def test_deleting_a_run_never_leaves_one_that_looks_finished(again: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed at any moment, it has no summary while there is a configuration."""
    deleted: list[str] = []
    unlink = Path.unlink

    def note(path: Path, missing_ok: bool = False) -> None:
        deleted.append(path.name)
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", note)
    clear(again / "seed-0", keep_log=False)
    assert deleted[0] == "summary.json"
    assert deleted[-1] == "config.yaml"
    assert not content(again / "seed-0")


def test_a_locked_run_is_looked_at_again_at_the_end(again: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (again / "seed-0" / "summary.json").unlink()
    (again / "seed-1" / "summary.json").unlink()
    lock = exclusive_folder(again / "seed-0")
    lock.__enter__()

    def release() -> None:
        wait_until((again / "seed-1" / "summary.json").exists)
        lock.__exit__(None, None, None)

    threading.Thread(target=release, daemon=True).start()
    assert program.main(TWO) == 0
    lines = [line for line in capfd.readouterr().err.splitlines() if " of 2: " in line]
    assert [line.partition(",")[0] for line in lines] == [
        "1 of 2: seed=0",
        "1 of 2: another process trains there: it is looked at again at the end",
        "2 of 2: seed=1",
        "2 of 2: total_steps",
        "1 of 2: seed=0",
        "1 of 2: total_steps",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("jobs=0", "jobs = '0': must be a whole number from 1 to 99999: runs at once"),
        ("jobs=many", "jobs = 'many': must be a whole number from 1 to 99999"),
        (f"jobs={'9' * 5000}", "jobs = '99999"),
        ("-m hydra.sweeper=null", "hydra.sweeper = None: must be a sweeper"),
        ("-m hydra.launcher=null seed=0,1", "hydra.launcher = None: must be a launcher"),
        ("existing=replace", "existing = 'replace': must be one of refuse, resume, restart"),
        ("sweep=", "sweep = '': must be the folder of a sweep"),
        ("jobs=2 hydra/launcher=basic", "jobs = 2: goes with hydra/launcher=joblib, not basic"),
        ("resume=x sweep=y", "resume = 'x': cannot go with sweep, jobs or existing"),
        ("checkpoint.keep=all", "checkpoint.keep = 'all': must be 'both', 'latest', 'best' or 'none'"),
    ],
)
def test_words_are_checked(words: str, message: str, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert program.main(words.split()) == 2
    err = capfd.readouterr().err
    assert err.startswith(f"a3c_exp: {message}")
    assert err.count("\n") == 1
    assert not list(here.iterdir())


def test_a_run_that_is_given_twice_is_made_once_with_a_line(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert program.main([*QUICK, "sweep=twice", "seed=0,1,0"]) == 0
    assert runs(here / "twice") == ["seed-0", "seed-1"]
    err = capfd.readouterr().err
    assert f"given twice, run once: {' '.join(QUICK)} seed=0\n" in err
    assert "1 of 2: seed=0\n" in err


def test_runs_at_once_need_an_extra(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("a3c_exp.cli.words.find_spec", lambda name: None)
    for word in ("jobs=2", "hydra/launcher=submitit_slurm"):
        assert program.main([*QUICK, "-m", word, "seed=0,1"]) == 2
        assert "needs the extra sweep: pip install 'a3c-exp[sweep]'" in capfd.readouterr().err
    assert not list(here.iterdir())


# Killed, and interrupted.


@pytest.mark.parametrize(("count", "kills"), [(4, 2), pytest.param(12, 5, marks=pytest.mark.slow)])
def test_a_sweep_that_is_killed_again_and_again_ends_complete(
    count: int, kills: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL at random moments. What has finished stays as it is, and uncut runs are those of a sweep left alone."""
    words = [*QUICK, "-m", f"seed=range({count})", "checkpoint.every=16"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(program, "prestart_backend", lambda arguments: None)
    draw = random.Random(0)
    finished: dict[str, bytes] = {}

    def check() -> None:
        now = content(tmp_path / "killed")
        assert {name: now[name] for name in finished} == finished
        for run in runs(tmp_path / "killed"):
            finished.update({n: b for n, b in now.items() if n.startswith(f"{run}/")})

    (tmp_path / "killed").mkdir()
    for _ in range(kills):
        process = start(tmp_path, *words, "sweep=killed")
        process.join(draw.uniform(0.8, 1.8))
        process.kill()
        process.join()
        check()
    assert program.main([*words, "sweep=killed"]) == 0
    check()
    assert len(runs(tmp_path / "killed")) == count
    assert not (tmp_path / "killed" / ".jobs").exists()
    assert program.main([*words, "sweep=alone"]) == 0
    uncut = [run for run in runs(tmp_path / "alone") if summary(tmp_path / "killed" / run)["resumed"] == 0]
    assert uncut
    for run in uncut:
        assert same(latest(tmp_path / "killed" / run)["store"], latest(tmp_path / "alone" / run)["store"])
    assert {summary(tmp_path / "killed" / run)["stop_reason"] for run in runs(tmp_path / "killed")} == {"total_steps"}


@pytest.mark.slow
def test_a_cut_sweep_that_is_begun_anew_equals_one_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for times: parameters, optimizer, generators and episodes of every run."""
    words = [*QUICK, "-m", "seed=range(12)", "checkpoint.every=16"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(program, "prestart_backend", lambda arguments: None)
    process = start(tmp_path, *words, "sweep=cut")
    wait_until(lambda: len(runs(tmp_path / "cut")) >= 4, 60)
    process.kill()
    process.join()
    assert len(runs(tmp_path / "cut")) < 12
    assert program.main([*words, "sweep=cut", "existing=restart"]) == 0
    assert program.main([*words, "sweep=alone"]) == 0
    assert len(runs(tmp_path / "cut")) == 12
    for run in runs(tmp_path / "alone"):
        cut, alone = tmp_path / "cut" / run, tmp_path / "alone" / run
        assert same(latest(cut)["store"], latest(alone)["store"])
        assert (cut / "config.yaml").read_bytes() == (alone / "config.yaml").read_bytes()
        assert episodes(cut) == episodes(alone)
        assert summary(cut)["resumed"] == 0


def episodes(run: Path) -> list[list[str]]:
    """The rows of episodes.csv without their last column, the seconds."""
    rows = [line.split(",") for line in (run / "episodes.csv").read_text().splitlines()]
    assert rows[0][-1] == "seconds"
    return [row[:-1] for row in rows]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR2, PREEMPTED)])
def test_a_signal_ends_the_sweep_in_order(
    number: int, code: int, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    points = here / "cut" / "seed-0" / "metrics.jsonl"

    def send() -> None:
        wait_until(lambda: points.is_file() and points.read_text())
        os.kill(os.getpid(), number)

    words = [word for word in QUICK if not word.startswith("total_steps")]
    threading.Thread(target=send, daemon=True).start()
    assert program.main([*words, "sweep=cut", "total_steps=100000000", "stop.mean_return=null", "seed=0,1"]) == code
    assert summary(here / "cut" / "seed-0")["stop_reason"] == "interrupted"
    assert runs(here / "cut") == ["seed-0"]
    assert "0 of 2 runs have finished" in capfd.readouterr().err


@pytest.mark.parametrize("number", [*SIGNALS, signal.SIGUSR2])
def test_a_signal_while_a_run_is_set_up_ends_it_too(number: signal.Signals, tmp_path: Path) -> None:
    """A run handles signals itself from its first step on. Until then they are the sweep's, which notes its end."""
    jobs = SweepJobs(journal=Journal(tmp_path), folders=(), labels=(), existing="resume", command="")
    interruption, received = Interruption(), list[int]()
    before = signal.signal(number, lambda signum, frame: received.append(signum))
    try:
        with stop_requests(jobs, interruption):
            signal.raise_signal(number)
            assert (interruption.signal, received) == (number, [number])
            with interruptions(interruption):
                pass
            signal.raise_signal(number)
        signal.raise_signal(number)
        assert (interruption.signal, received) == (number, [number] * 3)
    finally:
        signal.signal(number, before)


def test_a_job_of_submitit_is_saved_before_it_is_queued_again(tmp_path: Path) -> None:
    """SIGUSR2, which submitit answers by ending the process, first ends the run in order."""
    (tmp_path / "journal").mkdir()
    journal = Journal(tmp_path / "journal")
    jobs = SweepJobs(journal=journal, folders=(), labels=(), existing="resume", command="", pid=-1)
    queued: list[int] = []
    before = {number: signal.getsignal(number) for number in (*SIGNALS, signal.SIGUSR2)}
    signal.signal(signal.SIGUSR2, lambda number, frame: queued.append(number))
    interruption = Interruption()
    try:
        with stop_requests(jobs, interruption):
            signal.raise_signal(signal.SIGUSR2)
            assert interruption.signal == signal.SIGUSR2
            assert queued == []
        assert queued == [signal.SIGUSR2]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_two_processes_on_one_folder_make_each_run_once(here: Path) -> None:
    words = [*QUICK, "sweep=shared", "seed=range(3)"]
    processes = [start(here, *words) for _ in range(2)]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert len(runs(here / "shared")) == 3
    assert all(summary(here / "shared" / run)["resumed"] == 0 for run in runs(here / "shared"))
    logs = [(here / "shared" / run / "train.log").read_text().count("stopped: ") for run in runs(here / "shared")]
    assert logs == [1] * 3
