"""Pull and push: what lands, how stale it was, and what survives a writer that dies."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from typing import Any

import numpy as np
import pytest

from a3c_exp.core import seeding
from a3c_exp.backends.processes.backend import FileLock
from a3c_exp.backends.processes import Processes
from a3c_exp.core.normalization import RunningStats
from a3c_exp.optimizers import SGD, Adam
from a3c_exp.core.store import StoreSpec, SharedStore
from a3c_exp.schedules import Constant, Linear

SIZE = 6


def layout(**settings: Any) -> StoreSpec:
    defaults: dict[str, Any] = {
        "size": SIZE, "parts": {"actor": slice(0, 4), "critic": slice(4, 6)}, "workers": 3,
        "optimizer": SGD(learning_rate=1.0, max_grad_norm=None), "schedule": Constant(value=1.0), "total_steps": 1000,
    }  # fmt: skip
    return StoreSpec(**defaults | settings)


def store(**settings: Any) -> SharedStore:
    made = SharedStore(layout(**settings))
    made.initialise(np.zeros(SIZE, np.float32))
    return made


def ones(factor: float = 1.0) -> np.ndarray:
    return np.full(SIZE, factor, np.float32)


def pull(s: SharedStore, worker: int = 0) -> tuple[np.ndarray, Any]:
    into = np.empty(SIZE, np.float32)
    return into, s.pull(worker, into)


@pytest.mark.parametrize("locked", [False, True])
def test_a_push_steps_against_the_gradient(locked: bool) -> None:
    s = store(locked=locked)
    _, snapshot = pull(s)
    result = s.push(0, ones(), snapshot, transitions=20)
    assert result == (0, True, 1)
    np.testing.assert_array_equal(pull(s)[0], -ones())
    assert (s.version, s.steps) == (1, 20)


@pytest.mark.parametrize("locked", [False, True])
def test_staleness_is_the_updates_that_landed_between_pull_and_push(locked: bool) -> None:
    s = store(locked=locked)
    (_, first), (_, second) = pull(s, 0), pull(s, 1)
    assert s.push(1, ones(), second, 1).staleness == 0  # type: ignore[union-attr]
    s.push(1, ones(), pull(s, 1)[1], 1)
    assert s.push(0, ones(), first, 1).staleness == 2  # type: ignore[union-attr]


def test_one_that_has_left_and_finishes_is_not_waited_for() -> None:
    s = store(synchronous=True)
    s.leave(1)
    s.leave(2)
    s.finish(1)
    s.finish(0)
    assert not s.round_in_progress(0)


@pytest.mark.parametrize("locked", [False, True])
@pytest.mark.parametrize(("power", "step"), [(0.0, 1.0), (0.5, 0.5), (1.0, 0.25)])
def test_the_rate_is_divided_by_a_power_of_the_staleness(power: float, step: float, locked: bool) -> None:
    """Fresh gradients, and those that one update has overtaken, have the whole rate; here the last is 4 updates old."""
    s = store(optimizer=SGD(learning_rate=1.0, staleness_power=power), locked=locked)
    _, first = pull(s, 0)
    for landed in range(4):
        s.push(1, ones(), first if landed == 1 else pull(s, 1)[1], 1)
    before = pull(s)[0]
    np.testing.assert_array_equal(before, -4 * ones())
    assert s.push(0, ones(), first, 1).staleness == 4  # type: ignore[union-attr]
    np.testing.assert_array_equal(pull(s)[0], before - step)


def test_a_refused_gradient_moves_counters_only() -> None:
    s = store()
    _, snapshot = pull(s)
    result = s.push(0, None, snapshot, transitions=7)
    assert result is not None and not result.accepted
    assert (s.version, s.steps) == (0, 7)
    assert not pull(s)[0].any()


def test_the_rate_follows_the_runs_progress_at_the_pull() -> None:
    s = store(schedule=Linear(start=1.0, end=0.0))
    s.push(0, None, pull(s)[1], transitions=750)
    s.push(0, ones(), pull(s)[1], 1)
    np.testing.assert_allclose(pull(s)[0], -0.25 * ones())


def test_moments_of_its_own_are_nobody_elses() -> None:
    """Each worker's Adam counts its own updates: with the shared counter its bias correction would be wrong."""
    adam = Adam(learning_rate=0.1, max_grad_norm=None)
    s, exclusive_folder = store(optimizer=adam, optimizer_state_per_worker=True), store(optimizer=adam, workers=1)
    for _ in range(3):
        s.push(0, ones(0.5), pull(s)[1], 1)
    before = pull(s)[0].copy()
    s.push(1, ones(-2), pull(s, 1)[1], 1)
    exclusive_folder.push(0, ones(-2), pull(exclusive_folder)[1], 1)
    np.testing.assert_allclose(pull(s)[0] - before, pull(exclusive_folder)[0], rtol=1e-5)


