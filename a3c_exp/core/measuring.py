"""What only a worker knows, measured if a callback asks for it: see `Callback.measures`.

What is timed is a `with` where it happens. A worker that measures nothing has no stopwatch, and
enters a context that does nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ContextDecorator, nullcontext
from typing import ParamSpec, TypeVar

import numpy as np

from a3c_exp.common.arrays import Floats
from a3c_exp.core.events import Event, Span, YieldPoint
from a3c_exp.networks import ActorCritic

P = ParamSpec("P")
R = TypeVar("R")

PARTS = ("environment", "acting", "returns", "gradient", "push", "waiting")
"""Where a worker's time goes. Waiting is what is left: for its turn, for a round, for predictors or
rollouts."""

MOST_SPANS = 2_000
"""Spans that a worker reports. Later ones only count."""
MOST_NUMBERS = 1_000
"""Numbers of the gradient of a parameter group that are reported, evenly spaced, of one
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

    def learning(self, outputs: Iterator[Event | YieldPoint]) -> Iterator[Event | YieldPoint]:
        """Pass on the outputs of `Learner.learn`, and time what is between them: gradients, and
        pushes after their pauses. The pauses are spent waiting."""
        self.switch("gradient")
        for output in outputs:
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


class _Timing(ContextDecorator):
    """Times a block, or the calls of a function, as one part of a worker's time. A part inside of
    it has its time alone."""

    def __init__(self, watch: Stopwatch, part: str) -> None:
        self._watch = watch
        self._part = part

    def __enter__(self) -> None:
        self._before = self._watch.switch(self._part)

    def __exit__(self, *error: object) -> None:
        self._watch.switch(self._before)


def stopwatch(measures: Collection[str]) -> Stopwatch | None:
    """Return a new stopwatch if time is measured, else None."""
    return Stopwatch() if "time" in measures else None


def timing(watch: Stopwatch | None, part: str) -> AbstractContextManager[None]:
    """Return a context for one place in the code, which is made once and entered many times. It
    times a part, or does nothing without a stopwatch."""
    return nullcontext() if watch is None else _Timing(watch, part)


def timed(watch: Stopwatch | None, part: str, function: Callable[P, R]) -> Callable[P, R]:
    """Return a function whose calls are timed, or the function itself without a stopwatch."""
    return function if watch is None else _Timing(watch, part)(function)


def gradient_sample(network: ActorCritic) -> dict[str, Floats]:
    """Return numbers of the network's gradient, float32 [N] by parameter group, N at most
    MOST_NUMBERS."""
    sample = {}
    for name, group in network.param_slices.items():
        gradient = network.gradient[group]
        if len(gradient):
            some = gradient[:: math.ceil(len(gradient) / MOST_NUMBERS)]
            sample[name] = np.array(some.tolist(), np.float32)
    return sample
