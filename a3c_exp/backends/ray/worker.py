"""The worker's side: an actor that runs one worker, and a store whose parameters live on servers.

A gradient is sent without waiting for the reply. The reply arrives while the worker collects its next rollout, and
brings the parameters for the rollout after that.
"""

from __future__ import annotations

import copy
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from a3c_exp.backends.messages import WorkerExit, failed
from a3c_exp.backends.ray.cluster import lost_errors
from a3c_exp.backends.ray.server import SEQUENCE_STRIDE, Message, Reply, shard_slices
from a3c_exp.backends.supervision import run_worker
from a3c_exp.common.arrays import Floats
from a3c_exp.core.counters import unpack_rng
from a3c_exp.core.cpu import one_thread
from a3c_exp.core.events import Event
from a3c_exp.core.experiment import RunContext
from a3c_exp.core.heartbeat import PAUSE_SECONDS, Heartbeat
from a3c_exp.core.parameters import StoreSpec
from a3c_exp.core.store import Push, Snapshot, Ticket

# Between attempts to reach a server that has died and will start again.
RETRY_SECONDS = 0.1
BEAT_SECONDS = 5.0
"""Longest time between two heartbeats that a worker sends. Each is a call of the first server, which thousands of
workers share."""
BEATS_BEFORE_STALL = 4
"""The least number of heartbeats within `stall_seconds`."""


Call = Callable[..., Future[Any]]
"""Starts a call of a server, given its index, the method's name and its arguments."""
Lost = tuple[type[BaseException], ...]


class WorkerActor:
    """Runs one worker in a process of Ray, which the driver ends with it."""

    def run(
        self, context: RunContext, worker: int, spec: StoreSpec, servers: Sequence[Any], in_flight: int, attempt: int
    ) -> WorkerExit:
        """Run a worker to its end, and return how it ended.

        servers: handles of the parameter servers, in the order of their shards. attempt: number of its predecessors.
        """

        def call(server: int, method: str, *arguments: Any) -> Future[Any]:
            future: Future[Any] = getattr(servers[server], method).remote(*arguments).future()
            return future

        try:
            store = RemoteStore(spec, call, lost_errors(), len(servers), in_flight, attempt)
            stall_seconds = context.experiment.backend.stall_seconds
            if stall_seconds is not None:
                interval = min(BEAT_SECONDS, stall_seconds / BEATS_BEFORE_STALL)
                beats = threading.Thread(target=store.send_beats, args=(worker, attempt, interval), daemon=True)
                beats.start()
            with one_thread():
                for _ in run_worker(context, worker, store, attempt):  # the servers report its events
                    pass
        except BaseException as error:  # whatever ended this worker is the run's to report
            return failed(f"worker {worker}", error)
        return WorkerExit()


@dataclass(slots=True)
class _Call:
    """One call of each server. arguments, futures: by server."""

    method: str
    arguments: list[tuple[Any, ...]]
    futures: list[Future[Any]]

    def done(self) -> bool:
        return all(future.done() for future in self.futures)


