"""Rules by which a worker leaves a run by itself, while the others go on."""

from __future__ import annotations

from collections import deque

from a3c_exp.core.events import Episodes
from a3c_exp.core.experiment import Stop


class LeavingRules:
    """`stop.worker_episodes` and `stop.worker_return`, as one worker keeps them.

    episodes: that the worker has finished in earlier sessions of the run, or its predecessors in this one. Returns of
    these are not known any more: `worker_return` waits until the worker has finished `stop.window` of its own.
    """

    def __init__(self, stop: Stop, episodes: int) -> None:
        self._stop = stop
        self._episodes = episodes
        self._returns: deque[float] = deque(maxlen=stop.window)

    @property
    def has_all_episodes(self) -> bool:
        """Whether the worker has finished `worker_episodes`. If so before its first rollout, it leaves at once."""
        return self._stop.worker_episodes is not None and self._episodes >= self._stop.worker_episodes

    def add(self, episodes: Episodes) -> str | None:
        """Add finished episodes; return the name of a rule that holds then, None if the worker stays."""
        stop = self._stop
        for value in episodes.returns.tolist():
            self._episodes += 1
            self._returns.append(value)
            full = len(self._returns) == stop.window
            if stop.worker_return is not None and full and sum(self._returns) / stop.window >= stop.worker_return:
                return "worker_return"
            if self.has_all_episodes:
                return "worker_episodes"
        return None
