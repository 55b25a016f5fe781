"""The order of a run in its folder: written in whole pieces, and read back with all checks.

The file is a line with its version, and then frames: their kind, their length in bytes, and the
CRC-32 of all frames up to there. A session of the run begins with a frame that describes it, as
JSON, and goes on with frames of rows.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from a3c_exp.common.arrays import Array
from a3c_exp.core.order import Kind, Row, SavedState, rows_of
from a3c_exp.errors import FolderError, one_line
from a3c_exp.run.run_folder import ORDER_FILE

ORDER_VERSION = 1

_BEGINNING = b"a3c_exp order "
FIRST_LINE = b"%s%d\n" % (_BEGINNING, ORDER_VERSION)
_FRAME = struct.Struct("<III")
_SESSION, _ROWS = range(1, 3)


@dataclass(frozen=True, kw_only=True)
class RecordedSession:
    """A session of a recorded run.

    config: the run's configuration in it.
    versions: of the libraries: see `run.provenance`.
    start: what a resumed session began with: the version, and the state of the counters; None for
        a new run.
    words: of its rows, in pieces.
    """

    config: dict[str, Any]
    versions: dict[str, str | None]
    start: dict[str, Any] | None
    words: list[Array] = field(default_factory=list)

    @cached_property
    def rows(self) -> list[Row]:
        """The rows, in order. Raises ValueError for words that are no rows."""
        return rows_of(np.concatenate([np.zeros(0, np.uint32), *self.words]))

    @property
    def first_version(self) -> int:
        return 0 if self.start is None else int(self.start["version"])

    @property
    def last_version(self) -> int:
        """The version after the last row."""
        return self.first_version + sum(row.kind is Kind.PUSH for row in self.rows)

    @cached_property
    def saved(self) -> dict[int, SavedState]:
        """What is said of checkpoints, by their versions."""
        states = (SavedState.of(row) for row in self.rows if row.kind is Kind.SAVED)
        return {state.version: state for state in states}


@dataclass
class Framer:
    """Makes the frames of a file.

    checksum: of the frames that the file has already.
    """

    checksum: int

    def session(self, description: Mapping[str, Any]) -> bytes:
        """Return the frame that begins a session."""
        return self._frame(_SESSION, json.dumps(description).encode())

    def rows(self, words: Array) -> bytes:
        """Return the frame of rows, uint32 [N]."""
        return self._frame(_ROWS, words.astype("<u4").tobytes())

    def _frame(self, kind: int, content: bytes) -> bytes:
        self.checksum = _checksum(kind, content, self.checksum)
        return _FRAME.pack(kind, len(content), self.checksum) + content


def _checksum(kind: int, content: bytes, before: int) -> int:
    return zlib.crc32(content, zlib.crc32(_FRAME.pack(kind, len(content), 0), before))


@dataclass(frozen=True, slots=True)
class RecordedOrder:
    """The order of a run, as far as its file is whole.

    sessions: of the run, the first one first.
    content: of the file, without a last frame that was being written when the run was killed.
    checksum: see `Framer`.
    """

    sessions: list[RecordedSession]
    content: bytes
    checksum: int


def read_order(folder: Path) -> RecordedOrder:
    """Read the order of the run in a folder.

    Raises FolderError for a file that is missing, damaged or edited, or of another version.
    """
    try:
        data = (folder / ORDER_FILE).read_bytes()
    except FileNotFoundError:
        problem = f"must be a run with record=order: it has no {ORDER_FILE}"
        raise FolderError(folder, problem) from None
    except OSError as error:
        raise FolderError(folder, f"{ORDER_FILE} cannot be read: {one_line(error)}") from error

    if not data.startswith(FIRST_LINE):
        problem = "is no order of a run"
        if data.startswith(_BEGINNING):
            version = data[len(_BEGINNING) :][:9].partition(b"\n")[0].decode(errors="replace")
            problem = f"is of version {version}, not {ORDER_VERSION}"
        raise FolderError(folder, f"{ORDER_FILE} {problem}")

    sessions: list[RecordedSession] = []
    checksum = 0
    position = len(FIRST_LINE)
    while position + _FRAME.size <= len(data):
        kind, length, expected = _FRAME.unpack_from(data, position)
        end = position + _FRAME.size + length
        if end > len(data):
            break
        content = data[position + _FRAME.size : end]
        checksum = _checksum(kind, content, checksum)
        try:
            if checksum != expected:
                raise ValueError("its checksum differs")
            if kind == _SESSION:
                sessions.append(RecordedSession(**json.loads(content)))
            elif kind == _ROWS:
                sessions[-1].words.append(np.frombuffer(content, "<u4"))
            else:
                raise ValueError(f"{kind} is no kind of a frame")
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            problem = f"{ORDER_FILE} is damaged or was edited at byte {position:,}"
            raise FolderError(folder, f"{problem}: {error}") from error
        position = end

    if not sessions:
        raise FolderError(folder, f"{ORDER_FILE} is cut: it has no session")
    return RecordedOrder(sessions, data[:position], checksum)
