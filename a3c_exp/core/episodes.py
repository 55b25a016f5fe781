"""The account of episodes: returns and lengths, from one rollout after the other; when a worker has
had enough."""

from __future__ import annotations

from collections import deque

import numpy as np

from a3c_exp.common.arrays import Bools, Floats
from a3c_exp.core.events import Episodes
from a3c_exp.core.experiment import Stop
from a3c_exp.ending import StopReason


class RunningEpisodes:
    """The return and length so far of each environment's episode. Rewards are the environment's
    own."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._returns = np.zeros(count)
        self._lengths = np.zeros(count, np.int64)
        self._ended_once = np.zeros(count, np.bool_)

    def finish(self, rewards: Floats, valid: Bools, over: Bools, steps: int) -> Episodes:
        """Return the episodes that were over in these rows, in the order in which they ended.

        rewards, valid, over: [T, B].
        steps: of the run before these rows.
        """
        if not over.any():
            self._returns += rewards.sum(0, np.float64)
            self._lengths += valid.sum(0)
            return Episodes()

        # Each environment's rows are cut into pieces after every end of an episode. The first piece
        # continues what was under way. The last is under way again, unless it ends an episode too.
        # Each piece has a sum of its own: a reward that is NaN spoils the return of its own episode
        # alone.
        length = len(rewards)
        ends = over.T.ravel()
        begins = np.concatenate([[True], ends[:-1]])
        begins[::length] = True
        starts = np.flatnonzero(begins)
        tails = np.append(starts[1:], ends.size) - 1
        returns = np.add.reduceat(rewards.T.ravel(), starts, dtype=np.float64)
        lengths = np.add.reduceat(valid.T.ravel(), starts, dtype=np.int64)

        first = starts % length == 0
        last = tails % length == length - 1
        returns[first] += self._returns
        lengths[first] += self._lengths

        complete = ends[tails]
        self._returns = np.where(complete, 0.0, returns)[last]
        self._lengths = np.where(complete, 0, lengths)[last]

        envs, times = np.divmod(tails[complete], length)
        self._ended_once[envs] = True
        order = np.argsort(times, kind="stable")
        end_steps = (steps + (times[order] + 1) * self._count).astype(np.int64)
        return Episodes(
            returns=returns[complete][order],
            lengths=lengths[complete][order],
            end_steps=end_steps,
            envs_with_finished_episode=int(self._ended_once.sum()),
        )


class LeavingRules:
    """Rules by which a worker leaves a run while the others go on: `stop.worker_episodes` and
    `stop.worker_return`.

    episodes: that the worker has finished in earlier sessions of the run, or its predecessors in
    this one. Returns of these are not known any more: `worker_return` waits until the worker has
    finished `stop.window` of its own.
    """

    def __init__(self, stop: Stop, episodes: int) -> None:
        self._stop = stop
        self._episodes = episodes
        self._returns: deque[float] = deque(maxlen=stop.window)

    @property
    def has_all_episodes(self) -> bool:
        """Whether the worker has finished `worker_episodes`. If so before its first rollout, it
        leaves at once."""
        return (
            self._stop.worker_episodes is not None and self._episodes >= self._stop.worker_episodes
        )

    def add(self, episodes: Episodes) -> StopReason | None:
        """Add finished episodes; return the name of a rule that holds then, None if the worker
        stays."""
        stop = self._stop
        for value in episodes.returns.tolist():
            self._episodes += 1
            self._returns.append(value)
            if stop.worker_return is not None and len(self._returns) == stop.window:
                mean_return = sum(self._returns) / stop.window
                if mean_return >= stop.worker_return:
                    return StopReason.WORKER_RETURN
            if self.has_all_episodes:
                return StopReason.WORKER_EPISODES
        return None
