"""Backends: the same arithmetic on each of them, and nothing left behind."""

from __future__ import annotations

import errno
import gc
import os
import resource
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from multiprocessing import Pipe
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from backend_runs import SETTINGS, assert_as_serial, nobody_works, running, totals, worker_processes
from refusals import refused
from runs import BACKENDS, LINUX, config, drain, make_store, processes, same, wait_until

from a3c_exp.backends import messages
from a3c_exp.backends.messages import Inbox, WorkerExit, send_events
from a3c_exp.backends.processes.resources import shared_block
from a3c_exp.config.builder import load_experiment
from a3c_exp.core.events import Event, YieldPoint
from a3c_exp.errors import RunError

# Settings whose parts reach another process, or another turn of a worker, in ways of their own.
CASES = [("threads", "rmsprop, locked"), ("threads", "ppo, synchronous"), ("threads", "sarsa")]
CASES += [("threads", name) for name in ("a memory", "dqn", "acer")]
CASES += [
    ("processes", name)
    for name in (
        "continuous actions, normalized",
        "beta, centered rewards",
        "ppo, synchronous",
        "sarsa",
        "a loss with a module",
        "an optimizer of torch, locked",
        "a memory",
        "dqn",
        "acer",
    )
]


class TestOneWorkerIsTheSameEverywhere:
    @pytest.mark.parametrize(("backend", "name"), CASES)
    def test_parameters_optimizer_state_and_counters_bit_for_bit(
        self, backend: str, name: str
    ) -> None:
        _, state, error = drain(config(backend=backend, **SETTINGS[name]))
        assert error is None
        assert_as_serial(state, name)


class TestSerialIsDeterministic:
    def test_the_same_seed_gives_the_same_run_twice_and_another_seed_another_one(self) -> None:
        runs = [drain(config(workers=3, total_steps=800)) for _ in range(2)]
        assert same(runs[0][1], runs[1][1])
        assert [totals([event]) for event in runs[0][0]] == [
            totals([event]) for event in runs[1][0]
        ]
        other = drain(config(workers=3, total_steps=800, seed=1))[1]
        assert not same(runs[0][1]["parameters"], other["parameters"])

    def test_workers_overtake_one_another(self) -> None:
        """Asynchrony itself is reproduced: while one worker makes a gradient, each of the others
        pushes about one."""
        events, _, _ = drain(config(workers=4, total_steps=16 * 200))
        staleness = [value for event in events for value in event.staleness.elements()]
        assert np.mean(staleness) == pytest.approx(3, abs=0.5)
        assert max(staleness) > 4

    def test_rounds_of_a_quorum_are_those_of_the_seed(self) -> None:
        settings: dict[str, Any] = {
            "workers": 4,
            "update": "sync",
            "quorum": 2,
            "total_steps": 16 * 40,
        }
        settings |= SETTINGS["ppo"]
        (events, state, error), (_, again, _) = (drain(config(**settings)) for _ in range(2))
        assert error is None and same(state, again)
        assert not same(
            state["parameters"], drain(config(**settings | {"seed": 1}))[1]["parameters"]
        )
        number = sum(event.counts.get("late_gradients", 0) for event in events)
        assert 0 < number < len(events) / 2, "none is slow, but two are the first"
        assert sum((event.staleness for event in events), Counter()) == {0: len(events) - number}
        assert state["version"] == sum(event.updates for event in events)
        assert state["steps"] == sum(event.steps for event in events)


@pytest.mark.parametrize("backend", BACKENDS)
class TestSeveralWorkers:
    def test_every_update_step_and_episode_is_counted_once(self, backend: str) -> None:
        events, state, error = drain(config(backend=backend, workers=3, total_steps=3200))
        updates, steps, measured, returns = totals(events)
        assert error is None
        assert {event.worker for event in events} <= {0, 1, 2}, (
            "a worker that starts late finds nothing left to do"
        )
        assert updates == measured == state["version"] == steps / 16
        assert steps == state["steps"] == len(returns) >= 3200, (
            "an episode of this bandit is one step"
        )
        assert steps < 3200 + 3 * 16, "no worker starts a rollout once the run has its steps"

    def test_synchronous_updates_wait_for_all_workers(self, backend: str) -> None:
        events, state, error = drain(
            config(backend=backend, workers=3, update="sync", total_steps=16 * 3 * 20)
        )
        updates, steps, measured, _ = totals(events)
        assert error is None
        assert {value for event in events for value in event.staleness} == {0}
        assert updates == state["version"]
        # Every step is one round of three gradients. In the last one some workers may have left.
        assert updates - 1 <= steps / (16 * 3) <= updates
        assert measured == steps / 16

    def test_they_are_ended(self, backend: str) -> None:
        for stopped in (True, False):
            with running(config(backend=backend, workers=2, total_steps=10**9)) as (events, store):
                next(events)
                if stopped:
                    store.stop()
                    assert sum(event is not None for event in events) < 1000
                events.close()
                wait_until(nobody_works)


