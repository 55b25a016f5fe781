"""The store as workers and the trainer see it: pull, push, stop, and the state that a checkpoint
keeps."""

from __future__ import annotations

import math
import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from stores import SIZE, make_spec, make_store, ones, pull, push

from a3c_exp.backends import forkserver
from a3c_exp.backends.processes import Processes
from a3c_exp.core import seeding
from a3c_exp.core.normalization import NormalizedObservations, measure_stats
from a3c_exp.core.store import SharedStore
from a3c_exp.optimizers import SGD, Adam, ParamGroup
from a3c_exp.schedules import Linear

BOTH: dict[str, Any] = {
    "observations": NormalizedObservations(True, (2,)),
    "normalize_rewards": True,
}


def test_a_push_without_a_gradient_moves_counters_only() -> None:
    store = make_store()
    ticket = push(store, 0, None, steps=7)
    assert ticket.done()
    assert (ticket.event.updates, ticket.event.staleness) == (0, {})
    assert (store.version, store.steps) == (0, 7)
    assert not store.state()["parameters"].any()


GROUPS_OF_SGD = SGD(
    learning_rate=0.5, max_grad_norm=None, param_groups={"critic": ParamGroup(learning_rate=0.2)}
)


@pytest.mark.parametrize(
    ("settings", "rate"),
    [
        ({}, 1 / 4),
        ({"update": "sync"}, 1 / 4),
        ({"optimizer": GROUPS_OF_SGD}, (4 * 0.5 + 2 * 0.2) / 6 / 4),
    ],
    ids=["one rate", "a round", "the critic has its own"],
)
def test_an_event_has_the_learning_rate_with_which_its_gradient_was_applied(
    settings: dict[str, Any], rate: float
) -> None:
    """At half of the run, with a multiplier of a half; with groups it is the mean of the step."""
    store = make_store(workers=1, schedule=Linear(), **settings)
    store.set_multipliers(learning_rate=0.5)
    push(store, 0, None, steps=500)
    event = push(store, 0, ones()).event
    assert event.metrics["learning_rate"].mean == pytest.approx(rate)
    assert event.metrics["learning_rate"].mean == pytest.approx(-store.state()["parameters"].mean())


def test_the_learning_rate_of_an_event_is_smaller_for_a_stale_gradient() -> None:
    optimizer = SGD(learning_rate=1.0, max_grad_norm=None, staleness_power=0.5)
    store = make_store(optimizer=optimizer)
    snapshot = pull(store, 0)
    for _ in range(4):
        push(store, 1, ones())
    assert push(store, 0, ones(), snapshot).event.metrics["learning_rate"].mean == 0.5
    assert "learning_rate" not in push(store, 0, None).event.metrics, "nothing was applied"


@pytest.mark.parametrize("locked", [False, True])
def test_a_pull_and_a_peek_bring_the_same_snapshot(locked: bool) -> None:
    store = make_store(lock=locked, **BOTH)
    observations = np.random.default_rng(0).normal(3, 2, (100, 2)).astype(np.float32)
    for worker, part in enumerate(np.split(observations, [20, 50])):
        push(store, worker, ones(), steps=len(part), stats=measure_stats(part, np.zeros(1)))
    into = np.empty(SIZE, np.float32)
    pulled = store.pull(1, into)
    peeked = store.peek()
    np.testing.assert_array_equal(into, -ones(3))
    assert (pulled.version, pulled.steps) == (peeked.version, peeked.steps) == (3, 100)
    for normalizer in (pulled.normalizer, peeked.normalizer):
        assert (
            normalizer is not None
            and normalizer.mean is not None
            and normalizer.inverse_std is not None
        )
        np.testing.assert_allclose(normalizer.mean, observations.mean(0), rtol=1e-5)
        np.testing.assert_allclose(1 / normalizer.inverse_std, observations.std(0), rtol=1e-5)
    assert make_store().peek().normalizer is None


