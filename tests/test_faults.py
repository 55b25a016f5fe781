"""Faults: workers that fail or are killed, signals, a full disk.

A run ends at once, reports why, keeps what it has learned, and leaves nothing behind.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from backend_runs import nobody_works, worker_processes
from runs import BANDIT, LINUX, command, config, kill_all, latest, processes, train, wait_until

from a3c_exp.core import seeding
from a3c_exp.core.seeding import Role
from a3c_exp.run import checkpoint
from a3c_exp.run.recorders.evaluations import Evaluations
from a3c_exp.run.recorders.stop_rules import StopRules

# The first environment of the second worker.
VICTIM = seeding.environment_seeds(0, Role.ENVIRONMENT, 1, 1)[0]


FAULTY: dict[str, Any] = {
    "plugins": ["faulty"],
    "workers": 2,
    "total_steps": 10**9,
    "backend__max_restarts": 0,
}


def test_a_worker_that_fails_ends_the_run_with_the_reason_a_checkpoint_and_a_summary(
    tmp_path: Path,
) -> None:
    done = train(
        tmp_path,
        "faulty:Faulty-v0",
        "threads",
        env__kwargs={"fault": "raise", "victim": VICTIM},
        **FAULTY,
    )
    error = done.summary["error"]
    assert error.startswith("worker 1: environment 0 (Faulty-v0) raised")
    assert "faulty.py" in error and error.endswith("RuntimeError: scripted to fail")
    assert error in (tmp_path / "train.log").read_text()
    assert (done.summary["stop_reason"], done.exit_code) == ("env_errors", 1)
    assert json.loads((tmp_path / "summary.json").read_text()) == done.summary
    state = latest(tmp_path)["store"]
    assert state["steps"] == done.summary["steps"] > 0
    assert state["version"] == done.summary["updates"] > 0
    wait_until(nobody_works)


def test_a_worker_that_is_to_end_its_rollout_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop rule asks workers to end after their rollout. One that hangs in it is killed."""
    note = tmp_path / "note"
    monkeypatch.setattr("a3c_exp.run.open_run.PATIENCE_SECONDS", 0.5)
    # The rule holds once the worker hangs.
    monkeypatch.setattr(
        StopRules, "on_tick", lambda _, run: run.stop("mean_return") if note.exists() else None
    )
    faulty = {"fault": "hang", "victim": VICTIM, "at": 50, "note": str(note)}
    living: list[object] = []
    monkeypatch.setattr(Evaluations, "evaluate_final", lambda _: living.append(worker_processes()))
    done = train(tmp_path / "run", "faulty:Faulty-v0", "processes", env__kwargs=faulty, **FAULTY)
    assert living == [[]], "none makes an update beside the last evaluation"
    assert done.summary["stop_reason"] == "mean_return"
    assert "did not finish" in (tmp_path / "run" / "train.log").read_text()
    assert not worker_processes()


def _rows(folder: Path) -> int:
    return (folder / "metrics.csv").read_text().count("\n") - 1


class Program:
    """`python -m a3c_exp` as a user starts it, in a process group of its own. All its processes
    carry a mark."""

    def __init__(self, folder: Path, arguments: list[str], temporary: Path) -> None:
        self.folder = folder
        self.mark = f"A3C_EXP_TEST={folder}"
        environment = os.environ | {"A3C_EXP_TEST": str(folder), "TMPDIR": str(temporary)}
        self.process = subprocess.Popen(
            arguments,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,
        )

    def wait_for_training(self) -> None:
        def trains() -> bool:
            assert self.process.poll() is None, self.process.communicate()[0]
            return (self.folder / "metrics.csv").exists() and _rows(self.folder) > 1

        wait_until(trains, 180)

    def end(self) -> tuple[int, str]:
        """Its exit code and its output."""
        output, _ = self.process.communicate(timeout=300)
        return self.process.returncode, output

    def close(self) -> None:
        kill_all(self.mark)
        self.process.wait()


