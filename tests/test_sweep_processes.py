"""The processes of a sweep: signals, kills, two programs on one sweep, launchers of Hydra's, batch
systems."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest
from runs import LINUX, QUICK, kill_all, latest, processes, same, summary, wait_until

import a3c_exp.__main__ as program

pytestmark = LINUX
LONG = [*QUICK, "total_steps=100000000", "stop.mean_return=null", "checkpoint.every=1000"]
SECONDS = 300


class Sweeps:
    """Sweeps that a test starts in a folder, and whatever is left of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = f"{folder.name}-sweep"
        self.lines = folder / "lines"

    def start(self, *words: str, **variables: str) -> Popen[bytes]:
        command = [sys.executable, "-m", "a3c_exp", "sweep=sweep", *words]
        environment = {**os.environ, "A3C_EXP_TEST": self.mark, **variables}
        with self.lines.open("w") as lines:
            return Popen(
                command, cwd=self.folder, env=environment, stderr=lines, start_new_session=True
            )

    def end(self, started: Popen[bytes], code: int) -> str:
        """The lines that a program has printed. Its exit code must be `code`, and no process may be
        left."""
        assert started.wait(timeout=SECONDS) == code, self.lines.read_text()
        wait_until(lambda: not processes(self.mark), 60)
        return self.lines.read_text()

    def finish(self, *words: str) -> str:
        """Start a sweep and wait for its end, which must be a good one; its lines."""
        lines = self.end(self.start(*words), 0)
        assert "Traceback" not in lines
        return lines

    def summaries(self) -> dict[str, dict[str, Any]]:
        return {
            path.parent.name: json.loads(path.read_text())
            for path in self.folder.glob("sweep/*/summary.json")
        }

    def reasons(self) -> dict[str, str]:
        return {name: each["stop_reason"] for name, each in sorted(self.summaries().items())}

    def wait_for_checkpoints(self, *names: str) -> None:
        paths = [self.folder / "sweep" / name / "checkpoints" / "latest.ckpt" for name in names]
        wait_until(lambda: all(path.exists() for path in paths))

    def kill_run(self, name: str) -> None:
        """SIGKILL to the process of a run, once it trains."""
        folder = str(self.folder / "sweep" / name)

        def has_its_log_open(pid: int) -> bool:
            with suppress(OSError):
                files = [os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir()]
                return f"{folder}/train.log" in files
            return False

        [victim] = filter(has_its_log_open, processes(self.mark))
        os.kill(victim, signal.SIGKILL)


@pytest.fixture
def sweeps(tmp_path: Path) -> Iterator[Sweeps]:
    started = Sweeps(tmp_path)
    yield started
    kill_all(started.mark)


def test_kills_and_signals_leave_runs_with_which_the_same_command_goes_on(sweeps: Sweeps) -> None:
    command = [
        *QUICK,
        "stop.mean_return=null",
        "checkpoint.every=1000",
        "total_steps=100000000,20000",
        "jobs=2",
    ]
    long = "total_steps-100000000"
    short = "total_steps-20000"
    log = sweeps.folder / "sweep" / long / "train.log"

    def has_begun(times: int) -> bool:
        return log.exists() and log.read_text().count(" INFO folder: ") == times

    # A run that is killed is run again, and its neighbour goes on.
    started = sweeps.start(*command)
    wait_until(lambda: has_begun(1))
    sweeps.kill_run(long)
    wait_until(lambda: has_begun(2))
    wait_until(lambda: sweeps.reasons() == {short: "total_steps"})
    finished = sweeps.summaries()

    # A run ends with the program that has started it, which is killed alone.
    sweeps.wait_for_checkpoints(long)
    started.kill()
    err = sweeps.end(started, -signal.SIGKILL)
    assert (
        "total_steps=100000000: its process was killed by SIGKILL: it runs again at the end" in err
    )
    assert sweeps.reasons() == {long: "interrupted", short: "total_steps"}

    started = sweeps.start(*command)
    wait_until(lambda: has_begun(3))
    started.terminate()
    assert "1 of 2 runs have finished" in sweeps.end(started, 143)
    assert sweeps.reasons() == {long: "interrupted", short: "total_steps"}
    assert sweeps.summaries()[long]["resumed"] >= 1
    assert sweeps.summaries()[short] == finished[short]


def test_a_forked_run_is_that_of_a_command_of_its_own(sweeps: Sweeps, here: Path) -> None:
    sweeps.finish(*QUICK, "seed=3")
    assert program.main([*QUICK, "seed=3", "hydra.run.dir=alone"]) == 0
    forked = here / "sweep" / "seed-3"
    assert same(latest(forked)["store"], latest(here / "alone")["store"])
    assert "-m a3c_exp backend=serial" in summary(forked)["command"]
    assert "seed=3" in summary(forked)["overrides"]


