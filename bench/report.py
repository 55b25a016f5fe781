"""The time of a report on many runs: `python -m bench.report`.

Writes runs with random learning curves into a temporary folder, and reports on them by the user's command.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml

from bench.checkout import HERE

SEEDS = 5


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.report", description=__doc__)
    parser.add_argument("--runs", type=int, default=100, help="runs, of 5 seeds each (default 100)")
    parser.add_argument("--points", type=int, default=2000, help="points of each learning curve (default 2000)")
    flags = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        write_runs(Path(folder), flags.runs, flags.points)
        begun = time.perf_counter()
        command = [sys.executable, "-m", "a3c_exp.report", folder]
        code = subprocess.run(command, cwd=HERE, stdout=subprocess.DEVNULL, check=False).returncode
        seconds = time.perf_counter() - begun
    print(f"{flags.runs} runs of {flags.points} points: {seconds:.1f} s")
    return code


def write_runs(folder: Path, runs: int, points: int, envs: Sequence[str] = ("CartPole-v1", "Acrobot-v1")) -> None:
    """Write runs of several configurations in each environment, with SEEDS seeds each."""
    rng = np.random.default_rng(0)
    for number in range(runs):
        configuration, seed = divmod(number, SEEDS)
        n, env = divmod(configuration, len(envs))
        write_run(folder / f"{number}_s{seed}", envs[env], n + 1, seed, points, rng)


def write_run(folder: Path, env: str, n: int, seed: int, points: int, rng: np.random.Generator) -> None:
    """Write a run with a random learning curve, which rises by its n-step returns' n, and as many episodes."""
    folder.mkdir(parents=True)
    steps = np.arange(1, points + 1) * 500
    returns = 200 * (1 - np.exp(-steps * (1 + n) / steps[-1])) + rng.normal(0, 5, points)
    config = {
        "env": {"_target_": "a3c_exp.envs.Gym", "id": env},
        "returns": {"_target_": "a3c_exp.returns.NStep", "n": n},
        "seed": seed,
        "reward_threshold": 150.0,
    }
    summary = {
        "stop_reason": "total_steps", "steps": int(steps[-1]), "training_seconds": 60.0, "wall_seconds": 61.0,
        "mean_return_100": float(returns[-1]), "best_eval_return": None, "solved_at_steps": int(steps[points // 2]),
        "solved_at_seconds": 30.0, "steps_per_second": steps[-1] / 60, "staleness_mean": 0.5, "commit": "abc",
        "machine": {"processor": "a processor", "usable_cores": 2},
    }  # fmt: skip
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "summary.json").write_text(json.dumps(summary))
    other = [f"train/metric_{number}" for number in range(16)]  # as many columns as a run has
    rows = [
        f"{step},{step / 8e3:.3f},{value:.6g}{',0.123456' * len(other)}\n"
        for step, value in zip(steps.tolist(), returns.tolist(), strict=True)
    ]
    header = ",".join(["step", "wall_seconds", "rollout/ep_rew_mean", *other])
    (folder / "metrics.csv").write_text("".join([f"{header}\n", *rows]))
    episodes = [
        f"{step},{step % 3},{value:.6g},{abs(value):.0f},1.0\n" for step, value in zip(steps, returns, strict=True)
    ]
    (folder / "episodes.csv").write_text("".join(["step,worker,return,length,seconds\n", *episodes]))


if __name__ == "__main__":
    sys.exit(main())
