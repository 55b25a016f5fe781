"""What only a worker knows, measured if a callback asks for it: see `Callback.measures`.

A worker is built as ever. Then methods of its parts are replaced by ones that measure, so that a worker that measures
nothing has no question about it in its loop.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np

from a3c_exp.core.events import Event, Measured, Span
from a3c_exp.optimizers import euclidean_norm

PARTS = ("environment", "acting", "returns", "gradient", "push", "waiting")
"""Where a worker's time goes. Waiting is what is left: for its turn, for a round, for predictors or rollouts."""

MOST_SPANS = 2_000
"""Spans that a worker reports. Later ones only count."""
MOST_NUMBERS = 1_000
"""Numbers of the gradient of a part of the network that are reported, evenly spaced, of one gradient in so many:"""
GRADIENTS_EVERY = 10


class Stopwatch:
    """The seconds of a worker by part, each moment in one part alone."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._part = "waiting"
        self._since = time.perf_counter()
        self._spans: list[Span] = []
        self._left = MOST_SPANS

    def switch(self, part: str) -> str:
        """Begin a part, and return the one before it."""
        now, before = time.perf_counter(), self._part
        self._seconds[before] = self._seconds.get(before, 0.0) + now - self._since
        if self._left:
            self._left -= 1
            self._spans.append(Span(before, self._since, now - self._since))
        self._part, self._since = part, now
        return before

    def time(self, owner: Any, method: str, part: str) -> None:
        """Replace a method of an object by one that counts as a part, but for what counts as another inside of it."""
        inner: Callable[..., Any] = getattr(owner, method)

        def timed(*arguments: Any, **keywords: Any) -> Any:
            before = self.switch(part)
            try:
                return inner(*arguments, **keywords)
            finally:
                self.switch(before)

        setattr(owner, method, timed)

    def report(self, event: Event) -> None:
        """Give an event what has been measured since the last one."""
        self.switch(self._part)
        event.add({f"seconds/{part}": seconds for part, seconds in self._seconds.items()})
        event.measured = Measured(event.measured.gradients if event.measured else {}, self._spans)
        self._seconds, self._spans = {}, []


class _TimedStore:
    """A store whose calls by one worker are timed; others may use it too."""

    def __init__(self, store: Any, watch: Stopwatch) -> None:
        self._store = store
        self.push, self.pull = store.push, store.pull
        watch.time(self, "push", "push")
        watch.time(self, "pull", "push")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def measure_actor(measures: Collection[str], actor: Any) -> Stopwatch | None:
    """Let an `Actor` measure its time; None if that is not asked for."""
    if "time" not in measures:
        return None
    watch = Stopwatch()
    watch.time(actor, "collect", "acting")
    watch.time(actor.env, "step", "environment")
    return watch


def measure_learner(measures: Collection[str], learner: Any, watch: Stopwatch | None = None) -> None:
    """Let a `Learner` measure, and report it with its pushes. watch: that of its worker's actor."""
    if "time" in measures:
        watch = Stopwatch() if watch is None else watch
        learner.store = _TimedStore(learner.store, watch)
        watch.time(learner, "_estimate", "returns")
        learner.learn = _timed_outputs(learner.learn, watch)
    learner._prepare_push = _measured_push(learner, learner._prepare_push, measures, watch)


def _timed_outputs(learn: Callable[..., Iterator[Any]], watch: Stopwatch) -> Callable[..., Iterator[Any]]:
    """Count what a learner does as part of the gradient, and the time between its outputs as waiting."""

    def timed(*arguments: Any) -> Iterator[Any]:
        watch.switch("gradient")
        for output in learn(*arguments):
            watch.switch("waiting")
            yield output
            watch.switch("gradient")
        watch.switch("waiting")

    return timed


def _measured_push(
    learner: Any, prepare: Callable[..., Any], measures: Collection[str], watch: Stopwatch | None
) -> Callable[..., Any]:
    """Measure gradients before and after they are clipped."""
    count = 0

    def prepared(*arguments: Any) -> Any:
        nonlocal count
        network, event = learner.network, arguments[1]
        if "gradients" in measures and count % GRADIENTS_EVERY == 0:
            parts = {name: network.gradient[part] for name, part in network.param_slices.items()}
            few = {name: part[:: math.ceil(len(part) / MOST_NUMBERS)] for name, part in parts.items() if len(part)}
            event.measured = Measured({name: np.array(part.tolist(), np.float32) for name, part in few.items()}, [])
        count += 1
        norm = euclidean_norm([network.gradient])
        push = prepare(*arguments)
        if "clipped" in measures and math.isfinite(norm):
            event.add({"clipped": float(euclidean_norm([network.gradient]) < norm * (1 - 1e-5))})
        if watch is not None:
            watch.report(event)
        return push

    return prepared
