"""Messages from workers to the run: their events, batched, and how each worker ended."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass

from a3c_exp.core.events import Event
from a3c_exp.core.worker import YieldPoint
from a3c_exp.errors import RunError

# A worker's events are merged over this time before they are passed on: it makes thousands of updates a second.
MERGE_SECONDS = 0.1
# Sleep between two looks at a synchronous round that waits for other workers: the first, and the longest. The sleep
# doubles each time, since many workers that poll would take the processor from those they wait for.
WAIT_SECONDS, LONGEST_WAIT_SECONDS = 1e-4, 2e-3
# From asking workers to end to killing them, or leaving them behind. A run that fails is over within two seconds.
GRACE_SECONDS = 1.0

# Ways in which a worker may fail: not only errors, also an environment that calls sys.exit.
FAILURES = (Exception, SystemExit)


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """A worker's last message. failure: error text for the user; None if the worker did not fail."""

    failure: str | None = None


def failure_text(who: str, error: BaseException) -> str:
    """Error text for the user: a RunError's message alone, any other exception with its traceback."""
    if isinstance(error, RunError):
        return str(error)
    return f"{who} failed:\n{''.join(traceback.format_exception(error)).rstrip()}"


def batch_events(steps: Iterator[Event | YieldPoint]) -> Iterator[Event]:
    """Run a worker, sleep where it waits for others, and merge its events over MERGE_SECONDS.

    The first event is passed on at once, so that a run soon shows that it works. The last one is passed on even if the
    worker fails.
    """
    pending: Event | None = None
    due, wait = 0.0, WAIT_SECONDS
    try:
        for step in steps:
            if step is YieldPoint.WAITING:
                time.sleep(wait)
                wait = min(2 * wait, LONGEST_WAIT_SECONDS)
                continue
            wait = WAIT_SECONDS
            if isinstance(step, YieldPoint):
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
