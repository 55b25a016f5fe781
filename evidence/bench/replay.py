"""`python -m evidence.bench.replay [--only NAME]`: are recorded runs replayed bit for bit?

Each run is recorded by a command of its own, some are killed by SIGKILL, and each is replayed by
another command. Compared are the parameters, the optimizer's state, the counters and statistics in
the latest checkpoints, and each worker's episodes in its own order. Of a killed run the replay
itself compares the checksums of its last checkpoint, and the episodes that its table has are
compared here. The rows are those of a table in docs/replay.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from evidence.bench.checkout import HERE
from evidence.bench.compare import difference, read_checkpoint
from evidence.bench.processes import tree

COMMON = "lock=true record=order stop.mean_return=null eval.every=null checkpoint.every=5000"
CARTPOLE = "env=cartpole envs_per_worker=4 rollout_length=16 total_steps=25000"
LUNAR = "env=lunar envs_per_worker=4 rollout_length=16 total_steps=25000"
PENDULUM = (
    "env=pendulum env.normalize_observations=true env.normalize_rewards=true envs_per_worker=4 "
    "total_steps=25000"
)
RECALL = "env=recall network=lstm envs_per_worker=4 total_steps=30000"
PPO = (
    "algorithm=ppo algorithm.minibatch_size=32 algorithm.target_kl=0.02 optimizer=adam "
    "optimizer.learning_rate=1e-3"
)
Q = "env=cartpole experiment=n_step_q_cartpole_solved total_steps=14000 update=async"
PROCESSES = "backend=processes"
THREADS = "backend=threads"
ENDLESS = "total_steps=1e7 checkpoint.every=14000"

ROWS = {
    "cartpole, 2 processes": f"{CARTPOLE} {PROCESSES} workers=2",
    "cartpole, 4 processes": f"{CARTPOLE} {PROCESSES} workers=4 returns=n_step",
    "cartpole, 8 processes": f"{CARTPOLE} {PROCESSES} workers=8 optimizer.staleness_power=0.5",
    "cartpole, 4 threads": f"{CARTPOLE} {THREADS} workers=4",
    "cartpole, 8 threads, adam each": (
        f"{CARTPOLE} {THREADS} workers=8 optimizer=adam optimizer_state=per_worker"
    ),
    "lunar, 8 processes": f"{LUNAR} {PROCESSES} workers=8",
    "lunar, 2 processes": f"{LUNAR} {PROCESSES} workers=2 env.normalize_observations=true",
    "lunar, 4 threads": f"{LUNAR} {THREADS} workers=4",
    "pendulum, normalized, 4 processes": f"{PENDULUM} {PROCESSES} workers=4",
    "pendulum, normalized, 8 threads": f"{PENDULUM} {THREADS} workers=8",
    "recall, lstm, 4 processes": f"{RECALL} {PROCESSES} workers=4",
    "recall, lstm, 3 threads": f"{RECALL} {THREADS} workers=3",
    "v-trace, lunar, 8 processes": f"{LUNAR} {PROCESSES} workers=8 returns=vtrace",
    "v-trace, cartpole, 4 threads": f"{CARTPOLE} {THREADS} workers=4 returns=vtrace",
    "ppo, cartpole, 4 processes": f"{CARTPOLE} {PPO} {PROCESSES} workers=4",
    "ppo, pendulum, 3 threads": f"{PENDULUM} {PPO} {THREADS} workers=3",
    "n-step q, 4 processes": f"{Q} {PROCESSES} workers=4",
    "sarsa, 4 processes": (
        f"experiment=sarsa_cartpole_solved total_steps=14000 update=async {PROCESSES} workers=4"
    ),
}
KILLED = {
    "killed: lunar, 8 processes": f"{LUNAR} {PROCESSES} workers=8 {ENDLESS}",
    "killed: cartpole, 4 threads": f"{CARTPOLE} {THREADS} workers=4 {ENDLESS}",
    "killed: pendulum, ppo, 4 processes": f"{PENDULUM} {PPO} {PROCESSES} workers=4 {ENDLESS}",
    "killed: recall, lstm, 2 processes": f"{RECALL} {PROCESSES} workers=2 {ENDLESS}",
}
LATEST = Path("checkpoints", "latest.ckpt")
UPDATES = 300
"""The fewest updates of a run."""
PATIENCE_SECONDS = 300.0


class Outcome(NamedTuple):
    """The comparison of a run and its replay. problem: what differs, or ""."""

    updates: int
    staleness: float | None
    episodes: int
    problem: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 where all rows are equal, 1 where one is not."""
    parser = argparse.ArgumentParser(
        prog="python -m evidence.bench.replay", description="Recorded runs, replayed."
    )
    names = [*ROWS, *KILLED]
    parser.add_argument("--only", action="append", choices=names, help="may be given again")
    flags = parser.parse_args(arguments)
    equal = 0
    print("| run | updates | staleness | episodes | replay |\n|---|---|---|---|---|")
    chosen = flags.only or names
    for name in chosen:
        with tempfile.TemporaryDirectory() as folder:
            outcome = outcome_of(name, Path(folder))
        equal += not outcome.problem
        staleness = "" if outcome.staleness is None else f"{outcome.staleness:.1f}"
        cells = (name, f"{outcome.updates:,}", staleness, f"{outcome.episodes:,}")
        print(f"| {' | '.join(cells)} | {outcome.problem or 'equal'} |", flush=True)
    print(f"\n{equal} of {len(chosen)} runs are replayed bit for bit")
    return int(equal < len(chosen))


