"""Sweeps: names, lines, folders, and going on with a sweep that was cut. Runs are on the serial
backend."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import threading
import time
from contextlib import chdir
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from omegaconf import OmegaConf
from refusals import Refuses
from runs import LINUX, QUICK, content, latest, same, summary, wait_until

import a3c_exp.__main__ as program
from a3c_exp.cli import processes
from a3c_exp.cli.existing import find_action
from a3c_exp.cli.hydra_compose import compose_jobs, composed, sweep_word
from a3c_exp.cli.hydra_overrides import parse, sweep
from a3c_exp.cli.hydra_session import HydraSession, hydra_session
from a3c_exp.cli.names import folder_names
from a3c_exp.cli.processes import TOGETHER_SECONDS, Job, Runs
from a3c_exp.config.saved import read_config
from a3c_exp.core import cpu
from a3c_exp.errors import FolderError
from a3c_exp.run.files import exclusive_folder

TWO = [*QUICK, "-m", "sweep=two", "seed=0,1"]
RUN = [*QUICK, "hydra.run.dir=run", "existing=resume"]


def runs(sweep: Path) -> list[str]:
    return sorted(path.parent.name for path in sweep.glob("*/summary.json"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, in_process: None) -> Path:
    """A folder with a finished sweep of two runs, `two`, and a finished run, `run`."""
    folder = tmp_path_factory.mktemp("finished")
    with chdir(folder):
        assert program.main(TWO) == 0
        assert program.main(RUN) == 0
    return folder


@pytest.fixture
def again(finished: Path, here: Path) -> Path:
    """The current folder, with a copy of both that a test may change."""
    shutil.copytree(finished, here, dirs_exist_ok=True)
    return here


def test_the_runs_of_a_sweep_print_tracebacks_where_the_user_asks_for_them(
    here: Path, in_process: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hydra is always told to raise errors, which no run inherits."""
    start = processes.start_process
    values = []

    def noted(arguments: list[str], variables: dict[str, str], *, is_forked: bool) -> Any:
        values.append(variables.get("HYDRA_FULL_ERROR"))
        return start(arguments, variables, is_forked=is_forked)

    monkeypatch.setattr(processes, "start_process", noted)
    for value in ("1", "0"):
        monkeypatch.setenv("HYDRA_FULL_ERROR", value)
        assert program.main([*QUICK, f"sweep={value}", "jobs=1", "seed=0"]) == 0
    assert values == ["1", "0"]


# Names.


@pytest.mark.parametrize(
    ("jobs", "names"),
    [
        (
            [["env=lunar", "returns=gae", "seed=0"], ["env=lunar", "returns=n_step", "seed=0"]],
            "gae_seed-0 n_step_seed-0",
        ),
        ([["low=-1e-16"], ["low=1e+16"]], r"low--1e-16 low-1e\+16"),
        ([["a.n=1", "b.n=2"], ["a.n=2", "b.n=3"]], "a.n-1_b.n-2 a.n-2_b.n-3"),
        (
            [["returns={_target_:a3c_exp.returns.NStep,n:3}"], ["returns=gae"]],
            "returns-NStep-n-3 gae",
        ),
        ([["env.id=../ä/b c"], ["env.id=x"]], "id-b-c id-x"),
        (
            [["network.hidden_sizes=[32,32]"], ["network.hidden_sizes=[[32],[32]]"]],
            r"sizes-32-32 sizes-32-32-\w{6}",
        ),
        ([["+env.kwargs.g=A"], ["+env.kwargs.g=a"]], r"g-A g-a-\w{6}"),
        ([[f"{key}={'x' * 90}{end}" for key in "ab"] for end in "12"], r"x-\w{6} x-\w{6}"),
        ([["seed=0"]], "seed-0"),
        ([["env=lunar"]], "run"),
    ],
)
def test_runs_are_named_by_what_differs(jobs: list[list[str]], names: str) -> None:
    found = folder_names(jobs)
    assert all(
        re.search(f"{end}$", name) for name, end in zip(found, names.split(), strict=True)
    ), found
    assert all(re.fullmatch(r"[A-Za-z0-9._+-]{1,107}", name) for name in found)
    assert len({name.lower() for name in found}) == len(jobs)


