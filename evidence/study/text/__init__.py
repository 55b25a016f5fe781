"""The prose of RESULTS.md and of the pages of evidence/results/: a file for each part, with places
for numbers, figures and tables in braces."""

from __future__ import annotations

import textwrap
from pathlib import Path

WIDTH = 120


def text(name: str, **values: object) -> str:
    """Return a part of the document, its places filled."""
    return Path(__file__).with_name(f"{name}.txt").read_text(encoding="utf-8").format(**values)


def wrapped(words: str) -> str:
    """Return paragraphs whose lines are filled anew, those of a list indented below its number. A
    block of code stays as it is."""
    filled = []
    for paragraph in words.strip().split("\n\n"):
        if paragraph.lstrip().startswith("```"):
            filled.append(paragraph)
            continue
        number = paragraph.partition(" ")[0]
        indent = " " * (len(number) + 1) if number.rstrip(".").isdigit() else ""
        filled.append(
            textwrap.fill(
                " ".join(paragraph.split()),
                WIDTH,
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
            )
        )
    return "\n\n".join(filled)
