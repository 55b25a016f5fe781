"""The files of a report: one HTML page that holds everything and needs no network, the pictures, and tables as CSV."""

from __future__ import annotations

import base64
import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from a3c_exp.run.files import atomic_write, write_text

PAGE = "index.html"

STYLE = """\
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1a1a1a; --faint: #d9d9d9; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171a; --ink: #e8e8e8; --faint: #3a3f44; } }
body { background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; margin: 0 auto;
  max-width: 75rem; padding: 1.5rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--faint); padding: 0.3rem 0.5rem; text-align: right; }
th:nth-child(2), td:nth-child(2) { text-align: left; min-width: 10rem; }
img { height: auto; max-width: 100%; }
figure { margin: 1.5rem 0; }
figcaption, .note { font-size: 0.9rem; max-width: 60rem; opacity: 0.85; }
"""

# The policy forbids the page everything that it does not bring along.
HEAD = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
"""


@dataclass(slots=True)
class Page:
    """An HTML page in the making. Every text that it is given is escaped."""

    title: str
    parts: list[str] = field(default_factory=list)

    def heading(self, text: str) -> None:
        self.parts.append(f"<h2>{escape(text)}</h2>")

    def paragraph(self, text: str, note: bool = False) -> None:
        self.parts.append(f'<p class="note">{escape(text)}</p>' if note else f"<p>{escape(text)}</p>")

    def items(self, texts: Iterable[str]) -> None:
        self.parts.append("<ul>" + "".join(f"<li>{escape(text)}</li>" for text in texts) + "</ul>")

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        head = "".join(f"<th>{escape(name)}</th>" for name in columns)
        lines = "".join(f"<tr>{''.join(f'<td>{_unbroken(escape(cell))}</td>' for cell in row)}</tr>\n" for row in rows)
        self.parts.append(f'<div class="wide"><table>\n<tr>{head}</tr>\n{lines}</table></div>')

    def picture(self, light: bytes, dark: bytes, text: str, caption: str) -> None:
        """text: in place of the picture, for readers who cannot see it."""
        self.parts.append(
            f'<figure><picture><source media="(prefers-color-scheme: dark)" srcset="{_data(dark)}">'
            f'<img alt="{escape(text)}" src="{_data(light)}"></picture>'
            f"<figcaption>{escape(caption)}</figcaption></figure>"
        )

    def html(self) -> str:
        head = HEAD.format(title=escape(self.title), style=STYLE)
        return head + "\n".join([f"<h1>{escape(self.title)}</h1>", *self.parts]) + "\n</body>\n</html>\n"


def _unbroken(text: str) -> str:
    """A text whose brackets stay in one line."""
    return re.sub(r"[\[(][^\])]*[\])]", lambda bracket: bracket[0].replace(" ", "&nbsp;"), text)


def _data(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def write_picture(folder: Path, name: str, pictures: dict[str, bytes]) -> None:
    """Write a picture on each background. Raises OSError."""
    for suffix, png in pictures.items():
        atomic_write(folder / f"{name}{suffix}.png", lambda file, png=png: file.write(png))  # type: ignore[misc]


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table as CSV, without formulas. Raises OSError."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(_without_formula, row) for row in [columns, *rows])
    write_text(path, text.getvalue())


def _without_formula(cell: object) -> object:
    """A cell that no spreadsheet takes for a formula: text that begins like one and is no number gets an apostrophe."""
    if not isinstance(cell, str | Path) or not str(cell).startswith(("=", "+", "-", "@")):
        return cell
    text = str(cell)
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text
