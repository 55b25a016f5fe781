"""Decisions about workers that die, hang or fail: who is replaced, and what ends the run."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pytest
from stores import make_store

from a3c_exp.backends.messages import WorkerExit, failed
from a3c_exp.backends.supervision import (
    ROLLOUTS_BETWEEN,
    PipeSupervisor,
    Restarts,
    RestartSettings,
    end_all,
)
from a3c_exp.backends.threads import ThreadSource
from a3c_exp.core.events import Episodes, Event
from a3c_exp.core.heartbeat import CLOSING, LEARNING, MAKING, STEPPING, StallWatch, inactivity
from a3c_exp.ending import StopReason
from a3c_exp.envs import EnvError
from a3c_exp.errors import ConfigError, RunError

KILLED = WorkerExit("worker 1 was killed by SIGKILL")
RAISED = failed("worker 1", RuntimeError("out of luck"))


def made(maximum: int = 3, environments: int = 1) -> Restarts:
    return Restarts(RestartSettings(max_restarts=maximum), make_store(), environments)


def end_episode(restarts: Restarts, worker: int = 1) -> None:
    one = Episodes(np.zeros(1), np.ones(1, np.int64), np.ones(1, np.int64))
    restarts.on_event(worker, Event(worker, episodes=one))


def contribute(restarts: Restarts, count: int, worker: int = 1) -> None:
    restarts.on_event(worker, Event(worker, contributions=count))


def test_a_heart_says_what_its_worker_does_while_it_stands_still() -> None:
    """Others see it in the shared block. That of a replacement begins anew."""
    store = make_store(workers=2)
    heartbeat, said = store.heartbeat(1), []
    for activity in (MAKING, STEPPING, LEARNING, STEPPING, CLOSING):
        said.append(inactivity(int(store.counters.heartbeats[1])))
        before = heartbeat.value
        heartbeat.begin(activity)
        assert store.counters.heartbeats[1] == heartbeat.value != before, "it has beaten"
    assert len(set(said)) == 4 and said[2] == said[4]
    heartbeat.beat()
    assert "closed" in inactivity(heartbeat.value) and "started" in said[0]
    store.heartbeat(1)
    assert store.counters.heartbeats.tolist() == [0, 0, 0]


class TestRestarts:
    def test_a_killed_worker_is_replaced_so_many_times_without_an_episode_in_between(self) -> None:
        restarts = made(3)
        for attempt in range(3):
            assert restarts.next_attempt(1) == attempt, "seeds never return"
            event, is_replaced = restarts.on_failure(1, 1, KILLED)
            assert is_replaced and (event.worker, event.counts) == (1, {"restarts": 1})
            assert event.warnings == (
                "worker 1 was killed by SIGKILL: another one takes its place",
            )
            contribute(restarts, 1)
        end_episode(restarts, worker=0)  # every worker is counted alone
        contribute(restarts, ROLLOUTS_BETWEEN)
        with pytest.raises(RunError, match=r"killed by SIGKILL\n.*max_restarts=3") as caught:
            restarts.on_failure(1, 1, KILLED)
        assert caught.value.reason == "max_restarts"

    def test_and_from_the_beginning_after_an_episode(self) -> None:
        restarts = made(1)
        for _ in range(5):
            assert restarts.on_failure(1, 1, KILLED).is_replaced
            end_episode(restarts)

    def test_and_after_many_rollouts_while_no_episode_has_ended(self) -> None:
        """Episodes may be long. The rollouts are those since the last failure."""
        restarts = made(1)
        for _ in range(3):
            contribute(restarts, ROLLOUTS_BETWEEN)
            assert restarts.on_failure(1, 1, KILLED).is_replaced
        contribute(restarts, ROLLOUTS_BETWEEN - 1)
        with pytest.raises(RunError, match="max_restarts"):
            restarts.on_failure(1, 1, KILLED)

    def test_an_error_of_one_of_several_environments_after_an_update_counts_as_their_share(
        self,
    ) -> None:
        """The episodes of the others are lost with its own: of 64 environments that fail once in
        50 episodes each, one fails before the first has ended its episode more often than not."""
        error = failed("worker 1", EnvError("environment 0 raised"))
        restarts = made(3, environments=8)
        for _ in range(24):
            contribute(restarts, 1)
            assert restarts.on_failure(1, 1, error).is_replaced
        contribute(restarts, 1)
        with pytest.raises(RunError, match="max_restarts"):
            restarts.on_failure(1, 1, error)

    def test_one_without_an_update_counts_as_a_whole(self) -> None:
        error = failed("worker 1", EnvError("environment 0 raised"))
        restarts = made(3, environments=8)
        for _ in range(3):
            assert restarts.on_failure(1, 1, error).is_replaced
        with pytest.raises(RunError, match="max_restarts"):
            restarts.on_failure(1, 1, error)

    def test_one_that_raises_is_replaced_if_it_has_contributed(self) -> None:
        """Otherwise it would raise again."""
        restarts = made()
        with pytest.raises(RunError, match="RuntimeError: out of luck") as caught:
            restarts.on_failure(1, 1, RAISED)
        assert caught.value.reason == "failed"
        contribute(restarts, 1)
        event = restarts.on_failure(1, 1, RAISED).event
        assert event.counts.get("restarts", 0) == 1
        assert event.warnings[0].startswith("worker 1 failed:\n")
        assert event.warnings[0].endswith("RuntimeError: out of luck\nanother one takes its place")

    def test_one_that_dies_after_it_has_left_is_not_replaced(self) -> None:
        """The close of its environments may crash."""
        restarts = made(maximum=0)
        restarts.on_event(1, Event(1, left="worker_episodes"))
        event, is_replaced = restarts.on_failure(1, 1, KILLED)
        assert not is_replaced and not event.counts
        assert event.warnings[0].endswith("worker 1 was killed by SIGKILL")

    def test_a_run_error_is_final(self) -> None:
        """Training that has diverged would diverge again."""
        restarts = made()
        contribute(restarts, 1)
        with pytest.raises(RunError, match=r"^diverged$") as caught:
            restarts.on_failure(1, 1, failed("worker 1", RunError("diverged", StopReason.STALLED)))
        assert caught.value.reason == "stalled"

    def test_an_environments_error_is_counted_and_its_worker_replaced(self) -> None:
        error = failed("worker 1", EnvError("environment 0 raised\nTraceback"))
        event = made().on_failure(1, 1, error).event
        assert event.counts == {"restarts": 1, "env_errors": 1}
        assert event.warnings == (
            "worker 1: environment 0 raised\nTraceback\nanother one takes its place",
        )

    @pytest.mark.parametrize(("key", "value"), [("max_restarts", -1), ("stall_seconds", 0.0)])
    def test_settings_out_of_range_are_refused(self, key: str, value: float) -> None:
        with pytest.raises(ConfigError, match=key):
            RestartSettings(**{key: value})  # type: ignore[arg-type]


class TestStallWatch:
    def look(
        self, looks: Sequence[Mapping[int, int]], seconds: float = 1.0, limit: float | None = 2.0
    ) -> list[int | None]:
        """What a watch finds in these beats, after so many seconds each."""
        now = iter(seconds * number for number in range(len(looks) + 1))
        watch = StallWatch(limit, lambda: next(now))
        return [watch.find(lambda beats=beats: beats) for beats in looks]  # type: ignore[misc]

    def test_a_heart_that_stops_is_noticed(self) -> None:
        """Also one that never begins. One that waits for others beats."""
        assert self.look([{0: 5}, {0: 6}, {0: 6}, {0: 6}]) == [None, None, None, 0]
        assert self.look([{3: 0}, {3: 0}, {3: 0}]) == [None, 3, 3]
        assert self.look([{0: beat} for beat in range(9)]) == [None] * 9
        assert self.look([{0: 0}] * 9, limit=None) == [None] * 9, "nobody looks"

    def test_a_program_that_was_stopped_itself_blames_nobody(self) -> None:
        """After Ctrl-Z and fg an hour has passed between two looks, in which nobody could step."""
        assert self.look([{0: 5}] * 9, seconds=3600, limit=10) == [None] * 9

    def test_of_several_it_is_the_one_that_has_been_idle_longest(self) -> None:
        assert self.look([{0: 1, 1: 1}, {0: 2, 1: 1}, {0: 2, 1: 1}, {0: 2, 1: 1}], limit=1.5) == [
            None,
            1,
            1,
            1,
        ]

    def test_a_replacement_begins_anew(self) -> None:
        now = iter(range(9))
        watch = StallWatch(3.0, lambda: next(now))
        for _ in range(2):
            assert watch.find(lambda: {0: 7}) is None
        watch.forget(0)
        assert watch.find(lambda: {0: 7}) is None


def test_workers_that_run_are_supervised_while_the_others_are_started() -> None:
    store = make_store()
    ended = list[bool]()

    def start() -> Iterator[ThreadSource]:
        for _ in range(1000):
            yield ThreadSource(
                store=store, worker=0, run=lambda attempt: iter([Event(0, contributions=1)])
            )
            time.sleep(0.01)

    supervisor = PipeSupervisor(start(), RestartSettings(), store)
    outputs = supervisor.run(lambda sources: ended.append(end_all(sources)))
    assert isinstance(next(filter(None, outputs)), Event)
    store.stop()
    started = len(supervisor.sources)
    assert len([*filter(None, outputs)]) == started - 1 < 999, (
        "a run that is over starts no more workers"
    )
    assert ended == [True]


@pytest.mark.parametrize("is_over", [False, True])
def test_a_thread_that_hangs_fails_the_run_unless_that_is_over(is_over: bool) -> None:
    """The environments of its worker may hang as they are closed."""
    store = make_store()
    release = threading.Event()

    def hang() -> Iterator[Event]:
        store.heartbeat(0).begin(CLOSING)
        yield Event(0, left="worker_episodes" if is_over else None)
        release.wait(60)

    source = ThreadSource(store=store, worker=0, run=lambda attempt: hang())
    events = PipeSupervisor([source], RestartSettings(stall_seconds=0.5), store).run()
    try:
        if is_over:
            (*_, last) = filter(None, events)
            assert (
                "closed its environments" in last.warnings[0] and "left behind" in last.warnings[0]
            )
        else:
            with pytest.raises(RunError, match="closed its environments") as caught:
                list(events)
            assert caught.value.reason == "stalled"
    finally:
        release.set()
