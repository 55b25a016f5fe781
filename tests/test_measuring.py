"""What workers measure for callbacks: time by part, the share of clipped gradients, gradients by
part."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from backend_runs import PPO, SETTINGS
from runs import QUICK, config, latest, make_store, same, train
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import a3c_exp.__main__ as program
from a3c_exp.callbacks import Callback, Profile, RunView
from a3c_exp.config.builder import load_experiment
from a3c_exp.core.events import Event
from a3c_exp.core.experiment import RunContext
from a3c_exp.core.measuring import MOST_NUMBERS, PARTS, Stopwatch, timed, timing
from a3c_exp.core.store import DONE, Ticket
from a3c_exp.core.worker import Worker


@dataclass(kw_only=True)
class Asking(Callback):
    """Writes down what workers have measured."""

    measures = ("gradients", "time")

    metrics: dict[str, float] = field(default_factory=dict, init=False)
    counts: dict[str, int] = field(default_factory=dict, init=False)
    parts: list[str] = field(default_factory=list, init=False)
    spans: dict[str, float] = field(default_factory=dict, init=False)

    def on_event(self, run: RunView, event: Event) -> None:
        for name, metric in event.metrics.items():
            self.metrics[name] = self.metrics.get(name, 0.0) + metric.sum
            self.counts[name] = self.counts.get(name, 0) + metric.count
        for name, numbers in (event.gradients or {}).items():
            assert (
                numbers.dtype == np.float32
                and 0 < numbers.size <= MOST_NUMBERS
                and np.isfinite(numbers).all()
            )
            self.parts = sorted({*self.parts, name})
        for part, _, seconds in event.spans:
            self.spans[part] = self.spans.get(part, 0.0) + seconds

    def on_end(self, run: RunView, summary: Mapping[str, Any]) -> None:
        (run.folder / "asked.json").write_text(json.dumps(self.state_dict()))


ASKING: dict[str, Any] = {
    "callbacks": [{"_target_": f"{__name__}.Asking"}],
    "plugins": ["scripted", "thirdparty", __name__],
}


def asked(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "asked.json").read_text())
    return found


@pytest.mark.parametrize("backend", ["serial", "processes", "ga3c"])
def test_workers_measure_on_every_backend(backend: str, tmp_path: Path) -> None:
    done = train(tmp_path, backend=backend, workers=2, total_steps=640, **ASKING)
    found = asked(tmp_path)
    assert found["counts"]["clipped"] == found["counts"]["grad_norm"] == done.summary["updates"]
    assert found["parts"] == ["actor", "critic"]
    seconds = {
        name.partition("/")[2]: value
        for name, value in found["metrics"].items()
        if name.startswith("seconds/")
    }
    assert set(seconds) == set(PARTS) and min(seconds.values()) > 0
    assert found["spans"] == pytest.approx(seconds), "so few steps have a span each"


@pytest.mark.parametrize("name", ["ppo", "v-trace", "lstm"])
def test_nothing_that_a_run_computes_changes(name: str, tmp_path: Path) -> None:
    settings = SETTINGS[name] | {"workers": 2}
    train(tmp_path / "off", **settings)
    train(tmp_path / "on", **settings, **ASKING)
    assert same(latest(tmp_path / "on")["store"], latest(tmp_path / "off")["store"])


def test_a_worker_that_is_not_asked_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no stopwatch, and its reports have nothing more."""
    monkeypatch.delattr(Stopwatch, "switch")
    experiment = load_experiment(config())
    worker = Worker(RunContext(experiment=experiment), 0, make_store(experiment))
    events = [each for each in worker.run() if isinstance(each, Event)]
    assert events and not any(
        each.spans or each.gradients or "clipped" in each.metrics for each in events
    )
    worker.close()


@pytest.mark.parametrize(
    ("longest", "clipped"),
    [
        (None, 0),
        (1e-6, 1),
        (1e6, 0),
    ],
)
def test_a_gradient_is_clipped_if_it_is_longer_than_allowed(
    longest: float | None, clipped: float, tmp_path: Path
) -> None:
    train(tmp_path, optimizer__max_grad_norm=longest, **ASKING)
    found = asked(tmp_path)
    assert found["metrics"]["clipped"] / found["counts"]["clipped"] == clipped


