"""The prose of RESULTS.md: a file for each part, with places for figures and tables in braces."""

from __future__ import annotations

from pathlib import Path


def text(name: str, **values: object) -> str:
    """Return a part of the document, its places filled."""
    return Path(__file__).with_name(f"{name}.txt").read_text(encoding="utf-8").format(**values)
