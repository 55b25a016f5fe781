"""Passes over a rollout on a worker's own copy of the parameters: one push a rollout instead of one a minibatch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from a3c_exp.backends.ray.client import RemoteParameters
from a3c_exp.backends.ray.wire_dtype import Floats
from a3c_exp.core.events import Event
from a3c_exp.core.normalization import RunningStats
from a3c_exp.core.store import PushResult, SharedStore, Snapshot, StoreSpec
from a3c_exp.optimizers import SGD
from a3c_exp.schedules import Constant


def summing(layout: StoreSpec) -> StoreSpec:
    """The layout of servers that add up what workers have changed: gradient descent at rate 1, without moments.
    A change is stale as a whole, so it is here that its staleness shortens it."""
    descent = SGD(learning_rate=1.0, staleness_power=layout.optimizer.staleness_power)
    return replace(layout, optimizer=descent, schedule=Constant(value=1.0), optimizer_state_per_worker=False)


@dataclass(slots=True)
class _Rollout:
    """What is learned from one rollout. base: the parameters that it began with."""

    snapshot: Snapshot
    base: Floats
    event: Event
    transitions: int = 0
    observed: RunningStats | None = None


class LocalEpochs:
    """The shared parameters as a worker sees them that goes over its rollout in minibatches on a copy of its own.

    The first pull of a rollout is the servers'; then pull and push are those of the copy, with an optimizer whose
    moments stay with the worker; and when the rollout is finished, what the copy has changed is pushed as one.
    """

    def __init__(self, layout: StoreSpec, remote: RemoteParameters) -> None:
        self._remote = remote
        exclusive_folder = replace(
            layout, workers=1, synchronous=False, locked=False, optimizer_state_per_worker=False,
            normalize_observations=False, normalize_rewards=False,
        )  # fmt: skip
        self._copy = SharedStore(exclusive_folder)
        self._copy.initialise(np.zeros(layout.size, np.float32))
        self._rollout: _Rollout | None = None
        self._rng: np.random.Generator | None = None
        self.start, self.progress, self.leave = remote.start, remote.progress, remote.leave
        self.round_in_progress, self.poll = remote.round_in_progress, remote.poll
        self.load_rng_state = remote.load_rng_state

    @property
    def stopped(self) -> bool:
        return self._remote.stopped

    def pull(self, worker: int, into: Floats) -> Snapshot:
        """Copy the servers' parameters into a vector [P] where a rollout begins, those of the copy after that."""
        if self._rollout is None:
            snapshot = self._remote.pull(worker, into)
            self._copy.start_from({"parameters": into})
            self._rollout = _Rollout(snapshot, into.copy(), Event(worker))
        else:
            self._copy.pull(0, into)
        return self._rollout.snapshot

    def push(
        self,
        worker: int,
        gradient: Floats | None,
        snapshot: Snapshot,
        transitions: int,
        observed: RunningStats | None = None,
        weight: int | None = None,
    ) -> PushResult:
        """Step the copy with a gradient [P]; the servers hear of it when the rollout is finished.

        weight: of no use here; what the rollout changes is weighted by its transitions.
        """
        rollout = self._rollout
        assert rollout is not None
        rollout.transitions += transitions
        if observed is not None:
            rollout.observed = observed.merge(rollout.observed)
        self._copy.push(0, gradient, snapshot._replace(version=self._copy.version), 0)  # nothing is stale on a copy
        return PushResult(0, False, 0)

    def save_rng_state(self, worker: int, rng: np.random.Generator) -> None:
        self._rng = rng

    def tell(self, event: Event) -> None:
        """Keep the event until the rollout is finished."""
        assert self._rollout is not None
        self._rollout.event = self._rollout.event.merge(event)

    def finish(self, worker: int) -> None:
        """The rollout is learned from: push what it has changed."""
        rollout, self._rollout = self._rollout, None
        assert rollout is not None
        change = rollout.base - self._copy.parameters()
        whole = change if np.isfinite(change).all() else None
        self._remote.push(worker, whole, rollout.snapshot, rollout.transitions, rollout.observed)
        if self._rng is not None:
            self._remote.save_rng_state(worker, self._rng)
        self._remote.tell(rollout.event)
        self._remote.finish(worker)
