"""How many workers a server feeds: the simulation agrees with the arithmetic."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))  # bench is not installed: it belongs to the checkout

from bench.capacity import Constants, simulate, table

QUICK = Constants(push=1e-3, rollout=25e-3, bytes=80e3, latency=1e-4)


@pytest.mark.parametrize("workers", [1, 5, 100, 1000])
@pytest.mark.parametrize("in_flight", [0, 1, 4])
@pytest.mark.parametrize("shards", [1, 4])
def test_simulated_pushes_are_those_of_the_arithmetic(workers: int, in_flight: int, shards: int) -> None:
    constants = replace(QUICK, in_flight=in_flight, shards=shards)
    assert simulate(constants, workers).pushes == pytest.approx(constants.pushes_per_second(workers), rel=0.05)


def test_a_server_feeds_as_many_workers_as_it_takes_pushes_during_a_rollout() -> None:
    assert QUICK.workers_fed == 25
    assert simulate(QUICK, 12).waiting < 0.01
    assert simulate(QUICK, 50).waiting == pytest.approx(0.5, abs=0.02), "half of them would do"


def test_a_worker_with_nothing_in_flight_waits_for_every_answer() -> None:
    alone = simulate(replace(QUICK, in_flight=0), 1)
    assert alone.waiting == pytest.approx(1.2 / 26.2, rel=0.05)
    assert alone.staleness == 0
    hidden = simulate(QUICK, 1)
    assert hidden.waiting == 0
    assert hidden.staleness == 1


def test_the_link_limits_pushes_of_large_vectors() -> None:
    large = replace(QUICK, bytes=6.8e6, bandwidth=1.25e9)
    assert simulate(large, 100).pushes == pytest.approx(1.25e9 / 6.8e6, rel=0.02)


def test_the_table_goes_up_to_ten_thousand_workers() -> None:
    row = table(20_000, push=1e-3, rollout=25e-3, in_flight=1, shards=1).splitlines()[-1]
    assert row.startswith("| 10,000 | 1,000 | 1,000 | 100% | ")