def outcome_of(name: str, place: Path) -> Outcome:
    """Record a run, kill it if it is one of these, replay it, and compare both."""
    recorded = place / "recorded"
    again = place / "again"
    is_killed = name in KILLED
    words = f"{COMMON} {KILLED[name] if is_killed else ROWS[name]}".split()
    words = [*{word.partition("=")[0]: word for word in words}.values()]
    process = start(f"hydra.run.dir={recorded}", *words)
    if is_killed:
        kill_after_saves(process, recorded)
    elif process.wait() != 0:
        return Outcome(0, None, 0, "could not be recorded")

    if start(f"replay={recorded}", f"hydra.run.dir={again}").wait() != 0:
        return Outcome(0, None, 0, "the replay has ended with an error")
    summary = json.loads((again / "summary.json").read_text(encoding="utf-8"))
    return Outcome(
        updates=summary["updates"],
        staleness=summary["staleness_mean"],
        episodes=summary["episodes"],
        problem=problem_of(recorded, again, is_killed),
    )


def problem_of(recorded: Path, again: Path, is_killed: bool) -> str:
    """Return what differs between a run and its replay, or ""."""
    one = read_checkpoint(recorded / LATEST)
    other = read_checkpoint(again / LATEST)
    version = "store/version"
    if other[version] < max(UPDATES, one[version]):
        return f"has {other[version]} updates, and the checkpoint {one[version]}"

    names = [name for name in one if name.startswith("store/") and not is_killed]
    for name in names:
        text = difference(one[name], other[name])
        if text is not None:
            return f"{name}: {text}"

    theirs = episodes(again)
    for worker, rows in episodes(recorded).items():
        if theirs[worker][: len(rows) if is_killed else None] != rows:
            return f"episodes of worker {worker} differ"
    return ""


def episodes(folder: Path) -> dict[str, list[tuple[str, ...]]]:
    """Return the episodes of each worker in its own order."""
    by_worker = defaultdict[str, list[tuple[str, ...]]](list)
    with open(folder / "episodes.csv", newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            by_worker[row["worker"]].append((row["step"], row["return"], row["length"]))
    return by_worker


def start(*words: str) -> subprocess.Popen[bytes]:
    """Start a run from this checkout. It prints nothing."""
    return subprocess.Popen(
        [sys.executable, "-m", "a3c_exp", *words],
        cwd=HERE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def kill_after_saves(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Kill a run by SIGKILL when it has saved twice, and wait until its workers have ended."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(list(folder.glob("checkpoints/step_*.ckpt"))) < 2 and process.poll() is None:
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    workers = [pid for pid in tree(process.pid) if pid != process.pid]
    process.kill()
    process.wait()
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main())