def test_a_worker_that_starts_has_its_saved_generator_and_starts_the_clock() -> None:
    store = make_store()
    rng = np.random.default_rng(5)
    rng.standard_exponential(7, dtype=np.float32)  # leaves half a word over
    push(store, 1, ones(), rng=rng)
    started = np.random.default_rng(0)
    assert store.counters.training_seconds == 0
    store.start(1, started)
    assert (
        started.standard_exponential(9, dtype=np.float32).tolist()
        == rng.standard_exponential(9, dtype=np.float32).tolist()
    )
    assert store.counters.training_seconds > 0


# -- multipliers
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"lock": True}, {"update": "sync"}], ids=str)
def test_a_step_has_the_multiplier_of_the_pull_that_its_gradient_is_based_on(
    settings: dict[str, bool],
) -> None:
    store = make_store(workers=1, **settings)
    before = pull(store)
    store.set_multipliers(learning_rate=0.25)
    push(store, 0, ones(), before)
    np.testing.assert_array_equal(store.state()["parameters"], -ones())
    push(store, 0, ones())
    np.testing.assert_array_equal(store.state()["parameters"], -ones(1.25))


def test_each_multiplier_stays_until_it_is_set_again_and_is_part_of_the_state() -> None:
    store = make_store()
    assert pull(store).multipliers == (1, 1)
    store.set_multipliers(learning_rate=0.1)
    store.set_multipliers(entropy=-3.0)
    other = make_store()
    other.restore(store.state())
    assert pull(other).multipliers == other.counters.multipliers == (0.1, -3.0)
    for wrong in ({"learning_rate": -1.0}, {"learning_rate": math.inf}, {"entropy": math.nan}):
        with pytest.raises(ValueError, match="finite"):
            store.set_multipliers(**wrong)
    assert pull(store).multipliers == (0.1, -3.0)


# -- the state that a checkpoint keeps
# --------------------------------------------------------------------------------


@pytest.mark.parametrize("locked", [False, True])
@pytest.mark.parametrize("workers", [2, 5])
def test_a_restored_state_is_complete_for_any_number_of_workers(locked: bool, workers: int) -> None:
    adam = Adam(learning_rate=0.1, max_grad_norm=None)
    observed = NormalizedObservations(True, (2,))
    settings: dict[str, Any] = {"optimizer": adam, "lock": locked, "observations": observed}
    store = make_store(**settings)
    rng = np.random.default_rng(5)
    for worker in (0, 1, 2, 1):
        gradient = rng.standard_normal(SIZE).astype(np.float32)
        stats = measure_stats(rng.standard_normal((10, 2)), None)
        push(store, worker, gradient, steps=10, stats=stats, rng=rng)
    other = make_store(**settings, workers=workers)
    other.restore(store.state())
    assert (other.version, other.steps) == (store.version, store.steps) == (4, 40)
    assert other.counters.gradients[:2].tolist() == [1, 2]
    restored = np.random.default_rng(0)
    other.start(1, restored)
    assert restored.random() == rng.random()
    # The next update is the same, since parameters, optimizer state and Adam's counter are.
    for each in (store, other):
        push(each, 0, ones())
    np.testing.assert_array_equal(store.state()["parameters"], other.state()["parameters"])
    mine = pull(store).normalizer
    theirs = pull(other).normalizer
    assert (
        mine is not None
        and theirs is not None
        and mine.mean is not None
        and theirs.mean is not None
    )
    np.testing.assert_array_equal(mine.mean, theirs.mean)


def test_a_state_is_copied_while_workers_update_faster_than_their_statistics_are_copied() -> None:
    """Its counters may be newer, but never older than its parameters."""
    store = make_store(lock=True)
    copied = 0
    counters = store.counters.state

    def slowly() -> dict[str, Any]:
        nonlocal copied
        copied += 1
        push(store, 0, ones())
        return counters()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store.counters, "state", slowly)
        before = store.parameters.state()
        state = store.state()
    assert copied == 1
    np.testing.assert_array_equal(state["parameters"], before["parameters"])