def test_runs_and_workers_are_forked_from_one_server_and_outlive_it(sweeps: Sweeps) -> None:
    """A run whose server was killed is saved and ends, and is continued."""
    words = [*LONG[1:], "backend=processes", "workers=2", "jobs=2", "seed=0,1"]
    started = sweeps.start(*words)
    sweeps.wait_for_checkpoints("seed-0", "seed-1")
    parents = Counter(map(parent_of, processes(sweeps.mark)))
    [(server, children)] = parents.most_common(1)
    assert children == 6 and parent_of(server) == started.pid, "2 runs and 2 workers of each"
    assert len(os.listdir(f"/proc/{server}/task")) == 1, "a fork has no other threads"

    os.kill(server, signal.SIGKILL)
    runs = [sweeps.folder / "sweep" / name for name in ("seed-0", "seed-1")]
    logs = [run / "train.log" for run in runs]
    wait_until(lambda: all(log.read_text().count(" INFO folder: ") == 2 for log in logs))

    def times_of_saves() -> list[int]:
        return [(run / "checkpoints" / "latest.ckpt").stat().st_mtime_ns for run in runs]

    last = max(times_of_saves())
    wait_until(lambda: min(times_of_saves()) > last)
    started.terminate()
    sweeps.end(started, 143)
    assert sweeps.reasons() == {"seed-0": "interrupted", "seed-1": "interrupted"}
    assert all(run["resumed"] == 1 for run in sweeps.summaries().values())


