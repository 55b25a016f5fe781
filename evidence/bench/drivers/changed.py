"""Files of other people that are run with a few lines changed, each change with its reason."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Change:
    """Text of a file, what stands there instead, and why. The text has to be there once."""

    reason: str
    before: str
    after: str


def changed(path: Path, changes: Sequence[Change]) -> str:
    """Return a file's text with the changes. Raises ValueError where one does not fit, since the
    file is that of another commit."""
    text = path.read_text(encoding="utf-8")
    for change in changes:
        if text.count(change.before) != 1:
            raise ValueError(f"{path}: another commit? Not there once: {change.before.strip()!r}")
        text = text.replace(change.before, change.after)
    return text


def execute(path: Path, changes: Sequence[Change], name: str, **names: Any) -> ModuleType:
    """Execute a file with the changes as the module `name`, and return it. names: that it has at
    first."""
    module = ModuleType(name)
    module.__dict__.update(__file__=str(path), **names)
    sys.modules[name] = module
    exec(compile(changed(path, changes), str(path), "exec"), module.__dict__)
    return module
