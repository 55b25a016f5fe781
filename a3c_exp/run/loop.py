"""The loop of a run: take the workers' events, notify callbacks, and look whether to stop."""

from __future__ import annotations

import time
from collections.abc import Iterator

from a3c_exp.common.log import log
from a3c_exp.core.events import Event
from a3c_exp.ending import MANY_FAILURES, StopReason
from a3c_exp.errors import RunError
from a3c_exp.run.open_run import OpenRun
from a3c_exp.run.recorders import Recorders


def consume(run: OpenRun, recorders: Recorders, events: Iterator[Event | None]) -> None:
    """Take events until all workers have ended, and decide why the run has ended.

    Workers that have been asked to end and go on are waited for until the run's deadline. Raises
    RunError if the run's folder is gone, or if nothing has been learned.
    """
    for event in events:
        if event is not None:
            take_event(run, event)
        if _is_done_waiting(run):
            break
        run.hooks.on_tick()

    run.milestones.stop_clock()
    recorders.curves.log_new()
    _check_that_something_was_learned(run)
    has_all_steps = run.store.steps >= run.experiment.total_steps
    run.ending.stop(
        StopReason.TOTAL_STEPS if has_all_steps else recorders.stop_rules.leaving_rule()
    )


def take_event(run: OpenRun, event: Event) -> None:
    """Add an event of a worker to the statistics, and notify callbacks. There may be thousands a
    second."""
    run.statistics.add(event)
    if len(event.episodes.returns):
        run.hooks.on_episodes(event.worker, event.episodes)
    run.hooks.on_event(event)


def _is_done_waiting(run: OpenRun) -> bool:
    """Return whether the run waits for no more events. Raises RunError if its folder is gone."""
    if run.interruption.signal is not None and run.ending.stop(StopReason.INTERRUPTED):
        run.ask_workers_to_end()

    if time.monotonic() > run.deadline:
        log.warning(
            "workers that did not finish their rollout within %.0f s are ended",
            run.patience,
        )
        return True

    if run.output.lost:
        raise RunError(
            f"{run.folder} was renamed, moved or deleted: nothing is written there any more"
        )
    return False


def _check_that_something_was_learned(run: OpenRun) -> None:
    """Raise RunError if all gradients were refused, or if workers failed and no episode ended."""
    statistics = run.statistics
    if statistics.counts["rejected"] and not statistics.updates:
        raise RunError(
            "all gradients were refused, so nothing has been learned: "
            "a warning in train.log says more"
        )

    failures = statistics.counts["restarts"]
    if failures >= MANY_FAILURES and not statistics.episodes:
        raise RunError(
            f"no episode has ended, and workers have failed {failures:,} times, "
            "so no return is known: the warnings in train.log say why",
            StopReason.NO_EPISODES,
        )
