"""Estimates from few seeds, and from few episodes."""

from __future__ import annotations

import random

import numpy as np
import pytest

from a3c_exp.common.estimates import (
    bootstrap_band,
    bootstrap_interval,
    estimate,
    improvement,
    interquartile_mean,
    probability_of_improvement,
    stratified_interval,
    student_half_width,
)


def test_the_interquartile_mean_leaves_out_the_best_and_the_worst_quarter() -> None:
    assert interquartile_mean(np.array([0.0, 100, 2, 3, 4, 5, 6, -50])) == (2 + 3 + 4 + 5) / 4
    assert interquartile_mean(np.array([9.0, 1, 2])) == 4, (
        "three scores have no whole quarter to leave out"
    )
    assert interquartile_mean(np.arange(12.0).reshape(2, 6)).tolist() == [2.5, 8.5]


def test_mean_and_interval_are_those_of_rliable() -> None:
    """What `aggregate_iqm` and `get_interval_estimates(..., reps=50000)` of rliable 1.2.0 (with
    arch 7.2.0) give."""
    scores = np.array([187.5, 194.9, 231.0, 240.2, 253.3, 222.1, 236.0, 199.9, 228.4, 245.5])
    assert interquartile_mean(scores) == pytest.approx(226.26666666666668, abs=1e-9)
    assert bootstrap_interval(scores) == pytest.approx((206.96666667, 239.78333333), abs=0.7), (
        "both draw at random"
    )


def test_small_returns_have_more_decimals() -> None:
    """Those of MiniGrid are below 1."""
    assert (estimate([250.26]), estimate([0.9642]), estimate([-0.02, 0.01, 9.9])) == (
        "250.3",
        "0.964",
        "3.297 [-0.020, 9.900]",
    )


def test_the_band_of_curves_is_the_interval_at_each_of_their_points() -> None:
    curves = np.random.default_rng(0).normal(size=(10, 7)) + np.arange(7.0)
    low, high = bootstrap_band(curves)
    for point in range(7):
        assert (low[point], high[point]) == pytest.approx(
            bootstrap_interval(curves[:, point]), abs=0.15
        )


def test_the_probability_of_improvement_counts_pairs_and_halves_ties() -> None:
    assert probability_of_improvement([3.0, 1.0], [2.0, 1.0]) == (1 + 1 + 0 + 0.5) / 4


def test_the_interval_of_an_improvement_that_is_sure_has_no_width() -> None:
    assert improvement([5.0, 6.0, 7.0], [1.0, 2.0]) == (1.0, 1.0, 1.0)
    _, low, high = improvement([1.0, 2.0, 3.0, 4.0], [1.5, 2.5, 3.5])
    assert low < 0.5 < high


@pytest.mark.parametrize(
    ("count", "quantile"), [(2, 12.7062), (4, 3.1824), (5, 2.7764), (10, 2.2622), (100, 1.9842)]
)
def test_the_interval_of_a_mean_is_that_of_students_distribution_in_its_tables(
    count: int, quantile: float
) -> None:
    values = np.arange(count)
    expected = quantile * values.std(ddof=1) / count**0.5
    assert student_half_width(values) == pytest.approx(expected, rel=0.002)


def test_the_interval_over_several_tasks_is_that_of_a_stratified_bootstrap() -> None:
    """Agarwal et al. 2021, section 4.1: runs are drawn with replacement within each task, and the
    scores of all tasks are one sample."""
    tasks = [[0.1, 0.2, 0.9, 0.4, 0.6], [1.5, 1.1, 1.9, 1.4, 1.2, 1.7]]
    generator = random.Random(0)
    means = []
    for _ in range(5000):
        sample = [score for task in tasks for score in generator.choices(task, k=len(task))]
        middle = sorted(sample)[len(sample) // 4 : len(sample) - len(sample) // 4]
        means.append(sum(middle) / len(middle))
    means.sort()
    expected = (means[125], means[4875])
    assert stratified_interval(tasks) == pytest.approx(expected, abs=0.03)
