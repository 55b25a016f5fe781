"""`python -m evidence.bench.same CHECKOUT`: short serial runs here and in another checkout of this
repository, compared.

Each run is made in a process of its own, with the package of its checkout. Compared bit for bit are
the parameters, the optimizer's state, counters, random states and the last episodes of every
checkpoint, what summary.json says of the run, and every column of metrics.csv; times are not. What
only one side has is listed. Both checkouts have to know every setting of a row: a row of an option
that is gone goes with it.

The runs' clock moves on with each saved checkpoint alone, so that the curves get their points at
the same steps: at the first update, with each checkpoint and at the end. Their values are means
over all the updates in between.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from evidence.bench.checkout import HERE, ChildError, checked, last_of_each, run_child
from evidence.bench.compare import Comparison, Entries, compare, read_run

ALWAYS = "backend=serial workers=3 stop.mean_return=null eval.every=null seed=7"
SAVES = "total_steps=12000 checkpoint.every=2000"
CARTPOLE = f"env=cartpole network.hidden_sizes=[32] envs_per_worker=4 rollout_length=16 {SAVES}"
RECALL = (
    "env=recall network=lstm network.hidden_size=24 network.encoder.hidden_sizes=[32] "
    f"envs_per_worker=4 {SAVES}"
)
RECALL += " rollout_length=20"
LUNAR = (
    "env=lunar_continuous network.hidden_sizes=[32] envs_per_worker=4 rollout_length=32 "
    f"env.reward_clip=1 {SAVES}"
)
LUNAR += (
    " optimizer.learning_rate=2e-3 ++optimizer.param_groups.critic.learning_rate=2e-3 "
    "env.terminal_reward=null"
)
PONG = (
    "env=pong optimizer=rmsprop_tf optimizer.learning_rate=7e-4 schedule=linear "
    "returns=gae returns.lambda_=0.98"
)
PONG += (
    " algorithm.entropy_coefficient=0.01 rollout_length=5 network.precision=float32 "
    "network.features_dim=32"
)
PONG += (
    " env.frame_stack=2 env.repeat_action_probability=0.25 env.full_action_space=true "
    "env.height=42 env.width=42"
)
PONG += (
    " env.max_frames=800 env.terminal_on_life_loss=true "
    "env.normalize_observations=false envs_per_worker=2"
)
PONG += " env.crop=null"
PPO = "algorithm=ppo algorithm.epochs=3 optimizer=adam optimizer.learning_rate=1e-3"
CRITIC = "network.critic_hidden_sizes=[16,16] +optimizer.param_groups.critic.learning_rate=3e-3"

ROWS = {
    "cartpole": f"{CARTPOLE} reward_threshold=20",
    "recall_lstm": RECALL,
    "lunar_continuous": f"{LUNAR} eval.every=6000 eval.episodes=2",
    "pong_cnn": f"{PONG} total_steps=3000 checkpoint.every=500",
    "shared_body": f"{CARTPOLE} network.shared=true network.activation=relu "
    "optimizer=rmsprop_tf schedule=constant "
    "algorithm.entropy_coefficient=0.02 returns=n_step",
    "critic_body": f"{CARTPOLE} {CRITIC} returns=discounted algorithm.normalize_advantages=true",
    "ppo": f"{CARTPOLE} {PPO} algorithm.minibatch_size=32",
    "ppo_lstm": f"{RECALL} {PPO} algorithm.minibatch_size=40",
    "ppo_sync": (
        f"{CARTPOLE} {PPO} algorithm.minibatch_size=32 algorithm.target_kl=0.003 update=sync"
    ),
    "ppo_continuous": (
        f"{LUNAR} {PPO} algorithm.minibatch_size=64 total_steps=9000 checkpoint.every=3000"
    ),
    "vtrace": f"{CARTPOLE} returns=vtrace",
    "sync": f"{CARTPOLE} update=sync",
    "sum": f"{CARTPOLE} update=sync algorithm.reduction=sum optimizer.learning_rate=1e-5",
    "whole_episodes": f"{CARTPOLE} rollout_length=episode envs_per_worker=1",
    "lock": f"{CARTPOLE} lock=true optimizer=sgd optimizer.momentum=0.9",
    "optimizer_state": f"{CARTPOLE} optimizer_state=per_worker optimizer=adam "
    "optimizer.learning_rate=1e-3 "
    "optimizer.staleness_power=0.5",
    "normalised": f"{CARTPOLE} env.normalize_observations=true env.normalize_rewards=true",
    "epsilon": f"{CARTPOLE} epsilon=0.1",
    "critic_returns": f"{CARTPOLE} returns=n_step_zero critic_returns=gae",
    "vectorized": f"{CARTPOLE} env.vectorized=true",
    "resumed": f"{CARTPOLE} env.normalize_observations=true optimizer=adam",
}
RESUMED = {"resumed": "total_steps=20000 checkpoint.every=3000"}
"""Rows whose run is resumed, and with which settings."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 where all rows are equal, 1 where one is not, 2 for a bad argument."""
    parser = argparse.ArgumentParser(
        prog="python -m evidence.bench.same", description="The same results as another checkout's?"
    )
    parser.add_argument("checkout", help="another checkout of this repository")
    only = f"one of {', '.join(ROWS)}; may be given again"
    parser.add_argument("--only", action="append", choices=list(ROWS), metavar="NAME", help=only)
    flags = parser.parse_args(arguments)

    try:
        other = checked(flags.checkout)
    except ValueError as error:
        print(f"evidence.bench.same: {error}", file=sys.stderr)
        return 2

    equal = True
    here = dict[str, None]()
    there = dict[str, None]()
    for name in flags.only or ROWS:
        started = time.perf_counter()
        try:
            outcome = outcome_of(name, other)
        except (ChildError, ValueError, OSError, KeyError) as error:
            outcome = Comparison([f"a run failed: {error}"], [], [])

        here |= dict.fromkeys(outcome.here)
        there |= dict.fromkeys(outcome.there)
        equal = equal and not outcome.differences
        verdict = (
            f"DIFFERS in {len(outcome.differences)}: {outcome.differences[0]}"
            if outcome.differences
            else "equal"
        )
        print(f"{name:<17}{verdict}  ({time.perf_counter() - started:.1f} s)", flush=True)

    for side, names in (("here", here), ("there", there)):
        if names:
            print(f"only {side}: {', '.join(names)}")

    return 0 if equal else 1


def outcome_of(name: str, other: Path) -> Comparison:
    """Make a row's run here and in another checkout at once, and compare them. Raises as
    `trained`."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as both:
        sides = {"here": HERE, "there": other}
        runs = [
            both.submit(trained, name, checkout, Path(folder) / side)
            for side, checkout in sides.items()
        ]
        return compare(*(run.result() for run in runs))


def trained(name: str, checkout: Path, folder: Path) -> Entries:
    """Return the result of a row's run in a checkout. Raises ChildError if it fails, and as
    `read_run`."""
    overrides = f"{ALWAYS} {ROWS[name]}".split()
    if "\nlog:" in (checkout / "conf" / "config.yaml").read_text(encoding="utf-8"):
        # older versions have no other points than those by time
        overrides.append("log.every=null")

    run_child(checkout, f"hydra.run.dir={folder}", *last_of_each(overrides))
    if name in RESUMED:
        run_child(checkout, f"resume={folder}", *RESUMED[name].split())
    return read_run(folder)


if __name__ == "__main__":
    sys.exit(main())
