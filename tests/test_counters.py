"""What workers count and keep: steps, updates, statistics, generator states, the clock of the training."""

from __future__ import annotations

import numpy as np
from stores import make_store

from a3c_exp.common.arrays import arrays_in, block_size
from a3c_exp.core import seeding
from a3c_exp.core.counters import WorkerCounters, pack_rng, unpack_rng
from a3c_exp.core.normalization import NormalizedObservations, RunningStats


def make_counters(workers: int = 3, stats_width: int = 0) -> WorkerCounters:
    specs = WorkerCounters.specs(workers, stats_width)
    return WorkerCounters(arrays_in(bytearray(block_size(specs)), specs))


def test_totals_are_those_of_all_workers_and_are_kept_for_another_number_of_them() -> None:
    counters = make_counters()
    for worker, steps in ((0, 20), (1, 5), (1, 5), (2, 10)):
        counters.count(worker, steps)
        counters.count_gradient(worker)
    assert (counters.steps, counters.applied_gradients) == (40, 4)
    assert [counters.gradients_of(worker) for worker in range(3)] == [1, 2, 1]
    for workers, gradients in ((1, [1]), (5, [1, 2, 1, 0, 0])):
        resumed = make_counters(workers)
        resumed.restore(counters.state(), version=4)
        assert (resumed.steps, resumed.applied_gradients) == (40, 4)
        assert [resumed.gradients_of(worker) for worker in range(workers)] == gradients


def test_a_copy_of_counters_kept_elsewhere_reports_at_least_their_steps() -> None:
    counters = make_counters()
    counters.count(1, 10)
    counters.raise_steps_to(50)
    assert counters.steps == 50
    counters.raise_steps_to(40)
    assert counters.steps == 50


def test_the_first_start_of_the_clock_counts() -> None:
    counters = make_counters()
    assert counters.training_seconds == 0
    counters.start_clock(seconds_ago=1000)
    counters.start_clock()
    assert counters.training_seconds >= 1000


# -- statistics -------------------------------------------------------------------------------------------------------


def test_statistics_read_half_written_are_hardly_wrong() -> None:
    """A worker writes its row while another reads it: whichever part is the newer one, the scale holds."""
    rng = np.random.default_rng(0)
    stores = [make_store(observations=NormalizedObservations(True, (2,))) for _ in range(2)]
    before, after = stores
    for observations in np.split(rng.normal(100, 1, (2000, 2)), 100):
        for store in stores:
            store.counters.count(0, 20, RunningStats.of(observations, None))
    after.counters.count(0, 20, RunningStats.of(rng.normal(100, 1, (20, 2)), None))
    old, new = before.state(), after.state()
    for written in range(1, len(new["stats"])):
        torn = np.concatenate([new["stats"][:written], old["stats"][written:]])
        before.restore(old | {"stats": torn})
        normalizer = before.normalizer()
        assert normalizer is not None and normalizer.mean is not None and normalizer.inverse_std is not None
        np.testing.assert_allclose(normalizer.mean, 100, atol=0.1)
        np.testing.assert_allclose(normalizer.inverse_std, 1, atol=0.05)


# -- generators -------------------------------------------------------------------------------------------------------


def test_a_packed_generator_continues_where_it_stopped() -> None:
    rng = seeding.generator(3, seeding.Role.ACTIONS)
    rng.standard_exponential(7, dtype=np.float32)  # leaves half a word over
    again = seeding.generator(0, seeding.Role.ACTIONS)
    unpack_rng(again, pack_rng(rng))
    np.testing.assert_array_equal(
        rng.standard_exponential(9, dtype=np.float32), again.standard_exponential(9, dtype=np.float32)
    )


def test_no_two_roles_workers_environments_or_resumptions_share_a_stream() -> None:
    keys = [(role, w, e, r) for role in seeding.Role for w in range(3) for e in range(3) for r in range(2)]
    drawn = {seeding.generator(0, role, w, e, r).random() for role, w, e, r in keys}
    assert len(drawn) == len(keys)
