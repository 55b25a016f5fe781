"""A worker that is killed at any line of a push leaves nothing half done, and blocks nobody.

Each case forks a child that traces its own push and kills itself, by SIGKILL, at the n-th line of
core/; then the parent looks at the store that both share. The cases end where the push ends before
the n-th line.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from killing import killed_at_line
from stores import SIZE, join, make_spec, ones, pull, push, waits

from a3c_exp.backends.processes.resources import shared_store
from a3c_exp.core import store as store_module
from a3c_exp.core.counters import pack_rng
from a3c_exp.core.normalization import NormalizedObservations, Stats, measure_stats, merge_stats
from a3c_exp.core.store import SharedStore

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

CORE = os.path.dirname(store_module.__file__)
MOST_LINES = 1000


def make(**settings: Any) -> SharedStore:
    store = shared_store(make_spec(**settings))
    store.initialize(np.zeros(SIZE, np.float32))
    return store


def every_line(
    make_case: Callable[[], tuple[SharedStore, Callable[[], object]]],
) -> list[SharedStore]:
    """The stores that a push leaves that is killed at its first line, at its fourth, and so on, and
    a whole one."""
    left: list[SharedStore] = []
    for number in range(1, MOST_LINES, 3):
        store, action = make_case()
        left.append(store)
        if not killed_at_line(number, CORE, action):
            return left
    raise AssertionError("the push does not end")


def measured(mean: float) -> Stats:
    return measure_stats(np.full((2, 3), mean, np.float32), None)


def test_a_locked_update_is_made_whole_or_not_at_all() -> None:
    def case() -> tuple[SharedStore, Callable[[], object]]:
        store = make(lock=True)
        push(store, 0, ones())
        return store, lambda: push(store, 1, ones(10))

    left = every_line(case)
    versions = set()
    for store in left:
        versions.add(store.version)
        wanted = {1: ones(-1), 2: ones(-11)}[store.version]
        np.testing.assert_array_equal(store.state()["parameters"], wanted)
        push(store, 2, ones())  # nobody is blocked
        np.testing.assert_array_equal(store.state()["parameters"], wanted - 1)
    assert versions == {1, 2}
    assert len(left) > 10


def test_the_target_network_is_copied_by_the_update_after_one_that_was_killed() -> None:
    groups = {"online": slice(0, SIZE // 2), "target": slice(SIZE // 2, SIZE)}

    def case() -> tuple[SharedStore, Callable[[], object]]:
        store = make(lock=True, param_slices=groups, target_every=10)
        return store, lambda: push(store, 1, ones(), steps=12)

    for store in every_line(case):
        push(store, 2, ones(), steps=1)
        is_due = store.steps > 10  # the killed one has counted its own
        assert store.state()["parameters"][groups["target"]].any() == is_due


def test_a_round_is_applied_at_most_once_whoever_is_killed_while_closing_it() -> None:
    """One that is killed between the end of the round and its step leaves a round without a
    step."""

    def case() -> tuple[SharedStore, Callable[[], object]]:
        store = make(update="sync", workers=2)
        store.first = push(store, 0, ones(2))  # type: ignore[attr-defined]
        assert not store.first.done()  # type: ignore[attr-defined]
        return store, lambda: push(store, 1, ones(4))

    results = set()
    left = every_line(case)
    for store in left:
        store.leave(1)  # what the run does for a worker that has ended
        assert store.first.done()  # type: ignore[attr-defined]
        assert store.rounds is not None
        assert store.rounds.completed == 1
        (result,) = set(store.state()["parameters"].tolist())
        results.add((store.version, result))
        push(store, 0, ones()).done()
        np.testing.assert_array_equal(store.state()["parameters"], ones(result - 1))
    assert results == {(1, -2.0), (1, -3.0), (0, 0.0)}, (
        "the first gradient alone, the average of both, or none"
    )
    assert len(left) > 15


def test_a_cycle_ends_once_whoever_is_killed_while_ending_it() -> None:
    def case() -> tuple[SharedStore, Callable[[], object]]:
        store = make(update="sync", quorum=2)
        store.finish_rollout(0)
        assert waits(store, 0)

        def finish() -> None:
            store.finish_rollout(1)
            waits(store, 1)

        return store, finish

    goes_on = set()
    for store in every_line(case):
        goes_on.add(not waits(store, 0))
        store.leave(1)
        join(store, 1)
        assert not push(store, 1, ones()).done(), "the replacement takes part in rounds"
        store.finish_rollout(2)
        assert not waits(store, 0)
    assert goes_on == {False, True}


def test_statistics_and_generator_states_are_the_old_or_the_new_ones() -> None:
    old = np.random.default_rng(1)
    new = np.random.default_rng(2)
    settings = {"observations": NormalizedObservations(True, (3,))}

    def case() -> tuple[SharedStore, Callable[[], object]]:
        store = make(**settings)
        push(store, 1, ones(), stats=measured(1), rng=old)
        return store, lambda: push(store, 1, ones(), stats=measured(5), rng=new)

    states = {pack_rng(rng).tobytes(): name for rng, name in ((old, "old"), (new, "new"))}
    rows = {measured(1).tobytes(): "old", merge_stats([measured(1), measured(5)]).tobytes(): "new"}
    found = set()
    for store in every_line(case):
        stats = store.counters.stats()
        assert stats is not None
        found.add((rows[stats.tobytes()], states[store.counters.rng_states[1].tobytes()]))
        assert pull(store).normalizer is not None
    assert found == {("old", "old"), ("new", "old"), ("new", "new")}


def test_without_a_lock_nobody_is_blocked_and_no_count_is_wrong_by_more_than_one() -> None:
    def case() -> tuple[SharedStore, Callable[[], object]]:
        store = make(optimizer_state="per_worker")
        push(store, 0, ones())
        return store, lambda: push(store, 1, ones(), steps=5)

    for store in every_line(case):
        assert store.version in (1, 2)
        assert store.steps in (1, 6)
        push(store, 2, ones())
        assert np.isin(store.state()["parameters"], (-2, -3)).all()
