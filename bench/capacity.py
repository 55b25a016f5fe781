"""Number of workers that a parameter server feeds: pushes a second measured with workers that do nothing else, the
arithmetic, and a simulation of clusters of up to 10,000 workers with the measured constants.

    python -m bench.capacity                                  measure here, then simulate
    python -m bench.capacity --push-us 900 --rollout-ms 40    simulate with constants of your own
"""

from __future__ import annotations

import argparse
import heapq
import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from a3c_exp.backends.ray import Ray
from a3c_exp.backends.ray.wire import shard_slices, shard_spec
from a3c_exp.core.events import Event
from a3c_exp.core.parameters import StoreSpec
from a3c_exp.optimizers import RMSProp
from a3c_exp.run import markdown
from a3c_exp.schedules import Constant

SIZES = {"20 thousand": 20_000, "1.7 million": 1_700_000}
WORKERS = (1, 2, 10, 100, 1_000, 10_000)
# A rollout and its gradient: 512 transitions of LunarLander at 20,000 steps a second and core.
ROLLOUT_MS = 25.0
# Ten gigabits a second, and a round trip in a data centre.
BANDWIDTH, LATENCY_MS = 1.25e9, 0.2


@dataclass(frozen=True, kw_only=True)
class Constants:
    """push: seconds of a server's time that a push takes, its answer included. rollout: seconds of a worker between
    two pushes. bytes: of a push, and of its answer. bandwidth: of a server's link, bytes a second each way.
    latency: seconds that a message is under way, whatever its size. in_flight: as the backend's. shards: servers."""

    push: float
    rollout: float = ROLLOUT_MS / 1e3
    bytes: float
    bandwidth: float = BANDWIDTH
    latency: float = LATENCY_MS / 2e3
    in_flight: int = 1
    shards: int = 1

    @property
    def service(self) -> float:
        """Seconds between two pushes that a server takes at best: its own time, or its link's, whichever is longer."""
        return max(self.push, self.bytes / self.bandwidth) / self.shards

    def pushes_per_second(self, workers: int) -> float:
        """The arithmetic: what workers can make, or servers can take, whichever is less."""
        alone = self.rollout if self.in_flight else self.rollout + self.service + 2 * self.latency
        return min(workers / alone, 1 / self.service)

    @property
    def workers_fed(self) -> float:
        """How many workers make as many pushes as the servers can take: the arithmetic of docs/cluster.md."""
        return self.rollout / self.service


@dataclass(frozen=True)
class Simulated:
    """pushes: a second, of all workers. waiting: share of a worker's time. staleness: mean, in updates."""

    pushes: float
    waiting: float
    staleness: float


def simulate(constants: Constants, workers: int, pushes: int = 20_000, seed: int = 0) -> Simulated:
    """Workers that make a rollout, send it, and wait only while more than `in_flight` answers are missing; servers that
    take one push after the other. Rollouts vary by a tenth, so that workers fall out of step.

    pushes: how many to simulate, at least 20 for each worker. The first half is for the queue to fill, and not counted.
    """
    rng = random.Random(seed)
    pushes = max(pushes, 20 * workers)
    service, latency = constants.service, constants.latency
    sending = [(rng.random() * constants.rollout, worker) for worker in range(workers)]  # when each next sends
    heapq.heapify(sending)
    answers: list[deque[tuple[float, int]]] = [deque() for _ in range(workers)]  # when each arrives, its version
    versions = [0] * workers
    free = begun = waited = 0.0
    counted = staleness = 0
    for number in range(pushes):
        sent, worker = heapq.heappop(sending)
        free = max(free, sent + latency) + service
        missing, stale = answers[worker], number - versions[worker]
        missing.append((free + latency, number + 1))
        going_on = sent
        while missing and (len(missing) > constants.in_flight or missing[0][0] <= going_on):
            arrival, versions[worker] = missing.popleft()
            going_on = max(going_on, arrival)
        heapq.heappush(sending, (going_on + constants.rollout * rng.uniform(0.9, 1.1), worker))
        if number >= pushes // 2:
            begun = begun or free
            counted, staleness, waited = counted + 1, staleness + stale, waited + going_on - sent
    seconds = free - begun
    return Simulated(counted / seconds, waited / (workers * seconds), staleness / counted)


