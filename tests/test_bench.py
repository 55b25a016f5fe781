"""The benchmark runs. What it finds is for its table; here only that each way of measuring gives a figure."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))  # bench is not installed: it belongs to the checkout

from bench import __main__ as bench
from bench import size
from bench.peers import UnavailableError
from bench.rows import Measurement, Row
from bench.versus import interval


def row(*against: Measurement, at_least: float | None = None) -> Row:
    return Row("name", "title", Measurement("ours", lambda _: 30.0), against, at_least=at_least)


def missing(_: float) -> float:
    raise UnavailableError("not installed: pip install it")


def test_figures_are_medians_and_the_ratio_is_that_of_the_rounds() -> None:
    figures = iter([10.0, 20.0, 60.0])
    lines = bench.table_lines(row(Measurement("other", lambda _: next(figures)), at_least=1.6), rounds=3, seconds=0.0)
    assert lines[0][1:] == ["30 steps/s", "other", "20 steps/s", "1.5 (0.5 - 3)", ">= 1.6", "no"]


def test_a_system_that_is_not_installed_has_a_line_that_says_how_to_get_it() -> None:
    lines = bench.table_lines(row(Measurement("peer", missing), Measurement("other", lambda _: 60.0)), 2, 0.0)
    assert lines[0][2:4] == ["peer", "not installed: pip install it"]
    assert lines[1][4] == "0.5 (0.5 - 0.5)"


def test_what_was_measured_stays_until_it_is_measured_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = iter([60.0, 120.0])
    other = Row("other", "another", Measurement("ours", lambda _: 1.0))
    monkeypatch.setattr(bench, "ROWS", (row(Measurement("theirs", lambda _: next(figures)), at_least=0.4), other))
    monkeypatch.setattr(bench, "FOLDER", tmp_path)
    assert bench.main(["--rounds", "1"]) == 0
    before = (tmp_path / "RESULTS.md").read_text()
    assert "| title | 30 steps/s | theirs | 60 steps/s | 0.5 (0.5 - 0.5) | >= 0.4 | yes |" in before
    assert bench.main(["--only", "name", "--rounds", "1"]) == 0
    after = (tmp_path / "RESULTS.md").read_text()
    assert "| title | 30 steps/s | theirs | 120 steps/s | 0.25 (0.25 - 0.25) | >= 0.4 | no |" in after
    assert "theirs | 60 steps/s" not in after
    assert after.splitlines()[-1] == before.splitlines()[-1], "the other row is as it was"


def test_the_interval_of_equal_ratios_is_their_value() -> None:
    assert interval([1.5] * 10) == (1.5, 1.5)


def test_the_interval_lies_within_the_ratios_and_holds_the_median() -> None:
    low, high = interval([0.9, 0.95, 1.0, 1.0, 1.05, 1.1])
    assert 0.9 <= low < 1.0 < high <= 1.1


SOURCE = '''"""Of a module.

Two paragraphs.
"""

# a comment
LIMIT = 3  # with a comment behind it
"""Of a constant."""

TEXT = """no docstring

but data"""


class Box:
    def area(
        self,
        # a comment
    ) -> int:
        """Of a function.
        """
        return LIMIT
'''


def test_lines_are_those_with_code() -> None:
    # LIMIT, the three lines of TEXT, class, the three of def, return
    assert len(size.code_lines(SOURCE)) == 1 + 3 + 1 + 3 + 1
