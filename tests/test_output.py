"""The files of a run while it goes on: a slow disk holds up the curves and nothing else."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs import config, train_config

from a3c_exp.core.events import Episodes
from a3c_exp.run.files import Appender
from a3c_exp.run.output import RunOutput
from a3c_exp.run.statistics import TrainingClock


class StuckDisk:
    """Every write of the curves and of episodes.csv waits until the disk is released, at most a minute."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free, flush = threading.Event(), Appender.flush
        self.free.set()

        def wait_and_flush(appender: Appender) -> None:
            assert self.free.wait(60)
            flush(appender)

        monkeypatch.setattr(Appender, "flush", wait_and_flush)


def steps_in(folder: Path, name: str) -> list[int]:
    with open(folder / name, newline="", encoding="utf-8") as file:
        return [int(row["step"]) for row in csv.DictReader(file)]


def one_episode(step: int) -> Episodes:
    return Episodes(np.array([1.0]), np.array([4]), np.array([step]), 1)


def test_curves_and_episodes_wait_for_the_disk_and_their_caller_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = StuckDisk(monkeypatch)
    output = RunOutput(tmp_path, {}, None, episode_rows=10)
    assert not output.busy
    disk.free.clear()
    for step in (1, 2, 3):
        output.add_episodes(0, one_episode(step), seconds=step)
        output.log(step, {"rollout/ep_rew_mean": float(step)}, seconds=step)
    assert output.busy
    assert (tmp_path / "metrics.jsonl").read_bytes() == b""
    disk.free.set()
    output.close_curves(success=True)
    assert steps_in(tmp_path, "metrics.csv") == [1, 2, 3]
    assert steps_in(tmp_path, "episodes.csv") == [1, 2, 3]
    assert not output.unwritten


def test_a_run_trains_to_its_end_while_the_disk_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One point of the curves waits at a time; the others' data adds up. The disk is released when training ends."""
    disk, stop = StuckDisk(monkeypatch), TrainingClock.stop
    points: list[int] = []
    log = RunOutput.log

    def log_and_hang(output: RunOutput, step: int, *others: Any) -> None:
        points.append(step)
        disk.free.clear()
        log(output, step, *others)

    def stop_and_release(clock: TrainingClock) -> None:
        stop(clock)
        monkeypatch.setattr(RunOutput, "log", log)
        disk.free.set()

    monkeypatch.setattr(RunOutput, "log", log_and_hang)
    monkeypatch.setattr(TrainingClock, "stop", stop_and_release)
    monkeypatch.setattr("a3c_exp.run.trainer.LOG_SECONDS", 0.0)
    done = train_config(config(total_steps=2000, env__kwargs={"length": 3}), tmp_path)
    assert done.summary["stop_reason"] == "total_steps"
    assert len(points) == 1
    assert steps_in(tmp_path, "metrics.csv") == [points[0], done.summary["steps"]]
    assert len(steps_in(tmp_path, "episodes.csv")) == done.summary["episodes"]


def test_an_error_that_is_no_full_disk_reaches_the_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = RunOutput(tmp_path, {}, None)
    monkeypatch.setattr(output._writer, "log", lambda *_: 1 / 0)
    output.log(1, {"a": 1.0}, 1.0)
    with pytest.raises(ZeroDivisionError):
        output.close_curves(success=True)


def test_no_thread_stays_when_the_files_are_closed(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    output = RunOutput(tmp_path, {}, None)
    output.log(1, {"a": 1.0}, 1.0)
    assert set(threading.enumerate()) - before
    output.close_curves(success=True)
    assert not set(threading.enumerate()) - before


IN_A_THREAD = """
import sys, threading
import torch  # before the main thread is through: it cannot be imported afterwards
import a3c_exp
overrides = ["env=cartpole", "backend=serial", "total_steps=4000", "eval.every=null"]
threading.Thread(target=a3c_exp.train, args=(overrides,), kwargs={"folder": sys.argv[1]}).start()
"""


def test_a_run_in_a_thread_outlives_the_main_one(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    subprocess.run([sys.executable, "-c", IN_A_THREAD, folder], check=True, capture_output=True, timeout=120)
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["stop_reason"], summary["error"]) == ("total_steps", None)
    assert steps_in(folder, "metrics.csv")[-1] == summary["steps"]
