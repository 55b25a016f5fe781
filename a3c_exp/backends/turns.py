"""Workers that take turns in one thread: what the deterministic backends have in common.

A turn goes from one pause of a worker to its next one, for example through its push, its next pull,
the rollout and the gradient. Each backend chooses whose turn comes next: `serial` by its setting
`order`, `simulated` by its clock. The order that `record=order` writes is another one, of pulls and
pushes: see `core.order`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager

from a3c_exp.backends.messages import failed
from a3c_exp.backends.supervision import MaxRestarts, Outputs, Restarts, run_worker
from a3c_exp.core.events import Event, YieldPoint
from a3c_exp.core.experiment import RunContext
from a3c_exp.core.store import SharedStore
from a3c_exp.errors import FAILURES, leaves_debugger


@contextmanager
def workers_in_turns(
    settings: MaxRestarts, context: RunContext, store: SharedStore
) -> Iterator[list[Outputs]]:
    """Provide the workers of a run, each of which goes on when it is asked for its next output.

    The first output of a worker is YieldPoint.BUILT, once its environments are made. A worker that
    fails reports that in an event, and is built again in its place. Nobody sees whether one hangs.
    At the end all are closed.
    """
    restarts = Restarts(settings, store, context.experiment.envs_per_worker)
    workers = [
        _replaceable_worker(context, index, store, restarts)
        for index in range(context.experiment.worker_count)
    ]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.close()


def build_all(workers: Sequence[Outputs]) -> Generator[Event, None, list[int]]:
    """Build all workers before the first one pulls, and return the indices of those that have been
    built. Yields the events of failures."""
    built = []
    for index, worker in enumerate(workers):
        if (yield from until_pause(worker)) is not None:
            built.append(index)
    return built


def until_pause(worker: Outputs) -> Generator[Event, None, YieldPoint | None]:
    """Let a worker go on to its next pause, and return its reason; None if the worker has ended.
    Yields its events."""
    for output in worker:
        if isinstance(output, YieldPoint):
            return output
        yield output
    return None


def until_event(worker: Outputs) -> Generator[Event, None, bool]:
    """Let a worker go on through its pauses until it has pushed, and yield that event. Returns
    whether there was one: if not, the worker has ended. Not for rounds, in which it would wait."""
    for output in worker:
        if isinstance(output, Event):
            yield output
            return True
    return False


def _replaceable_worker(
    context: RunContext, index: int, store: SharedStore, restarts: Restarts
) -> Outputs:
    """Run a worker, and after a failure another one in its place."""
    while True:
        try:
            attempt = restarts.next_attempt(index)
            with closing(run_worker(context, index, store, attempt)) as outputs:
                for output in outputs:
                    if isinstance(output, Event):
                        restarts.on_event(index, output)
                    yield output
            return
        except FAILURES as error:
            if leaves_debugger(error):
                raise
            verdict = restarts.on_failure(index, index, failed(f"worker {index}", error))
        yield verdict.event
        if not verdict.is_replaced:
            return
