"""The rows of the benchmark, which stand in rows.yaml: a figure of this project, others' beside it,
and the bar."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from evidence.bench.drivers.watch import Task
from evidence.bench.peers import python_of, speed, zoo
from evidence.bench.runs import (
    curve,
    peak_memory,
    seconds_to_first_update,
    training_speed,
    whole_training_speed,
)
from evidence.bench.stepping import (
    atari_random_stepping,
    batch_random_stepping,
    doom_random_stepping,
    random_stepping,
)


@dataclass(frozen=True)
class Measurement:
    """measure: takes the seconds that it may run, returns a figure. May raise UnavailableError."""

    label: str
    measure: Callable[[float], float]


@dataclass(frozen=True)
class Row:
    """A figure, measured in turn with those of `against`.

    unit: of all figures. at_least: bar for the ratio of the subject to the first of `against`;
    without any, for the subject's own figure. at_most: bar for the subject's own figure. gpu:
    whether it needs one.
    """

    name: str
    title: str
    subject: Measurement
    against: tuple[Measurement, ...] = ()
    unit: str = "steps/s"
    at_least: float | None = None
    at_most: float | None = None
    gpu: bool = False


PPO = (
    "env=lunar network.hidden_sizes=[64,64] algorithm=ppo returns=gae returns.lambda_=0.98 "
    "optimizer=adam workers=2 "
    "envs_per_worker=8 rollout_length=1024 optimizer.learning_rate=3e-4 "
    "optimizer.max_grad_norm=0.5 algorithm.epochs=4 "
    "algorithm.minibatch_size=64 algorithm.entropy_coefficient=0.01 gamma=0.999"
)
"""rl-baselines3-zoo's recipe for LunarLander."""
PPO_ROUND = 2 * 8 * 1024
PPO_ROUND_SECONDS = 0.8


def _ppo(update: str, seconds: float) -> float:
    steps = PPO_ROUND * max(1, round(seconds / PPO_ROUND_SECONDS))
    return whole_training_speed(*PPO.split(), f"update={update}", f"total_steps={steps}")


def _stable_baselines3(
    env_id: str, settings: Mapping[str, Any], seconds: float, threads: int | None
) -> float:
    task = Task(env_id, settings, threads=threads, seconds=seconds)
    return speed("stable_baselines3", python_of("stable-baselines3"), task)


def _peer(what: tuple[str, str, int], seconds: float) -> float:
    algorithm, env_id, environments = what
    threads = None if "NoFrameskip" in env_id else 1
    settings = {"algorithm": algorithm, "envs": environments}
    return _stable_baselines3(env_id, settings, seconds, threads)


def _zoo(what: tuple[str, str, int, int | None], seconds: float) -> float:
    algorithm, env_id, environments, threads = what
    settings = zoo(algorithm, env_id) | {"envs": environments}
    return _stable_baselines3(env_id, settings, seconds, threads)


KINDS: dict[str, Callable[[Any, float], float]] = {
    "training": lambda overrides, seconds: training_speed(*overrides.split(), seconds=seconds),
    "ppo": _ppo,
    "start": lambda overrides, _: seconds_to_first_update(*overrides.split()),
    "memory": lambda overrides, seconds: peak_memory(*overrides.split(), seconds=seconds) / 1e9,
    "ray_wait": lambda overrides, seconds: curve(
        "workers/wait_share", *overrides.split(), seconds=seconds
    ),
    "stepping": random_stepping,
    "batch_stepping": batch_random_stepping,
    "doom_stepping": doom_random_stepping,
    "atari_stepping": lambda what, seconds: atari_random_stepping(what[0], what[1], seconds),
    "peer": _peer,
    "zoo": _zoo,
}
"""How a figure is taken, by the key of a measurement: from its argument there, and the seconds."""


def _measurement(row: Mapping[str, Any]) -> Measurement:
    (kind,) = row.keys() & KINDS.keys()
    return Measurement(row["label"], partial(KINDS[kind], row[kind]))


def _row(row: Mapping[str, Any]) -> Row:
    against = tuple(map(_measurement, row.get("against", ())))
    return Row(**{**row, "subject": _measurement(row["subject"]), "against": against})


ROWS = tuple(
    map(_row, yaml.safe_load(Path(__file__).with_name("rows.yaml").read_text(encoding="utf-8")))
)
