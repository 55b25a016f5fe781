"""The thread that saves, stops and replaces waits for nothing without bound: each kind is made to
block here."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
from backend_runs import worker_processes
from runs import LINUX, latest, train, wait_until

import a3c_exp
from a3c_exp.backends.messages import GRACE_SECONDS
from a3c_exp.run.session import Run

pytestmark = LINUX
LATE = 5.0
"""Seconds after which a run that has been asked to end, or to save, is late."""


def state(pid: int | None) -> str:
    """A process's state as Linux names it ("T" stopped, "Z" ended), "" where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # before it is opened, and before it is read
        return ""


@contextmanager
def meanwhile(action: Callable[[], object]) -> Iterator[None]:
    """Do something in another thread, which must end without an error."""
    errors: list[BaseException] = []

    def work() -> None:
        try:
            action()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    yield
    thread.join(60)
    assert not errors, errors


STOPPING = {"_target_": "faulty.StoppingSGD", "learning_rate": 1e-3}
STOPPED: dict[str, dict[str, Any]] = {
    "while it holds the lock": {"optimizer": STOPPING, "lock": True, "stop__max_seconds": 2.0},
    "in a round": {"optimizer": STOPPING, "update": "sync"},
    "in a message": {
        "env": "faulty:Faulty-v0",
        "env__kwargs": {"fault": "half a message"},
        "stop__max_seconds": 2.0,
    },
}


