"""Minibatch updates of a worker's own copy of the parameters: one push per rollout instead of one per minibatch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from a3c_exp.backends.ray.client import RemoteParameters
from a3c_exp.common.arrays import Floats
from a3c_exp.core.events import Event
from a3c_exp.core.normalization import RunningStats
from a3c_exp.core.parameters import StoreSpec
from a3c_exp.core.store import Push, SharedStore, Snapshot, Ticket
from a3c_exp.optimizers import SGD
from a3c_exp.schedules import Constant


def summing_spec(spec: StoreSpec) -> StoreSpec:
    """The spec of servers that add up the workers' changes: gradient descent at rate 1, without optimizer state.

    A change is stale as a whole, so its staleness reduces it here, and not the steps on the copy.
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

    def __init__(self, spec: StoreSpec, remote: RemoteParameters) -> None:
        self._remote = remote
        own_spec = replace(
            spec, workers=1, synchronous=False, locked=False, optimizer_state_per_worker=False,
            normalize_observations=False, normalize_rewards=False,
        )  # fmt: skip
        self._copy = SharedStore(own_spec).parameters
        self._copy.initialize(np.zeros(spec.size, np.float32))
        self._rollout: _PendingRollout | None = None
        self.start, self.leave, self.round_in_progress = remote.start, remote.leave, remote.round_in_progress

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
            push = Push(
                gradient=change if np.isfinite(change).all() else None, snapshot=rollout.snapshot,
                event=rollout.event, weight=rollout.event.steps, stats=rollout.stats, rng=rollout.rng,
            )  # fmt: skip
            self._remote.push(worker, push)
        self._remote.finish_rollout(worker)
