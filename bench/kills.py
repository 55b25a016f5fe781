"""`python -m bench.kills`: runs whose workers are killed (SIGKILL) at random moments, and what becomes of them.

    python -m bench.kills                    every row of RUNS, 20 runs each
    python -m bench.kills --only ga3c        one row
    python -m bench.kills --lunar            LunarLander to 200 over 5 seeds, one worker killed every 5 s
    python -m bench.kills --replacement      seconds from a worker's death to its replacement's first step

A run passes if it ends at its own stop rule, with a restart for each kill in time, a checkpoint of finite parameters,
and nothing left behind. Linux only: workers are found in /proc.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import a3c_exp
from a3c_exp.config.builder import load_experiment
from a3c_exp.core.experiment import RunContext, build_network, store_spec
from a3c_exp.run import checkpoint

_SHORT = (
    "env=cartpole", "workers=4", "envs_per_worker=8", "rollout_length=16", "eval.every=null", "stop.mean_return=null",
    "total_steps=2e5",
)  # fmt: skip
_GA3C = (*_SHORT, "backend=ga3c", "backend.device=cpu", "total_steps=1e5")
RUNS: dict[str, tuple[str, ...]] = {
    "async": _SHORT,
    "async_lock": (*_SHORT, "lock=true"),
    "sync": (*_SHORT, "update=sync"),
    "sync_lock": (*_SHORT, "update=sync", "lock=true"),
    "sync_quorum": (*_SHORT, "update=sync", "quorum=2"),
    "sync_quorum_next": (*_SHORT, "update=sync", "quorum=2", "late=next"),
    "ga3c": _GA3C,
    "ga3c_lock": (*_GA3C, "lock=true"),
}
LUNAR = ("env=lunar", "workers=4", "stop.mean_return=200", "total_steps=3e6")
LUNAR_KILL_SECONDS = 5.0
# A worker is killed soon after the first updates: each run has at least one kill.
FIRST_PAUSE = 0.1
# The default of backend.max_restarts, which no worker must exceed by chance.
MOST_KILLS = 3
_STARTED_SECONDS = 60.0
# The fork server ends a moment after the program.
_ENDED_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run that has ended. kills: workers that were killed. problems: what is not as it should be."""

    kills: int
    summary: dict[str, Any]
    problems: tuple[str, ...]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0, or 1 if a run did not end as it should."""
    flags = _parser().parse_args(arguments)
    if flags.replacement:
        seconds = [replacement_seconds() for _ in range(flags.runs)]
        print(
            f"death to first step: median {median(seconds):.2f} s, longest {max(seconds):.2f} s; {len(seconds)} times"
        )
        return 0
    failed = 0
    rows = {"lunar": LUNAR} if flags.lunar else {name: RUNS[name] for name in flags.only or RUNS}
    for name, overrides in rows.items():
        pause: Callable[[], float] = (lambda: LUNAR_KILL_SECONDS) if flags.lunar else _random_pause
        runs, most = (5, sys.maxsize) if flags.lunar else (flags.runs, MOST_KILLS)
        outcomes = [killed_run([*overrides, f"seed={seed}"], pause, most) for seed in range(runs)]
        passed = sum(not outcome.problems for outcome in outcomes)
        failed += runs - passed
        kills, restarts = (sum(column) for column in zip(
            *((outcome.kills, outcome.summary.get("restarts", 0)) for outcome in outcomes), strict=True
        ))  # fmt: skip
        reasons = sorted({str(outcome.summary.get("stop_reason")) for outcome in outcomes})
        print(f"{name:12} {passed} of {runs} passed; {kills} kills, {restarts} restarts; ended by {', '.join(reasons)}")
        for outcome in outcomes:
            for problem in outcome.problems:
                print(f"    {problem}", flush=True)
    return int(failed > 0)


def _random_pause() -> float:
    return random.uniform(0.5, 2.0)


def killed_run(overrides: Sequence[str], pause: Callable[[], float], most: int = MOST_KILLS) -> Outcome:
    """Train, and kill a random worker after each pause while the run goes on, up to so many."""
    with tempfile.TemporaryDirectory() as temporary:
        folder, mark = Path(temporary) / "run", f"A3C_EXP_KILLS={temporary}"
        command = [sys.executable, "-m", "a3c_exp", f"hydra.run.dir={folder}", *overrides]
        environment = os.environ | dict([mark.split("=", 1)])
        memory = set(os.listdir("/dev/shm"))
        with (Path(temporary) / "output").open("w+") as output:
            run = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
            try:
                kills = _kill_workers(run, folder, pause, most)
                code = run.wait()
            finally:
                run.kill()
            output.seek(0)
            text = output.read()
        return _judge(folder, code, kills, text, mark, memory)


def _kill_workers(run: subprocess.Popen[bytes], folder: Path, pause: Callable[[], float], most: int) -> int:
    """Kill a random worker after each pause, until the run ends or `most` have been killed; the number of kills."""
    curves, deadline = folder / "metrics.jsonl", time.monotonic() + _STARTED_SECONDS
    while run.poll() is None and not (curves.exists() and curves.read_text().count("\n") > 0):
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    kills = 0
    while True:
        with suppress(subprocess.TimeoutExpired):
            run.wait(None if kills == most else pause() if kills else FIRST_PAUSE)
        if run.poll() is not None:
            return kills
        workers = worker_pids(run.pid)
        if workers:
            with suppress(ProcessLookupError):
                os.kill(random.choice(workers), signal.SIGKILL)
                kills += 1


def _judge(folder: Path, code: int, kills: int, output: str, mark: str, memory: set[str]) -> Outcome:
    problems: list[str] = []
    summary: dict[str, Any] = {}
    with suppress(OSError):
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    if code or summary.get("stop_reason") not in ("total_steps", "mean_return"):
        problems.append(f"exit code {code}, {summary.get('stop_reason')}: {output[-2000:]}")
    if not kills:
        problems.append("it ended before a worker was killed")
    # A worker killed while the run ends is not needed any more.
    if not 0 <= kills - summary.get("restarts", 0) <= 2:
        problems.append(f"{kills} kills, but {summary.get('restarts')} restarts")
    with suppress(OSError):
        parameters = checkpoint.load(folder / "checkpoints" / "latest.ckpt")["store"]["parameters"]
        if not np.isfinite(parameters).all():
            problems.append("its parameters are not finite")
    left, blocks, deadline = [0], memory, time.monotonic() + _ENDED_SECONDS
    while (left or blocks) and time.monotonic() < deadline:
        time.sleep(0.05)
        left, blocks = marked(mark), set(os.listdir("/dev/shm")) - memory  # other programs may have some for a while
    if left or blocks:
        problems.append(f"left behind: processes {left}, memory {blocks}")
    return Outcome(kills, summary, tuple(problems))


def replacement_seconds() -> float:
    """Seconds from the death of a worker of CartPole to its replacement's first step."""
    experiment = load_experiment(a3c_exp.compose(["env=cartpole", "workers=2", "total_steps=1e9"]))
    network, env = build_network(experiment)
    store = experiment.backend.store(store_spec(experiment, network, env.observation_space))
    store.initialize(network.vector)
    killed_at, beats = 0.0, 0
    events = experiment.backend.run(RunContext(experiment=experiment), store)
    try:
        for _ in events:
            beat = store.counters.heartbeat_of(1)
            if not killed_at and beat > 10_000:  # its replacement takes seconds to come as far, and is seen before
                beats, killed_at = beat, time.monotonic()
                os.kill(worker_pids(os.getpid())[1], signal.SIGKILL)
            elif killed_at and 0 < beat < beats:
                break
        return time.monotonic() - killed_at
    finally:
        events.close()