def test_the_state_of_another_network_or_optimizer_is_refused() -> None:
    other = SharedStore(make_spec(size=7, param_slices={"actor": slice(0, 7)}))
    with pytest.raises(ValueError, match="shapes"):
        other.restore(make_store().state())
    with pytest.raises(ValueError, match="broadcast"):
        other.start_from(make_store().state())
    with pytest.raises(ValueError, match="shapes"):
        make_store(optimizer=Adam(learning_rate=0.1)).restore(make_store().state())


def test_a_start_from_another_run_takes_its_observation_statistics_and_not_its_returns() -> None:
    """Returns depend on rewards and discount, which may differ here."""
    first = make_store(**BOTH)
    second = make_store(**BOTH)
    observations = np.array([[3.0, 5.0], [5.0, 9.0]])
    returns = np.array([1000.0, -1000.0])
    push(first, 0, ones(), steps=2, stats=measure_stats(observations, returns))
    second.start_from(first.state())
    np.testing.assert_array_equal(second.state()["parameters"], -ones())
    assert (second.version, second.steps) == (0, 0)
    normalizer = pull(second).normalizer
    assert normalizer is not None and normalizer.mean is not None
    np.testing.assert_allclose(normalizer.mean, [4, 7])
    assert normalizer.reward_scale is not None and math.isnan(normalizer.reward_scale), (
        "no return has been measured"
    )


# -- statistics
# --------------------------------------------------------------------------------------------------


def test_statistics_read_half_written_are_hardly_wrong() -> None:
    """A worker writes its row while another reads it: whichever part is the newer one, the scale
    holds."""
    rng = np.random.default_rng(0)
    stores = [make_store(observations=NormalizedObservations(True, (2,))) for _ in range(2)]
    before, after = stores
    for observations in np.split(rng.normal(100, 1, (2000, 2)), 100):
        for store in stores:
            store.counters.count(0, 20, measure_stats(observations, None))
    after.counters.count(0, 20, measure_stats(rng.normal(100, 1, (20, 2)), None))
    old = before.state()
    new = after.state()
    for written in range(1, len(new["stats"])):
        torn = np.concatenate([new["stats"][:written], old["stats"][written:]])
        before.restore(old | {"stats": torn})
        normalizer = before.normalizer()
        assert (
            normalizer is not None
            and normalizer.mean is not None
            and normalizer.inverse_std is not None
        )
        np.testing.assert_allclose(normalizer.mean, 100, atol=0.1)
        np.testing.assert_allclose(normalizer.inverse_std, 1, atol=0.05)


# -- generators
# --------------------------------------------------------------------------------------------------


def test_no_two_roles_workers_environments_or_resumptions_share_a_stream() -> None:
    keys = [
        (role, w, e, r)
        for role in seeding.Role
        for w in range(3)
        for e in range(3)
        for r in range(2)
    ]
    drawn = {seeding.generator(0, role, w, e, r).random() for role, w, e, r in keys}
    assert len(drawn) == len(keys)


# The shared parameters.


locked_or_not = pytest.mark.parametrize("locked", [False, True])


@locked_or_not
def test_staleness_is_the_updates_between_pull_and_push(locked: bool) -> None:
    store = make_store(lock=locked)
    first = pull(store, 0)
    second = pull(store, 1)
    assert push(store, 1, ones(), second).event.staleness == {0: 1}
    push(store, 1, ones())
    assert push(store, 0, ones(), first).event.staleness == {2: 1}


