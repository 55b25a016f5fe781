"""The comparison of training speed with another checkout."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # bench is not installed: it belongs to the checkout

from bench.versus import interval


def test_the_interval_of_equal_ratios_is_their_value() -> None:
    assert interval([1.5] * 10) == (1.5, 1.5)


def test_the_interval_lies_within_the_ratios_and_holds_the_median() -> None:
    low, high = interval([0.9, 0.95, 1.0, 1.0, 1.05, 1.1])
    assert 0.9 <= low < 1.0 < high <= 1.1
