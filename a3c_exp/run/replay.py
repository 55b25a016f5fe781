"""A recorded run again, bit for bit: one thread follows the order of its pulls and pushes."""

from __future__ import annotations

import pickle
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from a3c_exp.common.log import log
from a3c_exp.common.ranges import Checked, Count
from a3c_exp.common.settings import TARGET, comparable
from a3c_exp.core import seeding
from a3c_exp.core.counters import RNG_WORDS, Multipliers
from a3c_exp.core.events import Event, YieldPoint
from a3c_exp.core.experiment import Backend, Experiment, RunContext
from a3c_exp.core.order import PUSHES, Begin, Kind, Row, SavedState, from_words
from a3c_exp.core.store import SharedStore
from a3c_exp.core.worker import Worker
from a3c_exp.ending import StopReason
from a3c_exp.errors import RunError
from a3c_exp.run import provenance
from a3c_exp.run.order_file import RecordedSession, read_order

WATCHING = (
    "callbacks",
    "checkpoint",
    "eval",
    "log",
    "plugins",
    "record_episodes",
    "reward_threshold",
    "vars",
)
"""Settings that change nothing of what is learned."""

PROCESSES = "a3c_exp.backends.processes.Processes"

_ARRAYS = {
    "applied_gradients": np.int64,
    "multipliers": np.float64,
    "worker_episodes": np.int64,
    "stats": np.float64,
    "rng_states": np.uint64,
}
"""Types of what a session's start has as lists."""


@dataclass(frozen=True, kw_only=True)
class Replay(Checked, Backend):
    """Follows the order of a recorded run in one thread, with the same workers.

    The order ends the run: no stop rule does, and no limit of steps.

    folder: of the recorded run.
    exact: whether every setting is the recorded run's, so that the replay has to be equal. It ends
        with RunError at the first difference. Otherwise it keeps the order alone: steps are its
        own, and a worker that has nothing to pull or to push is passed over.
    break_at: number of a push, from 1. The replay calls `breakpoint()` before the worker collects
        and computes what it pushes then.
    """

    deterministic: ClassVar[bool] = True
    resumable: ClassVar[bool] = False

    folder: str
    exact: bool = True
    break_at: Count | None = None

    def warning(self, experiment: Experiment) -> str | None:
        """Return the versions that differ from those of the recorded run; None if all are equal."""
        recorded = read_order(Path(self.folder)).sessions[-1].versions
        here = provenance.versions()
        differences = [
            f"{name} {recorded.get(name)} there, {here[name]} here"
            for name in here
            if recorded.get(name) != here[name]
        ]
        if not differences:
            return None
        return f"recorded with other versions, so it may differ: {', '.join(differences)}"

    def run(self, context: RunContext, store: SharedStore) -> Generator[Event | None, None, None]:
        sessions = read_order(Path(self.folder)).sessions
        follower = _Follower(self, context, store, sessions)
        try:
            yield from follower.follow()
        finally:
            follower.close()


def rows_to_follow(session: RecordedSession, last_version: int | None) -> list[Row]:
    """Return the rows of a session, up to the update that leads to `last_version` if there is one.

    Pulls that no push of the same worker follows are left out: the run was over before, or the
    worker failed.
    """
    rows = []
    version = session.first_version
    for row in session.rows:
        if version == last_version:
            break
        version += row.kind is Kind.PUSH
        rows.append(row)

    followed: list[Row] = []
    pushing: set[int] = set()
    for row in reversed(rows):
        if row.kind in PUSHES:
            pushing.add(row.worker)
        elif row.kind is Kind.BEGIN:
            pushing.discard(row.worker)
        if row.kind is not Kind.PULL or row.worker in pushing:
            followed.append(row)
    return followed[::-1]


