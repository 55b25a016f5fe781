"""The order of a locked run: which worker pulled and which pushed, one after the other.

It is what `record=order` writes and `replay` follows. `backend.order`, in which workers of `serial`
take turns, is a setting and another thing.

A locked run is the sequence of the sections in which its workers hold the store's lock. Each of
them is a row. What else an update depends on (parameters, steps, statistics, staleness) follows
from the rows before it, so no row has it.

A row is a word of 32 bits, the kind above the worker's index, and for rare kinds some words more.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from a3c_exp.common.arrays import Array, ArraySpecs

CHECKSUM_EVERY = 50
"""Updates between two checksums of the parameters."""

_WRITTEN, _TAKEN, _VERSION = range(3)
_RING = 1 << 18
_LONGEST_ROWS = 64  # words that one worker may write before it looks for room again
_WAIT_SECONDS = 1e-3
_LONGEST_UPDATE_SECONDS = 1.0
_KIND_SHIFT = 16
_WORKER_MASK = (1 << _KIND_SHIFT) - 1


class Kind(IntEnum):
    """The kinds of rows.

    PULL: a worker copied the parameters.
    PUSH: a worker's gradient was applied.
    REFUSED, EMPTY: a worker pushed without a gradient, since it was not finite, or of no
        transition. Its steps and statistics count.
    BEGIN: a worker begins: see `Begin`.
    MULTIPLIERS: the next pull is the first one with these: two numbers of 64 bits.
    CHECKSUM: the CRC-32 of the parameters after the last update.
    SAVED: a checkpoint is written: see `SavedState`.
    """

    PULL = 1
    PUSH = 2
    REFUSED = 3
    EMPTY = 4
    BEGIN = 5
    MULTIPLIERS = 6
    CHECKSUM = 7
    SAVED = 8


PUSHES = (Kind.PUSH, Kind.REFUSED, Kind.EMPTY)
_EXTRA_WORDS = {Kind.BEGIN: 17, Kind.MULTIPLIERS: 4, Kind.CHECKSUM: 1, Kind.SAVED: 4}


class Row(NamedTuple):
    """A row of the order. extra: the words after its first one."""

    kind: Kind
    worker: int
    extra: tuple[int, ...]


def row_words(kind: Kind, worker: int, extra: Iterable[int] = ()) -> tuple[int, ...]:
    """Return the words of a row."""
    return kind << _KIND_SHIFT | worker, *extra


def rows_of(words: Array) -> list[Row]:
    """Return the rows of words, uint32 [N]. Raises ValueError for what is none."""
    values: list[int] = words.tolist()
    # millions of rows are equal to others: they are one object
    by_word: dict[int, Row] = {}
    rows = []
    position = 0
    while position < len(values):
        word = values[position]
        position += 1
        row = by_word.get(word)
        if row is None:
            row = Row(Kind(word >> _KIND_SHIFT), word & _WORKER_MASK, ())
            by_word[word] = row

        extra_words = _EXTRA_WORDS.get(row.kind)
        if extra_words is not None:
            row = row._replace(extra=tuple(values[position : position + extra_words]))
            position += extra_words
        rows.append(row)
    if position > len(values):
        raise ValueError("the last row is cut")
    return rows


def to_words(numbers: Array) -> list[int]:
    """Return numbers of 64 bits as words."""
    words: list[int] = numbers.view(np.uint32).tolist()
    return words


def from_words(words: Sequence[int], dtype: type) -> Array:
    """Return the numbers of 64 bits that `to_words` was given."""
    return np.array(words, np.uint32).view(dtype)


class Begin(NamedTuple):
    """What a row of kind BEGIN says of a worker.

    incarnation: see `Store.start`. rng_state: of its generator, uint64 [6].
    counted: steps and gradients of its predecessors, int64 [2].
    """

    incarnation: int
    rng_state: Array
    counted: Array

    def words(self) -> list[int]:
        """Return the words after the row's first one."""
        return [self.incarnation, *to_words(self.rng_state), *to_words(self.counted)]

    @classmethod
    def of(cls, row: Row) -> Begin:
        """Return what `words` was called on."""
        incarnation, *words = row.extra
        return cls(incarnation, from_words(words[:12], np.uint64), from_words(words[12:], np.int64))