def parent_of(pid: int) -> int:
    """Return the parent of a process; 0 if the process has just ended."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGUSR2, 75)], ids=["ctrl-c", "preempted"]
)
def test_a_signal_to_all_its_processes_ends_a_sweep_in_order(
    number: int, code: int, sweeps: Sweeps
) -> None:
    started = sweeps.start(*LONG, "jobs=2", "seed=0,1,2")
    sweeps.wait_for_checkpoints("seed-0", "seed-1")
    os.killpg(started.pid, number)
    assert "0 of 3 runs have finished" in sweeps.end(started, code)
    assert sweeps.reasons() == {"seed-0": "interrupted", "seed-1": "interrupted"}


@pytest.mark.slow
def test_a_second_signal_kills_and_leaves_nothing(sweeps: Sweeps) -> None:
    """The runs are in steps of an environment that never return: they cannot be saved."""
    env = ["plugins=[faulty]", "env=gym", "env.id=faulty:Faulty-v0"]
    env += ["env.kwargs={fault:hang,at:20,note:'in_step_${seed}'}"]
    started = sweeps.start(*QUICK, *env, "jobs=2", "seed=0,1,2")
    wait_until(lambda: len(list(sweeps.folder.glob("in_step_*"))) == 2, 60)
    os.killpg(started.pid, signal.SIGINT)
    time.sleep(1.0)
    assert started.poll() is None, "the runs are waited for"
    os.kill(started.pid, signal.SIGINT)
    assert "0 of 3 runs have finished" in sweeps.end(started, 130)
    assert not (sweeps.folder / "sweep" / "seed-2").exists()


@pytest.mark.slow
def test_two_programs_on_one_sweep_make_each_run_once(sweeps: Sweeps) -> None:
    for started in [sweeps.start(*QUICK, "seed=0,1") for _ in range(2)]:
        sweeps.end(started, 0)
    assert sweeps.reasons() == {"seed-0": "total_steps", "seed-1": "total_steps"}
    for run in sweeps.folder.glob("sweep/*"):
        assert (run / "train.log").read_text().count(" INFO finished") == 1


@pytest.mark.slow
def test_runs_at_once_on_ray_each_have_a_cluster_and_leave_nothing(sweeps: Sweeps) -> None:
    pytest.importorskip("ray", reason="clusters: pip install 'a3c-exp[ray]'")
    sweeps.finish("backend=ray", *QUICK[1:], "jobs=2", "seed=0,1")
    assert sweeps.reasons() == {"seed-0": "total_steps", "seed-1": "total_steps"}


# Hydra's launchers.


@pytest.mark.parametrize(
    ("launcher", "backend"),
    [("submitit_local", "serial"), pytest.param("joblib", "processes", marks=pytest.mark.slow)],
)
def test_a_launcher_runs_jobs_and_goes_on_with_those_that_were_cut(
    launcher: str, backend: str, sweeps: Sweeps, here: Path
) -> None:
    package = {"submitit_local": "submitit"}.get(launcher, launcher)
    pytest.importorskip(
        f"hydra_plugins.hydra_{package}_launcher", reason="launchers: pip install 'a3c-exp[sweep]'"
    )
    words = [f"backend={backend}", *QUICK[1:]]
    assert program.main([*words, "seed=1", "hydra.run.dir=sweep/cut"]) == 0
    (here / "sweep" / "cut" / "summary.json").unlink()
    lines = sweeps.finish(*words, "-m", f"hydra/launcher={launcher}", "seed=0,1").splitlines()
    assert any(line.startswith("2 runs, by Hydra's ") and "in sweep" in line for line in lines)
    assert "2 of 2 runs have finished, in sweep" in lines
    assert "a3c_exp.report sweep" in lines[-3]
    assert sweeps.reasons() == {"seed-0": "total_steps", "cut": "total_steps"}, (
        "found by its configuration"
    )
    assert sweeps.summaries()["cut"]["resumed"] == 1


@pytest.mark.slow
def test_a_launchers_sweep_without_a_name_has_one_folder(here: Path) -> None:
    """Its name is the time, which Hydra would look at once more."""
    pytest.importorskip(
        "hydra_plugins.hydra_submitit_launcher", reason="launchers: pip install 'a3c-exp[sweep]'"
    )
    assert program.main([*QUICK, "-m", "hydra/launcher=submitit_local", "seed=0,1"]) == 0
    [folder] = (here / "outputs").iterdir()
    assert {path.name for path in folder.glob("seed-*")} == {"seed-0", "seed-1"}


@pytest.mark.slow
def test_a_run_of_a_launcher_that_fails_is_said_with_exit_code_1(sweeps: Sweeps) -> None:
    pytest.importorskip(
        "hydra_plugins.hydra_submitit_launcher", reason="launchers: pip install 'a3c-exp[sweep]'"
    )
    trigger = sweeps.folder / "trigger"
    trigger.touch()
    failing = ["plugins=[faulty]", f"algorithm={{_target_:faulty.FailingA3C,trigger:'{trigger}'}}"]
    launched = ["-m", "hydra/launcher=submitit_local", "seed=0"]
    err = sweeps.end(sweeps.start("backend=threads", *QUICK[1:], *failing, *launched), 1)
    assert "a3c_exp: " in err
    assert "sweep/seed-0" in err.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "signals", [[signal.SIGUSR2], [signal.SIGTERM, signal.SIGUSR2]], ids=["usr2", "term-usr2"]
)
def test_a_preempted_job_of_slurm_is_queued_again_and_its_run_goes_on(
    signals: list[int], sweeps: Sweeps
) -> None:
    """submitit has the job queued again by `scontrol requeue`. Slurm may send SIGTERM before its
    signal."""
    pytest.importorskip(
        "hydra_plugins.hydra_submitit_launcher", reason="Slurm: pip install 'a3c-exp[sweep]'"
    )
    variables = install_slurm(sweeps.folder / "slurm")
    words = [*QUICK, "total_steps=50000", "stop.mean_return=null", "seed=0"]
    started = sweeps.start(*words, "-m", "hydra/launcher=submitit_slurm", **variables)
    points = sweeps.folder / "sweep" / "seed-0" / "metrics.csv"
    wait_until(lambda: points.exists() and points.read_text().count("\n") > 1, SECONDS)
    for number in signals:
        os.kill(int((sweeps.folder / "slurm" / "pid").read_text()), number)
    assert "Traceback" not in sweeps.end(started, 0)
    run = sweeps.summaries()["seed-0"]
    assert (run["stop_reason"], run["resumed"]) == ("total_steps", 1)


# Stand-ins for Slurm: they run the batch script that submitit writes for a job, on this machine, at
# once.


SBATCH = """
batch=$(realpath "$1")
run() {
    restarts=0
    while true; do
        echo RUNNING > "$STAND_IN/state"
        SLURM_RESTART_COUNT=$restarts bash "$batch"
        code=$?
        [ -e "$STAND_IN/requeue" ] || break
        rm "$STAND_IN/requeue"
        restarts=$((restarts + 1))
    done
    if [ $code = 0 ]; then echo COMPLETED; else echo FAILED; fi > "$STAND_IN/state"
}
export SLURM_JOB_ID=70 SLURM_JOB_NUM_NODES=1 SLURM_NTASKS=1 SLURM_JOB_NODELIST=$(hostname)
run < /dev/null > /dev/null 2>&1 &
echo "Submitted batch job 70"
"""
SRUN = """
while [ "${1#--}" != "$1" ]; do
    path=$(echo "$2" | sed "s/%j/$SLURM_JOB_ID/; s/%t/0/")
    case $1 in
        --output) out=$path; shift 2 ;;
        --error) err=$path; shift 2 ;;
        --unbuffered) shift ;;
        *) echo "srun: unknown option $1" >&2; exit 2 ;;
    esac
done
echo $$ > "$STAND_IN/pid"
export SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0
exec "$@" >> "$out" 2>> "$err"
"""
SACCT = """
echo "JobID|State|NodeList"
echo "70|$(cat "$STAND_IN/state")|$(hostname)"
"""
# Slurm ends the steps of a job that it requeues by SIGTERM.
SCONTROL = """
[ "$1" = requeue ] || exit 2
touch "$STAND_IN/requeue"
kill -s TERM "$(cat "$STAND_IN/pid")"
"""


def install_slurm(folder: Path) -> dict[str, str]:
    """Write the commands to a folder. Returns the environment variables by which programs find
    them."""
    folder.mkdir()
    for name, script in {
        "sbatch": SBATCH,
        "srun": SRUN,
        "sacct": SACCT,
        "scontrol": SCONTROL,
    }.items():
        (folder / name).write_text(f"#!/bin/bash{script}")
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "STAND_IN": str(folder)}
