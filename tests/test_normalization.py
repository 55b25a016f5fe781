"""Running statistics: merged, robust against numbers that are not finite, and what they make of
observations."""

from __future__ import annotations

import numpy as np
import pytest

from a3c_exp.core.normalization import (
    NormalizedObservations,
    Normalizer,
    Stats,
    measure_stats,
    merge_stats,
    stats_width,
)


def make_normalizer(size: int, stats: Stats) -> Normalizer:
    return Normalizer.from_row(stats, NormalizedObservations(True, (size,)), False)


def test_statistics_of_no_transition_are_0() -> None:
    assert not measure_stats(np.zeros((0, 2, 3)), np.zeros(0)).any()
    assert len(measure_stats(np.zeros((0, 2, 3)), np.zeros(0))) == stats_width((2, 3), True, True)


def test_statistics_of_all_rows_are_those_of_all_observations() -> None:
    rng = np.random.default_rng(0)
    observations = rng.normal(5, 3, (1000, 2)).astype(np.float32)
    rows = [measure_stats(part, None) for part in np.split(observations, 4)]
    merged = merge_stats(np.stack(rows))
    np.testing.assert_allclose(merged, measure_stats(observations, None), rtol=1e-12)
    one_by_one = merge_stats([rows[0], merge_stats(np.stack(rows[1:]))])
    np.testing.assert_allclose(one_by_one, merged, rtol=1e-12)
    scaled = make_normalizer(2, merged).observations(observations)
    np.testing.assert_allclose(scaled.mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(scaled.std(0), 1, atol=1e-4)


def test_statistics_of_bytes_are_those_of_the_same_numbers() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, 1000).astype(np.uint8)
    np.testing.assert_allclose(
        measure_stats(pixels, None), measure_stats(pixels.astype(np.float64), None)
    )
    assert not measure_stats(pixels[:0], None).any()


@pytest.mark.parametrize(
    ("mean", "deviation"),
    [(100.0, 0.01), (0.0, 1e-3), (-3.0, 1e3), (1e6, 5.0), (1000.0, 0.005), (1.7e9, 1e4)],
)
def test_a_number_that_varies_little_is_still_normalized(mean: float, deviation: float) -> None:
    observations = (
        np.random.default_rng(0)
        .normal(mean, deviation, (1000, 1))
        .astype(np.float32)
        .astype(np.float64)
    )
    scaled = make_normalizer(1, measure_stats(observations, None)).observations(observations)
    assert 0.9 < scaled.std() < 1.1


def test_a_number_that_never_varies_is_centered_and_not_blown_up() -> None:
    observations = np.full((7, 1), np.float32(0.1))  # whose float64 sums are rounded
    stats = measure_stats(observations, None)
    for _ in range(1000):
        stats = merge_stats([measure_stats(observations, None), stats])
    scaled = make_normalizer(1, stats).observations(observations + np.float32(0.5))
    np.testing.assert_allclose(scaled, 0.5, rtol=1e-6)


def test_one_return_has_no_scale() -> None:
    nothing = Normalizer.from_row(
        np.zeros(stats_width((), False, True)), NormalizedObservations(), True
    )
    one = measure_stats(None, np.array([7.0]))
    np.testing.assert_allclose(nothing.rewards(np.array([[2.0]], np.float32), one), 2.0)
