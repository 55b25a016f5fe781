"""`python -m bench.versus CHECKOUT`: training speed here and in another checkout, in alternating pairs.

A machine whose speed drifts slows both runs of a pair alike. The figure of a row is the median of the pairs' ratios,
here over there, with a bootstrap 95 % interval. Both sides may be the same checkout with different settings:

    python -m bench.versus . --set 'plugins=[bench.modules]' --here 'network={_target_: bench.modules.TorchMlp}'
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

from bench.checkout import HERE, checked
from bench.renames import known_keys, translated
from bench.runs import ENDLESS, seconds_to_first_update

ROWS: dict[str, tuple[str, ...]] = {
    "lunar_2x2": ("env=lunar", "envs_per_worker=2"),
    "lunar_2x16": ("env=lunar", "envs_per_worker=16", "rollout_length=32"),
    "cartpole_2x16": ("env=cartpole", "envs_per_worker=16"),
    "cartpole_2x1x20": ("env=cartpole", "envs_per_worker=1", "rollout_length=20"),
    "lstm": ("env=lunar", "network=lstm", "envs_per_worker=16", "rollout_length=32"),
    "ppo_lunar": ("experiment=ppo_lunar", "update=sync"),
    "pong": ("env=pong", "network=cnn", "optimizer=adam", "envs_per_worker=16", "rollout_length=20"),
    "pong_ga3c": (
        "env=pong",
        "network=cnn",
        "optimizer=adam",
        "backend=ga3c",
        "envs_per_worker=4",
        "rollout_length=20",
    ),
}
START = "start_2"
"""The row of seconds from the command to the first update of two workers; below 1 is faster here."""
RESAMPLES = 10_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0, or 2 for a bad argument."""
    flags = _parser().parse_args(arguments)
    try:
        other = checked(flags.checkout)
    except ValueError as error:
        print(f"bench.versus: {error}", file=sys.stderr)
        return 2
    common = [*flags.set, *(() if flags.backend is None else (f"backend={flags.backend}",))]
    sides = [(HERE, [*common, *flags.here]), (other, [*common, *flags.there])]
    for name in flags.only or [*ROWS, START]:
        measured: list[tuple[float, float]] = []
        for pair in range(flags.pairs):
            # The first of a pair changes, in case that being first matters.
            order = (0, 1) if pair % 2 == 0 else (1, 0)
            figures = {side: measure(name, *sides[side], flags.seconds) for side in order}
            measured.append((figures[0], figures[1]))
        print(_line(name, measured, flags.seconds), flush=True)
    return 0


def measure(name: str, checkout: Path, overrides: Sequence[str], seconds: float) -> float:
    """The figure of a row: steps a second, or seconds to the first update."""
    if name != START:
        return speed(checkout, [*ROWS[name], *overrides], seconds)
    keys = known_keys(checkout)
    settings = ["env=lunar", "workers=2", *overrides]
    return seconds_to_first_update(*(translated(setting, keys) for setting in settings), checkout=checkout)


def _line(name: str, measured: Sequence[tuple[float, float]], seconds: float) -> str:
    ratios = [here / there for here, there in measured]
    low, high = interval(ratios)
    here, there = (median(column) for column in zip(*measured, strict=True))
    if name == START:
        figures = f"here {here:.2f} s, there {there:.2f} s; {len(measured)} pairs"
    else:
        figures = f"here {here:,.0f} steps/s, there {there:,.0f}; {len(measured)} pairs of {seconds:g} s"
    return f"{name:16} {median(ratios):.3f} ({low:.3f} to {high:.3f})  {figures}"


def speed(checkout: Path, overrides: Sequence[str], seconds: float) -> float:
    """Environment steps a second of a run of so many seconds on two workers, counted from its first step."""
    keys = known_keys(checkout)
    settings = ["workers=2", *ENDLESS, f"stop.max_seconds={seconds}", *overrides]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "a3c_exp", f"hydra.run.dir={folder}/run"]
        subprocess.run(
            [*command, *(translated(setting, keys) for setting in settings)],
            cwd=checkout, env=os.environ | {"PYTHONPATH": str(checkout)}, check=True, capture_output=True,
        )  # fmt: skip
        summary = json.loads((Path(folder) / "run" / "summary.json").read_text(encoding="utf-8"))
    return float(summary["steps"] / summary["training_seconds"])


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """The bootstrap 95 % interval of the median."""
    rng = np.random.default_rng(0)
    samples = rng.choice(np.array(ratios), (RESAMPLES, len(ratios)))
    low, high = np.percentile(np.median(samples, axis=1), [2.5, 97.5])
    return float(low), float(high)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.versus", description="Training speed beside a checkout's.")
    parser.add_argument("checkout", help="another checkout of this repository")
    parser.add_argument(
        "--only", action="append", choices=[*ROWS, START], metavar="NAME", help=f"of {', '.join([*ROWS, START])}"
    )
    parser.add_argument("--pairs", type=int, default=10, help="how many pairs of runs (default 10)")
    parser.add_argument("--seconds", type=float, default=6.0, help="of training in each run (default 6)")
    parser.add_argument("--backend", help="another backend than the default")
    for flag, runs in (("--set", "all runs"), ("--here", "the runs here"), ("--there", "the runs there")):
        parser.add_argument(flag, action="append", default=[], metavar="KEY=VALUE", help=f"a setting of {runs}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