@pytest.fixture
def temporary() -> Iterator[Path]:
    """The folder of programs' temporary files. Their sockets' paths may have no more than 107
    characters."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


Start = Callable[..., Program]


@pytest.fixture
def program(tmp_path: Path, temporary: Path) -> Iterator[Start]:
    started: list[Program] = []

    def start(backend: str, *overrides: str, env: str = BANDIT) -> Program:
        arguments = command(
            tmp_path / "run", env, backend, "workers=2", "total_steps=1e12", *overrides
        )
        started.append(Program(tmp_path / "run", arguments, temporary))
        return started[-1]

    yield start
    for running in started:
        running.close()


@LINUX
class TestSignals:
    def test_one_asks_for_a_checkpoint_and_another_ends_the_run(
        self, program: Start, temporary: Path
    ) -> None:
        """The whole group gets it: workers and the fork server must not die of it. 75: for another
        try."""
        running = program("ga3c", "checkpoint.every=null")
        running.wait_for_training()
        file = running.folder / "checkpoints" / "latest.ckpt"
        assert not file.exists()
        os.killpg(running.process.pid, signal.SIGUSR1)
        wait_until(file.exists, 60)
        saved = latest(running.folder)["store"]["steps"]
        os.killpg(running.process.pid, signal.SIGUSR2)
        code, output = running.end()
        assert code == 75, output
        assert "Traceback" not in output
        summary = json.loads((running.folder / "summary.json").read_text())
        assert (summary["stop_reason"], summary["signal"]) == ("interrupted", signal.SIGUSR2)
        assert latest(running.folder)["store"]["steps"] == summary["steps"] > saved > 0
        wait_until(lambda: not processes(running.mark), 60)
        assert list(temporary.iterdir()) == []

    def test_a_second_ctrl_c_does_not_wait(self, program: Start, tmp_path: Path) -> None:
        """The only worker of a serial run is in a rollout that never ends."""
        note = tmp_path / "note"
        hang = [
            "+env.kwargs.fault=hang",
            f"+env.kwargs.note={note}",
            "plugins=[faulty]",
            "workers=1",
        ]
        running = program("serial", *hang, env="faulty:Faulty-v0")
        wait_until(lambda: note.exists() or running.process.poll() is not None, 180)
        os.killpg(running.process.pid, signal.SIGINT)
        looks = note.stat().st_size
        # the worker goes on, so the signal has been handled
        wait_until(lambda: note.stat().st_size > looks + 2)
        os.killpg(running.process.pid, signal.SIGINT)
        code, output = running.end()
        assert code == 130, output
        assert (
            json.loads((running.folder / "summary.json").read_text())["stop_reason"]
            == "interrupted"
        )

    @pytest.mark.parametrize(
        ("backend", "moment"), [("processes", "starting"), ("ga3c", "training")]
    )
    def test_sigkill_leaves_nothing_behind(
        self, backend: str, moment: str, program: Start, temporary: Path
    ) -> None:
        """No process, none of an environment either, no shared memory, no socket, no temporary
        file."""
        before = _shared_memory()
        notes = temporary.parent / f"{temporary.name}-notes"
        notes.mkdir()
        simulator = [f"+env.kwargs.folder={notes}", "plugins=[faulty]"]
        running = program(backend, "checkpoint.every=100", *simulator, env="faulty:Simulator-v0")
        if moment == "training":
            wait_until((running.folder / "checkpoints" / "latest.ckpt").exists, 180)
            assert len(processes(running.mark)) >= 4, "itself, the server, two workers"
            wait_until(lambda: len([*notes.glob("*.pids")]) >= 8)
        else:
            # itself, the resource tracker, the server
            wait_until(lambda: len(processes(running.mark)) > 2)
        running.process.kill()
        wait_until(lambda: not processes(running.mark), 60)
        # other tests that run now may have some of their own
        wait_until(lambda: _shared_memory() <= before)
        assert list(temporary.rglob("*")) == []
        if moment == "training":
            assert latest(running.folder)["store"]["steps"] >= 100, "a whole checkpoint"
            closed = len([*notes.glob("*.closed")])
            assert closed == len([*notes.glob("*.pids")]) >= 8, (
                "each worker closes its environments"
            )


@LINUX
def test_a_worker_that_prints_into_a_pipe_that_nobody_reads_is_not_waited_for(
    program: Start,
) -> None:
    printing = ["+env.kwargs.fault=print", f"+env.kwargs.victim={VICTIM}", "plugins=[faulty]"]
    running = program(
        "processes",
        "stop.max_seconds=0.5",
        "checkpoint.every=1000",
        *printing,
        env="faulty:Faulty-v0",
    )
    assert running.process.wait(60) == 0
    summary = json.loads((running.folder / "summary.json").read_text())
    assert summary["stop_reason"] == "max_seconds" and summary["training_seconds"] < 7
    assert latest(running.folder)["store"]["steps"] == summary["steps"] > 100


@LINUX
@pytest.mark.skipif(
    torch.__version__.startswith("2.4."), reason="torch 2.4 waits for threads that it cannot start"
)
def test_a_run_that_may_start_no_threads_and_processes_any_more_is_saved(tmp_path: Path) -> None:
    """No worker can be replaced, and no evaluation be made. Root has no limit, but for one without
    its capabilities."""

    def limit() -> None:
        if os.getuid() == 0:
            for capability in (21, 24):  # CAP_SYS_ADMIN, CAP_SYS_RESOURCE
                assert ctypes.CDLL(None).prctl(24, capability, 0, 0, 0) == 0  # PR_CAPBSET_DROP
            os.setresuid(65534, 0, 0)  # limits are those of the real user

    settings: dict[str, Any] = {
        "workers": 2,
        "total_steps": 10**9,
        "eval__every": 10**6,
        "backend__max_restarts": 3,
    }
    run_config = config(
        backend="processes",
        callbacks=[{"_target_": "faulty.AtTheLimit"}],
        plugins=["faulty"],
        **settings,
    )
    script = (
        f"from pathlib import Path; import runs; runs.train_config({run_config}, "
        f"Path({str(tmp_path)!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        preexec_fn=limit,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "Traceback" not in done.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["stop_reason"], summary["unwritten"]) == ("failed", [])
    assert re.fullmatch(r"worker \d could not be started: BlockingIOError: .*", summary["error"])
    assert latest(tmp_path)["store"]["steps"] == summary["steps"] > 0


def _shared_memory() -> set[str]:
    return set(os.listdir("/dev/shm"))


class TestAFullDisk:
    """A limit of a file's size stands for it: small files are written, a checkpoint is not."""

    BIG: dict[str, Any] = {"network__hidden_sizes": [300, 300], "total_steps": 160}  # noqa: RUF012

    @pytest.fixture
    def limited(self) -> Iterator[Callable[[], None]]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    @pytest.mark.parametrize("has_room_again", [False, True])
    def test_ends_no_training_is_reported_once_and_tried_again(
        self,
        has_room_again: bool,
        limited: Callable[[], None],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        save = checkpoint.save

        def make_room(path: Path, state: dict[str, Any]) -> None:
            if has_room_again and state["store"]["steps"] > 100:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
            save(path, state)

        monkeypatch.setattr(checkpoint, "save", make_room)
        limited()
        done = train(tmp_path, checkpoint__every=32, **self.BIG)
        unwritten = [] if has_room_again else ["latest.ckpt"]
        assert (done.summary["stop_reason"], done.summary["unwritten"]) == (
            "total_steps",
            unwritten,
        )
        assert json.loads((tmp_path / "summary.json").read_text())["unwritten"] == unwritten
        assert done.exit_code == len(unwritten), "the result is not on disk"
        assert (tmp_path / "train.log").read_text().count("latest.ckpt cannot be written") == 1
        assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [
            "latest.ckpt"
        ] * has_room_again
        assert (
            not has_room_again or latest(tmp_path)["store"]["steps"] == done.summary["steps"] == 160
        )
