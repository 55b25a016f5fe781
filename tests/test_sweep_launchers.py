"""Runs at once: joblib and submitit on this machine. Skipped without the extra `sweep`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from runs import LINUX, QUICK, processes, wait_until

joblib = pytest.importorskip("joblib", reason="runs at once: pip install 'a3c-exp[sweep]'")
pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
pytest.importorskip("hydra_plugins.hydra_submitit_launcher")


def start(folder: Path, mark: str, *words: str, **variables: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "a3c_exp", *words]
    environment = {**os.environ, "A3C_EXP_TEST": mark, **variables}
    return subprocess.Popen(
        command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def finish(program: subprocess.Popen[str], code: int) -> str:
    """The lines that a program has printed. Its exit code must be `code`."""
    _, err = program.communicate(timeout=120)
    assert program.returncode == code, err
    return err


def summaries(sweep: Path) -> dict[str, dict[str, Any]]:
    return {path.parent.name: json.loads(path.read_text()) for path in sweep.glob("*/summary.json")}


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for TMPDIR, with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(entry.name))
    return found


SIGNALS = pytest.mark.parametrize(
    ("number", "to_group", "code"),
    [(signal.SIGINT, True, 130), (signal.SIGTERM, False, 143)],
    ids=["ctrl-c", "term"],
)
LONG = ["backend=processes", "workers=auto", "total_steps=200000", "stop.mean_return=null", "eval.every=null"]


@LINUX
def test_runs_at_once_start_worker_processes_and_leave_none(tmp_path: Path) -> None:
    mark = f"{tmp_path.name}-sweep"
    quick = [word for word in QUICK if not word.startswith("backend=")]
    err = finish(start(tmp_path, mark, *quick, "backend=processes", "sweep=sweep", "jobs=2", "seed=0,1"), 0)
    assert "2 of 2 runs have finished" in err
    assert "Traceback" not in err
    assert {each["stop_reason"] for each in summaries(tmp_path / "sweep").values()} == {"total_steps"}
    wait_until(lambda: not processes(mark))


@LINUX
@pytest.mark.slow
@SIGNALS
def test_running_jobs_are_saved_and_the_same_command_goes_on(
    number: int, to_group: bool, code: int, tmp_path: Path
) -> None:
    mark = f"{tmp_path.name}-sweep"
    words = [*LONG, "sweep=sweep", "jobs=2", "seed=0,1,2"]
    program = start(tmp_path, mark, *words)
    logs = [tmp_path / "sweep" / f"seed-{seed}" / "train.log" for seed in (0, 1)]
    wait_until(lambda: all(log.exists() and "run folder" in log.read_text() for log in logs), 60)
    (os.killpg if to_group else os.kill)(program.pid, number)
    err = finish(program, code)
    assert "0 of 3 runs have finished" in err
    assert "Traceback" not in err
    assert {name: each["stop_reason"] for name, each in summaries(tmp_path / "sweep").items()} == {
        "seed-0": "interrupted",
        "seed-1": "interrupted",
    }
    wait_until(lambda: not processes(mark))
    err = finish(start(tmp_path, mark, *words), 0)
    assert "Traceback" not in err
    found = summaries(tmp_path / "sweep")
    assert {name: each["stop_reason"] for name, each in found.items()} == {
        f"seed-{seed}": "total_steps" for seed in range(3)
    }
    assert [found[f"seed-{seed}"]["resumed"] for seed in range(3)] == [1, 1, 0]
    assert found["seed-0"]["command"].endswith(" ".join(words))
    assert found["seed-2"]["overrides"] == [*LONG, "seed=2"]
    wait_until(lambda: not processes(mark))


@LINUX
@pytest.mark.slow
def test_jobs_end_with_the_program_that_started_them(tmp_path: Path) -> None:
    mark = f"{tmp_path.name}-killed"
    program = start(tmp_path, mark, *LONG, "total_steps=100000000", "sweep=sweep", "jobs=2", "seed=0,1")
    log = tmp_path / "sweep" / "seed-0" / "train.log"
    wait_until(lambda: log.exists() and "run folder" in log.read_text(), 60)
    program.kill()
    program.communicate(timeout=60)
    wait_until(lambda: not processes(mark), 60)
    assert summaries(tmp_path / "sweep")["seed-0"]["stop_reason"] == "interrupted"


@LINUX
@pytest.mark.slow
def test_a_job_that_is_killed_while_it_starts_is_run_again_and_leaves_no_temporary_folder(
    tmp_path: Path, temporary: Path
) -> None:
    mark = f"{tmp_path.name}-starting"
    words = [*LONG, "total_steps=2000", "sweep=sweep", "jobs=2", "seed=0,1"]
    program = start(tmp_path, mark, *words, TMPDIR=str(temporary))
    jobs = wait_until(lambda: [job for child in children(program.pid) for job in children(child)], 60)
    os.kill(jobs[0], signal.SIGKILL)
    err = finish(program, 0)
    assert "2 of 2 runs have finished" in err
    assert "Traceback" not in err
    wait_until(lambda: not processes(mark))
    wait_until(lambda: not list(temporary.iterdir()))


@LINUX
@pytest.mark.slow
@SIGNALS
def test_a_second_signal_kills_and_leaves_nothing(
    number: int, to_group: bool, code: int, tmp_path: Path, temporary: Path
) -> None:
    """The jobs are in steps of an environment that would take an hour: they cannot be saved."""
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
    mark, shared = f"{tmp_path.name}-second", set(os.listdir("/dev/shm"))
    env = ["plugins=[endless]", "env=gym", "env.id=endless:Endless-v0"]
    words = [*QUICK, *env, "sweep=sweep", "jobs=2", "seed=0,1,2"]
    program = start(tmp_path, mark, *words, TMPDIR=str(temporary))
    wait_until(lambda: len(list(tmp_path.glob("in_step_*"))) == 2, 60)
    send = os.killpg if to_group else os.kill
    send(program.pid, number)
    wait_until(lambda: list(tmp_path.glob("sweep/.jobs/*/stop")))
    assert program.poll() is None, "the jobs are waited for"
    send(program.pid, number)
    err = finish(program, code)
    assert "a second signal kills" in err
    assert "0 of 3 runs have finished" in err
    assert "Traceback" not in err
    wait_until(lambda: not processes(mark), 10)
    wait_until(lambda: not list(temporary.iterdir()), 10)
    assert not set(os.listdir("/dev/shm")) - shared
    assert not (tmp_path / "sweep" / "seed-2").exists()


@LINUX
@pytest.mark.slow
def test_a_job_whose_process_is_killed_does_not_end_the_others(tmp_path: Path) -> None:
    """An environment that kills its process: with the serial backend, that of the job."""
    env = ["plugins=[deadly]", "env=gym", "env.id=deadly:Deadly-v0", "env.kwargs.at=20,null"]
    (tmp_path / "deadly.py").write_text(
        "import os, signal\n"
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "class Deadly(CartPoleEnv):\n"
        "    def __init__(self, at=None, **kwargs):\n"
        "        super().__init__(**kwargs)\n"
        "        self.at, self.steps = at, 0\n"
        "    def step(self, action):\n"
        "        self.steps += 1\n"
        "        if self.steps == self.at and os.path.isdir('sweep/at-20_seed-0/checkpoints'):\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "        return super().step(action)\n"
        "gymnasium.register('Deadly-v0', Deadly)\n"
    )
    program = start(tmp_path, "", *QUICK, *env, "sweep=sweep", "jobs=2", "seed=0,1")
    err = finish(program, 1)
    assert "2 of 4 runs have finished" in err
    assert "its process or one beside it was killed; again, alone" in err
    assert err.count("failed: sweep/at-20_seed-") == 2
    assert sorted(summaries(tmp_path / "sweep")) == ["at-null_seed-0", "at-null_seed-1"]


@LINUX
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["processes", "serial"])
def test_runs_go_on_after_the_fork_server_that_they_share_has_died(
    backend: str, tmp_path: Path, temporary: Path
) -> None:
    """With `processes` the jobs notice it themselves, with any backend joblib does, and kills them."""
    mark, shared = f"{tmp_path.name}-server", set(os.listdir("/dev/shm"))
    words = [*LONG[1:], f"backend={backend}", "workers=1", "checkpoint.every=10000", "sweep=sweep", "jobs=2"]
    program = start(tmp_path, mark, *words, "seed=0,1", TMPDIR=str(temporary))
    saved = [tmp_path / "sweep" / f"seed-{seed}" / "checkpoints" / "latest.ckpt" for seed in (0, 1)]
    wait_until(lambda: all(path.exists() for path in saved), 60)
    (server,) = (pid for pid in children(program.pid) if children(pid))
    os.kill(server, signal.SIGKILL)
    err = finish(program, 0)
    assert err.count("its process or one beside it was killed; again, alone") == 2
    assert "2 of 2 runs have finished" in err
    assert "Traceback" not in err
    assert [(each["stop_reason"], each["resumed"]) for each in summaries(tmp_path / "sweep").values()] == [
        ("total_steps", 1),
        ("total_steps", 1),
    ]
    wait_until(lambda: not processes(mark))
    wait_until(lambda: not list(temporary.iterdir()))
    assert not set(os.listdir("/dev/shm")) - shared


@LINUX
@pytest.mark.slow
def test_runs_at_once_on_ray_each_have_a_cluster_and_leave_nothing(tmp_path: Path, temporary: Path) -> None:
    pytest.importorskip("ray", reason="clusters: pip install 'a3c-exp[ray]'")
    mark, shared = f"{tmp_path.name}-ray", set(os.listdir("/dev/shm"))
    quick = [word for word in QUICK if not word.startswith("backend=")]
    words = [*quick, "backend=ray", "sweep=sweep", "jobs=2", "seed=0,1"]
    err = finish(start(tmp_path, mark, *words, TMPDIR=str(temporary)), 0)
    assert "2 of 2 runs have finished" in err
    assert "Traceback" not in err
    assert [each["stop_reason"] for each in summaries(tmp_path / "sweep").values()] == ["total_steps"] * 2
    wait_until(lambda: not processes(mark), 60)
    wait_until(lambda: not list(temporary.iterdir()))
    assert not set(os.listdir("/dev/shm")) - shared


def test_submitit_runs_jobs_on_this_machine(tmp_path: Path) -> None:
    words = [*QUICK, "-m", "hydra/launcher=submitit_local", "sweep=sweep", "seed=0,1"]
    err = finish(start(tmp_path, "", *words), 0)
    assert "submitit_local: output of the jobs is in sweep/.submitit" in err
    assert "2 of 2 runs have finished" in err
    assert len(summaries(tmp_path / "sweep")) == 2


@pytest.mark.slow
def test_sweeps_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    sys.path.insert(0, str(Path(__file__).parent.parent))  # bench is not installed: it belongs to the checkout
    from bench import sweeps

    assert sweeps.main(["--pairs", "1", "--steps", "2000", "--runs", "4"]) == 0
    out = capsys.readouterr().out
    assert "ratio: " in out
    assert "steps/s alone" in out
    assert "processor time in use one after the other: " in out
    assert "first of 4 runs after " in out
