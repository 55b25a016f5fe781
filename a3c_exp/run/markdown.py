"""Markdown tables, for reports and benchmarks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def row(cells: Sequence[str]) -> str:
    """One line of a table."""
    return f"| {' | '.join(cells)} |"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]] = ()) -> str:
    """A table with a header. Without rows, the header alone: further lines are printed by `row`."""
    return "\n".join(map(row, [columns, ["---"] * len(columns), *rows]))
