"""Rollouts: what a worker saw and did, as time-major arrays."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from a3c_exp.common.arrays import Array, Bools, Floats
from a3c_exp.core.events import Episodes
from a3c_exp.core.normalization import RunningStats
from a3c_exp.envs import Step
from a3c_exp.networks.recurrent import RecurrentInput
from a3c_exp.returns import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout(Trajectory):
    """T steps of B environments: what estimators of returns see of them, and the rest. Arrays start with [T, B].

    observations: as the network saw them, normalized with the statistics of the pull.
    actions: as the head samples them, before `to_env`.
    valid: bool; False if the row is no transition (a vector environment spent the step on a reset).
    version: of the parameters that acted; int64 [T, B] where it may change inside a rollout.
    state: the recurrent state at t = 0, float32 [B, S]; None for a network without one.
    episodes: those that ended in it.
    transitions: how many rows are transitions.
    stats: statistics of the raw observations and returns, for the shared ones; None if nothing is normalized.
    """

    log_probs: Floats
    observations: Array
    actions: Array
    valid: Bools
    version: int | NDArray[np.int64]
    state: Array | None
    episodes: Episodes
    transitions: int
    stats: RunningStats | None

    @property
    def recurrent_input(self) -> RecurrentInput | None:
        """What a recurrent network needs to see these rows as the actor saw them; None for one without a state."""
        return None if self.state is None else RecurrentInput(self.state, episode_boundaries(self))


COLUMNS = (
    "observations", "actions", "log_probs", "rewards", "values", "next_values", "terminated", "truncated", "valid",
    "version",
)  # fmt: skip
"""The fields of a rollout that have a row for each step."""


def episode_boundaries(of: Step | Rollout) -> Bools:
    """Whether no transition leads from a row to the next: its episode ended in it, or it was none. [B] or [T, B]."""
    return of.terminated | of.truncated | ~of.valid


def merge_stats(rollouts: Sequence[Rollout]) -> RunningStats | None:
    """The statistics of all rollouts as one; None if nothing is normalized."""
    stats = rollouts[0].stats
    if stats is not None:
        for rollout in rollouts[1:]:
            stats = stats.merge(rollout.stats)
    return stats


def concat_rollouts(rollouts: Sequence[Rollout]) -> Rollout:
    """Rollouts side by side, as one of all their environments, with a version for each step.

    A shorter one is filled up with rows of zeros, which are no transitions. Only a rollout whose episode has ended is
    shorter, so nothing reaches from the filling into rows that are transitions.
    """
    first = rollouts[0]
    if len(rollouts) == 1:
        return first
    length = max(len(rollout.rewards) for rollout in rollouts)
    columns = {name: _side_by_side([getattr(rollout, name) for rollout in rollouts], length) for name in COLUMNS}
    states = [rollout.state for rollout in rollouts if rollout.state is not None]
    return Rollout(
        **columns,
        state=np.concatenate(states) if states else None,
        episodes=functools.reduce(Episodes.merge, (rollout.episodes for rollout in rollouts)),
        transitions=sum(rollout.transitions for rollout in rollouts),
        stats=merge_stats(rollouts),
    )


def _side_by_side(parts: Sequence[Array], length: int) -> Array:
    """Concatenate arrays [T, B, ...] of any T along their second axis, filled up with zeros to `length`."""
    if all(len(part) == length for part in parts):
        return np.concatenate(parts, axis=1)
    out = np.zeros((length, sum(part.shape[1] for part in parts), *parts[0].shape[2:]), parts[0].dtype)
    end = 0
    for part in parts:
        start, end = end, end + part.shape[1]
        out[: len(part), start:end] = part
    return out
