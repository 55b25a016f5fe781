"""Predictors: threads that answer the requests of agents, many of them with one forward pass."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from a3c_exp.backends.ga3c.buffers import POLL_SECONDS, SharedBuffers
from a3c_exp.backends.ga3c.device import DeviceName, on_device
from a3c_exp.backends.ga3c.service_thread import RateMeter
from a3c_exp.core.events import Event
from a3c_exp.core.experiment import Experiment, build_network
from a3c_exp.core.store import SharedStore
from a3c_exp.errors import require


@dataclass(frozen=True, kw_only=True)
class PredictionBatch:
    """Observations of one forward pass.

    maximum: of them. wait: seconds that a predictor waits for more, while there are agents that may still send some.
    """

    maximum: int = 128
    wait: float = 0.01

    def __post_init__(self) -> None:
        require(self.maximum >= 1, "maximum", self.maximum, "a whole number >= 1")
        require(0 <= self.wait <= 1, "wait", self.wait, "seconds, from 0 to 1")


class Predictor:
    """Answers the requests of agents with a copy of the parameters, which is pulled between two batches.

    count: predictors of the run. gathering: held by the one of them that gathers a batch. If two waited for the same
        requests, neither would have a full batch.
    """

    def __init__(
        self, experiment: Experiment, store: SharedStore, buffers: SharedBuffers, *, device: DeviceName,
        batch: PredictionBatch, count: int, gathering: threading.Lock,
    ) -> None:  # fmt: skip
        self._network = on_device(build_network(experiment, draw=False)[0], device)
        self._store, self._buffers, self._count, self._gathering = store, buffers, count, gathering
        self._max_requests, self._wait = batch.maximum // buffers.spec.envs, batch.wait
        self._version = -1

    def run(self) -> Iterator[Event]:
        """Answer until no request will come any more. Yields an Event now and then, with metrics alone."""
        requests, rate = self._buffers.requests, RateMeter("ga3c/predictions_per_second", self._count)
        event = Event(worker=0)
        while agents := self._gather():
            left = len(requests)
            self._predict(agents)
            count = len(agents) * self._buffers.spec.envs
            event.add({"ga3c/prediction_batch": count, "ga3c/prediction_queue": len(agents) + left})
            due = rate.add(count)
            if due:
                event.add(due)
                yield event
                event = Event(worker=0)

    def _gather(self) -> list[int]:
        """The agents of the next batch; none if there will be no more."""
        buffers, requests = self._buffers, self._buffers.requests
        with self._gathering:
            agents: list[int] = []
            while not agents:
                ended = buffers.agents_ended  # before the queue is read: what they sent before they ended is answered
                agents = requests.take(self._max_requests, POLL_SECONDS)
                if buffers.closing or (ended and not agents):
                    return []
            wanted = min(self._max_requests, buffers.busy_agents // self._count)
            due = time.monotonic() + self._wait
            while len(agents) < wanted and (left := due - time.monotonic()) > 0:
                agents += requests.take(self._max_requests - len(agents), left)
        return agents

    def _predict(self, agents: list[int]) -> None:
        """Write the replies for these agents into their buffers, and notify them."""
        arrays, network, spec = self._buffers.request_arrays, self._network, self._buffers.spec
        if self._version != self._store.version:
            self._version = self._store.pull(0, network.vector).version
            network.load()
        count = len(agents) * spec.envs
        observations = arrays["observations"][agents].reshape(count, *spec.observation[0])
        state = arrays["state"][agents].reshape(count, spec.state_size) if spec.state_size else None
        distributions, values, next_state = network.infer(observations, state)
        shape = len(agents), spec.envs
        arrays["distributions"][agents] = distributions.reshape(*shape, -1)
        arrays["values"][agents] = values.reshape(shape)
        if next_state is not None:
            arrays["next_state"][agents] = next_state.reshape(*shape, -1)
        arrays["version"][agents] = self._version
        self._buffers.reply(agents)