@pytest.mark.parametrize("settings", STOPPED.values(), ids=STOPPED)
def test_a_stopped_worker(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint that is asked for comes, and the first Ctrl-C, or the rule of a stop, ends the
    run."""
    monkeypatch.setattr("a3c_exp.run.open_run.PATIENCE_SECONDS", 0.5)
    limited = "stop__max_seconds" in settings
    file = tmp_path / "checkpoints" / "latest.ckpt"
    ask_times: list[float] = []

    def ask() -> None:
        wait_until(lambda: any(state(child.pid) == "T" for child in worker_processes()))
        os.kill(os.getpid(), signal.SIGUSR1)
        wait_until(file.exists, LATE)
        ask_times.append(time.monotonic())
        if not limited:
            os.kill(os.getpid(), signal.SIGINT)

    common: dict[str, Any] = {"workers": 2, "total_steps": 10**9, "plugins": ["scripted", "faulty"]}
    with meanwhile(ask):
        done = train(
            tmp_path, backend="processes", backend__stall_seconds=None, **common | settings
        )
    assert time.monotonic() - ask_times[0] < 2 * LATE
    assert done.summary["stop_reason"] == ("max_seconds" if limited else "interrupted")
    assert done.summary["training_seconds"] < 2 + LATE
    updates = latest(tmp_path)["store"]["version"]
    assert updates == done.summary["updates"]
    assert updates == 19 if "optimizer" in settings else updates > 0


def test_a_worker_that_is_slow_to_die_takes_no_other_with_it(tmp_path: Path) -> None:
    """Its death is heard of late, as that of a process with much memory. Only it is replaced."""

    def kill_one() -> None:
        wait_until((tmp_path / "checkpoints" / "latest.ckpt").exists)
        server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
        os.kill(server, signal.SIGSTOP)
        victim = worker_processes()[0].pid
        assert victim is not None
        os.kill(victim, signal.SIGKILL)
        time.sleep(4.5 * GRACE_SECONDS)
        os.kill(server, signal.SIGCONT)

    settings: dict[str, Any] = {"workers": 2, "total_steps": 10**9, "checkpoint__every": 400}
    settings |= {"backend": "processes", "backend__max_restarts": 3}
    with meanwhile(kill_one):
        done = train(tmp_path, **settings, stop__max_seconds=6 * GRACE_SECONDS)
    assert (done.summary["stop_reason"], done.summary["restarts"]) == ("max_seconds", 1)


def alive(folder: Path) -> set[int]:
    """The ids of the processes that simulators have started."""
    pids = {int(pid) for note in folder.glob("*.pids") for pid in note.read_text().split()[1:]}
    return {pid for pid in pids if state(pid) not in ("", "Z")}


class TestSimulators:
    """Environments that start programs and processes, and that belong to one thread."""

    def trained(self, folder: Path, backend: str, **settings: Any) -> Run:
        (folder / "notes").mkdir()
        kwargs = {"folder": str(folder / "notes"), **settings.pop("kwargs", {})}
        defaults = {"plugins": ["faulty"], "workers": 2, "envs_per_worker": 2, "total_steps": 160}
        return train(
            folder / "run",
            "faulty:Simulator-v0",
            backend,
            env__kwargs=kwargs,
            **defaults | settings,
        )

    @pytest.mark.parametrize("backend", ["serial", "threads", "processes"])
    def test_are_made_stepped_and_closed_in_one_thread(self, backend: str, tmp_path: Path) -> None:
        done = self.trained(tmp_path, backend, eval__every=80, eval__episodes=2)
        assert (done.summary["stop_reason"], done.exit_code) == ("total_steps", 0)
        log = (tmp_path / "run" / "train.log").read_text().lower()
        assert not [
            line for line in log.splitlines() if "warning" in line and "use of fork()" not in line
        ]
        notes = tmp_path / "notes"
        assert len([*notes.glob("*.pids")]) >= 4
        wait_until(lambda: len([*notes.glob("*.closed")]) == len([*notes.glob("*.pids")]))
        assert not alive(notes)

    def test_end_with_a_worker_that_is_killed(self, tmp_path: Path) -> None:
        notes = tmp_path / "notes"

        def kill() -> None:
            wait_until(
                lambda: (
                    len(alive(notes)) == 8
                    and (tmp_path / "run" / "checkpoints" / "latest.ckpt").exists()
                )
            )
            victim = worker_processes()[0].pid
            assert victim is not None
            victim_programs = {
                int(pid)
                for note in notes.glob(f"{victim}-*")
                for pid in note.read_text().split()[1:]
            }
            assert victim_programs < alive(notes) and len(victim_programs) == 4
            os.kill(victim, signal.SIGKILL)
            wait_until(lambda: not victim_programs & alive(notes), LATE)

        settings: dict[str, Any] = {
            "total_steps": 10**9,
            "checkpoint__every": 200,
            "stop__max_seconds": 3.0,
        }
        with meanwhile(kill):
            done = self.trained(tmp_path, "processes", backend__max_restarts=3, **settings)
        assert (done.summary["stop_reason"], done.summary["restarts"]) == ("max_seconds", 1)

    def test_may_take_long_to_be_made_each(self, tmp_path: Path) -> None:
        """The limit holds for one of several."""
        done = self.trained(
            tmp_path,
            "processes",
            kwargs={"seconds": 0.5},
            envs_per_worker=4,
            backend__stall_seconds=1.3,
        )
        assert (done.summary["stop_reason"], done.summary["restarts"]) == ("total_steps", 0)


BLOCKING = re.compile(
    r"\b(?:\w+\.|\w+\[\w+\]\.)*((?:\w*thread|process|impatient)\.(?:join|start)|_ray\.(?:get|put|kill|cluster_resources)"
    r"|subprocess\.run|fcntl\.\w+|os\.(?:fsync|read|write)|time\.sleep|\w+\.result|\w+\.acquire|\w*poll\.poll|wait)\("
)


def test_every_call_that_may_block_is_in_the_table_of_the_design() -> None:
    package = Path(a3c_exp.__file__).parent
    table = (
        (package.parent / "docs" / "design.md")
        .read_text()
        .partition("### What the main thread waits for")[2]
    )
    rows = [
        re.findall(r"`([^`]+)`", row)
        for row in table.partition("\n### ")[0].splitlines()
        if row.startswith("| `")
    ]
    for folder in ("run", "backends"):
        for file in sorted((package / folder).rglob("*.py")):
            name = str(file.relative_to(package))
            listed = {call for row in rows if name in row for call in row}
            blocking = {match[1] for match in BLOCKING.finditer(file.read_text())}
            assert blocking <= listed, f"{name}: {blocking - listed}"
