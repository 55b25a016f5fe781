"""The worker's side: an actor that runs one worker, and a store whose parameters live on servers.

A gradient is sent without waiting for the reply. The reply arrives while the worker collects its
next rollout, and brings the parameters for the rollout after that.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import Any

import numpy as np

from a3c_exp.backends.messages import WorkerExit, failed
from a3c_exp.backends.ray.cluster import death_text, lost_errors
from a3c_exp.backends.ray.server import Reply, shard_slices
from a3c_exp.backends.supervision import run_worker
from a3c_exp.common.arrays import Floats
from a3c_exp.core.cpu import one_thread
from a3c_exp.core.events import Event
from a3c_exp.core.experiment import RunContext
from a3c_exp.core.heartbeat import PAUSE_SECONDS, Heartbeat
from a3c_exp.core.parameters import StoreSpec
from a3c_exp.core.store import DONE, Push, Snapshot, Ticket

BEAT_SECONDS = 5.0
"""Longest time between two heartbeats that a worker sends. Each is a call of the first server,
which thousands of workers share."""
BEATS_BEFORE_STALL = 4
"""The least number of heartbeats within `stall_seconds`."""


class WorkerActor:
    """Runs one worker in a process of Ray, which the driver ends with it."""

    def run(
        self,
        context: RunContext,
        worker: int,
        spec: StoreSpec,
        servers: Sequence[Any],
        in_flight: int,
        attempt: int,
    ) -> WorkerExit:
        """Run a worker to its end, and return how it ended.

        servers: handles of the parameter servers, in the order of their shards. attempt: number of
        its predecessors.
        """

        def call(server: int, method: str, *arguments: Any) -> Future[Any]:
            future: Future[Any] = getattr(servers[server], method).remote(*arguments).future()
            return future

        try:
            store = RemoteStore(spec, call, len(servers), in_flight)
            stall_seconds = (
                context.experiment.backend.stall_seconds or BEATS_BEFORE_STALL * BEAT_SECONDS
            )
            interval = min(BEAT_SECONDS, stall_seconds / BEATS_BEFORE_STALL)
            threading.Thread(
                target=store.send_beats, args=(worker, attempt, interval), daemon=True
            ).start()
            with one_thread():
                # the servers report its events
                for _ in run_worker(context, worker, store, attempt):
                    pass
        except lost_errors() as error:
            return WorkerExit(f"worker {worker} lost a parameter server: {death_text(error)}")
        except BaseException as error:  # whatever ended this worker is the run's to report
            return failed(f"worker {worker}", error)

        return WorkerExit()


class RemoteStore:
    """The store of one worker whose parameters live on servers. It knows nothing of Ray.

    `push` sends the gradient and the event as one message, so a worker that dies has done both or
    neither. The servers complete the event and report it to the driver.
    `pull` returns the newest parameters that have arrived. It waits only while more than
    `in_flight` messages have no reply; in synchronous rounds it waits for all.
    A call that fails ends the worker: nothing is sent twice.

    call: starts a call of a server, given its index, the method's name and its arguments.
    """

    def __init__(
        self, spec: StoreSpec, call: Callable[..., Future[Any]], servers: int, in_flight: int
    ) -> None:
        self._synchronous = spec.synchronous
        self._call = call
        self._max_pending = 0 if spec.synchronous else in_flight
        self._shards = shard_slices(spec.size, servers)
        self._pending: deque[list[Future[Reply]]] = deque()  # a call of each server
        # whether a message was sent, or a reply has arrived, since the last pull
        self._has_news = False
        self._wait_seconds = 0.0
        self._heartbeat = Heartbeat()
        self.stopped = False

    def send_beats(self, worker: int, attempt: int, interval: float) -> None:
        """Send the worker's heartbeat at intervals to the first server, which keeps it for the
        driver; for ever."""
        while True:
            self._call(0, "beat", worker, attempt, self._heartbeat.value)
            time.sleep(interval)

    # -- what a worker calls

    def start(self, worker: int, rng: np.random.Generator, incarnation: int = 0) -> int:
        """Join the run. Sets the generator to its saved state if the servers have one."""
        answers = self._answers(self._call_all("join", worker, rng))
        self._take([reply for reply, _, _ in answers])
        _, saved, episodes = answers[0]
        rng.bit_generator.state = saved.bit_generator.state
        self._measured_at = time.perf_counter()
        return int(episodes)

    def heartbeat(self, worker: int) -> Heartbeat:
        return self._heartbeat

    def pull(self, worker: int, into: Floats) -> Snapshot:
        """Copy the newest parameters that have arrived into a vector [P]."""
        begun = time.perf_counter()
        if self._max_pending == 0 and not self._has_news:
            self._take(self._answers(self._call_all("pull")))
        while self._pending and (
            len(self._pending) > self._max_pending or all(map(Future.done, self._pending[0]))
        ):
            self._receive()

        self._has_news = False
        for shard, reply in zip(self._shards, self._replies, strict=True):
            into[shard] = reply.parameters
        self._wait_seconds += time.perf_counter() - begun

        return self._replies[0].snapshot

    def push(self, worker: int, push: Push) -> Ticket:
        """Send the gradient, the event and the generator's state, and do not wait. The first server
        reports the event, complete; it is not here."""
        push.event.add({"workers/wait_share": self._wait_share()})
        rounds = max(reply.snapshot.rounds for reply in self._replies)
        calls = []
        for server, (shard, reply) in enumerate(zip(self._shards, self._replies, strict=True)):
            part = None if push.gradient is None else push.gradient[shard]
            snapshot = push.snapshot._replace(
                version=reply.snapshot.version, normalizer=None, rounds=rounds
            )
            event = Event(worker, steps=push.event.steps) if server else push.event
            push_of_shard = replace(
                push, gradient=part, snapshot=snapshot, event=event, parameters=None
            )
            calls.append(self._call(server, "push", worker, push_of_shard))

        self._send(calls)
        return DONE

    def finish_rollout(self, worker: int) -> Ticket:
        """In synchronous rounds, tell the servers that no more gradients of the rollout will come.

        The reply comes when the others have finished, and `pull` waits for it.
        """
        if self._synchronous:
            self._receive_all()  # since a short message may overtake one with a gradient
            self._send(self._call_all("finish_rollout", worker))
        return DONE

    def leave(self, worker: int) -> None:
        """Wait for the replies to all messages, and leave the run."""
        self._receive_all()
        self._answers(self._call_all("leave", worker))

    # -- calls

    def _wait_share(self) -> float:
        """The share of the time since the last push that `pull` has waited."""
        now = time.perf_counter()
        share = self._wait_seconds / (now - self._measured_at)
        self._measured_at = now
        self._wait_seconds = 0.0
        return share

    def _call_all(self, method: str, *arguments: Any) -> list[Future[Any]]:
        """Start a call of each server."""
        return [self._call(server, method, *arguments) for server in range(len(self._shards))]

    def _send(self, calls: list[Future[Reply]]) -> None:
        """Do not wait for the replies to these calls: a later `pull` does."""
        self._pending.append(calls)
        self._has_news = True

    def _receive(self) -> None:
        """Wait for the replies to the oldest message."""
        self._take(self._answers(self._pending.popleft()))
        self._has_news = True

    def _receive_all(self) -> None:
        while self._pending:
            self._receive()

    def _answers(self, calls: Sequence[Future[Any]]) -> list[Any]:
        """Wait for the servers' answers, which is no stall however long it lasts."""
        while wait(calls, PAUSE_SECONDS).not_done:
            self._heartbeat.beat()
        return [call.result() for call in calls]

    def _take(self, replies: list[Reply]) -> None:
        self._replies = replies
        self.stopped = self.stopped or any(reply.stopped for reply in replies)