class TestProcesses:
    """Properties that only worker processes have."""

    @LINUX
    def test_a_worker_has_no_more_threads_than_it_needs(self) -> None:
        """With as many BLAS threads as there are cores in each, more workers would be slower."""
        with running(config(backend="processes", workers=2, total_steps=10**9)) as (events, _):
            workers: set[int] = set()
            while len(workers) < 2:
                event = next(events)
                workers |= set() if event is None else {event.worker}
            for child in worker_processes():
                threads = len(list(Path(f"/proc/{child.pid}/task").iterdir()))
                assert threads == 2, "the worker, and the one that watches for its parent"

    def test_memory_that_is_not_to_be_had_is_one_line(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is reserved beforehand: whoever writes to memory that is not there is killed by
        SIGBUS."""
        full = OSError(errno.ENOSPC, "No space left on device")
        monkeypatch.setattr(os, "posix_fallocate", Mock(side_effect=full))
        with pytest.raises(RunError, match=r"^[^\n]*bytes of memory[^\n]*No space left[^\n]*$"):
            make_store(load_experiment(config(backend="processes")))
        with pytest.raises(RunError, match="40 bytes"):
            shared_block(4, 10)

    @LINUX
    def test_a_store_that_is_gone_has_closed_its_files(self) -> None:
        """A program may train thousands of times, with 1,024 files at most."""
        files = Path("/proc/self/fd")
        experiment = load_experiment(config(backend="processes"))
        gc.collect()  # what earlier tests have left
        before = len(list(files.iterdir()))
        store = make_store(experiment)
        assert len(list(files.iterdir())) > before
        del store
        gc.collect()
        assert len(list(files.iterdir())) == before

    def test_a_script_without_a_main_guard_runs_once(self, tmp_path: Path) -> None:
        """Without precautions children of multiprocessing import the program that started them.

        It may choose its start method later, and train in the processes of a pool, which are
        daemons. Its own classes cannot be a part of what they train.
        """
        script = tmp_path / "script.py"
        script.write_text(
            "import multiprocessing, a3c_exp\n"
            "from torch import nn\n"
            "print('imported', flush=True)\n"
            "words = ['env=gym', 'env.id=scripted:Bandit-v0', 'workers=2', "
            "'total_steps=1000', 'eval.every=null']\n"
            "def train(folder, *others):\n"
            "    return a3c_exp.train([*words, *others], folder).summary['stop_reason']\n"
            "print(train('one', 'plugins=[scripted]'))\n"
            "class Own(nn.Linear):\n"
            "    def __init__(self, inputs: int) -> None:\n"
            "        super().__init__(inputs, 8)\n"
            "try:\n"
            "    train('own', 'plugins=[scripted,__main__]', 'network={_target_: __main__.Own}')\n"
            "except a3c_exp.ConfigError as error:\n"
            "    print(error)\n"
            "multiprocessing.set_start_method('fork')\n"
            "with multiprocessing.Pool(1) as pool:\n"
            "    print(pool.starmap(train, [('again', 'plugins=[scripted]')]))\n"
        )
        mark = f"A3C_EXP_TEST={tmp_path}"
        environment = os.environ | dict([mark.split("=", 1)])
        done = subprocess.run(
            [sys.executable, script], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.stdout.splitlines()[:2] == ["imported", "total_steps"], done.stderr
        line, pooled = done.stdout.splitlines()[2:]
        assert line.startswith("network = ") and "__main__" in line, "processes cannot import it"
        assert pooled == "['total_steps']"
        assert {path.name for path in tmp_path.iterdir()} == {"script.py", "one", "again"}
        wait_until(lambda: not processes(mark))


def test_thousands_of_updates_a_second_become_ten_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first event is passed on at once, also that of leaving, and the last ones although their
    worker fails."""

    def steps() -> Iterator[Event | YieldPoint]:
        for index in range(5):
            yield YieldPoint.BEFORE_PUSH
            yield Event(0, updates=1, steps=index, left="worker_episodes" if index == 2 else None)
        raise RunError("diverged")

    for seconds, expected in ((60.0, [1, 2, 2]), (0.0, [1] * 5)):
        monkeypatch.setattr(messages, "MERGE_SECONDS", seconds)
        reader, writer = Pipe(duplex=False)
        inbox = Inbox(reader)
        send_events("worker 0", writer, steps)
        *events, last = inbox.take()
        assert [event.updates for event in events if isinstance(event, Event)] == expected
        assert last == WorkerExit("diverged", final=True)


def test_a_temporary_folder_whose_path_is_too_long_for_a_socket_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/tmp/" + "x" * 66)
    load_experiment(config(backend="processes"))
    monkeypatch.setattr(tempfile, "tempdir", "/tmp/" + "x" * 67)
    load_experiment(config(backend="threads"))
    for backend in ("processes", "ga3c"):
        refused(lambda backend=backend: load_experiment(config(backend=backend)), "TMPDIR")  # type: ignore[misc]


def test_all_workers_files_may_be_open_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The soft limit is raised. A hard limit that is too low is reported before anything is
    started."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, before[1]))
    try:
        for backend, each in (("processes", 3), ("ga3c", 7)):
            load_experiment(config(backend=backend, workers=60))
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (64 + 60 * each, before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (200, 200))
    load_experiment(config(backend="processes", workers=45))
    refused(lambda: load_experiment(config(backend="processes", workers=46)), "workers", 46)
