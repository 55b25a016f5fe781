"""The processes of a sweep: signals, kills, two programs on one sweep, launchers of Hydra's."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from runs import LINUX, QUICK, kill_all, processes, wait_until

pytestmark = LINUX
LONG = [*QUICK, "total_steps=100000000", "stop.mean_return=null", "checkpoint.every=1000"]


class Sweeps:
    """Sweeps that a test starts in a folder, and whatever is left of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = f"{folder.name}-sweep"

    def start(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "a3c_exp", "sweep=sweep", *words]
        environment = {**os.environ, "A3C_EXP_TEST": self.mark, **variables}
        return subprocess.Popen(
            command, cwd=self.folder, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    def finish(self, program: subprocess.Popen[str], code: int) -> str:
        """The lines that a program prints. Its exit code must be `code`, and no process may be left."""
        _, err = program.communicate(timeout=120)
        assert program.returncode == code, err
        assert "Traceback" not in err
        wait_until(lambda: not processes(self.mark), 60)
        return err

    def summaries(self) -> dict[str, dict[str, Any]]:
        return {path.parent.name: json.loads(path.read_text()) for path in self.folder.glob("sweep/*/summary.json")}

    def reasons(self) -> dict[str, str]:
        return {name: each["stop_reason"] for name, each in sorted(self.summaries().items())}

    def wait_for_checkpoints(self, *names: str) -> None:
        wait_until(lambda: all((self.folder / "sweep" / n / "checkpoints" / "latest.ckpt").exists() for n in names))


@pytest.fixture
def sweeps(tmp_path: Path) -> Iterator[Sweeps]:
    started = Sweeps(tmp_path)
    yield started
    kill_all(started.mark)


def children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize(
    ("number", "to_group", "code", "jobs"),
    [
        (signal.SIGTERM, False, 143, 1),
        pytest.param(signal.SIGINT, True, 130, 2, marks=pytest.mark.slow),
        pytest.param(signal.SIGUSR2, True, 75, 1, marks=pytest.mark.slow),
    ],
    ids=["term", "ctrl-c", "preempted"],
)
def test_a_signal_ends_the_runs_in_order_and_the_same_command_goes_on(
    number: int, to_group: bool, code: int, jobs: int, sweeps: Sweeps
) -> None:
    """It goes on with as many runs at once as it likes."""
    names = [f"seed-{seed}" for seed in range(jobs + 1)]
    seeds = f"seed=range({jobs + 1})"
    program = sweeps.start(*LONG, f"jobs={jobs}", seeds)
    sweeps.wait_for_checkpoints(*names[:jobs])
    (os.killpg if to_group else os.kill)(program.pid, number)
    err = sweeps.finish(program, code)
    assert f"0 of {jobs + 1} runs have finished" in err
    assert sweeps.reasons() == dict.fromkeys(names[:jobs], "interrupted")
    for config in sweeps.folder.glob("sweep/*/config.yaml"):  # so that the test ends
        config.write_text(config.read_text().replace("total_steps: 100000000", "total_steps: 64"))
    again = [word for word in LONG if not word.startswith("total_steps=100")]
    err = sweeps.finish(sweeps.start(*again, "jobs=2", seeds), 0)
    assert f"{jobs + 1} of {jobs + 1} runs have finished" in err
    assert [sweeps.summaries()[name]["resumed"] for name in names] == [1] * jobs + [0]
    assert set(sweeps.reasons().values()) == {"total_steps"}


def test_runs_end_with_the_program_that_started_them(sweeps: Sweeps) -> None:
    """It is killed alone: they are saved, and the same command goes on with them."""
    program = sweeps.start(*LONG, "seed=0,1")
    sweeps.wait_for_checkpoints("seed-0")
    program.kill()
    program.communicate(timeout=60)
    wait_until(lambda: not processes(sweeps.mark), 60)
    assert sweeps.reasons() == {"seed-0": "interrupted"}


@pytest.mark.slow
def test_a_second_signal_kills_and_leaves_nothing(sweeps: Sweeps, tmp_path: Path) -> None:
    """The runs are in steps of an environment that would take an hour: they cannot be saved."""
    (tmp_path / "endless.py").write_text(
        "import os, pathlib, time\n"
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "class Endless(CartPoleEnv):\n"
        "    steps = 0\n"
        "    def step(self, action):\n"
        "        self.steps += 1\n"
        "        if self.steps > 20:\n"
        "            pathlib.Path(f'in_step_{os.getpid()}').touch()\n"
        "            time.sleep(3600)\n"
        "        return super().step(action)\n"
        "gymnasium.register('Endless-v0', Endless)\n"
    )
    env = ["plugins=[endless]", "env=gym", "env.id=endless:Endless-v0"]
    program = sweeps.start(*QUICK, *env, "jobs=2", "seed=0,1,2", PYTHONUNBUFFERED="1")
    wait_until(lambda: len(list(tmp_path.glob("in_step_*"))) == 2, 60)
    os.killpg(program.pid, signal.SIGINT)
    time.sleep(1.0)
    assert program.poll() is None, "the runs are waited for"
    os.kill(program.pid, signal.SIGINT)
    err = sweeps.finish(program, 130)
    assert "a second signal kills" in err
    assert "0 of 3 runs have finished" in err
    assert not (tmp_path / "sweep" / "seed-2").exists()


def test_a_killed_run_is_run_again_and_leaves_the_others_alone(sweeps: Sweeps) -> None:
    """SIGKILL while it trains, again and again: the second time it has failed. Its neighbours go on."""
    program = sweeps.start(*LONG[:-1], "total_steps=20000", "checkpoint.every=1000", "seed=0,1", "jobs=2")
    log = sweeps.folder / "sweep" / "seed-0" / "train.log"
    for starts in (1, 2):
        wait_until(lambda: log.exists() and log.read_text().count("run folder") == starts)  # noqa: B023
        [victim] = [pid for pid in children(program.pid) if is_run(pid, "seed-0")]
        os.kill(victim, signal.SIGKILL)
    err = sweeps.finish(program, 1)
    assert "1 of 2: its process was killed by SIGKILL: it runs again at the end" in err
    assert "failed: sweep/seed-0: its process was killed by SIGKILL, twice" in err
    assert sweeps.reasons() == {"seed-1": "total_steps"}
    assert sweeps.summaries()["seed-1"]["resumed"] == 0


def is_run(pid: int, name: str) -> bool:
    try:
        return name in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False


@pytest.mark.slow
def test_two_programs_on_one_sweep_make_each_run_once(sweeps: Sweeps) -> None:
    programs = [sweeps.start(*QUICK, "seed=0,1") for _ in range(2)]
    for program in programs:
        sweeps.finish(program, 0)
    assert sweeps.reasons() == {"seed-0": "total_steps", "seed-1": "total_steps"}
    for run in sweeps.folder.glob("sweep/*"):
        assert (run / "train.log").read_text().count("stopped: ") == 1


@pytest.mark.slow
@pytest.mark.parametrize("alone", [False, True], ids=["whole", "parent"])
def test_a_sweep_that_is_killed_again_and_again_ends_complete(alone: bool, sweeps: Sweeps) -> None:
    """SIGKILL at five random moments, of all its processes or of the first alone. What has finished stays as it is."""
    words = [*QUICK, "total_steps=2000", "checkpoint.every=100", "jobs=2", "seed=range(6)"]
    draw = random.Random(0)
    finished: dict[Path, bytes] = {}
    for _ in range(5):
        program = sweeps.start(*words)
        time.sleep(draw.uniform(4.0, 12.0))
        if alone:
            program.kill()
        else:
            kill_all(sweeps.mark)
        program.communicate(timeout=60)
        wait_until(lambda: not processes(sweeps.mark), 60)
        assert {path: path.read_bytes() for path in finished} == finished
        for path in sweeps.folder.glob("sweep/*/summary.json"):
            if json.loads(path.read_text())["stop_reason"] == "total_steps":
                finished[path] = path.read_bytes()
    sweeps.finish(sweeps.start(*words), 0)
    assert sweeps.reasons() == {f"seed-{seed}": "total_steps" for seed in range(6)}
    assert {path: path.read_bytes() for path in finished} == finished


@pytest.mark.slow
def test_runs_at_once_on_ray_each_have_a_cluster_and_leave_nothing(sweeps: Sweeps) -> None:
    pytest.importorskip("ray", reason="clusters: pip install 'a3c-exp[ray]'")
    sweeps.finish(sweeps.start("backend=ray", *QUICK[1:], "jobs=2", "seed=0,1"), 0)
    assert sweeps.reasons() == {"seed-0": "total_steps", "seed-1": "total_steps"}


# Hydra's launchers.


@pytest.mark.parametrize(
    ("launcher", "backend"),
    [("submitit_local", "serial"), pytest.param("joblib", "processes", marks=pytest.mark.slow)],
)
def test_a_launcher_runs_jobs_and_the_same_command_goes_on(launcher: str, backend: str, sweeps: Sweeps) -> None:
    package = {"submitit_local": "submitit"}.get(launcher, launcher)
    pytest.importorskip(f"hydra_plugins.hydra_{package}_launcher", reason="launchers: pip install 'a3c-exp[sweep]'")
    words = [f"backend={backend}", *QUICK[1:], "-m", f"hydra/launcher={launcher}", "seed=1"]
    sweeps.finish(sweeps.start(*words), 0)
    assert sweeps.reasons() == {"0_s1": "total_steps"}
    (sweeps.folder / "sweep" / "0_s1" / "summary.json").unlink()
    sweeps.finish(sweeps.start(*words), 0)
    assert sweeps.summaries()["0_s1"]["resumed"] == 1


@pytest.mark.slow
def test_a_run_of_a_launcher_that_fails_is_said_with_exit_code_1(sweeps: Sweeps) -> None:
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="launchers: pip install 'a3c-exp[sweep]'")
    (sweeps.folder / "trigger").touch()
    trigger = sweeps.folder / "trigger"
    failing = ["plugins=[faulty]", f"algorithm={{_target_:faulty.FailingA3C,trigger:'{trigger}'}}"]
    program = sweeps.start("backend=threads", *QUICK[1:], *failing, "-m", "hydra/launcher=submitit_local", "seed=0")
    _, err = program.communicate(timeout=120)
    assert program.returncode == 1
    assert "a3c_exp: " in err
    assert "0_s0" in err.splitlines()[-1]