def test_a_worker_who_joins_at_a_resumption_begins_with_moments_that_fit_its_count() -> None:
    """Adam's first step has the length of the rate. With the grown moments of another it would be a third of that."""
    settings: dict[str, Any] = {"optimizer": Adam(learning_rate=0.1, max_grad_norm=None), "moments_per_worker": True}
    s = store(**settings, workers=1)
    for _ in range(300):
        s.push(0, ones(0.5), pull(s)[1], 1)
    resumed = store(**settings, workers=2)
    resumed.restore(s.state())
    for worker in range(2):
        before = pull(resumed)[0].copy()
        resumed.push(worker, ones(0.5), pull(resumed, worker)[1], 1)
        np.testing.assert_allclose(before - pull(resumed)[0], 0.1, rtol=1e-3)


def test_a_synchronous_round_steps_once_with_the_average_weighted_by_transitions() -> None:
    s = store(synchronous=True)
    pulls = [pull(s, w)[1] for w in range(3)]
    assert s.push(0, ones(1), pulls[0], transitions=10) is None
    assert s.push(1, ones(2), pulls[1], transitions=10) is None
    assert s.poll(0, pulls[0]) is None
    last = s.push(2, ones(6), pulls[2], transitions=20)
    assert last is not None and last.applied == 1
    waited = s.poll(0, pulls[0])
    assert waited is not None and waited.applied == 0 and waited.staleness == 0
    np.testing.assert_allclose(pull(s)[0], -ones((10 * 1 + 10 * 2 + 20 * 6) / 40))
    assert (s.version, s.steps) == (1, 40)


def test_a_worker_that_left_is_not_waited_for() -> None:
    s = store(synchronous=True)
    pulls = [pull(s, w)[1] for w in range(3)]
    s.push(0, ones(1), pulls[0], 10)
    s.push(1, ones(3), pulls[1], 10)
    s.leave(2)
    assert s.poll(0, pulls[0]) is not None
    np.testing.assert_allclose(pull(s)[0], -ones(2))


def test_a_worker_whose_gradient_was_refused_weighs_nothing_in_its_round() -> None:
    s = store(synchronous=True, workers=2)
    pulls = [pull(s, w)[1] for w in range(2)]
    s.push(0, None, pulls[0], 10)
    s.push(1, ones(3), pulls[1], 10)
    refused = s.poll(0, pulls[0])
    assert refused is not None and not refused.accepted
    np.testing.assert_allclose(pull(s)[0], -ones(3))


def test_a_round_of_refused_gradients_passes_without_a_step() -> None:
    s = store(synchronous=True, workers=2)
    pulls = [pull(s, w)[1] for w in range(2)]
    s.push(0, None, pulls[0], 10)
    assert s.push(1, None, pulls[1], 10) is not None
    assert s.poll(0, pulls[0]) is not None
    assert s.version == 0


def test_a_round_weighs_gradients_by_what_they_were_made_of_where_that_is_not_what_was_collected() -> None:
    """A minibatch of 30 transitions, and one of 10 that comes with the 100 steps of its rollout."""
    s = store(synchronous=True, workers=2)
    pulls = [pull(s, worker)[1] for worker in range(2)]
    s.push(0, ones(1), pulls[0], 0, weight=30)
    s.push(1, ones(5), pulls[1], 100, weight=10)
    np.testing.assert_allclose(pull(s)[0], -ones(2))
    assert s.steps == 100


