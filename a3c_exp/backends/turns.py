"""Workers that take turns in one thread: all of a run, on the deterministic backends, or some of
them, in one of several processes.

A turn goes from one pause of a worker to its next one, for example through its push, its next pull,
the rollout and the gradient. Each backend chooses whose turn comes next: `serial` by its setting
`order`, `simulated` by its clock, and a process of `processes` at random. The order that
`record=order` writes is another one, of pulls and pushes: see `core.order`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager

from a3c_exp.backends.messages import failed
from a3c_exp.backends.supervision import (
    MaxRestarts,
    Outputs,
    Restarts,
    incarnation,
    run_worker,
)
from a3c_exp.core import seeding
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


def run_in_turns(
    context: RunContext, indices: Sequence[int], store: SharedStore, attempt: int
) -> Outputs:
    """Run several workers to their end in this process, which has had so many predecessors.

    They take turns in a random order, as on `serial`. A failure of one of them ends all. They have
    the heartbeat of the first one in common, since one of them works at a time.

    Yields their events, and YieldPoint.WAITING where all of them wait for workers of other
    processes.
    """
    rng = seeding.generator(
        context.experiment.seed,
        seeding.Role.SCHEDULER,
        indices[0],
        resumed=incarnation(context, attempt).resumed,
    )
    heartbeat = store.heartbeat(indices[0])
    with ExitStack() as stack:
        workers = [
            stack.enter_context(closing(run_worker(context, index, store, attempt, heartbeat)))
            for index in indices
        ]
        running = yield from build_all(workers)
        waits = 0
        while running:
            position = int(rng.integers(len(running)))
            pause = yield from until_pause(workers[running[position]])
            if pause is None:
                del running[position]

            waits = waits + 1 if pause is YieldPoint.WAITING else 0
            if waits > len(running):
                yield YieldPoint.WAITING
