"""Passes over a rollout on a worker's own copy of the parameters: one push a rollout instead of one a minibatch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from a3c_exp.backends.ray.client import RemoteParameters
from a3c_exp.backends.ray.wire import Floats
from a3c_exp.events import Event
from a3c_exp.normalisation import Moments
from a3c_exp.optimizers import SGD
from a3c_exp.parameters import Layout, Pulled, Pushed, SharedParameters
from a3c_exp.schedules import Constant


def summing(layout: Layout) -> Layout:
    """The layout of servers that add up what workers have changed: gradient descent at rate 1, without moments.
    A change is stale as a whole, so it is here that its staleness shortens it."""
    descent = SGD(learning_rate=1.0, staleness_power=layout.optimizer.staleness_power)
    return replace(layout, optimizer=descent, schedule=Constant(value=1.0), moments_per_worker=False)


@dataclass(slots=True)
class _Rollout:
    """What is learned from one rollout. base: the parameters that it began with."""

    pulled: Pulled
    base: Floats
    event: Event
    transitions: int = 0
    observed: Moments | None = None


class LocalEpochs:
    """The shared parameters as a worker sees them that goes over its rollout in minibatches on a copy of its own.

    The first pull of a rollout is the servers'; then pull and push are those of the copy, with an optimizer whose
    moments stay with the worker; and when the rollout is finished, what the copy has changed is pushed as one.
    """

    def __init__(self, layout: Layout, remote: RemoteParameters) -> None:
        self._remote = remote
        alone = replace(
            layout, workers=1, synchronous=False, locked=False, moments_per_worker=False,
            normalize_observations=False, normalize_rewards=False,
        )  # fmt: skip
        self._copy = SharedParameters(alone)
        self._copy.initialise(np.zeros(layout.size, np.float32))
        self._rollout: _Rollout | None = None
        self._rng: np.random.Generator | None = None
        self.start, self.progress, self.leave = remote.start, remote.progress, remote.leave
        self.others_learn, self.poll = remote.others_learn, remote.poll
        self.restore_random_state = remote.restore_random_state

    @property
    def stopped(self) -> bool:
        return self._remote.stopped

    def pull(self, worker: int, into: Floats) -> Pulled:
        """Copy the servers' parameters into a vector [P] where a rollout begins, those of the copy after that."""
        if self._rollout is None:
            pulled = self._remote.pull(worker, into)
            self._copy.start_from({"parameters": into})
            self._rollout = _Rollout(pulled, into.copy(), Event(worker))
        else:
            self._copy.pull(0, into)
        return self._rollout.pulled

    def push(
        self,
        worker: int,
        gradient: Floats | None,
        pulled: Pulled,
        transitions: int,
        observed: Moments | None = None,
        weight: int | None = None,
    ) -> Pushed:
        """Step the copy with a gradient [P]; the servers hear of it when the rollout is finished.

        weight: of no use here; what the rollout changes is weighted by its transitions.
        """
        rollout = self._rollout
        assert rollout is not None
        rollout.transitions += transitions
        if observed is not None:
            rollout.observed = observed.merge(rollout.observed)
        self._copy.push(0, gradient, pulled._replace(version=self._copy.version), 0)  # nothing is stale on a copy
        return Pushed(0, False, 0)

    def keep_random_state(self, worker: int, rng: np.random.Generator) -> None:
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
        self._remote.push(worker, whole, rollout.pulled, rollout.transitions, rollout.observed)
        if self._rng is not None:
            self._remote.keep_random_state(worker, self._rng)
        self._remote.tell(rollout.event)
        self._remote.finish(worker)
