"""Statistics of a run, from its events: totals, recent episodes, and means for the curves. Its
seconds of training."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from a3c_exp.common.fields import (
    Fields,
    StateField,
    attribute,
    is_array,
    is_count,
    is_list,
    is_number,
    read_state,
    write_state,
)
from a3c_exp.core.events import COUNTS, RECENT, Episodes, Event
from a3c_exp.envs.info import is_usable_name
from a3c_exp.run.collapse import ReturnPeak


def _are_counts(value: Any) -> bool:
    """Return whether a value of a checkpoint is int64 [N, 2], numbers and how often there were."""
    return is_array("i2")(value) and value.shape[1] == 2 and bool((value >= 0).all())


def _count_field(name: str) -> StateField[RunStatistics]:
    return StateField(
        is_count,
        lambda own: own.counts[name],
        lambda own, count: own.counts.update({name: count}),
        COUNTS[name].is_optional,
    )


class RunStatistics:
    """Totals, the last 100 episodes, and means since the last `window()`.

    environments: number of environments of all workers; `reached` waits until each has ended an
        episode, or its worker has left.
    window: most episodes that `reached` is asked about.
    clock: monotonic seconds.

    steps, updates, episodes, counts: totals of the run, earlier sessions of a resumed run included.
        counts: by the names in COUNTS.
    left: workers that have left the run in this session, by rule.
    peak: the highest mean return of the run.
    """

    FIELDS: ClassVar[Fields[RunStatistics]] = {
        "steps": attribute("steps", is_count),
        "updates": attribute("updates", is_count),
        "episodes": attribute("episodes", is_count),
        **{name: _count_field(name) for name in COUNTS},
        "seconds": StateField(
            is_number,
            lambda own: own.seconds,
            lambda own, seconds: setattr(own, "_earlier_seconds", seconds),
        ),
        "staleness": StateField(
            lambda value: is_list(value, is_count, 3),
            lambda own: list(own._staleness),
            lambda own, numbers: setattr(own, "_staleness", list(numbers)),
        ),
        # Earlier versions have not written it: percentiles are of the resumed part then.
        "updates_by_staleness": StateField(
            _are_counts,
            lambda own: np.array([*own._updates_by_staleness.items()], np.int64).reshape(-1, 2),
            lambda own, pairs: own._updates_by_staleness.update(dict(pairs.tolist())),
            may_be_missing=True,
        ),
        "peak": StateField(
            lambda value: isinstance(value, dict),
            lambda own: own.peak.state(),
            lambda own, peak: own.peak.restore(peak),
        ),
        # The last episodes, which `restore` sets together.
        "recent_end_steps": StateField(is_array("i1"), lambda own: own._recent.end_steps),
        "recent_returns": StateField(is_array("f1"), lambda own: own._recent.returns),
        "recent_lengths": StateField(is_array("i1"), lambda own: own._recent.lengths),
        "recent_names": StateField(
            lambda value: is_list(value, is_usable_name),
            lambda own: list(own._recent.numbers),
        ),
        "recent_numbers": StateField(is_array("f2"), lambda own: own._recent_numbers()),
    }
    """What a checkpoint holds."""

    def __init__(
        self,
        environments: int = 0,
        clock: Callable[[], float] = time.perf_counter,
        window: int = RECENT,
        workers: int = 1,
    ) -> None:
        self.environments = environments
        self._of_a_worker = environments // workers
        self._kept = max(window, RECENT)
        self.left: Counter[str] = Counter()
        self.steps = 0
        self.updates = 0
        self.episodes = 0
        self.counts = dict.fromkeys(COUNTS, 0)
        self._clock = clock
        self._earlier_seconds = 0.0
        self._started = clock()
        self._recent: Episodes = Episodes()  # the last ones, by the step at which they ended
        self._finished_envs: dict[int, int] = {}  # by worker
        self._staleness: list[int] = [0, 0, 0]  # sum, count, maximum
        self._updates_by_staleness: Counter[int] = Counter()
        self.peak: ReturnPeak = ReturnPeak()
        self._next_peak = RECENT  # episodes
        self._new_window(0.0)

    def _new_window(self, seconds: float) -> None:
        self._window_started = seconds
        self._window = Event(worker=-1)  # all that have come since

    def add(self, event: Event) -> None:
        """Add an event. Called thousands of times a second, so it takes a few microseconds."""
        self.steps += event.steps
        self.updates += event.updates
        if event.counts:
            self.counts = {
                name: number + event.counts.get(name, 0) for name, number in self.counts.items()
            }
        for staleness, count in event.staleness.items():
            total, number, most = self._staleness
            self._staleness = [total + staleness * count, number + count, max(most, staleness)]
            self._updates_by_staleness[staleness] += count
        if len(event.episodes.returns):
            self.episodes += len(event.episodes)
            # Events of several workers cover the same span of steps. Without sorting, the last 100
            # would be those of the worker whose event came last.
            self._recent = self._recent.merge(event.episodes).last(self._kept)
            if self.episodes >= self._next_peak:
                self._next_peak = self.episodes + RECENT
                self.peak.add(self._recent.returns[-RECENT:], self.steps)
            ended = event.episodes.envs_with_finished_episode
            self._finished_envs[event.worker] = max(ended, self._finished_envs.get(event.worker, 0))
            # It is enough to know that there are some: they would be copied each time.
            self._window.episodes = Episodes()
        if event.left:
            self.left[event.left] += 1
            self._finished_envs[event.worker] = self._of_a_worker
        self._window.merge(event)

    @property
    def has_new_data(self) -> bool:
        """Return whether anything was counted since the last `window()` or `restore`; episodes
        alone do not count."""
        return bool(self._window.steps or self._window.updates or self._window.counts)

    @property
    def seconds(self) -> float:
        """Wall-clock seconds of the run, earlier sessions of a resumed run included."""
        return self._earlier_seconds + self._clock() - self._started

    @property
    def mean_return(self) -> float | None:
        """Mean return of the last 100 episodes, or of all where fewer have ended; None before the
        first."""
        return _mean(self._recent.returns[-RECENT:]) if len(self._recent) else None

    def recent_mean(self, episodes: int) -> float:
        """Return the mean return of so many last episodes, of which there is one at least."""
        return _mean(self._recent.returns[-episodes:])

    def reached(self, reward_threshold: float, window: int = RECENT) -> bool:
        """Return whether the mean return of the last `window` training episodes is at least
        `reward_threshold`.

        False before so many episodes have ended, and before every environment has ended one in this
        session: with many environments short episodes end first, and a short episode may be a good
        one.
        """
        returns = self._recent.returns[-window:]
        if len(returns) < window or _mean(returns) < reward_threshold:
            return False
        return sum(self._finished_envs.values()) >= self.environments

    def catch_up(self, values: Mapping[str, float]) -> None:
        """Take up totals of the curves that are ahead of a checkpoint's: it has those of the events
        that had come, and the steps of later ones."""
        self.episodes = max(self.episodes, int(values.get("rollout/episodes", 0)))
        for name, names in COUNTS.items():
            if names.curve is not None:
                self.counts[name] = max(self.counts[name], int(values.get(names.curve, 0)))

    def window(self, seconds: float) -> dict[str, float]:
        """Values since the last call, by their names in TensorBoard; starts a new window.

        seconds: of training in this session.

        rollout/ep_rew_mean, ep_len_mean, and the environment's own numbers: over the last 100
            episodes; present if an episode ended in the window.
        train/*: means of the events' metrics over the window's updates. A metric whose name has a
        slash keeps it. train/n_updates, rejected_updates, rollout/episodes, and the curves of
        COUNTS: totals of the run; the last are
            present once they are not 0.
        workers/staleness_mean, _p50, _p95, _max: of the window's updates, with the median and the
            95th percentile.
        time/steps_per_second: of the window.
        """
        values: dict[str, float] = {}
        mean = self.mean_return
        window = self._window
        if mean is not None and len(window.episodes):
            values["rollout/ep_rew_mean"] = mean
            values["rollout/ep_len_mean"] = _mean(self._recent.lengths[-RECENT:])
            values |= {
                f"rollout/{name}": number
                for name, number in self._recent.last(RECENT).means().items()
            }
        values["rollout/episodes"] = self.episodes
        for name, metric in window.metrics.items():
            values[name if "/" in name else f"train/{name}"] = metric.mean
        values["train/n_updates"] = self.updates
        for name, names in COUNTS.items():
            if names.curve is not None and (self.counts[name] or name == "rejected"):
                values[names.curve] = self.counts[name]
        if window.staleness:
            total = sum(staleness * count for staleness, count in window.staleness.items())
            values["workers/staleness_mean"] = total / window.staleness.total()
            values["workers/staleness_p50"] = _percentile(window.staleness, 50)
            values["workers/staleness_p95"] = _percentile(window.staleness, 95)
            values["workers/staleness_max"] = max(window.staleness)
        if seconds > self._window_started:
            values["time/steps_per_second"] = window.steps / (seconds - self._window_started)
        self._new_window(seconds)
        return values

    def summary(self) -> dict[str, Any]:
        """The totals, by their names in summary.json. `rollout` has the means of the environment's
        own numbers."""
        staleness, count, maximum = self._staleness
        by_staleness = self._updates_by_staleness
        return {
            "steps": self.steps,
            "episodes": self.episodes,
            "updates": self.updates,
            "wall_seconds": round(self.seconds, 3),
            "mean_return_100": self.mean_return if len(self._recent) >= RECENT else None,
            "collapsed_from": None if self.peak.fallen_at is None else self.peak.highest,
            "staleness_mean": staleness / count if count else None,
            "staleness_p50": _percentile(by_staleness, 50) if by_staleness else None,
            "staleness_p95": _percentile(by_staleness, 95) if by_staleness else None,
            "staleness_max": maximum if count else None,
            **{
                names.summary: self.counts[name] or (None if names.is_optional else 0)
                for name, names in COUNTS.items()
            },
            "rollout": self._recent.last(RECENT).means(),
        }

    def state(self) -> dict[str, Any]:
        """Return the content of a checkpoint: totals and the last 100 episodes, but not the
        window."""
        return read_state(self, self.FIELDS)

    def _recent_numbers(self) -> NDArray[np.float64]:
        """Return the environment's own numbers of the last episodes [names, episodes]."""
        numbers = self._recent.numbers
        return np.array([*numbers.values()]).reshape(len(numbers), len(self._recent))

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state()`. `reached` waits again until every environment has ended an
        episode.

        Raises ValueError for episodes some of whose numbers are missing.
        """
        write_state(self, self.FIELDS, state)
        self._next_peak = self.episodes + RECENT

        returns, lengths, end_steps = (
            state[f"recent_{name}"] for name in ("returns", "lengths", "end_steps")
        )
        numbers = dict(zip(state["recent_names"], state["recent_numbers"], strict=True))
        if any(len(column) != len(returns) for column in (lengths, end_steps, *numbers.values())):
            raise ValueError("its last episodes lack numbers")
        self._recent = Episodes(returns, lengths, end_steps, numbers=numbers).last(self._kept)
        self._started = self._clock()


def _percentile(counts: Counter[int], percent: int) -> int:
    """Return the smallest of the counted numbers that is not exceeded by this share of them, in
    percent. counts: of each number, at least one."""
    missing = counts.total() * percent / 100
    for number in sorted(counts):
        missing -= counts[number]
        if missing <= 0:
            break
    return number


def _mean(values: NDArray[Any]) -> float:
    """The mean of numbers [E], added up in their order."""
    numbers: list[float] = values.tolist()
    return sum(numbers) / len(numbers)