@pytest.mark.parametrize(("power", "step"), [(0.0, 1.0), (0.5, 0.5)])
@locked_or_not
def test_the_rate_is_divided_by_a_power_of_the_staleness(
    power: float, step: float, locked: bool
) -> None:
    """Gradients of staleness 0 and 1 have the whole rate. The last one here is 4 updates old."""
    store = make_store(optimizer=SGD(learning_rate=1.0, staleness_power=power), lock=locked)
    first = pull(store)
    for landed in range(4):
        push(store, 1, ones(), first if landed == 1 else None)
    before = store.state()["parameters"]
    np.testing.assert_array_equal(before, -4 * ones())
    assert push(store, 0, ones(), first).event.staleness == {4: 1}
    np.testing.assert_array_equal(store.state()["parameters"], before - step)


@pytest.mark.parametrize("settings", [{}, {"lock": True}, {"update": "sync"}], ids=str)
def test_the_rate_follows_the_progress_at_the_pull(settings: dict[str, bool]) -> None:
    store = make_store(schedule=Linear(start=1.0, end=0.0), workers=1, **settings)
    push(store, 0, None, steps=750)
    push(store, 0, ones(), steps=100)
    np.testing.assert_allclose(store.state()["parameters"], -0.25 * ones())


def test_optimizer_state_per_worker_is_independent_of_other_workers() -> None:
    """Each worker's Adam counts its own updates. With the shared counter its bias correction would
    be wrong."""
    adam = Adam(learning_rate=0.1, max_grad_norm=None)
    several = make_store(optimizer=adam, optimizer_state="per_worker")
    single = make_store(optimizer=adam, workers=1)
    for _ in range(3):
        push(several, 0, ones(0.5))
    before = several.state()["parameters"]
    push(several, 1, ones(-2))
    push(single, 0, ones(-2))
    np.testing.assert_allclose(
        several.state()["parameters"] - before, single.state()["parameters"], rtol=1e-5
    )


def test_a_worker_new_at_a_resumption_begins_with_the_initial_optimizer_state() -> None:
    """Adam's first step has the length of the rate. With another worker's state it would be a third
    of that."""
    adam = Adam(learning_rate=0.1, max_grad_norm=None)
    settings: dict[str, Any] = {"optimizer": adam, "optimizer_state": "per_worker"}
    store = make_store(**settings, workers=1)
    for _ in range(300):
        push(store, 0, ones(0.5))
    resumed = make_store(**settings, workers=2)
    resumed.restore(store.state())
    for worker in range(2):
        before = resumed.state()["parameters"]
        push(resumed, worker, ones(0.5))
        np.testing.assert_allclose(before - resumed.state()["parameters"], 0.1, rtol=1e-3)


# -- many writers at once
# ---------------------------------------------------------------------------------------------


def test_updates_of_two_workers_at_once_overlap_and_one_alone_does_not() -> None:
    barrier = threading.Barrier(2)

    class Meeting(SGD):
        def step(self, *arguments: Any) -> None:
            barrier.wait(timeout=60)
            super().step(*arguments)

    store = make_store(optimizer=Meeting(learning_rate=1.0), count_overlaps=True, workers=2)
    with ThreadPoolExecutor(2) as threads:
        pushed = list(threads.map(lambda worker: push(store, worker, ones()), range(2)))
    assert [each.event.counts["overlaps"] for each in pushed] == [1, 1]

    barrier = threading.Barrier(1)
    assert not push(store, 0, ones()).event.counts


def _push_many(store: SharedStore, worker: int, count: int) -> None:
    for _ in range(count):
        push(store, worker, ones(), steps=2)


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_every_update_is_counted_and_with_the_lock_none_is_lost(kind: str) -> None:
    forkserver.ensure_running()  # with all imports
    store = (
        Processes().store(make_spec(lock=True)) if kind == "processes" else make_store(lock=True)
    )
    store.initialize(np.zeros(SIZE, np.float32))
    start: Any = (
        threading.Thread if kind == "threads" else multiprocessing.get_context("forkserver").Process
    )
    writers = [start(target=_push_many, args=(store, worker, 300)) for worker in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert (store.version, store.steps) == (900, 1800)
    np.testing.assert_array_equal(store.state()["parameters"], -ones(900))
