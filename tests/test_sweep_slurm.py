"""Sweeps on Slurm, by stand-ins for its commands that run submitit's batch script here. Needs the extra `sweep`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import slurm
from runs import LINUX, QUICK, kill_all, processes, wait_until

pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="Slurm: pip install 'a3c-exp[sweep]'")
SLURM = ["-m", "hydra/launcher=submitit_slurm", "sweep=sweep"]
LONG = [*QUICK, "total_steps=100000", "stop.mean_return=null", *SLURM, "seed=0"]
SECONDS = 300


@pytest.fixture
def sweep(tmp_path: Path) -> Iterator[Sweeps]:
    sweeps = Sweeps(tmp_path)
    yield sweeps
    sweeps.kill()


class Sweeps:
    """Sweeps of a test, and the stand-in for Slurm that they use."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._slurm = folder / "slurm"
        self._mark = f"{folder.name}-slurm"
        self._environment = {**os.environ, **slurm.install(self._slurm), "A3C_EXP_TEST": self._mark}

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "a3c_exp", *words]
        return subprocess.Popen(
            command, cwd=self._folder, env=self._environment, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    def signal_step(self, numbers: Sequence[int]) -> None:
        """Send signals to the step of the only job, as Slurm does, once its run trains."""
        points = self._folder / "sweep" / "0_s0" / "metrics.jsonl"
        wait_until(lambda: points.exists() and points.read_text(), SECONDS)
        for number in numbers:
            os.kill(int((self._slurm / "70.pid").read_text()), number)

    def summaries(self) -> dict[str, dict[str, Any]]:
        paths = (self._folder / "sweep").glob("*/summary.json")
        return {path.parent.name: json.loads(path.read_text()) for path in paths}

    def finish(self, program: subprocess.Popen[str], code: int) -> str:
        """The lines that a sweep prints until its end; its jobs have ended as well then."""
        _, err = program.communicate(timeout=SECONDS)
        assert program.returncode == code, err
        assert "Traceback" not in err
        wait_until(lambda: not processes(self._mark))
        return err

    def kill(self) -> None:
        kill_all(self._mark)


@LINUX
@pytest.mark.slow
def test_each_run_is_a_job_of_slurm(sweep: Sweeps) -> None:
    sweep.finish(sweep.start(*QUICK, *SLURM, "seed=0,1"), 0)
    found = sweep.summaries()
    assert {name: each["stop_reason"] for name, each in found.items()} == {
        "0_s0": "total_steps",
        "1_s1": "total_steps",
    }
    assert [found[f"{seed}_s{seed}"]["overrides"] for seed in (0, 1)] == [[*QUICK, f"seed={seed}"] for seed in (0, 1)]


@LINUX
@pytest.mark.slow
@pytest.mark.parametrize("signals", [[signal.SIGUSR2], [signal.SIGTERM, signal.SIGUSR2]], ids=["usr2", "term-usr2"])
def test_a_preempted_job_is_queued_again_and_its_run_goes_on(signals: list[int], sweep: Sweeps) -> None:
    """submitit has the job queued again by `scontrol requeue`. Slurm may send SIGTERM before its signal."""
    program = sweep.start(*LONG)
    sweep.signal_step(signals)
    sweep.finish(program, 0)
    run = sweep.summaries()["0_s0"]
    assert (run["stop_reason"], run["resumed"]) == ("total_steps", 1)


@LINUX
@pytest.mark.slow
def test_a_job_at_its_time_limit_is_saved_and_the_same_command_goes_on(sweep: Sweeps) -> None:
    """submitit takes a job of five minutes for one at its limit, and has it queued again `max_num_timeout` times: 0."""
    words = [*LONG, "hydra.launcher.timeout_min=5"]
    program = sweep.start(*words)
    sweep.signal_step([signal.SIGUSR2])
    _, err = program.communicate(timeout=SECONDS)
    assert program.returncode == 1, "it is submitit's error"
    assert "timed-out too many times" in err
    assert sweep.summaries()["0_s0"]["stop_reason"] == "interrupted"
    sweep.finish(sweep.start(*words), 0)
    assert sweep.summaries()["0_s0"]["resumed"] == 1
