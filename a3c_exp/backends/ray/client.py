"""The worker's side: a store whose parameters live on servers, with each push or with one a rollout. Nothing here knows
of Ray.

A gradient is sent without waiting for the reply. The reply arrives while the worker collects its next rollout, and
brings the parameters for the rollout after that.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from a3c_exp.backends.ray.wire import Message, Reply, WireDtype, decode, encode, shard_slices
from a3c_exp.common.arrays import Floats
from a3c_exp.core.counters import pack_rng, unpack_rng
from a3c_exp.core.events import Event
from a3c_exp.core.heartbeat import PAUSE_SECONDS, Heartbeat
from a3c_exp.core.normalization import RunningStats
from a3c_exp.core.parameters import StoreSpec
from a3c_exp.core.store import Push, SharedStore, Snapshot, Ticket
from a3c_exp.optimizers import SGD
from a3c_exp.schedules import Constant

# Between attempts to reach a server that has died and will start again.
RETRY_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class Transport:
    """The connection of a worker to the servers.

    call: starts a call, given the server's index, the method's name and its arguments, and returns a future.
    lost: exceptions of a future whose server died or could not be reached. Whether the server has taken the message is
        then unknown.
    servers: how many there are. wire_dtype: type in which gradients are sent.
    in_flight: messages without a reply with which the worker goes on.
    """

    call: Callable[..., Future[Any]]
    lost: tuple[type[BaseException], ...]
    servers: int
    wire_dtype: WireDtype
    in_flight: int


@dataclass(slots=True)
class _PendingCall:
    """A call of all servers.

    arguments, futures: one entry a server; of futures only one while the first server has to answer before the others
        are called.
    sent_at, answered_at: seconds; the latter of the last reply so far.
    """

    method: str
    arguments: list[tuple[Any, ...]]
    sent_at: float = field(default_factory=time.perf_counter)
    answered_at: float = 0.0
    futures: list[Future[Any]] = field(default_factory=list)

    def on_answer(self, _: Future[Any]) -> None:
        self.answered_at = time.perf_counter()

    def done(self) -> bool:
        return all(future.done() for future in self.futures)


class RemoteStore:
    """The store of one worker whose parameters live on servers.

    `push` sends the gradient and the event as one message, so a worker that dies has done both or neither. The servers
    complete the event and report it to the driver.
    `pull` returns the newest parameters that have arrived. It waits only while more than `in_flight` messages have no
    reply; in synchronous rounds it waits for all.

    first_sequence: the sequence number before that of the first message.
    """

    def __init__(self, spec: StoreSpec, transport: Transport, first_sequence: int = 0) -> None:
        self._spec, self._transport = spec, transport
        self._max_pending = 0 if spec.synchronous else transport.in_flight
        self._shards = shard_slices(spec.size, transport.servers)
        self._first_decides = spec.synchronous and spec.quorum is not None and len(self._shards) > 1
        self._sequence = first_sequence
        self._pending: deque[_PendingCall] = deque()
        self._replies: list[Reply] = []
        self._has_news = False  # whether a message was sent, or a reply has arrived, since the last pull
        self._measured_at = time.perf_counter()
        self._wait_seconds = 0.0
        self._round_trips: list[float] = []
        self._heartbeat = Heartbeat()
        self.stopped = False

    # -- what a worker calls ------------------------------------------------------------------------------------------

    def start(self, worker: int, rng: np.random.Generator) -> int:
        """Join the run. Sets the generator to its saved state if the servers have one."""
        answers = self._call("join", [(worker,)] * len(self._shards))
        self._take([reply for reply, _, _ in answers])
        _, rng_state, episodes = answers[0]
        if rng_state.any():
            unpack_rng(rng, rng_state)
        self._measured_at = time.perf_counter()
        return int(episodes)

    def heartbeat(self, worker: int) -> Heartbeat:
        return self._heartbeat

    def pull(self, worker: int, into: Floats) -> Snapshot:
        """Copy the newest parameters that have arrived into a vector [P]."""
        begun = time.perf_counter()
        if self._max_pending == 0 and not self._has_news:
            self._pull_replies()
        while len(self._pending) > self._max_pending or (self._pending and self._pending[0].done()):
            self._receive()
        while len({reply.incarnation for reply in self._replies}) > 1 and not self.stopped:  # a server has died
            time.sleep(RETRY_SECONDS)
            self._pull_replies()
        self._has_news = False
        for shard, reply in zip(self._shards, self._replies, strict=True):
            decode(reply.parameters, into[shard])
        self._wait_seconds += time.perf_counter() - begun
        first = self._replies[0]
        return Snapshot(first.version, first.steps, first.normalizer, first.rounds)

    def push(self, worker: int, push: Push) -> Ticket:
        """Send the gradient, the event and the generator's state, and do not wait.

        The event of the ticket is None: the first server reports it.
        """
        push.event.add(self._measurements())
        encoded = None if push.gradient is None else encode(push.gradient.copy(), self._transport.wire_dtype)
        message = Message(
            worker=worker, incarnation=0, steps=push.snapshot.steps, transitions=push.event.steps, weight=push.weight,
            stats=None if push.stats is None else push.stats.row, rng_state=pack_rng(push.rng),
            round=1 + max(reply.rounds for reply in self._replies[: 1 if self._first_decides else None]),
        )  # fmt: skip
        self._send([
            replace(
                message, incarnation=reply.incarnation, version=reply.version,
                gradient=None if encoded is None else encoded[shard], event=push.event if index == 0 else None,
            )
            for index, (shard, reply) in enumerate(zip(self._shards, self._replies, strict=True))
        ])  # fmt: skip
        return Ticket(None)

    def finish_rollout(self, worker: int) -> None:
        """In synchronous rounds, tell the servers that no more gradients of the rollout will come."""
        if self._spec.synchronous:
            self._send([
                Message(worker=worker, incarnation=reply.incarnation, finished=True) for reply in self._replies
            ])  # fmt: skip

    def round_in_progress(self, worker: int) -> bool:
        """Always False: the reply to `finish_rollout` comes when the others have finished, and `pull` waits for it."""
        return False

    def leave(self, worker: int) -> None:
        """Wait for the replies to all messages, and leave the run."""
        while self._pending:
            self._receive()
        self._call("leave", [(worker,)] * len(self._shards))

    # -- calls --------------------------------------------------------------------------------------------------------

    def _measurements(self) -> dict[str, float]:
        """Mean round trip of messages, and waiting time in `pull`, since the last push."""
        now = time.perf_counter()
        share = self._wait_seconds / (now - self._measured_at)
        values = {"ray/pull_ms": 1e3 * self._wait_seconds, "ray/wait_share": share}
        if self._round_trips:
            values["ray/push_ms"] = 1e3 * sum(self._round_trips) / len(self._round_trips)
        self._measured_at, self._wait_seconds, self._round_trips = now, 0.0, []
        return values

    def _send(self, messages: list[Message]) -> None:
        """Send one message to each server under the next sequence number, and do not wait.

        With a quorum the first server gets it first, and the others when it has answered: they follow what it decides.
        """
        if self._first_decides:
            while self._pending:
                self._receive()
            known = min(reply.rounds for reply in self._replies[1:])
            messages = [replace(messages[0], known=known), *(replace(each, members={}) for each in messages[1:])]
        self._sequence += 1
        first = self._sequence - len(self._pending)
        numbered = [replace(message, sequence=self._sequence, first_unacknowledged=first) for message in messages]
        servers = 1 if self._first_decides else len(numbered)
        self._pending.append(self._begin_call("push", [(message,) for message in numbered], servers))
        self._has_news = True

    def _pull_replies(self) -> None:
        self._take(self._call("pull", [()] * len(self._shards)))

    def _call(self, method: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
        return self._answers(self._begin_call(method, arguments))

    def _begin_call(self, method: str, arguments: list[tuple[Any, ...]], servers: int | None = None) -> _PendingCall:
        """Call the servers, or so many of them."""
        call = _PendingCall(method, arguments)
        self._call_next(call, len(arguments) if servers is None else servers)
        return call

    def _call_next(self, call: _PendingCall, servers: int) -> None:
        """Call servers that have not been called yet, up to so many."""
        for server in range(len(call.futures), servers):
            future = self._transport.call(server, call.method, *call.arguments[server])
            future.add_done_callback(call.on_answer)
            call.futures.append(future)

    def _receive(self) -> None:
        """Wait for the replies to the oldest message."""
        call = self._pending.popleft()
        self._take(self._answers(call))
        self._round_trips.append(call.answered_at - call.sent_at)
        self._has_news = True

    def _answers(self, call: _PendingCall) -> list[Any]:
        """Wait for the servers' answers, which is no stall however long it lasts.

        A server that died or could not be reached gets its message again, without waiting for the other servers: their
        answers may depend on it.
        """
        answers: dict[int, Any] = {}
        waiting, servers = dict(enumerate(call.futures)), len(call.arguments)
        while waiting:
            self._heartbeat.beat()
            wait(waiting.values(), PAUSE_SECONDS, FIRST_COMPLETED)
            for server, future in [(server, future) for server, future in waiting.items() if future.done()]:
                try:
                    answers[server] = future.result()
                    del waiting[server]
                except self._transport.lost:
                    time.sleep(RETRY_SECONDS)
                    arguments = map(_acknowledge_earlier, call.arguments[server])
                    waiting[server] = self._transport.call(server, call.method, *arguments)
            if not waiting and len(call.futures) < servers:  # the first server has decided
                call.arguments[1:] = [_decided(message, answers[0]) for (message,) in call.arguments[1:]]
                self._call_next(call, servers)
                waiting = dict(list(enumerate(call.futures))[1:])
        return [answers[server] for server in range(servers)]

    def _take(self, replies: list[Reply]) -> None:
        self._replies = replies
        self.stopped = self.stopped or any(reply.stopped for reply in replies)


def _decided(message: Message, reply: Reply) -> tuple[Message]:
    """A message for another server than the first, with what the first has decided: for its own incarnation only."""
    if reply.incarnation != message.incarnation:
        return (replace(message, round=0),)
    return (replace(message, round=reply.round, members=reply.members),)


def _acknowledge_earlier(argument: Any) -> Any:
    """A message that is sent again. Its worker waits for this reply, so it has those to all earlier messages."""
    if isinstance(argument, Message):
        return replace(argument, first_unacknowledged=argument.sequence)
    return argument


def summing_spec(spec: StoreSpec) -> StoreSpec:
    """The spec of servers that add up the workers' changes: gradient descent at rate 1, without optimizer state.

    `staleness_power` scales a whole change when the server applies it; steps on the copy are not scaled.
    """
    descent = SGD(learning_rate=1.0, staleness_power=spec.optimizer.staleness_power)
    return replace(spec, optimizer=descent, schedule=Constant(value=1.0), optimizer_state_per_worker=False)


@dataclass(slots=True)
class _PendingRollout:
    """A rollout whose change is not pushed yet.

    snapshot, base: the pull from the servers, and its parameters. event, stats: of all minibatches so far.
    rng: the worker's generator; None before the first minibatch.
    """

    snapshot: Snapshot
    base: Floats
    event: Event
    stats: RunningStats | None = None
    rng: np.random.Generator | None = None


class LocalUpdates:
    """The store of a worker that updates its own copy of the parameters.

    The first pull of a rollout is from the servers. Later pulls, and pushes, are of the copy, whose optimizer state
    stays with the worker. When the rollout is finished, the change of the copy is pushed to the servers.
    """

    def __init__(self, spec: StoreSpec, remote: RemoteStore) -> None:
        self._remote = remote
        own_spec = replace(
            spec, workers=1, synchronous=False, locked=False, optimizer_state_per_worker=False,
            normalize_observations=False, normalize_rewards=False,
        )  # fmt: skip
        self._copy = SharedStore(own_spec).parameters
        self._copy.initialize(np.zeros(spec.size, np.float32))
        self._rollout: _PendingRollout | None = None
        self.start, self.leave, self.round_in_progress = remote.start, remote.leave, remote.round_in_progress
        self.heartbeat = remote.heartbeat

    @property
    def stopped(self) -> bool:
        return self._remote.stopped

    def pull(self, worker: int, into: Floats) -> Snapshot:
        """Copy the servers' parameters into a vector [P] if a rollout begins, those of the copy otherwise."""
        if self._rollout is None:
            snapshot = self._remote.pull(worker, into)
            self._copy.take(into)
            self._rollout = _PendingRollout(snapshot, into.copy(), Event(worker))
        else:
            self._copy.pull(into)
        return self._rollout.snapshot

    def push(self, worker: int, push: Push) -> Ticket:
        """Step the copy. The servers get the event, and the change, when the rollout is finished.

        The weight is not used: the change is weighted by the transitions of the rollout.
        """
        rollout = self._rollout
        assert rollout is not None
        rollout.event, rollout.rng = rollout.event.merge(push.event), push.rng
        if push.stats is not None:
            rollout.stats = push.stats.merge(rollout.stats)
        if push.gradient is not None:
            self._copy.step(0, push.gradient, self._copy.version, push.snapshot.steps)  # nothing is stale on a copy
        return Ticket(None)

    def finish_rollout(self, worker: int) -> None:
        """Push the change of the copy, unless there was no minibatch."""
        rollout, self._rollout = self._rollout, None
        assert rollout is not None
        if rollout.rng is not None:
            change = rollout.base - self._copy.read()
            finite = bool(np.isfinite(change).all())
            rollout.event.rejected += not finite
            push = Push(
                gradient=change if finite else None, snapshot=rollout.snapshot,
                event=rollout.event, weight=rollout.event.steps, stats=rollout.stats, rng=rollout.rng,
            )  # fmt: skip
            self._remote.push(worker, push)
        self._remote.finish_rollout(worker)
