"""What only a worker knows, measured if a callback asks for it: see `Callback.measures`.

A worker is built as ever. Then methods of its parts are replaced by ones that measure, so that a
worker that measures nothing has no question about it in its loop.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

import numpy as np

from a3c_exp.core.events import Event, Span, YieldPoint

PARTS = ("environment", "acting", "returns", "gradient", "push", "waiting")
"""Where a worker's time goes. Waiting is what is left: for its turn, for a round, for predictors or
rollouts."""

MOST_SPANS = 2_000
"""Spans that a worker reports. Later ones only count."""
MOST_NUMBERS = 1_000
"""Numbers of the gradient of a part of the network that are reported, evenly spaced, of one
gradient in so many:"""
GRADIENTS_EVERY = 10


class Stopwatch:
    """The seconds of a worker by part, each moment in one part alone."""

    def __init__(self) -> None:
        # of the parts that there have been: each is reported at each push
        self._seconds: dict[str, float] = {}
        self._part = "waiting"
        self._since = time.perf_counter()
        self._spans: list[Span] = []
        self._spans_left = MOST_SPANS

    def switch(self, part: str) -> str:
        """Begin a part, and return the one before it."""
        now = time.perf_counter()
        before = self._part
        self._seconds[before] = self._seconds.get(before, 0.0) + now - self._since
        if self._spans_left:
            self._spans_left -= 1
            self._spans.append((before, self._since, now - self._since))
        self._part = part
        self._since = now
        return before

    def time(self, owner: Any, method: str, part: str) -> None:
        """Replace a method of an object by one that counts as a part, but for what counts as
        another inside of it."""
        inner: Callable[..., Any] = getattr(owner, method)

        def timed(*arguments: Any) -> Any:
            before = self.switch(part)
            try:
                return inner(*arguments)
            finally:
                self.switch(before)

        setattr(owner, method, timed)

    def outputs(self, learn: Callable[..., Iterator[Any]], *arguments: Any) -> Iterator[Any]:
        """What a learner does: gradients, and pushes after their pauses. The time between its
        outputs is of waiting."""
        self.switch("gradient")
        for output in learn(*arguments):
            self.switch("waiting")
            yield output
            self.switch("push" if output is YieldPoint.BEFORE_PUSH else "gradient")
        self.switch("waiting")

    def report(self, event: Event) -> None:
        """Give an event what has been measured since the last one."""
        self.switch(self._part)
        event.add({f"seconds/{part}": seconds for part, seconds in self._seconds.items()})
        event.spans = tuple(self._spans)
        self._seconds = dict.fromkeys(self._seconds, 0.0)
        self._spans = []


def measure_actor(measures: Collection[str], actor: Any) -> Stopwatch | None:
    """Let an `Actor` measure its time; None if that is not asked for."""
    if "time" not in measures:
        return None
    watch = Stopwatch()
    watch.time(actor, "collect", "acting")
    watch.time(actor.env, "step", "environment")
    return watch


def measure_learner(
    measures: Collection[str], learner: Any, watch: Stopwatch | None = None
) -> None:
    """Let a `Learner` measure, and report it with its pushes. watch: that of its worker's actor."""
    prepare = learner._prepare_push
    if "time" in measures:
        watch = Stopwatch() if watch is None else watch
        watch.time(learner, "_copy_parameters", "push")
        watch.time(learner, "_finish_rollout", "waiting")
        learner.learn = partial(watch.outputs, learner.learn)
        watch.time(learner, "_estimate", "returns")

    def prepare_push(snapshot: Any, event: Event, *arguments: Any) -> Any:
        network = learner.network
        if "gradients" in measures and learner._prepared % GRADIENTS_EVERY == 0:
            parts = {name: network.gradient[part] for name, part in network.param_slices.items()}
            some = {
                name: part[:: math.ceil(len(part) / MOST_NUMBERS)]
                for name, part in parts.items()
                if len(part)
            }
            event.gradients = {
                name: np.array(part.tolist(), np.float32) for name, part in some.items()
            }
        push = prepare(snapshot, event, *arguments)
        if "gradients" in measures and "grad_norm" in event.metrics:  # not if it was refused
            longest = learner.experiment.optimizer.max_grad_norm or math.inf
            event.add({"clipped": float(event.metrics["grad_norm"].mean > longest)})
        if watch is not None:
            watch.report(event)
        return push

    learner._prepare_push = prepare_push
