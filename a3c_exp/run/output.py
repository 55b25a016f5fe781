"""Writing the files of a run: a full disk does not end the training, and a lost folder is noticed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from a3c_exp.run import files

log = logging.getLogger("a3c_exp")


class RunOutput:
    """Writes the files of the run in `folder`.

    lost: whether the folder was renamed, moved or deleted. Nothing is written any more: another run may be there.
    unwritten: names of the files whose last write failed. Each failure is logged once. Earlier content stays whole,
        and the next write tries again.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._identity = files.identity(folder)
        self.lost = False
        self.unwritten: set[str] = set()

    def write(self, what: str, write: Callable[[], object]) -> None:
        """Call `write`, unless the folder's name is that of another folder now, or of none. what: for `unwritten`."""
        self.lost = self.lost or files.identity(self.folder) != self._identity
        if self.lost:
            self.unwritten.add(what)
            return
        try:
            write()
        except (OSError, RuntimeError, MemoryError) as error:  # a RuntimeError: no thread is to be had
            if what not in self.unwritten:
                log.error("%s cannot be written: %s", what, error)
            self.unwritten.add(what)
        else:
            self.unwritten.discard(what)
