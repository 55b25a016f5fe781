"""The driver's side: it places servers and workers, hears what they do, and replaces those that die."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from a3c_exp.backends import GRACE_SECONDS, MERGE_SECONDS
from a3c_exp.backends.ray.actors import WorkerActor
from a3c_exp.backends.ray.client import RETRY_SECONDS
from a3c_exp.backends.ray.cluster import lost_errors
from a3c_exp.backends.ray.epochs import summing
from a3c_exp.backends.ray.server import ParameterServer
from a3c_exp.backends.ray.wire_dtype import News, cut, joined, piece, stretches
from a3c_exp.core.events import Event, Metric
from a3c_exp.core.store import STARTED, STEPS, SharedStore, StoreSpec
from a3c_exp.errors import RunError

if TYPE_CHECKING:
    from a3c_exp.backends.ray import Ray
    from a3c_exp.core.worker import RunContext

log = logging.getLogger("a3c_exp")

FETCH_SECONDS = 30.0
"""How long a state is waited for, before the last that was fetched is taken in its place: it comes behind all pushes
that the servers have before them."""
LAST_FETCH_SECONDS = 120.0
"""And at the end of a run, when no more pushes come."""
ROOM_SECONDS = 30.0
"""After so long, a worker for which the cluster has no room is no longer waited for in rounds, and the user is told."""
PATIENCE_SECONDS = 600.0
"""How long a run waits for its first worker, or its servers: clusters that grow need minutes."""
DEATHS_IN_A_ROW = 3
"""A worker that dies so often before its first update will always die."""
NUMBERS = 1 << 32
"""How far a worker's messages are numbered behind those of the one that it replaces."""
RESUMPTIONS = 1 << 16
"""A worker that replaces another draws as one of a run that was resumed so often more: what nobody else draws."""


class Mirror(SharedStore):
    """Parameters that live on servers while the run goes on. Here is what was last fetched of them, for a checkpoint or
    an evaluation, and so all that there is before the run and behind it. A server that dies starts again from it."""

    def __init__(self, layout: StoreSpec) -> None:
        super().__init__(layout)
        self.crew: Crew | None = None

    def state(self, seconds: float = FETCH_SECONDS) -> dict[str, Any]:
        """As the servers have it now; where they do not answer in so many seconds, as they last had it."""
        if self.crew is not None:
            state = self.crew.fetch(seconds)
            if state is not None:
                self.restore(state)
            else:
                log.warning("a parameter server does not answer: what it has is taken as of update %d", self.version)
        return self.last_state()

    def last_state(self) -> dict[str, Any]:
        """What was fetched last. The steps are those of the run by now: they have been made."""
        return super().state()

    def stop(self) -> None:
        super().stop()
        if self.crew is not None:
            self.crew.stop()

    def note(self, news: News) -> None:
        """Keep up with the counters between two fetches."""
        self._rows[:-1, STEPS] = 0
        self._rows[-1, STEPS] = max(self._rows[-1, STEPS], news.steps)
        if news.training_seconds and not self._flags[STARTED]:
            self._flags[STARTED] = time.monotonic_ns() - int(1e9 * news.training_seconds)


@dataclass(slots=True)
class _Hired:
    """A worker under contract. run: what its call will give. attempt: how many were there before it."""

    index: int
    actor: Any
    run: Any
    attempt: int
    since: float = field(default_factory=time.monotonic)
    missed: bool = False