class _Follower:
    """Follows the sessions of a recorded run, one row after the other."""

    def __init__(
        self,
        replay: Replay,
        context: RunContext,
        store: SharedStore,
        sessions: Sequence[RecordedSession],
    ) -> None:
        self._replay = replay
        self._context = context
        self._store = store
        self._sessions = sessions
        self._players: dict[int, _Player] = {}
        self._pushes = 0
        self._passed_over = 0
        self._has_refused = False
        # why the replay ends before the order does
        self._reason = ""

    def follow(self) -> Generator[Event, None, None]:
        """Yield the events of all workers. Raises RunError at the first difference of a replay that
        has to be equal."""
        for number, session in enumerate(self._sessions):
            if number:
                self._reason = self._why_not_through(self._sessions[number - 1], session)
                if self._reason:
                    break
                self._resume(session)
            later = self._sessions[number + 1 : number + 2]
            yield from self._session(session, later[0].first_version if later else None)
            if self._reason or self._store.stopped:
                break
        if self._store.stopped:
            return
        self._say_how_it_went()
        yield Event(worker=0, left=StopReason.ORDER)

    def close(self) -> None:
        """Close the environments of all workers."""
        while self._players:
            self._players.popitem()[1].close()

    def _say_how_it_went(self) -> None:
        total = self._sessions[-1].last_version
        if self._replay.exact:
            text = f"{self._store.version:,} of {total:,} updates, equal"
        else:
            text = (
                f"{self._store.version:,} updates, in the order of {total:,}; "
                f"{self._passed_over:,} pulls and pushes were passed over"
            )
        break_at = self._replay.break_at
        if break_at is not None and break_at > self._pushes:
            pushes = f"there are {self._pushes:,} pushes"
            text += f". backend.break_at={break_at:,} was not reached: {pushes}"
        if self._reason:
            text += f". It ends there: {self._reason}"
        log.info("%s", text)

    def _why_not_through(self, before: RecordedSession, after: RecordedSession) -> str:
        """Return why a resumption cannot be replayed; "" if it can."""
        if not self._replay.exact:
            return (
                "the recorded run was resumed from a checkpoint, which a changed run does not have"
            )
        one, other = map(learning_settings, (before.config, after.config))
        changed = [key for key in {**one, **other} if one.get(key) != other.get(key)]
        if not changed:
            return ""
        key = changed[0]
        return f"the run was resumed with {key}={other.get(key)} in place of {one.get(key)}"

    def _resume(self, session: RecordedSession) -> None:
        """Set the store to what the session began with. The parameters are those of the replay."""
        self.close()
        assert session.start is not None
        start = session.start | {
            name: np.array(session.start[name], dtype) for name, dtype in _ARRAYS.items()
        }
        start["rng_states"] = start["rng_states"].reshape(-1, RNG_WORDS)
        self._store.restore(start | self._store.parameters.state())

    def _session(self, session: RecordedSession, last_version: int | None) -> Iterator[Event]:
        """Follow the rows of a session: see `rows_to_follow`."""
        rows = rows_to_follow(session, last_version)
        backend = session.config.get("backend") or {}
        shares_generators = backend.get(TARGET) != PROCESSES or bool(backend.get("processes"))
        self._compare_saved(session)
        to_break_at = self._row_of_break(rows)

        for number, row in enumerate(rows):
            if self._store.stopped:
                return
            if number == to_break_at:
                self._players[row.worker].pauses = True
            if row.kind is Kind.BEGIN:
                if not self._begin(row, shares_generators):
                    return
            elif row.kind is Kind.MULTIPLIERS:
                learning_rate, entropy = from_words(row.extra, np.float64).tolist()
                self._store.counters.multipliers = Multipliers(learning_rate, entropy)
            elif row.kind is Kind.CHECKSUM:
                self._compare("parameters", self._store.parameters.checksum(), row.extra[0])
            elif row.kind is Kind.PULL:
                self._pull(row)
            elif row.kind in PUSHES:
                event = self._push(row)
                if event is not None:
                    yield event
                self._compare_saved(session)

    def _row_of_break(self, rows: Sequence[Row]) -> int | None:
        """Return the row at which a worker begins what it pushes at `break_at`; None if that is not
        among these."""
        first_pulls: dict[int, int] = {}
        pushes = self._pushes
        for number, row in enumerate(rows):
            if row.kind is Kind.PULL:
                first_pulls.setdefault(row.worker, number)
            elif row.kind in PUSHES:
                pushes += 1
                pull = first_pulls.pop(row.worker, number)
                if pushes == self._replay.break_at:
                    return pull
        return None

    def _begin(self, row: Row, shares_generators: bool) -> bool:
        """Begin a worker, which may replace another one. Returns False if that was killed in the
        middle of a push."""
        worker = row.worker
        earlier = self._players.pop(worker, None)
        if earlier is not None:
            earlier.close()
        begin = Begin.of(row)
        counters = self._store.counters
        if self._replay.exact:
            if not np.array_equal(begin.counted, counters.counted(worker)):
                self._reason = f"worker {worker} was killed in the middle of a push"
                return False
            # a worker without a push has no saved state: it begins with that of its seed
            if counters.rng_states[worker].any():
                counters.rng_states[worker] = begin.rng_state

        context = replace(self._context, resumed=begin.incarnation)
        is_checked = self._replay.exact and shares_generators
        self._players[worker] = _Player(context, worker, self._store, is_checked)
        return True

    def _pull(self, row: Row) -> None:
        player = self._players[row.worker]
        if player.is_about_to_push:
            self._differ(row, "pushes")
        elif not isinstance(player.advance(), YieldPoint):
            self._differ(row, "has ended")

    def _push(self, row: Row) -> Event | None:
        """Let a worker go on until it pushes. Returns the event; None if it has ended."""
        self._pushes += 1
        player = self._players[row.worker]
        if self._replay.exact and not player.is_about_to_push:
            self._differ(row, "pulls")
        while not isinstance(output := player.advance(), Event):
            if output is None:
                self._differ(row, "has ended")
                return None
        if output.counts["rejected"] and not self._has_refused:
            self._has_refused = True
            log.info("push %d, of worker %d, is the first refused one", self._pushes, row.worker)
        if self._replay.exact and output.updates != (row.kind is Kind.PUSH):
            self._differ(row, f"makes {output.updates} updates")
        return output

    def _differ(self, row: Row, action: str) -> None:
        """Pass over what the order has and the worker has not. Raises RunError if the replay has to
        be equal."""
        self._passed_over += 1
        if self._replay.exact:
            raise RunError(
                f"the replay differs from the recorded run after {self._done()}: worker "
                f"{row.worker} {action} where the recorded one has {row.kind.name}"
            )

    def _compare_saved(self, session: RecordedSession) -> None:
        """Compare the state with that of a checkpoint of the same version, if there is one."""
        recorded = session.saved.get(self._store.version)
        if recorded is not None:
            here = SavedState.of_state(self._store.parameters.state())
            self._compare("parameters", here.parameters, recorded.parameters)
            self._compare("optimizer_state", here.optimizer_state, recorded.optimizer_state)

    def _compare(self, name: str, here: int, recorded: int) -> None:
        """Compare checksums. Raises RunError if they differ and the replay has to be equal."""
        if self._replay.exact and here != recorded:
            raise RunError(
                f"the replay differs from the recorded run after {self._done()}: the checksum of "
                f"{name} is another one"
            )

    def _done(self) -> str:
        total = self._sessions[-1].last_version
        return f"update {self._store.version:,} of {total:,}, push {self._pushes:,}"


