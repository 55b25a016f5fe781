"""`python -m evidence.bench.versus CHECKOUT`: training speed here and in another checkout, in
alternating pairs.

Both sides leave the choice of kernels to OpenBLAS: OPENBLAS_CORETYPE and OPENBLAS_L2_SIZE are
unset.
A machine whose speed drifts slows both runs of a pair alike. The figure of a row is the median of
the pairs' ratios, here over there, with a bootstrap 95 % interval. Both sides may be the same
checkout with different settings:

    python -m evidence.bench.versus . --only lunar_2x16 --here optimizer=adam
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

from evidence.bench.checkout import HERE, checked, last_of_each, leave_kernels_to_openblas
from evidence.bench.runs import seconds_to_first_update, training_speed

ROWS = {  # two workers, where a row says nothing else
    "lunar_2x2": "env=lunar envs_per_worker=2",
    "lunar_2x16": "env=lunar envs_per_worker=16 rollout_length=32",
    "cartpole_2x16": "env=cartpole envs_per_worker=16",
    "cartpole_2x1x20": "env=cartpole envs_per_worker=1 rollout_length=20",
    "lstm": "env=lunar network=lstm envs_per_worker=16 rollout_length=32",
    "ppo_lunar": "experiment=ppo_lunar_solved update=sync",
    "pong": (
        "env=pong env.crop=null network=cnn optimizer=adam envs_per_worker=16 rollout_length=20"
    ),
    "pong_ga3c": (
        "env=pong env.crop=null network=cnn optimizer=adam backend=ga3c "
        "envs_per_worker=4 rollout_length=20"
    ),
    "lstm_cartpole": "env=cartpole network=lstm envs_per_worker=16",
    "pendulum_beta": "env=pendulum network.distribution=beta envs_per_worker=16",
    "vector": "env=cartpole env.vectorized=true envs_per_worker=256",
    "lunar_16": "env=lunar workers=16",
    "pong_16": "env=pong workers=16 envs_per_worker=1",
    "start_2": "env=lunar",
}
UNLEARNED = "optimizer.learning_rate=1e-12"
"""In rows of speed: longer episodes are quicker to step, so that a lucky run would be a fast
one."""
START = "start_2"
"""The row of seconds from the command to the first update; below 1 is faster here."""
RESAMPLES = 10_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0, or 2 for a bad argument."""
    parser = argparse.ArgumentParser(
        prog="python -m evidence.bench.versus", description="Training speed beside a checkout's."
    )
    parser.add_argument("checkout", help="another checkout of this repository")
    parser.add_argument(
        "--only", action="append", choices=list(ROWS), metavar="NAME", help=f"of {', '.join(ROWS)}"
    )
    parser.add_argument("--pairs", type=int, default=10, help="how many pairs of runs (default 10)")
    parser.add_argument(
        "--seconds", type=float, default=6.0, help="of training in each run (default 6)"
    )

    for flag, runs in (
        ("--set", "all runs"),
        ("--here", "the runs here"),
        ("--there", "the runs there"),
    ):
        parser.add_argument(
            flag, action="append", default=[], metavar="KEY=VALUE", help=f"a setting of {runs}"
        )

    flags = parser.parse_args(arguments)
    leave_kernels_to_openblas()
    try:
        other = checked(flags.checkout)
    except ValueError as error:
        print(f"evidence.bench.versus: {error}", file=sys.stderr)
        return 2

    sides = [(HERE, [*flags.set, *flags.here]), (other, [*flags.set, *flags.there])]
    for name in flags.only or ROWS:
        measured: list[tuple[float, float]] = []
        for pair in range(flags.pairs):
            # the first changes, in case that being first matters
            order = (0, 1) if pair % 2 == 0 else (1, 0)
            figures = {side: measure(name, *sides[side], flags.seconds) for side in order}
            measured.append((figures[0], figures[1]))

        print(_line(name, measured), flush=True)

    return 0


def measure(name: str, checkout: Path, overrides: Sequence[str], seconds: float) -> float:
    """Return the figure of a row: steps a second, or seconds to the first update."""
    settings = last_of_each(["workers=2", UNLEARNED, *ROWS[name].split(), *overrides])
    if name == START:
        return seconds_to_first_update(*settings, checkout=checkout)
    return training_speed(*settings, seconds=seconds, checkout=checkout)


def _line(name: str, measured: Sequence[tuple[float, float]]) -> str:
    ratios = [here / there for here, there in measured]
    low, high = interval(ratios)
    here, there = (median(column) for column in zip(*measured, strict=True))
    figures = (
        f"here {here:,.2f} s, there {there:,.2f}"
        if name == START
        else f"here {here:,.0f} steps/s, there {there:,.0f}"
    )

    return (
        f"{name:16} {median(ratios):.3f} ({low:.3f} to {high:.3f})  {figures}; "
        f"{len(measured)} pairs"
    )


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Return the bootstrap 95 % interval of the median."""
    rng = np.random.default_rng(0)
    samples = rng.choice(np.array(ratios), (RESAMPLES, len(ratios)))
    low, high = np.percentile(np.median(samples, axis=1), [2.5, 97.5])
    return float(low), float(high)


if __name__ == "__main__":
    sys.exit(main())
