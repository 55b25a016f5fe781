"""How a report writes its tables: as Markdown, for LaTeX, and as CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from a3c_exp.errors import printable
from a3c_exp.run import markdown
from a3c_exp.run.files import write_text

Rows = Sequence[Mapping[str, str]]
"""The rows of a table, at least one: cells by column."""

LATEX_COMMANDS = {"\\": "textbackslash", "~": "textasciitilde", "^": "textasciicircum"}


def markdown_table(rows: Rows) -> str:
    cells = ([markdown_cell(text) for text in row.values()] for row in rows)
    return markdown.table(list(rows[0]), cells)


def markdown_cell(text: str) -> str:
    return printable(text).replace("\n", "\\n").replace("|", "\\|")


def latex_table(rows: Rows) -> str:
    """Return a table for LaTeX's package booktabs."""
    columns = "l" + "r" * (len(rows[0]) - 1)
    return "\n".join(
        [
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            _latex_row(rows[0]),
            r"\midrule",
            *(_latex_row(row.values()) for row in rows),
            r"\bottomrule",
            r"\end{tabular}",
        ]
    )


def _latex_row(cells: Iterable[str]) -> str:
    return " & ".join(map(_latex_cell, cells)) + r" \\"


def _latex_cell(text: str) -> str:
    escaped = re.sub(r"[\\~^&%$#_{}]", _latex_escape, text)
    return re.sub(r"(?<![\w=])-(?=\d)", "$-$", escaped)  # a minus, not a hyphen


def _latex_escape(character: re.Match[str]) -> str:
    command = LATEX_COMMANDS.get(character[0])
    return f"\\{character[0]}" if command is None else f"\\{command}{{}}"


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    text = io.StringIO()
    cells = ([_without_formula(cell) for cell in row] for row in rows)
    csv.writer(text, lineterminator="\n").writerows([columns, *cells])
    write_text(path, text.getvalue())


def _without_formula(cell: object) -> object:
    """Return a cell that no spreadsheet takes for a formula. Texts may come from a stranger's
    folder."""
    if isinstance(cell, int | float | None) or str(cell)[:1] not in ("=", "+", "-", "@"):
        return cell
    return f"'{cell}"
