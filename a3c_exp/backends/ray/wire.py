"""What travels between workers, parameter servers and the driver: one flat array each way, and a few numbers beside it.

Nothing here knows of Ray.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from a3c_exp.core.events import Event
from a3c_exp.core.normalization import Normalizer
from a3c_exp.core.store import StoreSpec

Floats = NDArray[np.float32]
Wire = Literal["float32", "bfloat16"]


@dataclass(frozen=True, slots=True)
class Message:
    """What a worker sends to one server: a push, or that it has finished with its rollout.

    sequence: numbers of a worker's messages, one after the other; the worker that takes a dead one's place goes on far
        behind them. oldest: the first of them that has not been answered.
    life: of the server whose parameters the gradient belongs to. version, steps: of the pull.
    gradient: the server's stretch of it as `encode` gave it; None for one that was not finite.
    transitions, weight, observed: as `SharedParameters.push` takes them.
    event: what the worker has to tell of it; only the first server gets it.
    number: of the synchronous round that the gradient is for, the same for all servers.
    """

    worker: int
    sequence: int
    oldest: int
    life: int
    version: int
    steps: int
    gradient: NDArray[Any] | None = None
    transitions: int = 0
    weight: int | None = None
    observed: NDArray[np.float64] | None = None
    event: Event | None = None
    rng_state: NDArray[np.uint64] | None = None
    finished: bool = False
    number: int = 0


class Reply(NamedTuple):
    """A server's answer to anything: its parameters (as `encode` gave them) and how far the run is.

    rounds: how many synchronous ones are over.
    """

    life: int
    version: int
    steps: int
    normalizer: Normalizer | None
    parameters: NDArray[Any]
    stopped: bool
    rounds: int


class News(NamedTuple):
    """What a server tells the driver ten times a second.

    events: of each worker, merged, in the order in which they began. steps: of the run.
    training_seconds: since the first worker began. members: workers that have joined and not left.
    received, sent: bytes of gradients and of parameters since it was last asked.
    """

    life: int
    events: list[Event]
    steps: int
    training_seconds: float
    members: list[int]
    received: int
    sent: int


def encode(vector: Floats, wire_dtype: Wire) -> NDArray[Any]:
    """What is sent of a finite vector [P]: itself, or the upper half of each number as uint16, rounded to even."""
    if wire_dtype == "float32":
        return vector
    bits = vector.view(np.uint32)
    return ((bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)).astype(np.uint16)


def decode(sent: NDArray[Any], into: Floats) -> None:
    """Write what `encode` gave into a vector [P]."""
    if sent.dtype == np.uint16:
        into.view(np.uint32)[:] = sent.astype(np.uint32) << np.uint32(16)
    else:
        into[:] = sent


def stretches(size: int, count: int) -> list[slice]:
    """A vector in `count` stretches as equal as can be, at least one number each."""
    ends = [size * index // count for index in range(count + 1)]
    return [slice(start, stop) for start, stop in pairwise(ends) if start < stop]


def piece(layout: StoreSpec, stretch: slice) -> StoreSpec:
    """The layout of one stretch of the vector. Parts of the network are cut where it is."""
    size = stretch.stop - stretch.start

    def within(place: int) -> int:
        return int(min(max(place - stretch.start, 0), size))

    param_slices = {name: slice(within(part.start), within(part.stop)) for name, part in layout.param_slices.items()}
    return replace(layout, size=size, param_slices=param_slices)


def cut(state: Mapping[str, Any], stretch: slice) -> dict[str, Any]:
    """One stretch of the state that `SharedParameters.state` gives."""
    return {
        **state,
        "parameters": state["parameters"][stretch].copy(),
        "optimizer_state": state["optimizer_state"][..., stretch].copy(),
    }


def joined(answers: Sequence[tuple[int, Mapping[str, Any]]], life: int) -> dict[str, Any] | None:
    """The whole of the states of all stretches; counters are those of the first, who keeps them for all.

    answers: what the servers say of their lives and states. None if one of them has not begun this life: a server that
    has died and started again has nothing yet.
    """
    if any(own != life for own, _ in answers):
        return None
    states = [state for _, state in answers]
    return {
        **states[0],
        "parameters": np.concatenate([state["parameters"] for state in states]),
        "optimizer_state": np.concatenate([state["optimizer_state"] for state in states], axis=-1),
    }