def test_jobs_that_share_files_are_those_that_hydra_composes() -> None:
    words = [
        "experiment=ppo_pong_solved",
        "algorithm=a3c,ppo",
        "stop={window:5},{max_episodes:3}",
        "reward_threshold=3,null",
    ]
    with hydra_session() as hydra:
        jobs = sweep(parse(words))
        shared = [OmegaConf.to_container(each.node) for each in compose_jobs(hydra, jobs)]
        for number in (1, 6):
            single: Any = OmegaConf.to_container(composed(hydra, jobs[number]).node)
            single["hydra"]["job"] |= {"num": number, "id": str(number)}
            assert shared[number] == single


# Draws.


def drawn(text: str) -> list[float]:
    """The values of a learning rate that a sweep has."""
    with hydra_session() as hydra:
        jobs = sweep(parse([f"optimizer.learning_rate={text}", "seed=0"]))
        rates = [rate.partition("=")[2] for rate, _ in jobs]
        [override] = parse([f"optimizer.learning_rate={text}"])
        sent = sweep_word(hydra, composed(hydra, []).node, override)
        assert sent == f"optimizer.learning_rate={','.join(rates)}"
    return list(map(float, rates))


def test_draws_are_log_uniform_and_the_same_with_each_command() -> None:
    many = drawn("loguniform(1e-4,1e-2,2000)")
    assert 1e-4 <= min(many) < 1.02e-4 and 0.98e-2 < max(many) <= 1e-2
    counts, _ = np.histogram(np.log10(many), bins=4, range=(-4, -2))
    assert (abs(counts - 500) < 80).all(), "four standard deviations"
    assert drawn("loguniform(1e-4,1e-2,20)") == many[:20], (
        "a larger sweep goes on with a smaller one"
    )
    assert drawn("loguniform(1e-4,1e-2,20,seed=1)")[0] not in many[:20]


@pytest.mark.parametrize(
    "arguments", ["1e-2,1e-4,20", "0,1,20", "1e-4,1e-2,0", "1e-4,1e-2,1e9", "a,b,2", "1e-4"]
)
def test_draws_that_cannot_be_made_are_refused(
    arguments: str, here: Path, refuses: Refuses
) -> None:
    refuses(["-m", f"optimizer.learning_rate=loguniform({arguments})"], "optimizer.learning_rate")


def test_each_draw_is_a_run_of_its_own(here: Path, in_process: None) -> None:
    (here / "inside").mkdir()
    draws = "sweep=inside/../draws"
    assert (
        program.main([*QUICK, draws, "jobs=2", "optimizer.learning_rate=loguniform(1e-4,1e-2,2)"])
        == 0
    )
    assert runs(here / "draws") == [
        f"learning_rate-{rate}" for rate in sorted(drawn("loguniform(1e-4,1e-2,2)"))
    ]


# What a sweep prints, and leaves.


FAILING = "algorithm={_target_:faulty.FailingA3C,trigger:trigger},a3c"


def test_a_sweep_says_what_starts_ends_and_fails(
    here: Path, in_process: None, capfd: pytest.CaptureFixture[str]
) -> None:
    """One run after the other; a failed run begins anew with the same command, and a finished one
    stays."""
    (here / "trigger").touch()
    quick = ["backend=threads", *QUICK[1:]]
    command = [*quick, "sweep=folder", "plugins=[faulty]", FAILING, "seed=3,3"]
    assert program.main(command) == 1
    lines = capfd.readouterr().err.splitlines()
    assert sum(line.startswith("given twice, run once: ") for line in lines) == 2
    assert "algorithm=a3c seed=3: begins" in lines
    assert [
        line
        for line in lines
        if re.match(r"1 of 2, \d+:\d\d left: algorithm=.*FailingA3C.*: failed$", line)
    ]
    assert [
        line
        for line in lines
        if re.match(r"2 of 2: algorithm=a3c seed=3: finished.* after \d+ steps", line)
    ]
    assert re.match(r"1 of 2 runs have finished, in folder", lines[-5])
    assert re.match(
        r"failed: folder/algorithm-FailingA3C\S*: failed.*: RuntimeError: scripted to fail",
        lines[-4],
    )
    report, watch, page = lines[-3:]
    assert report.endswith("-m a3c_exp.report folder")
    assert watch.endswith("tensorboard --logdir folder")
    assert "#custom_scalars" in page
    failed, ended = runs(here / "folder")
    assert ended == "algorithm-a3c_seed-3"
    assert summary(here / "folder" / ended)["overrides"] == [
        *quick,
        "plugins=[faulty]",
        "algorithm=a3c",
        "seed=3",
    ]
    assert program.main(command) == 0
    assert "algorithm=a3c seed=3: has finished before" in capfd.readouterr().err
    assert summary(here / "folder" / failed)["resumed"] == 0


