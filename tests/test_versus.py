"""The comparison of training speed with another checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.versus import interval, main


def test_the_interval_of_equal_ratios_is_their_value() -> None:
    assert interval([1.5] * 10) == (1.5, 1.5)


def test_the_interval_lies_within_the_ratios_and_holds_the_median() -> None:
    low, high = interval([0.9, 0.95, 1.0, 1.0, 1.05, 1.1])
    assert 0.9 <= low <= 1.0 <= high <= 1.1


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "must be a checkout" in line