class SavedState(NamedTuple):
    """What a row of kind SAVED says of a checkpoint: its version, and the CRC-32 of its parameters
    and of its optimizer state."""

    version: int
    parameters: int
    optimizer_state: int

    def words(self) -> list[int]:
        """Return the words after the row's first one."""
        return [*to_words(np.array([self.version])), self.parameters, self.optimizer_state]

    @classmethod
    def of(cls, row: Row) -> SavedState:
        """Return what `words` was called on."""
        *version, parameters, optimizer_state = row.extra
        return cls(int(from_words(version, np.int64)[0]), parameters, optimizer_state)

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> SavedState:
        """Return what is to be said of a store's state: see `SharedParameters.FIELDS`."""
        parameters = zlib.crc32(state["parameters"])
        return cls(state["version"], parameters, zlib.crc32(state["optimizer_state"]))


class Order:
    """The last rows of a run that goes on: a ring in the shared block.

    Workers write to it while they hold the store's lock. The run's process takes the rows out of
    it, without the lock.

    arrays: views of the shared block, as `specs` describes them.
    """

    def __init__(self, arrays: dict[str, Array]) -> None:
        self._ring = arrays["order"]
        self._size = len(self._ring)
        # written in half the time of an array
        self._words = self._ring.data
        self._counts = arrays["order_counts"].data
        self._multipliers = arrays["order_multipliers"]

    @staticmethod
    def specs(workers: int) -> ArraySpecs:
        """Return shapes and types of the arrays."""
        return {
            "order": ((_RING + workers * _LONGEST_ROWS,), np.dtype(np.uint32)),
            "order_counts": ((8,), np.dtype(np.int64)),
            "order_multipliers": ((2,), np.dtype(np.float64)),
        }

    def wait_for_room(self) -> None:
        """Wait, without the lock, until the ring has room for the rows of all workers. The run's
        process may be held up by a disk, for example."""
        while self._counts[_WRITTEN] - self._counts[_TAKEN] > _RING:
            time.sleep(_WAIT_SECONDS)

    def add(self, kind: Kind, worker: int, extra: Iterable[int] = ()) -> None:
        """Add a row. The caller holds the store's lock."""
        position = self._counts[_WRITTEN]
        for word in row_words(kind, worker, extra):
            self._words[position % self._size] = word
            position += 1
        self._counts[_WRITTEN] = position  # at last: who is killed before has added nothing

    def add_push(self, worker: int, version: int) -> None:
        """Add a push whose update made this version. The caller holds the store's lock."""
        self.add(Kind.PUSH, worker)
        self._counts[_VERSION] = version

    def start(self, version: int) -> None:
        """Say which version a session begins with."""
        self._counts[_VERSION] = version

    def wait_for(self, version: int) -> None:
        """Wait, without the lock, until the update that made this version has its row: whoever
        sees the version may be in between. A worker that was stopped there is not waited for."""
        end = time.monotonic() + _LONGEST_UPDATE_SECONDS
        while self._counts[_VERSION] < version and time.monotonic() < end:
            time.sleep(_WAIT_SECONDS)

    def add_pull(self, worker: int, multipliers: tuple[float, float]) -> None:
        """Add a pull, and before it the multipliers if they have changed since the last one."""
        if tuple(self._multipliers.tolist()) != multipliers:
            self._multipliers[:] = multipliers
            self.add(Kind.MULTIPLIERS, worker, to_words(self._multipliers))
        self.add(Kind.PULL, worker)

    def take(self) -> Array:
        """Take the words out of the ring that have been written since the last call, uint32 [N]."""
        taken = self._counts[_TAKEN]
        written = self._counts[_WRITTEN]
        words: Array = self._ring[np.arange(taken, written) % self._size]
        self._counts[_TAKEN] = written
        return words
