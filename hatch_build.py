"""hatchling's hook: a wheel and an archive of the sources carry the commit that they were built
from, as a3c_exp/COMMIT."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface):  # type: ignore[type-arg]
    """Without git, or in an unpacked archive, which has the file already, nothing is added."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        commit = _commit(Path(self.root))
        if version == "editable" or commit is None:
            return
        self._folder = tempfile.TemporaryDirectory()
        file = Path(self._folder.name) / "COMMIT"
        file.write_text(f"{commit}\n")
        build_data["force_include"][str(file)] = "a3c_exp/COMMIT"


def _commit(root: Path) -> str | None:
    """Return the commit of the checkout in `root`, with "-dirty" if tracked files differ."""
    if not (root / ".git").exists():
        return None
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None
