"""Files that are never found half written: replaced in one go, or appended to in whole pieces; folders that one
process at a time writes to."""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from a3c_exp.errors import ConfigError


@contextmanager
def exclusive_folder(folder: Path, key: str) -> Iterator[None]:
    """Have `folder` to oneself, until this ends or its process dies (with all that it may have forked). Where a file
    system knows no such locks, nothing is made sure of.

    Raises ConfigError, put down to `key`, where somebody else has it, or where there is none.
    """
    try:
        place = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        raise ConfigError(key, str(folder), "there is no such folder") from None
    try:
        with suppress(OSError):
            try:
                fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(key, str(folder), "must be without a run that is still going on") from None
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(place, fcntl.LOCK_UN)
        os.close(place)


def atomic_write(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Have `write` fill a file beside `path`, which takes the place of `path` once it is on disk.

    Whatever happens (a full disk, a kill, a power cut), `path` is the old file or the new one, whole. Raises what
    `write` raises, and OSError.
    """
    # Always the same name: a process killed in the middle leaves one such file behind, which the next call writes over.
    partial = path.with_name(f"{path.name}.partial")
    try:
        with open(partial, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # else a power cut may undo the renaming
    finally:
        os.close(folder)


def write_text(path: Path, text: str) -> None:
    """`atomic_write` the file by `text`, in UTF-8."""
    atomic_write(path, lambda file: file.write(text.encode()))


class Appender:
    """A file to which whole pieces are appended: one that does not fit (a full disk) leaves nothing of itself behind.

    So what is in the file stays readable, and writing goes on when there is room again. The file is made where there is
    none.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 (closed by close)
        self._end = os.fstat(self._file.fileno()).st_size

    def write(self, piece: bytes) -> None:
        """Append `piece`; it is with the system when this returns. Raises OSError where it does not fit."""
        rest = memoryview(piece)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            self._file.truncate(self._end)
            raise
        self._end += len(piece)

    def close(self) -> None:
        self._file.close()


def write_json(path: Path, value: Any) -> None:
    """Write plain data as JSON for people and programs, in one go. NaN and infinities, which JSON lacks, are null."""
    write_text(path, json.dumps(_finite(value), indent=2, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
