"""Workers of small runs, stepped by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from runs import BANDIT, CORRIDOR, config, make_store

from a3c_exp.algorithms import PPO
from a3c_exp.config.builder import load_experiment
from a3c_exp.core.events import Event, YieldPoint
from a3c_exp.core.experiment import RunContext
from a3c_exp.core.store import SharedStore
from a3c_exp.core.worker import Worker

LSTM = {"_target_": "a3c_exp.networks.Lstm", "hidden_size": 8}


def make_workers(whole: dict[str, Any]) -> tuple[SharedStore, list[Worker]]:
    """The store of a configuration, and all its workers."""
    experiment = load_experiment(whole)
    store = make_store(experiment)
    context = RunContext(experiment=experiment)
    return store, [Worker(context, index, store) for index in range(experiment.worker_count)]


def by_descent(env: str = BANDIT, **settings: Any) -> tuple[SharedStore, list[Worker]]:
    """The same of `config(...)`, with plain descent at rate 1 by default: an update is minus the
    gradient."""
    run_config = config(env, **settings)
    if "optimizer" not in settings:
        run_config["optimizer"] = sgd(1.0)
    return make_workers(run_config)


def sgd(rate: float, max_grad_norm: float | None = None) -> dict[str, Any]:
    """Plain descent, as a configuration."""
    return {
        "_target_": "a3c_exp.optimizers.SGD",
        "learning_rate": rate,
        "max_grad_norm": max_grad_norm,
    }


def ppo_config(
    env: str = CORRIDOR, minibatch_size: int | None = 8, epochs: int = 2, **settings: Any
) -> dict[str, Any]:
    """A whole configuration of PPO: rollouts of 16 transitions in two minibatches, and two epochs.

    settings: of the algorithm where it has such a field, else of `config`.
    """
    own = {name: settings.pop(name) for name in list(settings) if name in PPO.__dataclass_fields__}
    sizes = {"minibatch_size": minibatch_size, "epochs": epochs}
    run_config = config(env, **settings)
    run_config["algorithm"] = {"_target_": "a3c_exp.algorithms.PPO"} | sizes | own
    return run_config


def next_event(steps: Iterator[Event | YieldPoint]) -> Event:
    """The worker's next event; its yield points before that are passed over."""
    return next(step for step in steps if isinstance(step, Event))


def events_of(worker: Worker) -> list[Event]:
    """All events of a worker that runs to its end without others."""
    return [step for step in worker.run() if isinstance(step, Event)]
