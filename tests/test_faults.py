"""What goes wrong from outside: workers that fail or are killed, signals, a full disk. A run ends at once, says why,
keeps what it has learned, and leaves nothing behind."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs import BACKENDS, BANDIT, command, config, latest, processes, train, wait_until

from a3c_exp.run import checkpoint
from a3c_exp.core import seeding
from a3c_exp.run.trainer import Run, run
from a3c_exp.core.seeding import Role

# The first environment of the second worker.
VICTIM = seeding.environment_seeds(0, Role.ENVIRONMENT, 1, 1)[0]

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


class TestAWorkerThatFails:
    """Within two seconds of it: the reason, a checkpoint, a summary, and no worker left."""

    def failed(self, folder: Path, backend: str, fault: str, delay: float = 0.0) -> dict[str, Any]:
        """The summary of a run whose second worker goes wrong. delay: seconds of each of the other worker's steps."""
        for attempt in ("run", "again", "and again"):  # a busy machine may take longer, but not every time
            stamp = folder / "stamp"
            faulty = {"fault": fault, "victim": VICTIM, "stamp": str(stamp), "delay": delay}
            settings: dict[str, Any] = {"plugins": ["faulty"], "workers": 2, "envs_per_worker": 1}
            whole = config("faulty:Faulty-v0", backend, env__kwargs=faulty, total_steps=10**9, **settings)
            done = run(whole, folder / attempt)
            took = time.time() - float(stamp.read_text())
            if took < 2:
                break
        assert took < 2, f"{took:.1f} s from the fault to the end of the run"
        return self.checked(done)

    def checked(self, done: Run) -> dict[str, Any]:
        """The summary of a failed run, which has left what it should and nothing else."""
        assert not multiprocessing.active_children()
        assert (done.summary["stop_reason"], done.exit_code) == ("failed", 1)
        assert json.loads((done.folder / "summary.json").read_text()) == done.summary
        state = latest(done.folder)
        assert state["store"]["steps"] == done.summary["steps"] > 0
        assert state["store"]["version"] == done.summary["updates"] > 0
        assert done.summary["error"] in (done.folder / "train.log").read_text()
        return done.summary

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_by_an_error_is_shown_with_its_traceback(self, backend: str, tmp_path: Path) -> None:
        error = self.failed(tmp_path, backend, "raise")["error"]
        assert error.startswith("worker 1 failed:\nTraceback")
        assert "faulty.py" in error
        assert error.endswith("RuntimeError: scripted to fail")

    def test_by_a_signal_is_shown_with_its_name(self, tmp_path: Path) -> None:
        assert self.failed(tmp_path, "processes", "kill")["error"] == "worker 1 was killed by SIGKILL"

    @pytest.mark.parametrize("backend", ["threads", "processes"])
    def test_ends_the_run_also_where_the_others_hang(self, backend: str, tmp_path: Path) -> None:
        assert "scripted to fail" in self.failed(tmp_path, backend, "raise", delay=5.0)["error"]

    def test_ends_the_run_also_where_the_others_wait_for_it(self, tmp_path: Path) -> None:
        """In a synchronous round."""
        faulty = {"fault": "kill", "victim": VICTIM}
        settings: dict[str, Any] = {"plugins": ["faulty"], "workers": 3, "update": "sync", "total_steps": 10**9}
        done = run(config("faulty:Faulty-v0", "processes", env__kwargs=faulty, **settings), tmp_path)
        assert done.summary["error"] == "worker 1 was killed by SIGKILL"

    def test_from_outside_too(self, tmp_path: Path) -> None:
        """As the system does where memory runs out."""
        results: list[Any] = []
        whole = config(backend="processes", workers=2, total_steps=10**9)
        thread = threading.Thread(target=lambda: results.append(run(whole, tmp_path)))
        thread.start()
        children = wait_until(lambda: _pids(multiprocessing.active_children()))
        wait_until(lambda: (tmp_path / "metrics.csv").exists() and _rows(tmp_path) > 2)
        killed = time.monotonic()
        os.kill(children[0], signal.SIGKILL)
        thread.join()
        assert time.monotonic() - killed < 30
        assert "was killed by SIGKILL" in results[0].summary["error"]

    def test_can_be_gone_on_from(self, tmp_path: Path) -> None:
        self.failed(tmp_path, "processes", "kill")
        whole = config(backend="processes", workers=2, total_steps=10**9, stop__max_seconds=0.2)
        before = latest(tmp_path / "run")["store"]["steps"]
        done = run(whole, tmp_path / "run", resume=True)
        assert done.summary["stop_reason"] == "max_seconds"
        assert done.summary["steps"] > before

    def test_that_hangs_is_not_waited_for_when_the_run_ends(self, tmp_path: Path) -> None:
        """A stop rule asks workers to end after their rollout. One that never finishes it is ended."""
        faulty = {"fault": "hang", "victim": VICTIM, "at": 50}
        settings: dict[str, Any] = {"plugins": ["faulty"], "workers": 2, "total_steps": 10**9, "stop__max_seconds": 0.5}
        begun = time.monotonic()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("a3c_exp.run.trainer.PATIENCE_SECONDS", 0.5)
            done = run(config("faulty:Faulty-v0", "processes", env__kwargs=faulty, **settings), tmp_path)
        assert done.summary["stop_reason"] == "max_seconds"
        assert time.monotonic() - begun < 60
        assert "did not finish" in (tmp_path / "train.log").read_text()


