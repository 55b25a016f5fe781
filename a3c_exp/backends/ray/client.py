"""The worker's side: shared parameters that live elsewhere. Nothing here knows of Ray.

A gradient is sent and not waited for: while the worker collects its next rollout the answer arrives, and with it the
parameters for the rollout after that.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from a3c_exp.backends.ray.wire_dtype import Floats, Message, Reply, Wire, decode, encode, stretches
from a3c_exp.core import seeding
from a3c_exp.core.events import Event
from a3c_exp.core.normalization import RunningStats
from a3c_exp.core.store import PushResult, Snapshot, StoreSpec

# Between attempts to reach a server that has died and is about to start again.
RETRY_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class Link:
    """How a worker reaches the servers.

    call: starts a call of a server (by number) and gives its future. lost: what such a future raises where the server
        died or could not be reached; whether it took the message is then unknown.
    servers: how many there are. wire: how gradients are sent.
    in_flight: how many messages may be without an answer while the worker goes on.
    """

    call: Callable[..., Future[Any]]
    lost: tuple[type[BaseException], ...]
    servers: int
    wire_dtype: Wire
    in_flight: int


@dataclass(slots=True)
class _Sent:
    """A call of every server under way. answered: when the last answer came."""

    method: str
    arguments: list[tuple[Any, ...]]
    begun: float = field(default_factory=time.perf_counter)
    answered: float = 0.0
    futures: list[Future[Any]] = field(default_factory=list)

    def note(self, _: Future[Any]) -> None:
        self.answered = time.perf_counter()


class RemoteParameters:
    """`SharedParameters` as one worker sees them, where they live on servers.

    `push` only takes the gradient over; `tell`, with the event of the same update, sends both as one message, so that a
    worker that dies has either done both or neither. `pull` gives the newest parameters that have arrived, and waits
    only while more than `in_flight` messages are without an answer: with 0, and in synchronous rounds, for every one.

    first: the number before that of the worker's first message.
    """

    def __init__(self, layout: StoreSpec, worker: int, link: Link, first: int = 0) -> None:
        self._layout, self._worker, self._link = layout, worker, link
        self._limit = 0 if layout.synchronous else link.in_flight
        self._stretches = stretches(layout.size, link.servers)
        self._sequence = first
        self._sent: deque[_Sent] = deque()
        self._replies: list[Reply] = []
        self._unseen = False  # whether something was sent, or has arrived, since the last pull
        self._message: Message | None = None
        self._gradient: NDArray[Any] | None = None
        self._rng: np.random.Generator | None = None
        self._told = time.perf_counter()
        self._waited = 0.0
        self._round_trips: list[float] = []
        self.stopped = False

    # -- what a worker calls ----------------------------------------------------------------------------------------

    def load_rng_state(self, worker: int, rng: np.random.Generator) -> None:
        """Remember the generator: its state comes with the first parameters."""
        self._rng = rng

    def start(self) -> None:
        """Join the run."""
        answers = self._call("join", [(self._worker,)] * len(self._stretches))
        self._take([reply for reply, _ in answers])
        state = answers[0][1]
        if self._rng is not None and state.any():
            seeding.unpack(self._rng, state)
        self._told = time.perf_counter()

    def pull(self, worker: int, into: Floats) -> Snapshot:
        """Copy the newest parameters that are here into a worker's own vector [P]."""
        begun = time.perf_counter()
        if self._limit == 0 and not self._unseen:
            self._take(self._call("pull", [()] * len(self._stretches)))
        while len(self._sent) > self._limit or (self._sent and all(future.done() for future in self._sent[0].futures)):
            self._receive()
        while len({reply.life for reply in self._replies}) > 1 and not self.stopped:  # a server has died meanwhile
            time.sleep(RETRY_SECONDS)
            self._take(self._call("pull", [()] * len(self._stretches)))
        self._unseen = False
        for stretch, reply in zip(self._stretches, self._replies, strict=True):
            decode(reply.parameters, into[stretch])
        self._waited += time.perf_counter() - begun
        first = self._replies[0]
        return Snapshot(first.version, first.steps, first.normalizer)

    def push(
        self,
        worker: int,
        gradient: Floats | None,
        snapshot: Snapshot,
        transitions: int,
        observed: RunningStats | None = None,
        weight: int | None = None,
    ) -> PushResult:
        """Take a gradient [P] over. What becomes of it the server will say in the event."""
        self._gradient = None if gradient is None else encode(gradient.copy(), self._link.wire_dtype)
        row = None if observed is None else observed.row
        self._message = Message(
            worker, 0, 0, 0, 0, snapshot.steps, transitions=transitions, weight=weight, observed=row
        )  # fmt: skip
        return PushResult(0, False, 0)

    def poll(self, worker: int, snapshot: Snapshot) -> PushResult:
        """Nothing is waited for here: `push` has an answer, if not the server's."""
        return PushResult(0, False, 0)

    def save_rng_state(self, worker: int, rng: np.random.Generator) -> None:
        """Send the state of the worker's generator with its push."""
        assert self._message is not None
        self._message = replace(self._message, rng_state=seeding.pack(rng))

    def tell(self, event: Event) -> None:
        """Send the push that this event is of, with the event."""
        assert self._message is not None
        event.add(self._measured())
        messages = []
        number = 1 + max(reply.rounds for reply in self._replies)  # all servers take it into the same round
        for index, (stretch, reply) in enumerate(zip(self._stretches, self._replies, strict=True)):
            gradient = None if self._gradient is None else self._gradient[stretch]
            own = event if index == 0 else None
            messages.append(
                replace(
                    self._message, life=reply.life, version=reply.version, gradient=gradient, event=own, number=number
                )
            )
        self._message = self._gradient = None
        self._send(messages)

    def finish(self, worker: int) -> None:
        """The worker makes no more gradients of its rollout: in synchronous rounds, tell the servers."""
        if self._layout.synchronous:
            self._send([Message(worker, 0, 0, reply.life, 0, 0, finished=True) for reply in self._replies])

    def round_in_progress(self, worker: int) -> bool:
        """Never: the answer to `finish` comes when the others have finished, and the next pull waits for it."""
        return False

    def progress(self, steps: int) -> float:
        return min(1.0, steps / self._layout.total_steps)

    def leave(self, worker: int) -> None:
        """See that all that was sent has arrived, and leave the run."""
        while self._sent:
            self._receive()
        self._call("leave", [(worker,)] * len(self._stretches))

    # -- calls ------------------------------------------------------------------------------------------------------

    def _measured(self) -> dict[str, float]:
        """How long messages took since the last event, and how long the worker waited for them."""
        now = time.perf_counter()
        share = self._waited / (now - self._told)
        values = {"ray/pull_ms": 1e3 * self._waited, "ray/wait_share": share}
        if self._round_trips:
            values["ray/push_ms"] = 1e3 * sum(self._round_trips) / len(self._round_trips)
        self._told, self._waited, self._round_trips = now, 0.0, []
        return values

    def _send(self, messages: list[Message]) -> None:
        """Send a message to each server under the next number, and do not wait."""
        self._sequence += 1
        oldest = self._sequence - len(self._sent)
        numbered = [replace(message, sequence=self._sequence, oldest=oldest) for message in messages]
        self._sent.append(self._begin("push", [(message,) for message in numbered]))
        self._unseen = True

    def _begin(self, method: str, arguments: list[tuple[Any, ...]]) -> _Sent:
        sent = _Sent(method, arguments)
        for server, values in enumerate(arguments):
            future = self._link.call(server, method, *values)
            future.add_done_callback(sent.note)
            sent.futures.append(future)
        return sent

    def _call(self, method: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
        return self._answers(self._begin(method, arguments))

    def _receive(self) -> None:
        """Wait for the answers to the oldest message."""
        sent = self._sent.popleft()
        self._take(self._answers(sent))
        self._round_trips.append(sent.answered - sent.begun)
        self._unseen = True

    def _answers(self, sent: _Sent) -> list[Any]:
        """What the servers answer. To one that died, or could not be reached, the message is sent again: at once, since
        the others may be waiting for what depends on it."""
        answers: dict[int, Any] = {}
        waiting = dict(enumerate(sent.futures))
        while waiting:
            wait(waiting.values(), return_when=FIRST_COMPLETED)
            for server, future in [(server, future) for server, future in waiting.items() if future.done()]:
                try:
                    answers[server] = future.result()
                    del waiting[server]
                except self._link.lost:
                    time.sleep(RETRY_SECONDS)
                    arguments = map(_as_oldest, sent.arguments[server])
                    waiting[server] = self._link.call(server, sent.method, *arguments)
        return [answers[server] for server in range(len(sent.futures))]

    def _take(self, replies: list[Reply]) -> None:
        self._replies = replies
        self.stopped = self.stopped or any(reply.stopped for reply in replies)


def _as_oldest(argument: Any) -> Any:
    """A message that is sent again: whoever waits for its answer has those to all before it."""
    return replace(argument, oldest=argument.sequence) if isinstance(argument, Message) else argument
