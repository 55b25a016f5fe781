"""What a running sweep's jobs and the program that started them tell each other: small files in the sweep's folder.

Files reach jobs of every launcher alike, on this machine and on others that share the folder.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Literal

from a3c_exp.errors import ConfigError
from a3c_exp.run import files

FOLDER = ".jobs"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a job.

    status: of its run: ended by its own rule, finished before and left as it was, failed, interrupted, or locked by
        another process. text: the reason, in one line.
    """

    status: Literal["ended", "left", "failed", "interrupted", "locked"]
    text: str


@dataclass(frozen=True, slots=True)
class Journal:
    """The files of one start of a sweep. Jobs are known by their numbers."""

    folder: Path

    def begin(self, job: int) -> None:
        """Note that a job has begun. Its earlier outcome, if it was queued again, no longer holds."""
        self._outcome(job).unlink(missing_ok=True)
        self._begun(job).touch()

    def has_begun(self, job: int) -> bool:
        return self._begun(job).exists()

    def forget(self, job: int) -> None:
        """Make a job one that has not begun."""
        self._outcome(job).unlink(missing_ok=True)
        self._begun(job).unlink(missing_ok=True)

    def end(self, job: int, outcome: Outcome) -> None:
        files.write_json(self._outcome(job), asdict(outcome))

    def outcome(self, job: int) -> Outcome | None:
        """The outcome of a job that has ended; None for another one."""
        try:
            return Outcome(**json.loads(self._outcome(job).read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return None

    def stop(self, signum: int) -> None:
        """Ask running jobs to end in order, and others not to start, as after this signal."""
        if self.stop_signal() is None:
            files.write_text(self.folder / "stop", str(signum))

    def stop_signal(self) -> int | None:
        """The signal after which the sweep is to end; None while it goes on."""
        try:
            return int((self.folder / "stop").read_text())
        except (OSError, ValueError):
            return None

    def _begun(self, job: int) -> Path:
        return self.folder / f"{job}.begun"

    def _outcome(self, job: int) -> Path:
        return self.folder / f"{job}.json"


@contextmanager
def new_journal(sweep: Path) -> Iterator[Journal]:
    """A journal in a sweep's folder, until the context exits. Those of processes that were killed are removed."""
    place = sweep / FOLDER
    with suppress(FileNotFoundError):
        for old in place.iterdir():
            with suppress(ConfigError, OSError), files.exclusive_folder(old):
                shutil.rmtree(old)
    with ExitStack() as stack:
        while (folder := _new_folder(place, stack)) is None:
            pass
        try:
            yield Journal(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):  # another process has one
                place.rmdir()


def _new_folder(place: Path, stack: ExitStack) -> Path | None:
    """A new folder in `place`, locked until the stack is closed; None if another process removed one of the two.

    It may take the new folder for that of a process that was killed, until it is locked.
    """
    try:
        place.mkdir(parents=True, exist_ok=True)
        folder = Path(mkdtemp(dir=place))
        stack.enter_context(files.exclusive_folder(folder))
    except (FileNotFoundError, ConfigError):
        return None
    return folder if folder.is_dir() else None