def measured_pushes(size: int, seconds: float, workers: int = 2, shards: int = 1) -> float:
    """Pushes a second that servers of this machine take from workers that do nothing else, of a vector of `size`."""
    from a3c_exp.backends.ray.cluster import connected
    from a3c_exp.backends.ray.server import ParameterServer
    from a3c_exp.core.store import SharedStore

    spec = StoreSpec(
        size=size, param_slices={}, workers=workers, optimizer=RMSProp(learning_rate=1e-3),
        schedule=Constant(value=1.0), total_steps=10**12,
    )  # fmt: skip
    backend = Ray(shards=shards, in_flight=2)
    with connected(backend, workers, spec):
        import ray  # not before `connected` has restricted it to this machine

        specs = [shard_spec(spec, shard) for shard in shard_slices(size, shards)]
        servers = [ray.remote(ParameterServer).options(num_cpus=0).remote(own) for own in specs]
        ray.get([
            server.begin.remote(1, SharedStore(own).state(), ()) for server, own in zip(servers, specs, strict=True)
        ])  # fmt: skip
        dummies = [ray.remote(Dummy).remote() for _ in range(workers)]
        rates = ray.get([
            dummy.run.remote(spec, index, servers, backend, seconds) for index, dummy in enumerate(dummies)
        ])  # fmt: skip
    return float(sum(rates))


class Dummy:
    """A worker without an environment: it pushes as fast as it is answered."""

    def run(self, spec: StoreSpec, worker: int, servers: Sequence[object], backend: Ray, seconds: float) -> float:
        """Push for so many seconds. Returns the pushes a second."""
        from a3c_exp.backends.ray.actors import transport
        from a3c_exp.backends.ray.client import RemoteStore
        from a3c_exp.core.store import Push

        store, rng = RemoteStore(spec, transport(servers, backend.in_flight)), np.random.default_rng(worker)
        parameters, gradient, pushes = np.empty(spec.size, np.float32), np.full(spec.size, 1e-3, np.float32), 0
        store.start(worker, rng)
        begun = time.perf_counter()
        while time.perf_counter() - begun < seconds:
            snapshot, event = store.pull(worker, parameters), Event(worker, steps=1)
            push = Push(gradient=gradient, snapshot=snapshot, event=event, weight=1, stats=None, rng=rng)
            store.push(worker, push)
            pushes += 1
        store.leave(worker)
        return pushes / (time.perf_counter() - begun)


def table(size: int, push: float, rollout: float, in_flight: int, shards: int) -> str:
    """The arithmetic and the simulation for 1 to 10,000 workers, as Markdown."""
    constants = Constants(push=push, rollout=rollout, bytes=4.0 * size, in_flight=in_flight, shards=shards)
    heading = (
        f"{size:,} parameters, {push * 1e6:.0f} us a push, {4 * size / 1e6:.2f} MB, {shards} server(s), a rollout of "
        f"{rollout * 1e3:.0f} ms: {constants.workers_fed:,.0f} workers are fed.\n\n"
    )
    rows = []
    for workers in WORKERS:
        found, expected = simulate(constants, workers), constants.pushes_per_second(workers)
        counts = (f"{number:,.0f}" for number in (workers, expected, found.pushes))
        rows.append([*counts, f"{found.waiting:.0%}", f"{found.staleness:,.0f}"])
    columns = "workers", "pushes/s, arithmetic", "simulated", "a worker waits", "staleness"
    return heading + markdown.table(columns, rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m bench.capacity", description="How many workers a server feeds.")
    parser.add_argument(
        "--push-us", type=float, help="server's time for a push; measured here, for two sizes, if not given"
    )
    parser.add_argument("--size", type=int, default=20_000, help="parameters, with --push-us (default 20000)")
    parser.add_argument("--rollout-ms", type=float, default=ROLLOUT_MS, help=f"between pushes (default {ROLLOUT_MS:g})")
    parser.add_argument("--in-flight", type=int, default=1, help="as backend.in_flight (default 1)")
    parser.add_argument("--shards", type=int, default=1, help="as backend.shards (default 1)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement (default 10)")
    flags = parser.parse_args(arguments)
    sizes = [flags.size] if flags.push_us else list(SIZES.values())
    for size in sizes:
        push = flags.push_us / 1e6 if flags.push_us else 1 / measured_pushes(size, flags.seconds)
        print(table(size, push, flags.rollout_ms / 1e3, flags.in_flight, flags.shards), end="\n\n")


if __name__ == "__main__":
    main()
