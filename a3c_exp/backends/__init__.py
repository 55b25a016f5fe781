"""Backends: who runs the workers, and where the shared parameters live."""

from __future__ import annotations

import time
import traceback
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from a3c_exp.errors import RunError

if TYPE_CHECKING:
    from a3c_exp.events import Event
    from a3c_exp.parameters import Layout, SharedParameters
    from a3c_exp.worker import Pause, Setup

# How long a worker's events are merged before they are handed on: thousands of updates a second are too many messages.
MERGE_SECONDS = 0.1
# How long a worker sleeps between looks at a synchronous round that waits for others: at first, and at most. Twice as
# long each time, since many that look all the time would take the processor from those they wait for.
WAIT_SECONDS, LONGEST_WAIT_SECONDS = 1e-4, 2e-3
# Between asking workers to end and ending them, or leaving them behind: a run that fails is over within two seconds.
GRACE_SECONDS = 1.0

# What a worker may end with: not only errors, also an environment that calls sys.exit.
FAILURES = (Exception, SystemExit)


@runtime_checkable
class Backend(Protocol):
    """Runs the workers of an experiment.

    One that cannot do all that an experiment may ask for has a method `check(experiment)`, or one that has to see the
    network, `check_network(network)`. They raise ConfigError. One that learns from rollouts of several workers together
    says so by `joins_rollouts = True`: minibatches need not divide a rollout then.

    deterministic: the same seed gives the same run, bit for bit; then nothing that happens beside the training may
    depend on the clock either.
    """

    deterministic: ClassVar[bool]

    def store(self, layout: Layout) -> SharedParameters:
        """New shared parameters where this backend's workers can reach them."""

    def run(self, setup: Setup, store: SharedParameters) -> Generator[Event | None, None, None]:
        """Start the workers and yield what they do; None when a tenth of a second has brought nothing.

        Ends when all workers have: after `total_steps`, or after `store.stop()`. Raises RunError if a worker
        failed. Everything it started is gone when the iterator is closed or exhausted, whatever the reason.
        """

    def prepare(self) -> None:
        """Called as early as possible: time to start what takes long."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A worker's last message. failure: what ended it before its time, for the user; None if nothing did."""

    failure: str | None = None


def failure(who: str, error: BaseException) -> str:
    """What a user is told of one that raised: where and why, or only why if that was said on purpose."""
    if isinstance(error, RunError):
        return str(error)
    return f"{who} failed:\n{''.join(traceback.format_exception(error)).rstrip()}"


def merged(steps: Iterator[Event | Pause]) -> Iterator[Event]:
    """Run a worker, waiting where it waits for others, and merge its events over MERGE_SECONDS. The first is passed
    on at once: a run that works is seen to. So is the last, whatever the worker ends with."""
    from a3c_exp.worker import Pause

    pending: Event | None = None
    due, wait = 0.0, WAIT_SECONDS
    try:
        for step in steps:
            if step is Pause.WAITING:
                time.sleep(wait)
                wait = min(2 * wait, LONGEST_WAIT_SECONDS)
                continue
            wait = WAIT_SECONDS
            if isinstance(step, Pause):
                continue
            pending = step if pending is None else pending.merge(step)
            now = time.monotonic()
            if now >= due:
                yield pending
                pending, due = None, now + MERGE_SECONDS
    except FAILURES:
        if pending is not None:
            yield pending
        raise
    if pending is not None:
        yield pending
