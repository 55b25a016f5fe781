"""Those beside the network: predictors, which answer agents, and trainers, which learn from what they hand over."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator

import numpy as np

from a3c_exp.backends import MERGE_SECONDS
from a3c_exp.backends.ga3c.device import DeviceName, placed
from a3c_exp.backends.ga3c.exchange import POLL_SECONDS, Exchange
from a3c_exp.core import seeding
from a3c_exp.core.events import Event
from a3c_exp.core.experiment import build_network
from a3c_exp.core.rollout import together
from a3c_exp.core.seeding import Role
from a3c_exp.core.store import SharedStore
from a3c_exp.core.worker import Pusher, RunContext, Update, YieldPoint


class Crew:
    """Threads of one kind. count: how many of them work, the others rest. turn: held by the one that puts a batch
    together: of two that wait for the same, neither would have a whole one."""

    def __init__(self, count: int, exchange: Exchange) -> None:
        self.count = count
        self.turn = threading.Lock()
        self._exchange = exchange

    def be(self, count: int) -> None:
        """So many of them are to work from now on."""
        self.count = count

    def rest(self, number: int) -> None:
        """Return when this one of them is to work, or nothing is left to do."""
        while number >= self.count and not self._exchange.over:
            time.sleep(POLL_SECONDS)


class Rate:
    """How often something happens a second, over a tenth of a second or more. threads: that all do so alike."""

    def __init__(self, name: str) -> None:
        self._name, self._count, self._began = name, 0, time.monotonic()

    def add(self, count: int, threads: int) -> dict[str, float]:
        """It has happened so often again. The rate by its name, where it is time to tell."""
        self._count += count
        passed = time.monotonic() - self._began
        if passed < MERGE_SECONDS:
            return {}
        rate = threads * self._count / passed
        self._count, self._began = 0, self._began + passed
        return {self._name: rate}


class Predictor:
    """Answers what agents ask, as many of them at once as wait for it, with a copy of the parameters of its own, which
    is brought up to date between batches.

    number: of its crew. maximum: observations in a batch. wait: seconds that it waits for more of them, while there are
    agents who may still ask.
    """

    def __init__(
        self, context: RunContext, store: SharedStore, exchange: Exchange, crew: Crew, device: DeviceName, maximum: int,
        wait: float, number: int,
    ) -> None:  # fmt: skip
        self._network = placed(build_network(context.experiment, draw=False)[0], device)
        self._store, self._exchange, self._crew, self._number = store, exchange, crew, number
        self._maximum, self._wait = maximum // exchange.plan.environments, wait
        self._version = -1

    def run(self) -> Iterator[Event]:
        """Until nothing more will be asked. Yields what there is to report, now and then."""
        requests, rate = self._exchange.requests, Rate("ga3c/predictions_per_second")
        event = Event(worker=0)
        while (agents := self._gather()) is not None:
            left = requests.depth
            self._answer(agents)
            count = len(agents) * self._exchange.plan.environments
            event.add({"ga3c/prediction_batch": count, "ga3c/prediction_queue": len(agents) + left})
            told = rate.add(count, self._crew.count)
            if told:
                event.add(told)
                yield event
                event = Event(worker=0)

    def _gather(self) -> list[int] | None:
        """The agents of the next batch; None where there will be none."""
        exchange, requests = self._exchange, self._exchange.requests
        self._crew.rest(self._number)
        with self._crew.turn:
            found = b""
            while not found:
                over = exchange.over
                found = requests.take(self._maximum, POLL_SECONDS)
                if exchange.closing or (over and not found):
                    return None
            wanted = 4 * min(self._maximum, exchange.working // self._crew.count)
            due = time.monotonic() + self._wait
            while len(found) < wanted and (left := due - time.monotonic()) > 0:
                found += requests.take(self._maximum - len(found) // 4, left)
        agents: list[int] = np.frombuffer(found, np.int32).tolist()
        return agents

    def _answer(self, agents: list[int]) -> None:
        asked, network, plan = self._exchange.asked, self._network, self._exchange.plan
        if self._version != self._store.version:
            self._version = self._store.pull(0, network.vector).version
            network.load()
        count = len(agents) * plan.environments
        observations = asked["observations"][agents].reshape(count, *plan.observation[0])
        state = asked["state"][agents].reshape(count, plan.state) if plan.state else None
        parameters, values, after = network.infer(observations, state)
        shape = len(agents), plan.environments
        asked["parameters"][agents] = parameters.reshape(*shape, -1)
        asked["values"][agents] = values.reshape(shape)
        if after is not None:
            asked["after"][agents] = after.reshape(*shape, -1)
        asked["version"][agents] = self._version
        self._exchange.answer(agents)


class Trainer:
    """Learns from rollouts that agents have handed over, several at once.

    number: of its crew. row: of the store. minimum: transitions in a batch, unless all agents wait for this one.
    """

    def __init__(
        self, context: RunContext, store: SharedStore, exchange: Exchange, crew: Crew, device: DeviceName, minimum: int,
        number: int,
    ) -> None:  # fmt: skip
        experiment = context.experiment
        network = placed(build_network(experiment, draw=False)[0], device)
        row = experiment.worker_count + number
        rng = seeding.generator(experiment.seed, Role.MINIBATCHES, row, resumed=context.resumed)
        store.load_rng_state(row, rng)
        self._pusher = Pusher(experiment, network, row, store, rng, f"trainer {number}")
        self._row, self._number, self._exchange, self._crew, self._minimum = row, number, exchange, crew, minimum

    def run(self) -> Iterator[Event | YieldPoint]:
        """Until there is nothing to learn from any more. Yields as a worker does."""
        finished, rate = self._exchange.finished, Rate("ga3c/trainings_per_second")
        while (slots := self._gather()) is not None:
            rollout = together([self._exchange.rollout(slot) for slot in slots])
            snapshot = self._pusher.pull()
            acted = np.asarray(rollout.version)[rollout.valid]
            oldest = int(acted.min(initial=snapshot.version))
            update = Update(snapshot._replace(version=oldest), Event(self._row))
            update.add(rollout)
            update.event.add({
                "ga3c/training_batch": rollout.transitions,
                "ga3c/training_queue": len(slots) + finished.depth,
                "ga3c/lag": snapshot.version - float(acted.mean()) if acted.size else 0.0,
                **rate.add(1, self._crew.count),
            })  # fmt: skip
            for event in self._pusher.learn(update, [rollout]):
                if self._exchange.closing:  # the run is being saved, or has been: nothing may be pushed any more
                    return
                yield event
            self._exchange.free(slots)

    def _gather(self) -> list[int] | None:
        """The slots of the next batch; None where there will be none."""
        exchange, found, transitions = self._exchange, list[int](), 0
        self._crew.rest(self._number)
        with self._crew.turn:
            while transitions < self._minimum:
                none_works, over = not exchange.working, exchange.over
                number = exchange.finished.take(1, POLL_SECONDS)
                if number:
                    found.append(int.from_bytes(number, sys.byteorder))
                    transitions += exchange.rollout(found[-1]).transitions
                elif (found and none_works) or over:
                    break
        return None if exchange.closing else found or None
