"""The shared parameters: what a step changes, how stale it was, and what survives a writer that dies."""

from __future__ import annotations

import multiprocessing
import threading
from typing import Any

import numpy as np
import pytest
from stores import SIZE, make_spec, make_store, ones, pull, push

from a3c_exp.backends import forkserver
from a3c_exp.backends.processes import Processes
from a3c_exp.core.store import SharedStore
from a3c_exp.optimizers import SGD, Adam
from a3c_exp.schedules import Linear

locked_or_not = pytest.mark.parametrize("locked", [False, True])


@locked_or_not
def test_staleness_is_the_updates_between_pull_and_push(locked: bool) -> None:
    store = make_store(locked=locked)
    first, second = pull(store, 0), pull(store, 1)
    assert push(store, 1, ones(), second).event.staleness == {0: 1}
    push(store, 1, ones())
    assert push(store, 0, ones(), first).event.staleness == {2: 1}


@pytest.mark.parametrize(("power", "step"), [(0.0, 1.0), (0.5, 0.5)])
@locked_or_not
def test_the_rate_is_divided_by_a_power_of_the_staleness(power: float, step: float, locked: bool) -> None:
    """Gradients of staleness 0 and 1 have the whole rate. The last one here is 4 updates old."""
    store = make_store(optimizer=SGD(learning_rate=1.0, staleness_power=power), locked=locked)
    first = pull(store)
    for landed in range(4):
        push(store, 1, ones(), first if landed == 1 else None)
    before = store.state()["parameters"]
    np.testing.assert_array_equal(before, -4 * ones())
    assert push(store, 0, ones(), first).event.staleness == {4: 1}
    np.testing.assert_array_equal(store.state()["parameters"], before - step)


@pytest.mark.parametrize("settings", [{}, {"locked": True}, {"synchronous": True}], ids=str)
def test_the_rate_follows_the_progress_at_the_pull(settings: dict[str, bool]) -> None:
    store = make_store(schedule=Linear(start=1.0, end=0.0), workers=1, **settings)
    push(store, 0, None, steps=750)
    push(store, 0, ones(), steps=100)
    np.testing.assert_allclose(store.state()["parameters"], -0.25 * ones())


def test_optimizer_state_per_worker_is_independent_of_other_workers() -> None:
    """Each worker's Adam counts its own updates. With the shared counter its bias correction would be wrong."""
    adam = Adam(learning_rate=0.1, max_grad_norm=None)
    several, single = make_store(optimizer=adam, optimizer_state_per_worker=True), make_store(optimizer=adam, workers=1)
    for _ in range(3):
        push(several, 0, ones(0.5))
    before = several.state()["parameters"]
    push(several, 1, ones(-2))
    push(single, 0, ones(-2))
    np.testing.assert_allclose(several.state()["parameters"] - before, single.state()["parameters"], rtol=1e-5)


def test_a_worker_new_at_a_resumption_begins_with_the_initial_optimizer_state() -> None:
    """Adam's first step has the length of the rate. With another worker's state it would be a third of that."""
    adam = Adam(learning_rate=0.1, max_grad_norm=None)
    settings: dict[str, Any] = {"optimizer": adam, "optimizer_state_per_worker": True}
    store = make_store(**settings, workers=1)
    for _ in range(300):
        push(store, 0, ones(0.5))
    resumed = make_store(**settings, workers=2)
    resumed.restore(store.state())
    for worker in range(2):
        before = resumed.state()["parameters"]
        push(resumed, worker, ones(0.5))
        np.testing.assert_allclose(before - resumed.state()["parameters"], 0.1, rtol=1e-3)


# -- many writers at once ---------------------------------------------------------------------------------------------


def _push_many(store: SharedStore, worker: int, count: int) -> None:
    for _ in range(count):
        push(store, worker, ones(), steps=2)


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_every_update_is_counted_and_with_the_lock_none_is_lost(kind: str) -> None:
    forkserver.ensure_running()  # with all imports
    store = Processes().store(make_spec(locked=True)) if kind == "processes" else make_store(locked=True)
    store.initialize(np.zeros(SIZE, np.float32))
    start: Any = threading.Thread if kind == "threads" else multiprocessing.get_context("forkserver").Process
    writers = [start(target=_push_many, args=(store, worker, 300)) for worker in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert (store.version, store.steps) == (900, 1800)
    np.testing.assert_array_equal(store.state()["parameters"], -ones(900))
