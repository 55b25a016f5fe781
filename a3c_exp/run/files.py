"""Files that are whole at every moment: replaced at once, or grown by whole pieces. Folders' locks;
full disks."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from a3c_exp.common.log import log
from a3c_exp.common.reading import UnreadableError
from a3c_exp.common.signals import Interruption
from a3c_exp.errors import FolderError


class FolderLockedError(FolderError):
    """A folder that another process holds the lock of."""


_held: set[int] = set()
"""Descriptors of the folders that this process has locked. A fork, which an environment may have
made, gives its copies up: it may outlive this process, and no lock is to."""


def _give_up() -> None:
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_give_up)


@contextmanager
def exclusive_folder(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on `folder` until the context exits or the process has died.

    Does nothing on a file system without locks. Raises FolderLockedError if the folder is locked,
    and
    FolderError if it is missing.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError):
        raise FolderError(folder, "there is no such folder") from None
    _held.add(descriptor)
    try:
        with suppress(OSError):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise FolderLockedError(
                    folder, "must be without a run that is still going on"
                ) from None
        yield
    finally:
        if descriptor in _held:  # not in a fork
            _held.remove(descriptor)
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def folder_identity(folder: Path) -> tuple[int, int] | None:
    """What tells a folder from another one of the same name; None if there is none. Raises other
    OSErrors."""
    with suppress(FileNotFoundError, NotADirectoryError):
        status = os.stat(folder)
        return status.st_dev, status.st_ino
    return None


class RunOutput:
    """Writes the files of the run in `folder`. A second signal does not break into a write, a third
    one does: it may never return.

    lost: whether the folder was renamed, moved or deleted. Nothing is written any more: another run
        may be there.
    unwritten: names of the files whose last write failed. Each failure is logged once. Earlier
        content stays whole, and the next write tries again.
    """

    def __init__(self, folder: Path, interruption: Interruption | None = None) -> None:
        self.folder = folder
        self._identity = folder_identity(folder)
        self._interruption = interruption or Interruption()
        self.lost = False
        self.unwritten: set[str] = set()

    def write(self, what: str, write: Callable[..., object], *arguments: Any) -> None:
        """Call `write`, unless the folder's name is that of another folder now, or of none. what:
        for `unwritten`."""
        self._interruption.writing = True
        try:
            self.lost = self.lost or folder_identity(self.folder) != self._identity
            if self.lost:
                self.unwritten.add(what)
                return
            write(*arguments)
        except (OSError, MemoryError, UnreadableError, KeyboardInterrupt) as error:
            if what not in self.unwritten:
                log.error("%s cannot be written: %s", what, str(error) or "interrupted")
            self.unwritten.add(what)
        else:
            self.unwritten.discard(what)
        finally:
            self._interruption.writing = False


def atomic_write(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Call `write` with a temporary file beside `path`, and rename it to `path` once it is on disk.

    After a full disk, a kill or a power cut, `path` is the whole old file or the whole new one.
    Raises OSError, and whatever `write` raises.
    """
    # Always the same name: a killed process leaves one such file, and the next call replaces it.
    partial = path.with_name(f"{path.name}.partial")
    partial.unlink(missing_ok=True)
    try:
        with open(partial, "xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # otherwise a power cut may undo the renaming
    finally:
        os.close(folder)


class Appender:
    """A file that grows by whole pieces, after those in `begin`. Without these, it is created or
    continued.

    Pieces that do not fit on a full disk leave nothing behind in the file, and wait for the next
    `flush`.
    """

    def __init__(self, path: Path, begin: Iterable[bytes] | None = None) -> None:
        self._path = path
        if begin is not None:
            atomic_write(path, lambda file: file.writelines(begin))
        self._open()

    def _open(self) -> None:
        self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 (closed by close)
        self._end = os.fstat(self._file.fileno()).st_size
        self._pending: list[bytes] = []

    def replace(self, pieces: Iterable[bytes]) -> None:
        """Let the file hold these pieces alone, whole or not at all. Raises OSError if they do not
        fit."""
        atomic_write(self._path, lambda file: file.writelines(pieces))
        self._file.close()
        self._open()

    def add(self, piece: bytes) -> None:
        """Add a piece, which the next `flush` writes."""
        self._pending.append(piece)

    def flush(self) -> None:
        """Write what has been added. Raises OSError if it does not fit."""
        pieces = list(self._pending)  # more may be added meanwhile
        count = len(pieces)
        unwritten = memoryview(b"".join(pieces))
        end = self._end + len(unwritten)
        try:
            while unwritten:
                unwritten = unwritten[self._file.write(unwritten) :]
        except BaseException:  # Ctrl-C may come once all is written
            self._file.truncate(self._end)
            raise

        self._end = end
        del self._pending[:count]

    def close(self) -> None:
        """Write what has been added, and close the file."""
        try:
            self.flush()
        finally:
            self._file.close()


def set_aside(path: Path, problem: str = "") -> None:
    """Rename a file to the first free name of `name.old`, `name.old2` and so on.

    problem: the reason, for the log.
    """
    numbers = itertools.chain([""], itertools.count(2))
    aside = next(
        free
        for number in numbers
        if not os.path.lexists(free := path.with_name(f"{path.name}.old{number}"))
    )
    path.rename(aside)
    if problem:
        log.warning("%s %s: it is kept as %s", path.name, problem, aside.name)


def copy_as(path: Path, copy: Path) -> None:
    """Let `copy` be what `path` is now, whole or not at all: a second name for the same data where
    it can be."""
    partial = copy.with_name(f"{copy.name}.partial")
    partial.unlink(missing_ok=True)
    try:
        os.link(path, partial)
    except OSError:
        shutil.copyfile(path, partial)
    os.replace(partial, copy)
    partial.unlink(missing_ok=True)  # two names of one file are not replaced


def amount(value: float) -> str:
    """A number with three digits: 950, 1.23k, 117k, 2.5M."""
    units = ["", "k", "M", "G"]
    while value >= 999.5 and len(units) > 1:
        value /= 1000
        units.pop(0)
    return f"{value:.3g}{units[0]}"


def write_bytes(path: Path, data: bytes) -> None:
    """Replace the file by `data`, atomically."""
    atomic_write(path, lambda file: file.write(data))


def write_text(path: Path, text: str, before: Callable[[], object] = lambda: None) -> None:
    """Replace the file by `text` in UTF-8, atomically. before: called once the text is written, and
    before it is in the file's place."""

    def write(file: IO[bytes]) -> None:
        # a folder's name may be none of UTF-8
        file.write(text.encode(errors="backslashreplace"))
        file.flush()
        before()

    atomic_write(path, write)


def write_json(path: Path, value: Any) -> None:
    """Write plain data as JSON, atomically. NaN and infinities, which JSON lacks, become null."""
    import numpy as np  # here: the fork server starts before this command imports it

    text = json.dumps(value, default=np.generic.item)
    write_text(
        path, json.dumps(json.loads(text, parse_constant=lambda name: None), indent=2) + "\n"
    )
