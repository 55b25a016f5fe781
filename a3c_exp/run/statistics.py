"""What a run has done so far, from its events: totals, recent episodes, and means for the curves."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from a3c_exp.core.events import Episodes, Event

RECENT = 100
"""How many of the last episodes a mean return is taken over: the field's habit, and the classics' stop rule."""


class RunStatistics:
    """What a run has done, from its events: totals, the last 100 episodes, and means since the last `window()`.

    environments: how many the run steps, all workers together; `reached` waits for each to end an episode.
    clock: seconds that never go backwards.

    steps, updates, rejected, episodes: totals of the run, those before a resume included.
    begun: whether `begin` has been called.
    """

    def __init__(self, environments: int = 0, clock: Callable[[], float] = time.perf_counter) -> None:
        self.environments = environments
        self.steps = 0
        self.updates = 0
        self.rejected = 0
        self.episodes = 0
        self.begun = False
        self._clock = clock
        self._earlier_seconds = 0.0
        self._started = self._window_started = clock()
        self._ends: list[int] = []  # of the last 100 episodes: the step at which each ended (never falling),
        self._returns: list[float] = []  # its return
        self._lengths: list[int] = []  # and its length
        self._ended: dict[int, int] = {}
        self._staleness_sum = 0
        self._staleness_count = 0
        self._staleness_max = 0
        self._new_window()

    def _new_window(self) -> None:
        self._window_totals = self.steps, self.updates, self.rejected
        self._window_episodes = self.episodes
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._window_staleness = [0, 0, 0]  # sum, count, maximum

    def begin(self, seconds_ago: float) -> None:
        """Workers took their first step so long ago: speed counts from there, not from when they were started."""
        self.begun = True
        self._window_started = self._clock() - seconds_ago

    def add(self, event: Event) -> None:
        """Take in what a worker did. Called for every event, thousands of times a second: a few microseconds."""
        self.steps += event.steps
        self.updates += event.updates
        self.rejected += event.rejected
        sums, counts = self._sums, self._counts
        for name, metric in event.metrics.items():
            total = metric.sum
            if total == total:  # not NaN: a quantity without a value says nothing, and would spoil the window's mean
                sums[name] = sums.get(name, 0.0) + total
                counts[name] = counts.get(name, 0) + metric.count
        window = self._window_staleness
        for staleness, count in event.staleness.items():
            window[0] += staleness * count
            window[1] += count
            if staleness > window[2]:
                window[2] = staleness
        if len(event.episodes.returns):
            self._add_episodes(event.episodes)
            self._ended[event.worker] = event.episodes.envs_with_finished_episode

    def _add_episodes(self, episodes: Episodes) -> None:
        count = len(episodes.returns)
        self.episodes += count
        columns = episodes.end_steps, episodes.returns, episodes.lengths
        ends, returns, lengths = (column.tolist() for column in columns)
        # They may fall where a worker goes on while its last update is still under way.
        if (not self._ends or ends[0] >= self._ends[-1]) and ends == sorted(ends):
            self._ends += ends
            self._returns += returns
            self._lengths += lengths
        else:
            # Events of several workers cover the same stretch of time: put the episodes where they belong, lest the
            # last 100 be those of whichever worker was drained last.
            for end, total, length in zip(ends, returns, lengths, strict=True):
                place = bisect_right(self._ends, end)
                self._ends.insert(place, end)
                self._returns.insert(place, total)
                self._lengths.insert(place, length)
        del self._ends[:-RECENT], self._returns[:-RECENT], self._lengths[:-RECENT]

    @property
    def has_new_data(self) -> bool:
        """Whether anything has been done since the last `window()`, or since the run was resumed."""
        return (self.steps, self.updates, self.rejected) != self._window_totals

    @property
    def seconds(self) -> float:
        """Wall-clock seconds of the run, those before a resume included."""
        return self._earlier_seconds + self._clock() - self._started

    @property
    def mean_return(self) -> float | None:
        """The mean return of the last 100 episodes, of fewer where fewer have ended; None before the first."""
        return sum(self._returns) / len(self._returns) if self._returns else None

    @property
    def mean_return_100(self) -> float | None:
        """The mean return of the last 100 episodes; None before 100 have ended."""
        return self.mean_return if len(self._returns) == RECENT else None

    def reached(self, reward_threshold: float, foreseen: bool = False) -> bool:
        """Whether the mean return of the last 100 training episodes is at least `goal`.

        Not before 100 episodes have ended, nor before every environment has ended one (since the run, or its
        resumption, began): with many environments the short episodes come first, and short may mean good. foreseen:
        whatever has ended since.
        """
        mean = self.mean_return_100
        return (
            mean is not None
            and mean >= reward_threshold
            and (foreseen or sum(self._ended.values()) >= self.environments)
        )

    @property
    def staleness_mean(self) -> float | None:
        """The mean staleness of the run's updates, None before the first."""
        total, count, _ = self._staleness()
        return total / count if count else None

    @property
    def staleness_max(self) -> int | None:
        """The greatest staleness of the run's updates, None before the first."""
        _, count, maximum = self._staleness()
        return maximum if count else None

    def _staleness(self) -> tuple[int, int, int]:
        total, count, maximum = self._window_staleness
        return (
            self._staleness_sum + total,
            self._staleness_count + count,
            max(self._staleness_max, maximum),
        )

    def window(self) -> dict[str, float]:
        """What happened since the last call, by TensorBoard's names; a new window begins.

        rollout/ep_rew_mean and ep_len_mean are of the last 100 episodes, present where one ended in the window.
        train/* are means over the window's updates of what its events measured (a name with a slash keeps it),
        but for n_updates and rejected_updates, which are totals. time/steps_per_second is the window's own.
        """
        now = self._clock()
        values: dict[str, float] = {}
        mean = self.mean_return
        if mean is not None and self.episodes > self._window_episodes:
            values["rollout/ep_rew_mean"] = mean
            values["rollout/ep_len_mean"] = sum(self._lengths) / len(self._lengths)
        values["rollout/episodes"] = self.episodes
        for name, total in self._sums.items():
            values[name if "/" in name else f"train/{name}"] = total / self._counts[name]
        values["train/n_updates"] = self.updates
        values["train/rejected_updates"] = self.rejected
        total_staleness, count, maximum = self._window_staleness
        if count:
            values["async/staleness_mean"] = total_staleness / count
            values["async/staleness_max"] = maximum
        if now > self._window_started:
            values["time/steps_per_second"] = (self.steps - self._window_totals[0]) / (now - self._window_started)
        self._staleness_sum, self._staleness_count, self._staleness_max = self._staleness()
        self._window_started = now
        self._new_window()
        return values

    def summary(self) -> dict[str, float | None]:
        """The totals as summary.json names them."""
        seconds = self.seconds
        return {
            "steps": self.steps,
            "episodes": self.episodes,
            "updates": self.updates,
            "rejected_updates": self.rejected,
            "wall_seconds": round(seconds, 3),
            "mean_return_100": self.mean_return_100,
            "staleness_mean": self.staleness_mean,
            "staleness_max": self.staleness_max,
        }

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: totals and the last 100 episodes. The window is not kept: its rows are written."""
        return {
            "steps": self.steps,
            "updates": self.updates,
            "rejected": self.rejected,
            "episodes": self.episodes,
            "seconds": self.seconds,
            "staleness": list(self._staleness()),
            "recent_end_steps": np.array(self._ends, np.int64),
            "recent_returns": np.array(self._returns, np.float64),
            "recent_lengths": np.array(self._lengths, np.int64),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from `state()`. Every environment must end an episode again before a goal is judged (`reached`)."""
        self.steps = state["steps"]
        self.updates = state["updates"]
        self.rejected = state["rejected"]
        self.episodes = state["episodes"]
        self._earlier_seconds = state["seconds"]
        self._staleness_sum, self._staleness_count, self._staleness_max = state["staleness"]
        self._ends = state["recent_end_steps"].tolist()
        self._returns = state["recent_returns"].tolist()
        self._lengths = state["recent_lengths"].tolist()
        self._ended = {}
        self._started = self._window_started = self._clock()
        self._new_window()
