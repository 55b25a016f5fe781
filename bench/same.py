"""`python -m bench.same CHECKOUT`: short serial runs here and in another checkout of this repository, compared.

Each run is made in a process of its own, with the package of its checkout. Compared bit for bit are the parameters, the
optimizer's state, counters, random states and the last episodes of every checkpoint, what summary.json says of the run,
and every column of metrics.csv; times are not. What only one side has is listed. Rows are written with the names of
configuration keys that are used from now on; an older checkout is given its own (bench/renames.py).

The runs' clock moves on with each saved checkpoint alone, so that the curves get their points at the same steps: at the
first update, with each checkpoint and at the end. Their values are means over all the updates in between.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.checkout import HERE, ChildError, checked, run_child
from bench.compare import Comparison, Entries, compare, read_run
from bench.renames import known_keys, translated

ALWAYS = ("backend=serial", "workers=3", "stop.mean_return=null", "eval.every=null", "seed=7")
SMALL = ("envs_per_worker=4", "rollout_length=16", "total_steps=12000", "checkpoint.every=2000")
CARTPOLE = ("env=cartpole", "network.hidden_sizes=[32]", *SMALL)
RECALL = (
    "env=recall", "network=lstm", "network.hidden_size=24", "network.encoder.hidden_sizes=[32]", "rollout_length=20",
    "envs_per_worker=4", "total_steps=12000", "checkpoint.every=2000",
)  # fmt: skip
LUNAR = (
    "env=lunar_continuous", "network.hidden_sizes=[32]", "envs_per_worker=4", "rollout_length=32", "env.reward_clip=1",
    "optimizer.learning_rate=2e-3", "++optimizer.param_groups.critic.learning_rate=2e-3",
)  # fmt: skip
WITHOUT_TERMINAL_REWARD = ("env.terminal_reward=null",)
PONG = (
    "env=pong", "optimizer=rmsprop_tf", "optimizer.learning_rate=7e-4", "schedule=linear", "returns=gae",
    "returns.lambda_=0.98", "algorithm.entropy_coefficient=0.01", "rollout_length=5",
)  # fmt: skip
PPO = ("algorithm=ppo", "algorithm.epochs=3", "optimizer=adam", "optimizer.learning_rate=1e-3")


@dataclass(frozen=True)
class Row:
    """A run: its overrides, and those of its resumption where it is resumed.

    here: overrides of this side alone, for settings that the other may have without a key. where_known: overrides of
        the sides whose conf/ has their keys.
    """

    name: str
    overrides: tuple[str, ...]
    resumed: tuple[str, ...] = ()
    here: tuple[str, ...] = ()
    where_known: tuple[str, ...] = ()


ROWS = (
    Row("cartpole", (*CARTPOLE, "reward_threshold=20")),
    Row("recall_lstm", RECALL),
    Row("lunar_continuous", (*LUNAR, "total_steps=12000", "checkpoint.every=2000", "eval.every=6000",
                             "eval.episodes=2"), where_known=WITHOUT_TERMINAL_REWARD),
    Row("pong_cnn", (*PONG, "network.precision=float32", "network.features_dim=32", "env.frame_stack=2",
                     "env.repeat_action_probability=0.25", "env.full_action_space=true", "env.height=42",
                     "env.width=42", "env.max_frames=800", "env.terminal_on_life_loss=true", "envs_per_worker=2",
                     "total_steps=3000", "checkpoint.every=500"),
        here=("env.normalize_observations=false",)),
    Row("shared_body", (*CARTPOLE, "network.shared=true", "network.activation=relu", "optimizer=rmsprop_tf",
                        "schedule=constant", "algorithm.entropy_coefficient=0.02", "returns=n_step")),
    Row("critic_body", (*CARTPOLE, "network.critic_hidden_sizes=[16,16]", "returns=discounted",
                        "algorithm.normalize_advantages=true",
                        "+optimizer.param_groups.critic.learning_rate=3e-3")),
    Row("ppo", (*CARTPOLE, *PPO, "algorithm.minibatch_size=32")),
    Row("ppo_lstm", (*RECALL, *PPO, "algorithm.minibatch_size=40", "algorithm.value_clip=0.2")),
    Row("ppo_sync", (*CARTPOLE, *PPO, "algorithm.minibatch_size=32", "algorithm.target_kl=0.003", "update=sync")),
    Row("ppo_continuous", (*LUNAR, *PPO, "algorithm.minibatch_size=64", "total_steps=9000", "checkpoint.every=3000"),
        where_known=WITHOUT_TERMINAL_REWARD),
    Row("vtrace", (*CARTPOLE, "returns=vtrace")),
    Row("sync", (*CARTPOLE, "update=sync")),
    Row("sum", (*CARTPOLE, "update=sync", "algorithm.reduction=sum", "optimizer.learning_rate=1e-5")),
    Row("accumulate", (*CARTPOLE, "accumulate_rollouts=2")),
    Row("whole_episodes", (*CARTPOLE, "rollout_length=episode", "envs_per_worker=1")),
    Row("lock", (*CARTPOLE, "lock=true", "optimizer=sgd", "optimizer.momentum=0.9")),
    Row("optimizer_state", (*CARTPOLE, "optimizer_state=per_worker", "optimizer=adam", "optimizer.learning_rate=1e-3",
                            "optimizer.staleness_power=0.5")),
    Row("normalised", (*CARTPOLE, "env.normalize_observations=true", "env.normalize_rewards=true")),
    Row("epsilon", (*CARTPOLE, "epsilon=0.1")),
    Row("critic_returns", (*CARTPOLE, "returns=n_step_zero", "critic_returns=gae")),
    Row("vectorized", (*CARTPOLE, "env.vectorized=true")),
    Row("resumed", (*CARTPOLE, "env.normalize_observations=true", "optimizer=adam"),
        ("total_steps=20000", "checkpoint.every=3000")),
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 where all rows are equal, 1 where one is not, 2 for a bad argument."""
    flags = _parser().parse_args(arguments)
    if flags.list:
        print("\n".join(row.name for row in ROWS))
        return 0
    try:
        rows, other = _chosen(flags.only), checked(_given(flags.checkout))
    except ValueError as error:
        print(f"bench.same: {error}", file=sys.stderr)
        return 2
    equal, here, there = True, dict[str, None](), dict[str, None]()
    for row in rows:
        started = time.perf_counter()
        outcome = outcome_of(row, other)
        differing = [outcome] if isinstance(outcome, str) else outcome.differences
        if not isinstance(outcome, str):
            here |= dict.fromkeys(outcome.here)
            there |= dict.fromkeys(outcome.there)
        equal = equal and not differing
        print(f"{row.name:<17}{outcome_text(differing)}  ({time.perf_counter() - started:.1f} s)", flush=True)
    for side, names in (("here", here), ("there", there)):
        if names:
            print(f"only {side}: {', '.join(names)}")
    return 0 if equal else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.same", description="The same results as another checkout's?")
    parser.add_argument("checkout", nargs="?", help="another checkout of this repository")
    parser.add_argument("--only", action="append", metavar="NAME", help="a row, may be given again; all: --list")
    parser.add_argument("--list", action="store_true", help="the names of the rows")
    return parser


