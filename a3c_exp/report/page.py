"""Parts of an HTML page that holds everything of a report and needs no network. Every text is escaped."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape

# The policy forbids the page everything that it does not bring along.
HEAD = """\
<!DOCTYPE html>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>Report</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 75rem; padding: 1.5rem; }
table { border-collapse: collapse; display: block; font-size: 0.9rem; overflow-x: auto; }
th, td { border-bottom: 1px solid #d9d9d9; padding: 0.3rem 0.5rem; text-align: right; }
img { max-width: 100%; }
</style>
"""


def text(tag: str, *texts: str) -> str:
    """Each text as an element: a heading (h1, h2) or a paragraph (p)."""
    return "".join(f"<{tag}>{escape(each)}</{tag}>\n" for each in texts)


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """rows: cells by column, at least one."""
    lines = [text("th", *rows[0]), *(text("td", *row.values()) for row in rows)]
    return "<table>\n" + "".join(f"<tr>\n{line}</tr>\n" for line in lines) + "</table>\n"


def picture(png: bytes, caption: str) -> str:
    """A picture with its caption, which also stands for it where it cannot be seen."""
    source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    return f'<p><img alt="{escape(caption)}" src="{source}"></p>\n{text("p", caption)}'