class _Player:
    """A worker of the recorded run, with its own state of the global generators, as if it had a
    process of its own.

    is_checked: whether it may not draw from these.

    is_about_to_push: whether its next step is a push.
    pauses: whether it calls `breakpoint()` before its next step.
    """

    def __init__(
        self, context: RunContext, index: int, store: SharedStore, is_checked: bool
    ) -> None:
        self._index = index
        self._is_checked = is_checked
        self._states = seeding.global_states()
        self.is_about_to_push = False
        self.pauses = False
        with self._own_generators():
            self._worker = Worker(context, index, store)
        self._outputs = iter(self._worker.run())

    def advance(self) -> Event | YieldPoint | None:
        """Let the worker pull, with all that it computes then, or push. Returns what it yields;
        None if it has ended."""
        before = self._states
        with self._own_generators():
            if self.pauses:
                self.pauses = False
                breakpoint()  # `step` leads into the worker
            output = next(self._outputs, None)
        if self._is_checked and pickle.dumps(before) != pickle.dumps(self._states):
            raise RunError(
                f"worker {self._index} draws from the global generators of Python, numpy or torch, "
                "which all workers of the recorded run shared: record it with backend=processes"
            )
        self.is_about_to_push = output is YieldPoint.BEFORE_PUSH
        return output

    def close(self) -> None:
        with self._own_generators():
            self._worker.close()

    @contextmanager
    def _own_generators(self) -> Iterator[None]:
        outside = seeding.global_states()
        seeding.set_global_states(self._states)
        try:
            yield
        finally:
            self._states = seeding.global_states()
            seeding.set_global_states(outside)


def learning_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that change what is learned, by dotted keys."""
    return {
        key: value
        for key, value in comparable(config).items()
        if key.partition(".")[0] not in (*WATCHING, "backend", "stop", "typed")
    }
