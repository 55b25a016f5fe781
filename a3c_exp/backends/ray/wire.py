"""Messages between workers, parameter servers and the driver, and how a vector is split among servers.

Nothing here knows of Ray.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from a3c_exp.common.arrays import Floats
from a3c_exp.core.events import Event
from a3c_exp.core.normalization import Normalizer
from a3c_exp.core.parameters import StoreSpec
from a3c_exp.core.store import Push

SEQUENCE_STRIDE = 1 << 32
"""Between the sequence numbers of a worker's messages and those of its replacement."""


@dataclass(slots=True, kw_only=True)
class Message:
    """A worker's push to one server, or its word that it has finished with a rollout.

    incarnation: of the server whose parameters the gradient is based on.
    push: with the server's shard of the gradient; None if the rollout is finished. Its synchronous round is the same
        for all servers. Events are reported by the first server, so the others get no more than the steps.
    sequence: number of the message among those of its worker. The replacement of a dead worker starts far above, see
        SEQUENCE_STRIDE.
    first_unacknowledged: the lowest sequence number to which the worker has no reply yet.
    """

    worker: int
    incarnation: int
    push: Push | None = None
    sequence: int = 0
    first_unacknowledged: int = 0


class Reply(NamedTuple):
    """A server's answer to every call of a worker: its parameters, and the state of the run.

    rounds: number of synchronous rounds that are over.
    """

    incarnation: int
    version: int
    steps: int
    normalizer: Normalizer | None
    parameters: Floats
    stopped: bool
    rounds: int


class ServerStatus(NamedTuple):
    """A server's report to the driver, ten times a second.

    incarnation: 0 if the server has started and has no state yet.
    events: one for each worker that has pushed since the last report. steps: of the run.
    training_seconds: since the first worker started. members: workers that have joined and not left.
    beats: by worker, number of its predecessors and last heartbeat, see `actors.send_beats`.
    """

    incarnation: int
    events: list[Event]
    steps: int
    training_seconds: float
    members: list[int]
    beats: dict[int, tuple[int, int]]


def shard_slices(size: int, count: int) -> list[slice]:
    """A vector's slices for `count` servers, as equal as possible. No slice is empty, so there may be fewer."""
    ends = [size * index // count for index in range(count + 1)]
    return [slice(start, stop) for start, stop in pairwise(ends) if start < stop]


def shard_spec(spec: StoreSpec, shard: slice) -> StoreSpec:
    """The spec of one server's store. A part of the network that crosses the shard's border is cut there."""
    size = shard.stop - shard.start

    def within(index: int) -> int:
        return int(min(max(index - shard.start, 0), size))

    param_slices = {name: slice(within(part.start), within(part.stop)) for name, part in spec.param_slices.items()}
    return replace(spec, size=size, param_slices=param_slices)


def shard_state(state: Mapping[str, Any], shard: slice) -> dict[str, Any]:
    """One server's part of the state of a store (`SharedStore.state`)."""
    return {
        **state,
        "parameters": state["parameters"][shard].copy(),
        "optimizer_state": state["optimizer_state"][..., shard].copy(),
    }


def merge_shards(shards: Sequence[tuple[int, Mapping[str, Any]]], incarnation: int) -> dict[str, Any] | None:
    """The state of the whole store. The counters are those of the first server.

    shards: incarnation and state of every server.
    Returns None if a server is not of this incarnation: after a restart it has no state yet.
    """
    if any(found != incarnation for found, _ in shards):
        return None
    states = [state for _, state in shards]
    return {
        **states[0],
        "parameters": np.concatenate([state["parameters"] for state in states]),
        "optimizer_state": np.concatenate([state["optimizer_state"] for state in states], axis=-1),
    }
