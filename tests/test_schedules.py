"""Values that follow the progress of a run."""

from __future__ import annotations

import math

import pytest

from a3c_exp.errors import ConfigError
from a3c_exp.schedules import Constant, Linear, Schedule, progress_of, require_throughout, value


@pytest.mark.parametrize(("progress", "expected"), [(0.0, 2.0), (0.25, 1.75), (0.5, 1.5), (1.0, 1.0)])
def test_a_line_goes_from_start_to_end(progress: float, expected: float) -> None:
    assert Linear(start=2.0, end=1.0)(progress) == expected


def test_a_line_ends_exactly_where_it_should() -> None:
    """start + (end - start), rounded, would be 0.30000000000000004 for 1 and 0.3."""
    for end in (0.0, 0.3, 1e-4):
        assert Linear(start=1.0, end=end)(1.0) == end


def test_a_line_is_constant_outside_the_run() -> None:
    """The last rollouts of a run end a little after `total_steps`."""
    line = Linear(start=1.0, end=0.5)
    assert line(1.2) == 0.5
    assert line(-0.1) == 1.0


def test_a_line_may_end_before_the_run_does() -> None:
    line = Linear(start=0.4, end=0.2, until=0.5)
    assert [line(progress) for progress in (0.0, 0.25, 0.5, 1.0)] == pytest.approx([0.4, 0.3, 0.2, 0.2])


def test_a_line_may_begin_after_the_run_does() -> None:
    line = Linear(start=0.4, end=0.2, after=0.5, until=0.9)
    assert [line(progress) for progress in (0.0, 0.5, 0.7, 0.9, 1.0)] == pytest.approx([0.4, 0.4, 0.3, 0.2, 0.2])


def test_a_coefficient_may_be_a_number_or_a_schedule() -> None:
    assert value(0.01, 0.9) == 0.01
    assert value(0, 0.9) == 0
    assert value(Linear(start=0.02, end=0.0), 0.5) == 0.01


@pytest.mark.parametrize("wrong", [math.inf, math.nan])
def test_values_without_bound_are_refused(wrong: float) -> None:
    with pytest.raises(ConfigError, match=r"value = .*: must be a finite number"):
        Constant(value=wrong)
    with pytest.raises(ConfigError, match=r"start = .*: must be a finite number"):
        Linear(start=wrong)
    with pytest.raises(ConfigError, match=r"end = .*: must be a finite number"):
        Linear(end=wrong)


def test_a_range_holds_for_a_number_and_for_both_ends_of_a_schedule() -> None:
    def check(x: float | Schedule) -> None:
        require_throughout(lambda share: 0 <= share <= 1, "epsilon", x, "a number from 0 to 1")

    check(0.3)
    check(Linear(start=1.0, end=0.0))
    with pytest.raises(ConfigError, match=r"^epsilon = -0.3: must be a number from 0 to 1, or a schedule$"):
        check(-0.3)
    with pytest.raises(ConfigError, match=r"^epsilon = 1.5: must be a number from 0 to 1 where the run begins, too$"):
        check(Linear(start=1.5, end=0.5))
    with pytest.raises(ConfigError, match=r"^epsilon = -1.0: must be a number from 0 to 1 where the run ends, too$"):
        check(Linear(start=0.5, end=-1.0))


@pytest.mark.parametrize("wrong", [0.0, 1.1, math.nan])
def test_a_line_ends_within_the_run(wrong: float) -> None:
    with pytest.raises(ConfigError, match=r"until = .*: must be a number > 0, and at most 1"):
        Linear(until=wrong)


@pytest.mark.parametrize("wrong", [-0.1, 1.0, math.nan])
def test_a_line_begins_within_the_run(wrong: float) -> None:
    with pytest.raises(ConfigError, match=r"after = .*: must be a number from 0 to below 1"):
        Linear(after=wrong)


def test_a_line_begins_before_it_ends() -> None:
    with pytest.raises(ConfigError, match=r"until = 0.5: must be a number > 0.5, and at most 1"):
        Linear(after=0.5, until=0.5)


def test_progress_is_the_share_of_the_steps_and_at_most_1() -> None:
    assert [progress_of(steps, 200) for steps in (0, 50, 200, 230)] == [0.0, 0.25, 1.0, 1.0]
