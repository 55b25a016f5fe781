"""Values that follow the progress of a run."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from refusals import refused

from a3c_exp.common.ranges import Checked, Share
from a3c_exp.schedules import Linear, Schedule, progress_of, value


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (Linear(start=2.0, end=1.0), [2.0, 2.0, 1.75, 1.5, 1.0, 1.0]),
        (Linear(start=0.4, end=0.2, until=0.5), [0.4, 0.4, 0.3, 0.2, 0.2, 0.2]),
        (Linear(start=0.4, end=0.2, after=0.25, until=0.75), [0.4, 0.4, 0.4, 0.3, 0.2, 0.2]),
    ],
    ids=str,
)
def test_a_line_goes_from_start_to_end_and_is_constant_outside(
    line: Linear, expected: list[float]
) -> None:
    """The last rollouts of a run end a little after `total_steps`."""
    assert [line(progress) for progress in (-0.1, 0.0, 0.25, 0.5, 1.0, 1.2)] == pytest.approx(
        expected
    )


def test_a_line_ends_exactly_where_it_should() -> None:
    """start + (end - start), rounded, would be 0.30000000000000004 for 1 and 0.3."""
    assert Linear(start=1.0, end=0.3)(1.0) == 0.3


def test_a_coefficient_may_be_a_number_or_a_schedule() -> None:
    assert value(0.01, 0.9) == 0.01
    assert value(0, 0.9) == 0
    assert value(Linear(start=0.02, end=0.0), 0.5) == 0.01


@dataclass(kw_only=True)
class Exploring(Checked):
    epsilon: Share | Schedule


def test_a_range_holds_for_a_number_and_for_both_ends_of_a_schedule() -> None:
    Exploring(epsilon=0.3)
    Exploring(epsilon=Linear(start=1.0, end=0.0))
    refused(lambda: Exploring(epsilon=-0.3), "epsilon", -0.3)
    assert "begins" in refused(
        lambda: Exploring(epsilon=Linear(start=1.5, end=0.5)), "epsilon", 1.5
    )
    assert "ends" in refused(
        lambda: Exploring(epsilon=Linear(start=0.5, end=-1.0)), "epsilon", -1.0
    )


def test_a_line_ends_after_it_begins() -> None:
    refused(lambda: Linear(start=1.0, end=0.0, after=0.5, until=0.5), "until", 0.5)


def test_progress_is_the_share_of_the_steps_and_at_most_1() -> None:
    assert [progress_of(steps, 200) for steps in (0, 50, 200, 230)] == [0.0, 0.25, 1.0, 1.0]
