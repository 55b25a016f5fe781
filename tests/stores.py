"""Small stores for tests, and pushes of known gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from a3c_exp.common.arrays import Floats, Vector
from a3c_exp.core.events import Event
from a3c_exp.core.normalization import Stats
from a3c_exp.core.parameters import StoreSpec
from a3c_exp.core.store import Push, SharedStore, Snapshot, Store, Ticket
from a3c_exp.optimizers import SGD
from a3c_exp.schedules import Constant

SIZE = 6


def make_spec(**settings: Any) -> StoreSpec:
    """Three workers, plain descent at rate 1."""
    groups = {"actor": slice(0, 4), "critic": slice(4, 6)}
    rule = {
        "optimizer": SGD(learning_rate=1.0, max_grad_norm=None),
        "schedule": Constant(value=1.0),
    }
    defaults: dict[str, Any] = {
        "size": SIZE,
        "param_slices": groups,
        "workers": 3,
        "total_steps": 1000,
        **rule,
    }
    return StoreSpec(**defaults | settings)


def make_store(**settings: Any) -> SharedStore:
    """A store whose parameters are 0."""
    store = SharedStore(make_spec(**settings))
    store.initialize(np.zeros(SIZE, np.float32))
    return store


def ones(factor: float = 1.0) -> Floats:
    return np.full(SIZE, factor, np.float32)


def pull(store: Store, worker: int = 0) -> Snapshot:
    return store.pull(worker, np.empty(SIZE, np.float32))


def waits(store: SharedStore, worker: int) -> bool:
    """Whether a worker that has finished its rollout must wait for others before it pulls again."""
    assert store.rounds is not None
    return store.rounds.cycle_in_progress(worker)


class Pushed(NamedTuple):
    """A push that a store has taken. Once it is done, its event is complete."""

    ticket: Ticket
    event: Event

    def done(self) -> bool:
        return self.ticket.done()


def push(
    store: Store,
    worker: int,
    gradient: Vector | None,
    snapshot: Snapshot | None = None,
    *,
    steps: int = 1,
    weight: int | None = None,
    stats: Stats | None = None,
    rng: np.random.Generator | None = None,
    parameters: Vector | None = None,
) -> Pushed:
    """Push a gradient. snapshot: None for a pull just before. weight: None for that of its
    steps."""
    snapshot = pull(store, worker) if snapshot is None else snapshot
    weight = steps if weight is None else weight
    rng = np.random.default_rng(0) if rng is None else rng
    event = Event(worker, steps=steps)
    pushed = Push(
        gradient=gradient,
        snapshot=snapshot,
        event=event,
        weight=weight,
        stats=stats,
        rng=rng,
        parameters=parameters,
    )
    return Pushed(store.push(worker, pushed), event)


def join(store: Any, worker: int) -> None:
    """Let a worker take part in rounds again."""
    assert store.rounds is not None
    store.rounds.join(worker)