def test_rounds_go_on_without_one_that_has_finished_with_its_rollout_until_all_have() -> None:
    s = store(synchronous=True, workers=2)
    s.finish(0)
    assert s.round_in_progress(0)
    for _ in range(2):
        assert s.push(1, ones(), pull(s, 1)[1], 10) is not None
    s.finish(1)
    assert not s.round_in_progress(0) and not s.round_in_progress(1)
    assert s.push(1, ones(), pull(s, 1)[1], 10) is None, "both are members again"


def test_who_has_finished_waits_for_no_one_that_is_gone() -> None:
    s = store(synchronous=True, workers=3)
    s.leave(2)
    s.finish(0)
    assert s.round_in_progress(0)
    s.leave(1)
    assert not s.round_in_progress(0)
    assert s.push(0, ones(), pull(s)[1], 10) is not None


def test_without_rounds_nobody_waits() -> None:
    s = store(workers=2)
    s.finish(0)
    assert not s.round_in_progress(0)


def test_a_start_from_other_parameters_knows_its_observations_and_not_its_returns() -> None:
    """What returns were there depends on rewards and discount, which may be others here."""
    both: dict[str, Any] = {"observation_shape": (2,), "normalize_observations": True, "normalize_rewards": True}
    first, second = store(**both), store(**both)
    seen, returns = np.array([[3.0, 5.0], [5.0, 9.0]]), np.array([1000.0, -1000.0])
    first.push(0, ones(), pull(first)[1], 2, RunningStats.of(seen, returns))
    second.start_from(first.state())
    scales = pull(second)[1].normalizer
    assert scales is not None and scales.mean is not None
    np.testing.assert_allclose(scales.mean, [4, 7])
    assert scales.reward_scale == 1.0


def test_statistics_are_those_of_all_workers() -> None:
    s = store(observation_shape=(2,), normalize_observations=True)
    seen = np.random.default_rng(0).normal(3, 2, (100, 2)).astype(np.float32)
    for worker, part in enumerate(np.split(seen, [20, 50])):
        s.push(worker, ones(), pull(s, worker)[1], len(part), RunningStats.of(part, None))
    normalizer = pull(s)[1].normalizer
    np.testing.assert_allclose(normalizer.mean, seen.mean(0), rtol=1e-5)
    np.testing.assert_allclose(1 / normalizer.inverse_std, seen.std(0), rtol=1e-5)


def test_statistics_met_half_written_are_hardly_wrong() -> None:
    """A worker writes its row while another reads it: whichever part is the newer one, the scale holds."""
    settings: dict[str, Any] = {"observation_shape": (2,), "normalize_observations": True}
    rng = np.random.default_rng(0)
    before, after = store(**settings), store(**settings)
    for seen in np.split(rng.normal(100, 1, (2000, 2)), 100):
        before.count(0, 20, RunningStats.of(seen, None))
        after.count(0, 20, RunningStats.of(seen, None))
    after.count(0, 20, RunningStats.of(rng.normal(100, 1, (20, 2)), None))
    old, new = before.state(), after.state()
    for written in range(1, len(new["statistics"])):
        torn = np.concatenate([new["statistics"][:written], old["statistics"][written:]])
        before.restore(old | {"statistics": torn})
        scale = before.normalizer()
        assert scale is not None and scale.mean is not None and scale.inverse_std is not None
        np.testing.assert_allclose(scale.mean, 100, atol=0.1)
        np.testing.assert_allclose(scale.inverse_std, 1, atol=0.05)