class Crew:
    """The actors of one run."""

    def __init__(self, backend: Ray, context: RunContext, mirror: Mirror) -> None:
        import ray

        self._ray, self._lost = ray, lost_errors()
        self._late: tuple[type[BaseException], ...] = (*self._lost, TimeoutError)
        self._backend, self._setup, self._mirror = backend, context, mirror
        self._layout = summing(mirror.layout) if backend.local_epochs else mirror.layout
        self._stretches = stretches(self._layout.size, backend.shards)
        self._servers = [self._place_server(piece(self._layout, stretch)) for stretch in self._stretches]
        self._life, self._begun = 0, False
        self._news: dict[Any, int] = {}
        self._hired: dict[Any, _Hired] = {}
        self._members: list[int] = []
        self._fruitless: dict[int, int] = {}
        self._bytes, self._heard = 0, time.monotonic()
        mirror.crew = self

    def _place_server(self, layout: StoreSpec) -> Any:
        """One server stands beside the driver, if there is room; several are spread."""
        ray, strategy = self._ray, self._ray.util.scheduling_strategies
        here = strategy.NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        calls = 4 * layout.workers * (self._backend.in_flight + 1)
        return (
            ray.remote(ParameterServer)
            .options(
                num_cpus=0,
                max_restarts=-1,
                max_task_retries=0,
                max_concurrency=max(1000, calls),  # each call that waits in a round is one
                scheduling_strategy=here if self._backend.shards == 1 else "SPREAD",
            )
            .remote(layout, self._backend.wire_dtype)
        )

    # -- the run ----------------------------------------------------------------------------------------------------

    def work(self) -> Generator[Event | None, None, None]:
        """What the workers do, until all have ended."""
        yield from self._begin()
        for index in range(self._layout.workers):
            self._hire(index, 0)
        for server in range(len(self._servers)):
            self._ask(server)
        while self._hired:
            # It tells of one, the first in this order that is ready: news are ready again and again.
            ready, _ = self._ray.wait([*self._hired, *self._news], timeout=MERGE_SECONDS)
            if not ready:
                yield None
            for call in ready:
                if call in self._hired:
                    self._see_off(call)
                else:
                    yield from self._hear(self._news.pop(call), call)
            self._look_for_room()
        yield from self._last_news()

    def _begin(self) -> Iterator[None]:
        """Give all servers a state, and with it another life."""
        self._life += 1
        state = self._mirror.last_state()
        if self._backend.local_epochs:
            state["optimizer_state"] = state["optimizer_state"][:1, :0]
        for server, stretch in enumerate(self._stretches):
            yield from self._reach(server, "begin", self._life, self._ray.put(cut(state, stretch)), self._members)
        self._begun = True
        if self._mirror.stopped:
            self.stop()

    def _reach(self, server: int, method: str, *arguments: Any) -> Generator[None, None, Any]:
        """Call a server that may be about to start, or to start again, until it answers."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return (yield from self._wait(getattr(self._servers[server], method).remote(*arguments), deadline))
            except self._late as error:
                if time.monotonic() > deadline:
                    raise RunError(f"no parameter server could be started: {error}") from error
                time.sleep(RETRY_SECONDS)
                yield None

    def _wait(self, call: Any, deadline: float) -> Generator[None, None, Any]:
        """What a call gives. Raises TimeoutError."""
        while not self._ray.wait([call], timeout=MERGE_SECONDS)[0]:
            if time.monotonic() > deadline:
                raise TimeoutError("it does not answer")
            yield None
        return self._ray.get(call)

    def _ask(self, server: int) -> None:
        self._news[self._servers[server].news.remote()] = server

    def _hear(self, server: int, call: Any) -> Iterator[Event | None]:
        """Take in a server's news, or find that it has died: then it is there again, and has nothing."""
        try:
            news: News = self._ray.get(call)
        except self._lost:
            news = yield from self._reach(server, "news")
        if news.life == 0:
            log.warning("a parameter server has died: it starts again from the last state that was fetched")
            yield from self._begin()
        else:
            self._bytes += news.received + news.sent
            if server == 0:
                yield from self._tell(news)
        self._ask(server)

    def _tell(self, news: News) -> Iterator[Event | None]:
        """The events of the first server's news, with what there is to say of the cluster."""
        self._mirror.note(news)
        self._members = news.members
        now = time.monotonic()
        rate, self._bytes, self._heard = self._bytes / max(now - self._heard, 1e-9), 0, now
        if not news.events:
            yield None
            return
        news.events[0].metrics |= {
            "ray/bytes_per_second": Metric.of(rate), "ray/workers_alive": Metric.of(len(news.members))
        }  # fmt: skip
        for event in news.events:
            self._fruitless.pop(event.worker, None)
            yield event

    def _last_news(self) -> Iterator[Event | None]:
        """What was under way when the last worker ended."""
        deadline = time.monotonic() + LAST_FETCH_SECONDS
        try:
            for call in [*(call for call, server in self._news.items() if server == 0), self._servers[0].news.remote()]:
                news = yield from self._wait(call, deadline)
                yield from self._tell(news)
        except self._late:
            log.warning("a parameter server has died at the end of the run: its last moments are lost")

    # -- workers ----------------------------------------------------------------------------------------------------

    def _hire(self, index: int, attempt: int) -> None:
        backend = self._backend
        actor = (
            self._ray.remote(WorkerActor)
            .options(
                num_cpus=backend.cpus_per_worker,
                scheduling_strategy="SPREAD" if backend.placement == "spread" else "DEFAULT",
            )
            .remote()
        )
        context = replace(self._setup, resumed=self._setup.resumed + RESUMPTIONS * attempt)
        run = actor.run.remote(context, index, self._mirror.layout, self._servers, NUMBERS * attempt)
        self._hired[run] = _Hired(index, actor, run, attempt)

    def _see_off(self, call: Any) -> None:
        """A worker has ended: by itself, by an error, or by its death."""
        hired = self._hired.pop(call)
        try:
            failed = self._ray.get(call)
        except self._lost as error:
            self._replace(hired, str(error).splitlines()[0])
            return
        except self._ray.exceptions.RayError as error:
            raise RunError(f"worker {hired.index} could not be run:\n{error}") from error
        finally:
            self._ray.kill(hired.actor)
        if failed is not None:
            raise RunError(failed)
        for other in list(self._hired.values()):
            if other.index not in self._members:  # the run is over, and it has not even begun
                self._dismiss(other)

    def _replace(self, hired: _Hired, cause: str) -> None:
        self._members = [worker for worker in self._members if worker != hired.index]
        for server in self._servers:
            server.leave.remote(hired.index, NUMBERS * (hired.attempt + 1))
        if self._mirror.stopped or self._mirror.steps >= self._layout.total_steps:
            return
        deaths = self._fruitless[hired.index] = self._fruitless.get(hired.index, 0) + 1
        if deaths == DEATHS_IN_A_ROW:
            raise RunError(f"worker {hired.index} died {deaths} times before its first update: {cause}")
        log.warning("worker %d has died, another takes its place: %s", hired.index, cause)
        self._hire(hired.index, hired.attempt + 1)

    def _dismiss(self, hired: _Hired) -> None:
        self._ray.kill(hired.actor)
        del self._hired[hired.run]
        for server in self._servers:  # it may just have joined, and rounds would wait for it
            server.leave.remote(hired.index, NUMBERS * (hired.attempt + 1))

    def _look_for_room(self) -> None:
        """Go on without those for whom there is no room yet."""
        now = time.monotonic()
        for hired in self._hired.values():
            if hired.index in self._members or hired.missed or now - hired.since < ROOM_SECONDS:
                continue
            hired.missed = True
            for server in self._servers:
                server.leave.remote(hired.index)
            room = self._ray.cluster_resources().get("CPU", 0)
            needed = self._backend.cpus_per_worker * self._layout.workers
            log.warning("worker %d has not begun; %g CPUs are needed, and %g there", hired.index, needed, room)
        waited = [now - hired.since for hired in self._hired.values()]
        if waited and not self._members and min(waited) > PATIENCE_SECONDS:
            raise RunError("the cluster had no room for any worker: see backend.cpus_per_worker")

    # -- what the runner asks for -----------------------------------------------------------------------------------

    def fetch(self, seconds: float) -> dict[str, Any] | None:
        """The state of all servers together; None where one does not answer, or has died and not begun again."""
        try:
            calls = [server.state.remote() for server in self._servers]
            state = joined(self._ray.get(calls, timeout=seconds), self._life)
        except (*self._lost, self._ray.exceptions.GetTimeoutError):
            return None
        if state is not None and self._backend.local_epochs:
            state["optimizer_state"] = self._mirror.last_state()["optimizer_state"]
        return state

    def stop(self) -> None:
        for server in self._servers:
            server.stop.remote()

    def close(self) -> None:
        """End all actors; the mirror keeps what they had come to, or where that fails what was fetched of them last."""
        try:
            self._mirror.stop()
            if self._hired:
                self._ray.wait(list(self._hired), num_returns=len(self._hired), timeout=GRACE_SECONDS)
            if self._begun:
                self._mirror.state(LAST_FETCH_SECONDS)
        finally:
            self._mirror.crew = None
        for actor in [*(hired.actor for hired in self._hired.values()), *self._servers]:
            self._ray.kill(actor)