class RemoteStore:
    """The store of one worker whose parameters live on servers. It knows nothing of Ray.

    `push` sends the gradient and the event as one message, so a worker that dies has done both or neither. The servers
    complete the event and report it to the driver.
    `pull` returns the newest parameters that have arrived. It waits only while more than `in_flight` messages have no
    reply; in synchronous rounds it waits for all.

    lost: exceptions of a future whose server died or could not be reached. Whether the server has taken the message is
        then unknown.
    attempt: number of the worker's predecessors.
    """

    def __init__(self, spec: StoreSpec, call: Call, lost: Lost, servers: int, in_flight: int, attempt: int = 0) -> None:
        self._spec = spec
        self._call = call
        self._lost = lost
        self._max_pending = 0 if spec.synchronous else in_flight
        self._shards = shard_slices(spec.size, servers)
        self._sequence = SEQUENCE_STRIDE * attempt
        self._pending: deque[_Call] = deque()
        self._replies: list[Reply] = []
        self._has_news = False  # whether a message was sent, or a reply has arrived, since the last pull
        self._measured_at = time.perf_counter()
        self._wait_seconds = 0.0
        self._heartbeat = Heartbeat()
        self.stopped = False

    def send_beats(self, worker: int, attempt: int, interval: float) -> None:
        """Send the worker's heartbeat at intervals to the first server, which keeps it for the driver; for ever."""
        while True:
            self._call(0, "beat", worker, attempt, self._heartbeat.value)
            time.sleep(interval)

    # -- what a worker calls ------------------------------------------------------------------------------------------

    def start(self, worker: int, rng: np.random.Generator) -> int:
        """Join the run. Sets the generator to its saved state if the servers have one."""
        answers = self._call_all("join", worker)
        self._take([reply for reply, _, _ in answers])
        _, rng_state, episodes = answers[0]
        unpack_rng(rng, rng_state)
        self._measured_at = time.perf_counter()
        return int(episodes)

    def heartbeat(self, worker: int) -> Heartbeat:
        return self._heartbeat

    def pull(self, worker: int, into: Floats) -> Snapshot:
        """Copy the newest parameters that have arrived into a vector [P]."""
        begun = time.perf_counter()
        if self._max_pending == 0 and not self._has_news:
            self._take(self._call_all("pull"))
        while len(self._pending) > self._max_pending or (self._pending and self._pending[0].done()):
            self._receive()
        while len({reply.incarnation for reply in self._replies}) > 1 and not self.stopped:  # a server has died
            time.sleep(RETRY_SECONDS)
            self._take(self._call_all("pull"))
        self._has_news = False
        for shard, reply in zip(self._shards, self._replies, strict=True):
            into[shard] = reply.parameters
        self._wait_seconds += time.perf_counter() - begun
        return self._replies[0].snapshot

    def push(self, worker: int, push: Push) -> Ticket:
        """Send the gradient, the event and the generator's state, and do not wait.

        The event of the ticket is None: the first server reports it.
        """
        push.event.add({"ray/wait_share": self._wait_share()})
        # Copies, since a message whose server dies is sent again later.
        gradient = None if push.gradient is None else push.gradient.copy()
        push.rng = copy.deepcopy(push.rng)
        rounds = max(reply.snapshot.rounds for reply in self._replies)
        pushes: list[Push] = []
        for shard, reply in zip(self._shards, self._replies, strict=True):
            part = None if gradient is None else gradient[shard]
            snapshot = push.snapshot._replace(version=reply.snapshot.version, normalizer=None, rounds=rounds)
            event = Event(worker, steps=push.event.steps) if pushes else push.event
            pushes.append(replace(push, gradient=part, snapshot=snapshot, event=event))
        self._send(worker, pushes)
        return Ticket(None)

    def finish_rollout(self, worker: int) -> None:
        """In synchronous rounds, tell the servers that no more gradients of the rollout will come."""
        if self._spec.synchronous:
            self._send(worker, [None] * len(self._shards))

    def round_in_progress(self, worker: int) -> bool:
        """Always False: the reply to `finish_rollout` comes when the others have finished, and `pull` waits for it."""
        return False

    def leave(self, worker: int) -> None:
        """Wait for the replies to all messages, and leave the run."""
        while self._pending:
            self._receive()
        self._call_all("leave", worker)

    # -- calls --------------------------------------------------------------------------------------------------------

    def _wait_share(self) -> float:
        """The share of the time since the last push that `pull` has waited."""
        now = time.perf_counter()
        share = self._wait_seconds / (now - self._measured_at)
        self._measured_at = now
        self._wait_seconds = 0.0
        return share

    def _send(self, worker: int, pushes: Sequence[Push | None]) -> None:
        """Send each server its push under the next sequence number, and do not wait. None: the rollout is finished."""
        self._sequence += 1
        oldest = self._sequence - len(self._pending)
        messages = [
            (Message(worker, reply.incarnation, push, self._sequence, oldest),)
            for push, reply in zip(pushes, self._replies, strict=True)
        ]
        self._pending.append(self._begin("push", messages))
        self._has_news = True

    def _call_all(self, method: str, *arguments: Any) -> list[Any]:
        """Call all servers with the same arguments, and wait for their answers."""
        return self._answers(self._begin(method, [arguments] * len(self._shards)))

    def _begin(self, method: str, arguments: list[tuple[Any, ...]]) -> _Call:
        """Start a call of each server with its own arguments."""
        return _Call(method, arguments, [self._call(server, method, *own) for server, own in enumerate(arguments)])

    def _receive(self) -> None:
        """Wait for the replies to the oldest message."""
        self._take(self._answers(self._pending.popleft()))
        self._has_news = True

    def _answers(self, call: _Call) -> list[Any]:
        """Wait for the servers' answers, which is no stall however long it lasts.

        A server that died or could not be reached gets its message again, without waiting for the other servers: their
        answers may depend on it.
        """
        answers: dict[int, Any] = {}
        while len(answers) < len(call.futures):
            self._heartbeat.beat()
            waiting = {server: future for server, future in enumerate(call.futures) if server not in answers}
            for future in wait(waiting.values(), PAUSE_SECONDS, FIRST_COMPLETED).done:
                server = call.futures.index(future)
                try:
                    answers[server] = future.result()
                except self._lost:
                    time.sleep(RETRY_SECONDS)
                    for argument in call.arguments[server]:
                        if isinstance(argument, Message):  # the worker waits, so it has all earlier replies
                            argument.first_unacknowledged = argument.sequence
                    call.futures[server] = self._call(server, call.method, *call.arguments[server])
        return [answers[server] for server in sorted(answers)]

    def _take(self, replies: list[Reply]) -> None:
        self._replies = replies
        self.stopped = self.stopped or any(reply.stopped for reply in replies)