@pytest.mark.parametrize(
    ("backend", "warns"), [("processes", True), ("serial", False), ("simulated", False)]
)
def test_runs_at_once_that_need_more_cores_than_there_are_are_warned_of(
    backend: str,
    warns: bool,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Workers that take turns use one core."""
    monkeypatch.setattr("a3c_exp.cli.sweep.usable_cores", lambda: 2)
    words = ["seed=0,1", "jobs=2", "workers=16", f"backend={backend}", "--cfg", "job"]
    assert program.main(words) == 0
    assert ("warning:" in capfd.readouterr().err) is warns


def test_two_runs_share_the_cores(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of workers is recorded, and one worker a run is told once."""
    monkeypatch.setattr(cpu, "usable_cores", lambda: 8)
    with cpu.environment({cpu.RUNS_AT_ONCE: "3"}):
        assert cpu.cores_of_a_run() == 2
        with cpu.environment({cpu.RUNS_AT_ONCE: "20"}):
            assert cpu.cores_of_a_run() == 1
    assert cpu.cores_of_a_run() == 8
    assert os.environ.get(cpu.RUNS_AT_ONCE) is None


@LINUX
@pytest.mark.parametrize(
    ("quota", "cores"),
    [(None, 4), ("max 100000", 4), ("150000 100000", 2), ("300000 100000", 3), ("damaged", 4)],
)
def test_a_containers_quota_counts(
    quota: str | None, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if quota is not None:
        (tmp_path / "cpu.max").write_text(f"{quota}\n")
    monkeypatch.setattr(cpu, "CPU_MAX", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    assert cpu.usable_cores() == cores


# Runs that are there already.


def test_a_finished_sweep_stays_byte_for_byte(
    again: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """With a larger command one run is added. A narrower one knows its run, though it would name it
    otherwise."""
    before = content(again / "two")
    assert program.main([*TWO[:-1], "seed=0,1,2"]) == 0
    assert "seed=1: has finished before" in capfd.readouterr().err
    assert program.main([*TWO[:-1], "seed=1", "total_steps=64.0"]) == 0
    assert "1 of 1: seed=1: has finished before" in capfd.readouterr().err
    assert runs(again / "two") == ["seed-0", "seed-1", "seed-2"]
    now = content(again / "two")
    assert {name: now[name] for name in before} == before


def test_a_run_whose_environments_ended_no_episode_stays_and_has_failed(
    again: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = again / "two" / "seed-1"
    hopeless = {"stop_reason": "no_episodes", "error": "no episode has ended"}
    text = json.dumps(summary(folder) | hopeless)
    (folder / "summary.json").write_text(text)
    before = content(again / "two")
    assert program.main([*TWO[:-1], "seed=1", "--cfg", "job"]) == 0
    assert capfd.readouterr().out.rstrip().endswith("seed=1: has failed")
    assert program.main(TWO) == 1
    lines = capfd.readouterr().err
    assert re.search(r"failed: .*seed-1: has failed before: .*no episode has ended", lines)
    assert content(again / "two") == before
    assert program.main([*QUICK, "seed=1", f"hydra.run.dir={folder}", "existing=resume"]) == 1
    assert "has failed before" in capfd.readouterr().err


def test_the_check_of_many_runs_says_what_it_does(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert program.main([*QUICK, "-m", "--cfg", "job", "seed=range(0,20)"]) == 0
    listed = capfd.readouterr()
    assert listed.err.startswith("20 runs ") and listed.out.count("seed=") >= 20


def test_the_runs_of_a_sweep_are_listed_without_starting_one(
    again: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = content(again)
    assert program.main([*TWO[:-1], "seed=1,2", "--cfg", "job"]) == 0
    assert [Path(line).name for line in capfd.readouterr().out.splitlines()] == [
        "seed-1: seed=1: has finished",
        "seed-2: seed=2: begins",
    ]
    assert program.main([*TWO[:-1], "seed=1", "gamma=1,1.0", "--cfg", "job"]) == 0
    assert len(capfd.readouterr().out.splitlines()) == 1, "the same number"
    assert (
        program.main([*TWO[:-1], "seed=5", "plugins=[scripted],[scripted,faulty]", "--cfg", "job"])
        == 0
    )
    assert len(capfd.readouterr().out.splitlines()) == 2, "an environment may be another one there"
    assert content(again) == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGXCPU])
def test_a_run_that_reached_its_end_after_it_was_asked_to_end_has_finished(
    number: int, again: Path
) -> None:
    job = Job(0, [], again / "two" / "seed-0", "seed=0")
    Runs([job], [], "resume", 1)._take(job, 128 + number)
    assert job.status == "ended"


@pytest.mark.parametrize(
    ("words", "is_forked"),
    [
        ([], True),
        (["+hydra.job.env_set.OMP_NUM_THREADS='2'"], False),
        (["hydra.job.chdir=true"], False),
        (["plugins=[scripted]"], False),
    ],
    ids=lambda value: str(value),
)
def test_a_run_with_surroundings_of_its_own_has_a_new_process(
    words: list[str], is_forked: bool, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forked: list[bool] = []

    def start(arguments: object, variables: object, *, is_forked: bool) -> Any:
        forked.append(is_forked)
        return SimpleNamespace(poll=lambda: 0)

    monkeypatch.setattr("a3c_exp.cli.processes.start_process", start)
    program.main([*QUICK, "-m", "seed=0", *words])
    assert forked == [is_forked]


def test_signals_that_come_together_let_runs_be_saved(tmp_path: Path) -> None:
    """A terminal that is closed sends two."""
    done: list[str] = []
    process = SimpleNamespace(
        terminate=lambda: done.append("asked"), kill=lambda: done.append("killed")
    )
    runs = Runs([], [], "resume", 1)
    runs._running = [(Job(0, [], tmp_path, ""), cast(Any, process))]
    runs._noted.signal, runs._noted.count = signal.SIGHUP, 2
    runs._pass_on_signals()
    runs._noted.count += 1
    runs._pass_on_signals()
    assert done == ["asked"]
    time.sleep(TOGETHER_SECONDS)
    runs._noted.count += 1
    runs._pass_on_signals()
    assert done == ["asked", "killed"]


def test_a_run_that_began_anew_and_was_killed_is_continued_once(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A process that was killed before it had begun anew begins anew at the second try."""
    folder = here / "two" / "seed-0"
    codes = [-signal.SIGKILL, 0]

    class Killed:
        def __init__(
            self, arguments: list[str], variables: dict[str, str], *, is_forked: bool
        ) -> None:
            program.main(arguments)
            self.returncode = codes.pop(0)
            if self.returncode:
                (folder / "summary.json").unlink()

        def poll(self) -> int:
            return self.returncode

    monkeypatch.setattr("a3c_exp.cli.processes.start_process", Killed)
    job = Job(0, [*QUICK, "seed=0", f"hydra.run.dir={folder}"], folder, "seed=0")
    assert Runs([job], [], "restart", 1).run() == 0
    assert summary(folder)["resumed"] == 1 and not codes
    job.status, job.tries, codes[:] = None, 1, [0]
    assert Runs([job], [], "restart", 1).run() == 0
    assert summary(folder)["resumed"] == 0
    job.status, job.tries, codes[:] = None, 0, [-signal.SIGKILL, -signal.SIGKILL]
    assert Runs([job], [], "restart", 1).run() == 1
    assert "its process was killed by SIGKILL, twice" in capfd.readouterr().err


def test_a_sweep_with_other_settings_is_refused_by_name(again: Path, refuses: Refuses) -> None:
    before = content(again)
    line = refuses([*TWO, "gamma=0.5"], "sweep", str(again / "two" / "seed-0"))
    assert "gamma=0.99 there, 0.5 here" in line
    refuses([*TWO, "existing=refuse"], "sweep", str(again / "two" / "seed-0"))
    assert content(again) == before


def test_existing_restart_begins_anew_and_leaves_other_files(again: Path) -> None:
    mine = [
        again / "run" / name
        for name in ("notes.txt", "checkpoints/mine.ckpt", "videos/holiday.mp4")
    ]
    for path in mine:
        path.parent.mkdir(exist_ok=True)
        path.write_text("of my own")
    (again / "run" / "videos" / "64.mp4").touch()
    before = latest(again / "run")
    log = (again / "run" / "train.log").read_text()
    assert program.main([*RUN, "existing=restart"]) == 0
    assert same(latest(again / "run")["store"], before["store"])
    assert log not in (again / "run" / "train.log").read_text()
    assert len(list((again / "run").glob("events*"))) == 1
    assert (
        all(path.exists() for path in mine) and not (again / "run" / "videos" / "64.mp4").exists()
    )


@pytest.mark.parametrize(
    ("changes", "action"),
    [
        ({"stop_reason": "total_steps"}, "leave"),
        ({}, "resume"),
        ({"stop_reason": "interrupted"}, "resume"),
        ({"unwritten": ["curves"]}, "resume"),
        ({"stop_reason": "failed"}, "begin"),
        ({"checkpoints": None}, "begin"),
    ],
)
def test_a_folder_is_treated_by_what_is_in_it(
    changes: dict[str, Any], action: str, again: Path
) -> None:
    """A run that was cut continues from its checkpoint. Without one, or where it failed, it begins
    anew."""
    before = summary(again / "run")
    (again / "run" / "summary.json").unlink()
    if "checkpoints" in changes:
        shutil.rmtree(again / "run" / "checkpoints")
    elif changes:
        (again / "run" / "summary.json").write_text(json.dumps(before | changes))
    config = read_config(again / "run", ["scripted"])
    with pytest.raises(FolderError):
        find_action(again / "run", config, "refuse")
    assert find_action(again / "run", config, "resume") == action


def test_a_locked_run_is_looked_at_again_at_the_end(
    again: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As when another program works on the same sweep."""
    (again / "two" / "seed-0" / "summary.json").unlink()
    (again / "two" / "seed-1" / "summary.json").unlink()
    lock = exclusive_folder(again / "two" / "seed-0")
    lock.__enter__()

    def release() -> None:
        wait_until((again / "two" / "seed-1" / "summary.json").exists)
        lock.__exit__(None, None, None)

    threading.Thread(target=release, daemon=True).start()
    assert program.main(TWO) == 0
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "2 runs, 1 at once, in two"
    assert lines[1].startswith("seed=0: another process trains there")
    assert lines.index("seed=1: continues") < lines.index("seed=0: continues")
    assert runs(again / "two") == ["seed-0", "seed-1"]


def test_launchers_need_an_extra(
    here: Path, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    load = HydraSession.load
    monkeypatch.setattr(HydraSession, "options", lambda *_: ["basic"])
    monkeypatch.setattr(
        HydraSession, "load", lambda self, path: None if "submitit" in path else load(self, path)
    )
    line = refuses(
        ["-m", "hydra/launcher=submitit_slurm", "seed=0,1"], "hydra/launcher", "submitit_slurm"
    )
    assert "a3c-exp[sweep]" in line
    assert not list(here.iterdir())


# Files that are not this program's.


@pytest.fixture
def victim(here: Path) -> Path:
    """A folder of somebody's own beside that from which commands are given, which is `here`."""
    (here / "victim").mkdir()
    (here / "victim" / "latest.ckpt").write_text("years of work")
    (here / "victim" / "run").mkdir()
    (here / "work").mkdir()
    os.chdir(here / "work")
    return here / "victim"


def test_a_link_out_of_a_sweep_is_refused(victim: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Path("link").symlink_to(victim / "run")
    before = content(victim.parent)
    assert program.main([*QUICK, "sweep=.", "hydra.sweep.subdir=link"]) == 2
    assert "link that leads out of" in capfd.readouterr().err
    assert content(victim.parent) == before


@pytest.mark.parametrize(
    ("name", "existing"),
    [
        ("config.yaml", "restart"),
        ("config.yaml", "resume"),
        ("metrics.csv", "restart"),
        ("checkpoints/best.ckpt", "resume"),
    ],
)
def test_files_of_another_program_are_not_replaced(
    name: str, existing: str, victim: Path, refuses: Refuses
) -> None:
    Path("checkpoints").mkdir()
    Path(name).write_text("title: mine\n")
    refuses([*QUICK, "hydra.run.dir=.", f"existing={existing}"], "hydra.run.dir", str(Path.cwd()))
    assert content(Path()) == {name: b"title: mine\n"}