def test_a_moment_counts_for_the_innermost_part(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=10.0)
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)

    watch = Stopwatch()
    acting = timing(watch, "acting")

    def step() -> None:
        clock.now += 4
        raise KeyError

    clock.now += 8
    with pytest.raises(KeyError), acting:
        clock.now += 1
        timed(watch, "environment", step)()
    clock.now += 16
    event = Event(0)
    watch.report(event)
    assert {name: metric.sum for name, metric in event.metrics.items()} == {
        "seconds/waiting": 24,
        "seconds/acting": 1,
        "seconds/environment": 4,
    }
    assert event.spans[1] == ("acting", 18.0, 1.0)
    later = Event(0)
    # of an update that made no step: means of all parts are over the same updates
    watch.report(later)
    assert {name: metric.sum for name, metric in later.metrics.items()} == dict.fromkeys(
        event.metrics, 0
    )


def test_a_store_that_waits_for_the_last_round_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    experiment = load_experiment(config(**SETTINGS["ppo"]))
    store = make_store(experiment)

    def finish_rollout(worker: int) -> Ticket:
        clock.now += 1  # as Ray's, which waits for replies
        return DONE

    monkeypatch.setattr(store, "finish_rollout", finish_rollout)
    worker = Worker(RunContext(experiment=experiment, measures=frozenset({"time"})), 0, store)
    events = [each for each in worker.run() if isinstance(each, Event)]
    worker.close()
    sums = {
        part: sum(each.metrics[f"seconds/{part}"].sum for each in events)
        for part in ("gradient", "waiting")
    }
    assert sums["waiting"] >= 1 and sums["gradient"] == 0


def test_merged_events_have_the_last_gradient_and_all_spans() -> None:
    first = ("acting", 0.0, 1.0)
    second = ("push", 1.0, 1.0)
    numbers = {"actor": np.ones(3, np.float32)}
    event = Event(0)
    for later in (Event(0, gradients=numbers, spans=(first,)), Event(0), Event(0, spans=(second,))):
        event.merge(later)
    assert event.gradients is numbers and event.spans == (first, second)


# The callbacks that show it.


def test_a_profile_is_a_table_curves_and_a_trace(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of a run in two parts the table has both; one that begins anew begins without the trace."""
    command = [*QUICK, "hydra.run.dir=run", "callbacks=[profile]", "workers=2"]
    assert program.main(command) == 0
    (trace,) = json.loads((here / "run" / "trace.json").read_text()).values()
    assert {each["name"] for each in trace} == set(PARTS) and {each["tid"] for each in trace} == {
        0,
        1,
    }
    for worker in (0, 1):
        own = [each for each in trace if each["tid"] == worker]
        for before, after in itertools.pairwise(own):
            assert after["ts"] == pytest.approx(before["ts"] + before["dur"], abs=1), (
                "without a gap"
            )
    lines = capfd.readouterr().err.splitlines()
    table = lines[lines.index("where the workers' time went:") + 1 :]
    assert [line.split()[0] for line in table] == sorted(PARTS)
    assert sum(float(line.split()[-1].rstrip("%")) for line in table) == pytest.approx(100, abs=0.5)
    assert "seconds/environment" in (here / "run" / "metrics.csv").read_text()
    seconds = latest(here / "run")["callbacks"]["Profile"]["seconds"]
    assert program.main(["resume=run", "total_steps=128"]) == 0
    assert (
        latest(here / "run")["callbacks"]["Profile"]["seconds"]["environment"]
        > seconds["environment"]
    )
    assert program.main([*QUICK, "hydra.run.dir=run", "existing=restart"]) == 0
    assert not (here / "run" / "trace.json").exists()
    Profile().on_end(SimpleNamespace(folder=here / "run"), {"unwritten": ["summary.json"]})
    assert not (here / "run" / "trace.json").exists(), "the folder may be another run's by now"


def test_gradients_are_histograms_by_part(tmp_path: Path) -> None:
    callbacks = [{"_target_": "a3c_exp.callbacks.Histograms", "points": 1}]
    train(
        tmp_path,
        callbacks=callbacks,
        algorithm=PPO,
        returns="a3c_exp.returns.GAE",
        log={"every": 16},
    )
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    names = {name for name in events.Tags()["tensors"] if name.startswith("train/gradients/")}
    assert names == {"train/gradients/actor", "train/gradients/critic"}
    assert 0 <= events.Scalars("train/clipped")[-1].value <= 1