def _given(checkout: str | None) -> str:
    if checkout is None:
        raise ValueError("CHECKOUT is missing: the folder of another checkout of this repository")
    return checkout


def _chosen(names: Sequence[str] | None) -> list[Row]:
    """The rows of these names; all for None. Raises ValueError."""
    known = [row.name for row in ROWS]
    for name in names or ():
        if name not in known:
            raise ValueError(f"--only {name}: must be one of {', '.join(known)}")
    return [row for row in ROWS if names is None or row.name in names]


def outcome_text(differing: Sequence[str]) -> str:
    """A row's outcome as a part of a line."""
    if not differing:
        return "equal"
    further = f" (and {len(differing) - 1} more)" if len(differing) > 1 else ""
    return f"DIFFERS {differing[0]}{further}"


def outcome_of(row: Row, other: Path) -> Comparison | str:
    """Make the row's run here and in another checkout, and compare them. Returns a text if a run failed."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as both:
        sides = {"here": HERE, "there": other}
        runs = {side: both.submit(trained, row, place, Path(folder) / side) for side, place in sides.items()}
        entries: dict[str, Entries] = {}
        for side, run in runs.items():
            try:
                entries[side] = run.result()
            except (ChildError, ValueError, OSError, KeyError) as error:
                return f"the run failed {side}: {error}"
        return compare(entries["here"], entries["there"])


def trained(row: Row, checkout: Path, folder: Path) -> Entries:
    """The result of the row's run in a checkout. Raises ChildError if it fails, and ValueError if the checkout does not
    know a key."""
    known = known_keys(checkout)
    own = row.here if checkout == HERE else ()
    own += tuple(override for override in row.where_known if override.partition("=")[0] in known)
    overrides = [translated(override, known) for override in (*ALWAYS, *row.overrides, *own)]
    run_child(checkout, "train", f"hydra.run.dir={folder}", *last_of_each(overrides))
    if row.resumed:
        run_child(checkout, "train", f"resume={folder}", *(translated(override, known) for override in row.resumed))
    return read_run(folder)


def last_of_each(overrides: Sequence[str]) -> list[str]:
    """The overrides without those that a later one replaces."""
    return list({override.partition("=")[0]: override for override in overrides}.values())


if __name__ == "__main__":
    sys.exit(main())