def worker_pids(run: int) -> list[int]:
    """The worker processes of a run, in the order in which they were started: children of its fork server."""
    alive = {pid: parent for pid, (state, parent) in _states().items() if state != "Z"}
    servers = [pid for pid, parent in alive.items() if parent == run and "forkserver" in read_process(pid, "cmdline")]
    return sorted(pid for pid, parent in alive.items() if parent in servers)


def _states() -> dict[int, tuple[str, int]]:
    """The state and the parent of every process."""
    stats = {pid: read_process(pid, "stat").rpartition(")")[2].split() for pid in _processes()}
    return {pid: (stat[0], int(stat[1])) for pid, stat in stats.items() if stat}


def marked(mark: str) -> list[int]:
    """The living processes whose environment has `mark`, NAME=value."""
    return [pid for pid in _processes() if mark in read_process(pid, "environ").split("\0")]


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def read_process(pid: int, name: str) -> str:
    """The content of a file about a process; empty if the process has ended, or is another user's."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.kills", description="Runs whose workers are killed.")
    parser.add_argument("--only", action="append", choices=list(RUNS), metavar="NAME", help=f"of {', '.join(RUNS)}")
    parser.add_argument("--runs", type=int, default=20, help="of each row (default 20)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--lunar", action="store_true", help="LunarLander to 200, one worker killed every 5 s")
    what.add_argument("--replacement", action="store_true", help="seconds from a death to the replacement's first step")
    return parser


if __name__ == "__main__":
    sys.exit(main())