@pytest.mark.parametrize("locked", [False, True])
@pytest.mark.parametrize("workers", [2, 3, 5])
def test_a_state_restored_has_everything_also_for_another_number_of_workers(locked: bool, workers: int) -> None:
    settings: dict[str, Any] = {
        "optimizer": Adam(learning_rate=0.1, max_grad_norm=None), "locked": locked,
        "observation_shape": (2,), "normalize_observations": True,
    }  # fmt: skip
    s = store(**settings)
    rng = np.random.default_rng(5)
    for worker in (0, 1, 2, 1):
        gradient = rng.standard_normal(SIZE).astype(np.float32)
        s.push(worker, gradient, pull(s, worker)[1], 10, RunningStats.of(rng.standard_normal((10, 2)), None))
        s.save_rng_state(worker, rng)
    other = store(**settings, workers=workers)
    other.restore(s.state())
    assert (other.version, other.steps) == (s.version, s.steps) == (4, 40)
    for made in (s, other):  # the next update is the same: parameters, moments and Adam's counter are
        made.push(0, ones(), pull(made)[1], 1)
    np.testing.assert_array_equal(pull(s)[0], pull(other)[0])
    np.testing.assert_array_equal(pull(s)[1].normalizer.mean, pull(other)[1].normalizer.mean)
    restored = np.random.default_rng(0)
    other.load_rng_state(1, restored)
    assert restored.random() == rng.random()


def test_a_state_of_another_network_is_refused() -> None:
    other = SharedStore(layout(size=7, param_slices={"actor": slice(0, 7)}))
    with pytest.raises(ValueError, match="shapes"):
        other.restore(store().state())


def test_a_packed_generator_goes_on_where_it_stood() -> None:
    rng = seeding.generator(3, seeding.Role.ACTIONS)
    rng.standard_exponential(7, dtype=np.float32)  # leaves half a word behind
    again = seeding.generator(0, seeding.Role.ACTIONS)
    seeding.unpack(again, seeding.pack(rng))
    np.testing.assert_array_equal(
        rng.standard_exponential(9, dtype=np.float32), again.standard_exponential(9, dtype=np.float32)
    )


def test_no_two_roles_workers_environments_or_resumptions_share_a_stream() -> None:
    keys = [(role, w, e, r) for role in seeding.Role for w in range(3) for e in range(3) for r in range(2)]
    drawn = {seeding.generator(0, role, w, e, r).random() for role, w, e, r in keys}
    assert len(drawn) == len(keys)


# -- many writers at once ---------------------------------------------------------------------------------------------


def _push_many(s: SharedStore, worker: int, count: int) -> None:
    into = np.empty(SIZE, np.float32)
    for _ in range(count):
        s.push(worker, ones(), s.pull(worker, into), 2)


def test_threads_under_the_lock_lose_no_update() -> None:
    s = store(locked=True)
    threads = [threading.Thread(target=_push_many, args=(s, w, 300)) for w in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(pull(s)[0], -ones(900))
    assert (s.version, s.steps) == (900, 1800)


@pytest.mark.parametrize("locked", [False, True])
def test_processes_count_every_update_and_under_the_lock_lose_none(locked: bool) -> None:
    made = Processes().store(layout(locked=locked))
    made.initialise(np.zeros(SIZE, np.float32))
    context = multiprocessing.get_context("forkserver")
    children = [context.Process(target=_push_many, args=(made, w, 300)) for w in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert (made.version, made.steps) == (900, 1800)
    if locked:
        np.testing.assert_array_equal(pull(made)[0], -ones(900))


def _die_with_the_lock(lock: FileLock, half: Any) -> None:
    with lock:
        half.set()
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_lock_whose_holder_was_killed_is_free() -> None:
    """A multiprocessing.Lock would block everybody for ever here."""
    context = multiprocessing.get_context("forkserver")
    lock, half = FileLock(), context.Event()
    child = context.Process(target=_die_with_the_lock, args=(lock, half))
    child.start()
    assert half.wait(20)
    child.join()
    assert child.exitcode == -signal.SIGKILL
    with lock:
        pass


class _Dying(SGD):
    """An optimizer that is killed in the middle of its work."""

    def step(self, parameters: Any, *_: Any) -> None:
        parameters[: SIZE // 2] = 77
        raise SystemExit


def test_a_writer_that_dies_half_way_has_changed_nothing_under_the_lock() -> None:
    s = store(locked=True)
    s.push(0, ones(), pull(s)[1], 1)
    object.__setattr__(s.layout, "optimizer", _Dying(learning_rate=1.0))
    with pytest.raises(SystemExit):
        s.push(1, ones(), pull(s, 1)[1], 1)
    np.testing.assert_array_equal(pull(s)[0], -ones())
    assert s.version == 1