def _pids(children: list[Any]) -> list[int]:
    return [child.pid for child in children if child.pid]


def _rows(folder: Path) -> int:
    return (folder / "metrics.csv").read_text().count("\n")


class Program:
    """`python -m a3c_exp` as a user starts it: in a group of processes of its own, all of which carry a mark."""

    def __init__(self, folder: Path, arguments: list[str], temporary: Path) -> None:
        self.folder, self.mark = folder, f"A3C_EXP_TEST={folder}"
        environment = os.environ | {"A3C_EXP_TEST": str(folder), "TMPDIR": str(temporary)}
        self.process = subprocess.Popen(
            arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0
        )

    def wait_for_training(self) -> None:
        def trains() -> bool:
            assert self.process.poll() is None, self.process.communicate()[0]
            return (self.folder / "metrics.csv").exists() and _rows(self.folder) > 2

        wait_until(trains, 180)

    def end(self) -> tuple[int, str]:
        """Its exit code and what it said."""
        said, _ = self.process.communicate(timeout=300)
        return self.process.returncode, said

    def close(self) -> None:
        for pid in processes(self.mark):
            os.kill(pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Where programs have their temporary files: sockets too, whose paths may be no longer than 107 characters."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def program(tmp_path: Path, temporary: Path) -> Iterator[Any]:
    started: list[Program] = []

    def start(backend: str, *overrides: str, env: str = BANDIT) -> Program:
        arguments = command(tmp_path / "run", env, backend, "workers=2", "total_steps=1e12", *overrides)
        started.append(Program(tmp_path / "run", arguments, temporary))
        return started[-1]

    yield start
    for one in started:
        one.close()


@LINUX
class TestSignals:
    @pytest.mark.parametrize("backend", [*BACKENDS, "ga3c"])
    def test_ctrl_c_leaves_a_checkpoint_and_a_summary_and_no_process(
        self, backend: str, program: Any, temporary: Path
    ) -> None:
        """A terminal sends it to the whole group."""
        self.interrupted(program(backend), signal.SIGINT, temporary)

    def test_sigterm_does_too(self, program: Any, temporary: Path) -> None:
        """So does `timeout`, and what ends the jobs of a cluster."""
        self.interrupted(program("processes"), signal.SIGTERM, temporary)

    def interrupted(self, running: Program, number: int, temporary: Path) -> None:
        running.wait_for_training()
        os.killpg(running.process.pid, number)
        code, said = running.end()
        assert code == 128 + number, said
        assert "Traceback" not in said
        summary = json.loads((running.folder / "summary.json").read_text())
        assert (summary["stop_reason"], summary["signal"]) == ("interrupted", number)
        assert latest(running.folder)["store"]["steps"] == summary["steps"] > 0
        wait_until(lambda: not processes(running.mark), 60)
        assert list(temporary.iterdir()) == []

    def test_a_second_ctrl_c_does_not_wait(self, program: Any) -> None:
        """The only worker of a serial run is in a rollout of 16 steps, three seconds each."""
        slow = ["+env.kwargs.fault=hang", "+env.kwargs.victim=-1", "+env.kwargs.delay=3", "plugins=[faulty]"]
        running = program("serial", *slow, env="faulty:Faulty-v0")
        wait_until((running.folder / "metrics.csv").exists, 180)
        time.sleep(1)
        os.killpg(running.process.pid, signal.SIGINT)
        time.sleep(0.5)
        assert running.process.poll() is None, "it lets the worker finish"
        os.killpg(running.process.pid, signal.SIGINT)
        sent = time.monotonic()
        code, said = running.end()
        assert time.monotonic() - sent < 30, "the rollout takes 48 s"
        assert code == 130, said
        assert json.loads((running.folder / "summary.json").read_text())["stop_reason"] == "interrupted"

    @pytest.mark.parametrize(
        ("backend", "moment"), [("processes", "training"), ("processes", "starting"), ("ga3c", "training")]
    )
    def test_sigkill_leaves_nothing_behind(self, backend: str, moment: str, program: Any, temporary: Path) -> None:
        """Not in memory either: no process, no shared memory, no socket, no temporary file."""
        before = _shared_memory()
        running = program(backend, "checkpoint.every=100")
        if moment == "training":
            wait_until((running.folder / "checkpoints" / "latest.ckpt").exists, 180)
            assert len(processes(running.mark)) >= 4, "itself, the server, two workers"
        else:
            wait_until(lambda: len(processes(running.mark)) > 1)
        running.process.kill()
        wait_until(lambda: not processes(running.mark), 60)
        wait_until(lambda: _shared_memory() <= before)  # what tests beside this one have there passes
        assert list(temporary.rglob("*")) == []
        if moment == "training":
            assert latest(running.folder)["store"]["steps"] >= 100, "a whole checkpoint"


def _shared_memory() -> set[str]:
    return set(os.listdir("/dev/shm"))


class TestAFullDisk:
    """Stood for by a limit to how large a file may get: small ones are written, a checkpoint is not."""

    BIG: dict[str, Any] = {"network__sizes": [300, 300], "total_steps": 160}  # noqa: RUF012

    @pytest.fixture
    def limited(self) -> Iterator[Any]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    def test_ends_no_training_and_is_told_once(self, limited: Any, tmp_path: Path) -> None:
        limited()
        done = train(tmp_path, checkpoint__every=32, **self.BIG)
        assert (done.summary["stop_reason"], done.summary["steps"]) == ("total_steps", 160)
        assert done.summary["unwritten"] == ["latest.ckpt"]
        assert done.exit_code == 1, "its result is not on disk"
        log = (tmp_path / "train.log").read_text()
        assert log.count("latest.ckpt cannot be written") == 1
        assert list((tmp_path / "checkpoints").iterdir()) == [], "nothing half written"
        assert json.loads((tmp_path / "summary.json").read_text())["unwritten"] == ["latest.ckpt"]

    def test_leaves_the_last_checkpoint_whole(self, limited: Any, tmp_path: Path) -> None:
        train(tmp_path, **self.BIG)
        before = (tmp_path / "checkpoints" / "latest.ckpt").read_bytes()
        limited()
        run(config(**self.BIG | {"total_steps": 320}), tmp_path, resume=True)
        assert (tmp_path / "checkpoints" / "latest.ckpt").read_bytes() == before
        assert np.isfinite(latest(tmp_path)["store"]["parameters"]).all()

    def test_that_has_room_again_is_written_to(
        self, limited: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        save = checkpoint.save

        def make_room(path: Path, state: dict[str, Any]) -> None:
            if state["store"]["steps"] > 100:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
            save(path, state)

        monkeypatch.setattr(checkpoint, "save", make_room)
        limited()
        done = train(tmp_path, checkpoint__every=32, **self.BIG)
        assert "latest.ckpt cannot be written" in (tmp_path / "train.log").read_text()
        assert (done.summary["unwritten"], done.exit_code) == ([], 0)
        assert latest(tmp_path)["store"]["steps"] == 160

    def test_takes_the_best_that_could_not_be_written_from_the_next_as_good(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        save, refused = checkpoint.save, []

        def full_at_first(path: Path, state: dict[str, Any]) -> None:
            if path.name == "best.ckpt" and not refused:
                refused.append(state["store"]["steps"])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            save(path, state)

        monkeypatch.setattr(checkpoint, "save", full_at_first)
        done = train(tmp_path, eval__every=32, optimizer__learning_rate=1e-12)  # every evaluation is as good
        assert (done.summary["unwritten"], done.exit_code) == ([], 0)
        assert checkpoint.load(tmp_path / "checkpoints" / "best.ckpt")["store"]["steps"] > refused[0]
