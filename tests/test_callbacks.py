"""Callbacks: what they are told on every backend, what they may do, their state and their
errors."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from refusals import refused
from runs import BACKENDS, QUICK, config, latest, summary, train, train_config

import a3c_exp
import a3c_exp.__main__ as program
from a3c_exp.callbacks import Callback, EvalResult, MetricTarget, NoImprovement, RunView
from a3c_exp.cli.existing import find_action
from a3c_exp.config.builder import load_experiment
from a3c_exp.config.saved import read_config
from a3c_exp.core.events import Episodes
from a3c_exp.errors import ConfigError, RunError
from a3c_exp.run.hooks import Hooks
from a3c_exp.run.metrics import read_points


@dataclass(kw_only=True)
class Noting(Callback):
    """Notes each moment in a file of the run's folder, and what the moment was about."""

    def note(self, run: RunView, *what: object) -> None:
        with open(run.folder / "notes", "a") as file:
            file.write(f"{json.dumps(what)}\n")

    def on_start(self, run: RunView) -> None:
        self.note(run, "start", run.steps, run.config["seed"])

    def on_episodes(self, run: RunView, worker: int, episodes: Episodes) -> None:
        self.note(run, "episodes", worker, len(episodes))

    def on_point(self, run: RunView, step: int, values: Mapping[str, float]) -> None:
        self.note(run, "point", step, sorted(values))

    def on_evaluation(self, run: RunView, result: EvalResult) -> None:
        self.note(run, "evaluation", result.steps, result.mean_return)

    def on_checkpoint(self, run: RunView, path: Path) -> None:
        self.note(run, "checkpoint", path.name, path.exists())

    def on_trained(self, run: RunView) -> None:
        self.note(run, "trained")

    def on_end(self, run: RunView, summary: Mapping[str, Any]) -> None:
        self.note(run, "end", summary["stop_reason"], summary["steps"])


def notes(folder: Path) -> dict[str, list[list[Any]]]:
    notes_by_hook: dict[str, list[list[Any]]] = {}
    for line in (folder / "notes").read_text().splitlines():
        moment, *what = json.loads(line)
        notes_by_hook.setdefault(moment, []).append(what)
    return notes_by_hook


def named(name: str, **settings: Any) -> dict[str, Any]:
    """The setting of one callback of this file."""
    return {
        "callbacks": [{"_target_": f"{__name__}.{name}", **settings}],
        "plugins": ["scripted", __name__],
    }


@pytest.mark.parametrize("backend", [*BACKENDS, "ga3c"])
def test_every_moment_is_told_on_every_backend(backend: str, tmp_path: Path) -> None:
    done = train(tmp_path, backend=backend, workers=2, eval__every=80, **named("Noting"))
    noted = notes(tmp_path)
    assert noted["start"] == [[0, 0]] and noted["trained"] == [[]]
    assert sum(count for _, count in noted["episodes"]) == done.summary["episodes"] > 0
    assert {"eval/mean_reward", "train/policy_loss", "rollout/ep_rew_mean"} <= {
        name for _, names in noted["point"] for name in names
    }
    assert noted["evaluation"][-1][0] == done.summary["steps"]
    assert ["latest.ckpt", True] in noted["checkpoint"] and ["best.ckpt", True] in noted[
        "checkpoint"
    ]
    assert noted["end"] == [["total_steps", done.summary["steps"]]]


# What a callback may do.


@dataclass(kw_only=True)
class Acting(Callback):
    """Does one thing with the run at its first report."""

    deed: str
    done: bool = field(default=False, init=False)

    def on_tick(self, run: RunView) -> None:
        if self.done or not run.steps:
            return
        self.done = True
        match self.deed:
            case "stop" | "failed":
                run.stop("enough" if self.deed == "stop" else "failed")
            case "log":
                run.log({"mine/value": float(np.float32(2.5))})
            case "mine\n" | "step":
                run.log({self.deed: 1.0})
            case "between steps":
                run.log({"mine/value": 1.0}, step=5.0)  # type: ignore[arg-type]
            case "save":
                run.save()
                (run.folder / "saved").write_text(str(latest(run.folder)["store"]["steps"]))
            case "evaluate":
                run.evaluate()
            case "module":
                weights = np.concatenate(
                    [parameter.detach().ravel() for parameter in run.module().parameters()]
                )
                (run.folder / "sum").write_text(str(float(weights.sum())))
            case "multipliers":
                run.set_multipliers(learning_rate=0.0)
            case "raise":
                raise ValueError("scripted to fail")
            case "exit":
                sys.exit(3)


def act(folder: Path, deed: str, **settings: Any) -> Any:
    return train(folder, **named("Acting", deed=deed), **settings)


def test_it_may_stop_the_run_with_a_reason_of_its_own(tmp_path: Path) -> None:
    done = act(tmp_path, "stop", total_steps=10**9)
    assert (done.summary["stop_reason"], done.exit_code) == ("enough", 0)


def test_its_reason_is_no_failure_of_the_run_to_whoever_continues_it(tmp_path: Path) -> None:
    done = act(tmp_path, "failed", total_steps=10**9)
    assert (done.summary["stop_reason"], done.exit_code) == ("callback: failed", 0)
    assert find_action(tmp_path, read_config(tmp_path, ["scripted", __name__]), "resume") == "leave"


def test_it_may_add_numbers_to_the_curves(tmp_path: Path) -> None:
    act(tmp_path, "log")
    header, *rows = (tmp_path / "metrics.csv").read_text().splitlines()
    column = header.split(",").index("mine/value")
    assert "2.5" in [row.split(",")[column] for row in rows]


def test_it_may_ask_for_a_checkpoint_and_an_evaluation(tmp_path: Path) -> None:
    act(tmp_path / "save", "save", total_steps=1600)
    assert int((tmp_path / "save" / "saved").read_text()) < 1600
    assert act(tmp_path / "evaluate", "evaluate").summary["best_eval_return"] is not None


def test_it_may_read_the_present_parameters(tmp_path: Path) -> None:
    act(tmp_path, "module", optimizer__learning_rate=1e-12)
    assert float((tmp_path / "sum").read_text()) == pytest.approx(
        latest(tmp_path)["store"]["parameters"].sum(), abs=1e-4
    )


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_it_may_set_the_learning_rate_of_all_workers(backend: str, tmp_path: Path) -> None:
    """A factor of 0: nothing is learned any more, also after a resumption."""
    run_config = config(
        backend=backend, workers=2, **named("Acting", deed="multipliers"), total_steps=1600
    )
    train_config(run_config, tmp_path)
    state = latest(tmp_path)["store"]
    assert state["multipliers"].tolist() == [0, 1]
    train_config(run_config | {"total_steps": 2000}, tmp_path, resume=True)
    assert latest(tmp_path)["store"]["steps"] > state["steps"]
    assert (latest(tmp_path)["store"]["parameters"] == state["parameters"]).all()


@pytest.mark.parametrize(
    ("deed", "words"),
    [
        ("raise", "scripted to fail"),
        ("exit", "SystemExit: 3"),
        ("mine\n", "is no name of a curve"),
        ("step", "is no name of a curve"),
        ("between steps", "'float' object cannot be interpreted as an integer"),
    ],
)
def test_its_errors_are_told_once_with_its_name_and_the_run_goes_on(
    deed: str, words: str, tmp_path: Path
) -> None:
    assert act(tmp_path, deed).summary["stop_reason"] == "total_steps"
    warnings = [
        line
        for line in (tmp_path / "train.log").read_text().splitlines()
        if "Acting.on_tick" in line
    ]
    assert len(warnings) == 1 and words in warnings[0] and "test_callbacks.py:" in warnings[0]
    assert "mine" not in (tmp_path / "metrics.csv").read_text()


def test_its_errors_end_the_run_where_it_says_so(tmp_path: Path) -> None:
    done = train(tmp_path, **named("Acting", deed="raise", on_error="raise"))
    assert (done.summary["stop_reason"], done.exit_code) == ("failed", 1)
    assert "scripted to fail" in done.summary["error"]
    assert latest(tmp_path)["store"]["steps"] > 0


@dataclass(kw_only=True)
class Failing(Callback):
    """Raises in one moment."""

    moment: str
    exits: bool = False

    def on_point(self, run: RunView, step: int, values: Mapping[str, float]) -> None:
        self.fail("on_point")

    def on_evaluation(self, run: RunView, result: EvalResult) -> None:
        self.fail("on_evaluation")

    def on_checkpoint(self, run: RunView, path: Path) -> None:
        self.fail("on_checkpoint")

    def on_trained(self, run: RunView) -> None:
        self.fail("on_trained")

    def on_end(self, run: RunView, summary: Mapping[str, Any]) -> None:
        self.fail("on_end")

    def fail(self, moment: str) -> None:
        if moment == self.moment:
            error = SystemExit if self.exits else ValueError
            raise error(f"scripted to fail in {moment}")


@pytest.mark.parametrize("exits", [False, True])
def test_its_error_at_the_end_is_one_of_a_run_that_has_failed(exits: bool, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="scripted to fail in on_end"):
        train(tmp_path, **named("Failing", moment="on_end", on_error="raise", exits=exits))
    assert (tmp_path / "summary.json").exists()
    assert "scripted to fail in on_end" in (tmp_path / "train.log").read_text()


@pytest.mark.parametrize("moment", ["on_point", "on_evaluation", "on_checkpoint", "on_trained"])
def test_its_errors_keep_no_run_from_being_saved(moment: str, tmp_path: Path) -> None:
    """It fails again as the run is saved. The others are told."""
    settings = named("Failing", moment=moment, on_error="raise")
    settings["callbacks"] += named("Noting")["callbacks"]
    done = train(tmp_path, eval__every=80, **settings)
    assert (done.summary["stop_reason"], done.exit_code) == ("failed", 1)
    assert f"in {moment}" in json.loads((tmp_path / "summary.json").read_text())["error"]
    assert latest(tmp_path)["store"]["steps"] == done.summary["steps"] > 0
    assert (tmp_path / "checkpoints" / "best.ckpt").exists() == (moment != "on_point")
    noted = notes(tmp_path)
    assert (
        noted["end"] == [["failed", done.summary["steps"]]]
        and len(noted[moment.removeprefix("on_")]) > 0
    )


@dataclass(kw_only=True)
class Ending(Noting):
    """Asks for an evaluation once all workers have ended, and interrupts twice in a moment, or once
    then."""

    interrupts: str | None = None

    def on_start(self, run: RunView) -> None:
        super().on_start(run)
        self.terminate(run, "start")

    def on_trained(self, run: RunView) -> None:
        super().on_trained(run)
        run.evaluate()
        if self.interrupts == "trained":
            os.kill(os.getpid(), signal.SIGTERM)

    def on_checkpoint(self, run: RunView, path: Path) -> None:
        self.interrupt("checkpoint")

    def on_end(self, run: RunView, summary: Mapping[str, Any]) -> None:
        super().on_end(run, summary)
        self.interrupt("end")
        self.terminate(run, "last")

    def terminate(self, run: RunView, moment: str) -> None:
        if moment == self.interrupts:
            os.kill(os.getpid(), signal.SIGTERM)
            self.note(run, "went on")

    def interrupt(self, moment: str) -> None:
        for _ in range(2 * (moment == self.interrupts)):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(
    ("rule", "limit", "reason"), [("max_episodes", 20, "interrupted"), ("max_seconds", 0.2, None)]
)
def test_a_run_whose_last_evaluation_is_interrupted_is_to_be_continued(
    rule: str, limit: float, reason: str | None, tmp_path: Path
) -> None:
    """It would count as finished. But seconds are those of a session: they would begin anew, time
    and again."""
    settings: dict[str, Any] = {"total_steps": 10**9, f"stop__{rule}": limit, "eval__every": 10**9}
    done = train(tmp_path, **settings, **named("Ending", interrupts="trained"))
    assert (done.summary["stop_reason"], done.summary["best_eval_return"]) == (reason or rule, None)
    action = find_action(tmp_path, read_config(tmp_path, ["scripted", __name__]), "resume")
    assert action == ("leave" if reason is None else "resume")


def test_it_may_ask_for_the_last_evaluation_where_there_are_none(tmp_path: Path) -> None:
    done = train(tmp_path, eval__every=None, **named("Ending"))
    order = [json.loads(line)[0] for line in (tmp_path / "notes").read_text().splitlines()]
    assert order.index("trained") < order.index("evaluation") < order.index("end")
    assert [steps for steps, _ in notes(tmp_path)["evaluation"]] == [done.summary["steps"]]


def test_the_last_evaluation_is_made_once(tmp_path: Path) -> None:
    train(tmp_path, eval__every=1, **named("Ending"))
    steps = [steps for steps, _ in notes(tmp_path)["evaluation"]]
    assert len(set(steps)) == len(steps) > 1


def test_a_signal_breaks_off_what_a_callback_does_at_the_start(tmp_path: Path) -> None:
    """A tracker may wait for its server for minutes."""
    done = train(tmp_path, **named("Ending", interrupts="start"))
    assert (done.summary["stop_reason"], done.exit_code) == ("interrupted", 128 + signal.SIGTERM)
    assert done.summary["steps"] == 0 == latest(tmp_path)["store"]["steps"]
    assert notes(tmp_path).keys() == {"start", "end"}


def test_a_signal_breaks_off_what_a_callback_does_at_the_end(tmp_path: Path) -> None:
    """All has been saved by then."""
    with pytest.raises(KeyboardInterrupt) as broken_off:
        train(tmp_path, **named("Ending", interrupts="last"))
    assert broken_off.value.args == (128 + signal.SIGTERM,)
    assert summary(tmp_path)["stop_reason"] == "total_steps"
    assert "went on" not in notes(tmp_path)


@pytest.mark.parametrize("moment", ["checkpoint", "end"])
def test_ctrl_c_twice_breaks_in_only_once_the_run_is_saved(moment: str, tmp_path: Path) -> None:
    ended = pytest.raises(KeyboardInterrupt) if moment == "end" else nullcontext()
    with ended:
        train(
            tmp_path,
            checkpoint__every=10**9,
            eval__every=None,
            **named("Ending", interrupts=moment),
        )
    assert (tmp_path / "summary.json").exists() and "end" in notes(tmp_path)


# Its state.


@dataclass(kw_only=True)
class Counting(Callback):
    """Counts points over the sessions of a run."""

    first: int = 10
    count: int = field(default=0, init=False)
    object: Any = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.count = self.first

    def on_point(self, run: RunView, step: int, values: Mapping[str, float]) -> None:
        self.count += 1


def test_its_state_is_in_checkpoints_and_a_resumed_run_counts_on(tmp_path: Path) -> None:
    run_config = config(**named("Counting"))
    train_config(run_config, tmp_path)
    first = latest(tmp_path)["callbacks"]["Counting"]["count"]
    assert first > 10
    train_config(run_config | {"total_steps": 320}, tmp_path, resume=True)
    assert latest(tmp_path)["callbacks"]["Counting"]["count"] > first


def test_a_state_that_a_checkpoint_cannot_hold_is_left_out_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Counting, "on_start", lambda self, run: setattr(self, "object", object()))
    train(tmp_path, **named("Counting"))
    assert latest(tmp_path)["callbacks"] == {}
    assert (tmp_path / "train.log").read_text().count("no state of callback Counting") == 1


def test_a_callback_may_have_no_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counting, "state_dict", lambda self: None)
    run_config = config(**named("Counting"))
    train_config(run_config, tmp_path)
    train_config(run_config | {"total_steps": 320}, tmp_path, resume=True)
    assert "Counting" not in (tmp_path / "train.log").read_text()


@dataclass(kw_only=True)
class Asserting(Callback):
    number: int = 0

    def __post_init__(self) -> None:
        assert self.number > 1


@dataclass(kw_only=True)
class Misspelt(Callback):
    number: Nmber = 0  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize("name", ["Asserting", "Misspelt"])
def test_one_that_cannot_be_made_is_refused_whatever_it_raises(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        load_experiment(config(**named(name)))


def test_a_rule_that_can_never_end_a_run_is_told(tmp_path: Path) -> None:
    target = {
        "_target_": "a3c_exp.callbacks.MetricTarget",
        "metric": "rollout/sucess_rate",
        "value": 1.0,
    }
    train(tmp_path, callbacks=[{"_target_": "a3c_exp.callbacks.NoImprovement"}, target])
    log = (tmp_path / "train.log").read_text()
    assert (
        "NoImprovement never ends this run" in log
        and "no point of a curve rollout/sucess_rate" in log
    )


def test_runs_share_no_callback(tmp_path: Path) -> None:
    mine = Counting()
    for name in ("one", "other"):
        a3c_exp.train(config(), tmp_path / name, callbacks=[mine])
        saved = yaml.safe_load((tmp_path / name / "config.yaml").read_text())["callbacks"]
        assert saved == [{"_target_": f"{__name__}.Counting", "first": 10, "on_error": "warn"}]
    assert mine.count == 10


@dataclass(kw_only=True)
class Placed(Callback):
    place: Path = Path()


def test_settings_that_a_file_cannot_hold_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a3c_exp.train(config(), tmp_path / "run", callbacks=[Placed(place=tmp_path)])
    assert "config.yaml has no settings of callback Placed" in caplog.text


@dataclass(kw_only=True)
class Locked(Callback):
    lock: Any = field(default_factory=threading.Lock)


@pytest.mark.parametrize("given", [[Counting], Counting(), [Locked()]])
def test_what_is_no_callback_or_cannot_be_copied_is_refused_before_a_run(
    given: Any, tmp_path: Path
) -> None:
    refused(lambda: a3c_exp.train(config(), tmp_path / "run", callbacks=given), "callbacks")
    assert not (tmp_path / "run").exists()


# How it is named.


def test_an_option_is_named_or_written_out(here: Path) -> None:
    callbacks_word = [
        "callbacks=[no_improvement,{_target_:a3c_exp.callbacks.MetricTarget,metric:episodes,value:3}]"
    ]
    first, second = load_experiment(a3c_exp.compose([*QUICK, *callbacks_word])).callbacks
    assert isinstance(first, NoImprovement) and first.evaluations == 5
    assert type(second).__name__ == "MetricTarget"
    assert program.main([*QUICK, "total_steps=1e6", *callbacks_word, "hydra.run.dir=run"]) == 0
    assert json.loads((here / "run" / "summary.json").read_text())["stop_reason"] == "metric_target"


def test_a_target_is_not_reached_by_the_first_episodes_to_end() -> None:
    """A success ends an episode early, a failure at its time limit."""
    reasons: list[str] = []
    run: Any = SimpleNamespace(stop=reasons.append)
    target = MetricTarget(metric="success_rate", value=0.9)
    target.on_point(run, 12, {"rollout/success_rate": 1.0, "rollout/episodes": 1})
    assert reasons == []
    target.on_point(run, 4000, {"rollout/success_rate": 0.95, "rollout/episodes": 120})
    assert reasons == ["metric_target"]


@pytest.mark.parametrize(
    ("given", "key", "value"),
    [
        ("callbacks=[no_such]", "callbacks", "no_such"),
        (
            "callbacks=[no_improvement,no_improvement]",
            "callbacks",
            ["NoImprovement", "NoImprovement"],
        ),
        (
            "callbacks=[{_target_:a3c_exp.callbacks.NoImprovement,evaluations:0}]",
            "callbacks[0].evaluations",
            0,
        ),
        ("callbacks=[metric_target]", "callbacks[0].metric", None),
        ("callbacks=3", "callbacks", 3),
    ],
)
def test_bad_input_is_one_line(given: str, key: str, value: object, here: Path) -> None:
    refused(lambda: load_experiment(a3c_exp.compose([*QUICK, given])), key, value)


def test_a_folders_callbacks_of_a_plugin_count_only_if_it_is_named_again(
    here: Path, refuses: Callable[..., str]
) -> None:
    """Whoever evaluates the policy needs none of them."""
    acting = f"{{_target_:{__name__}.Acting,deed:log}}"
    first = [*QUICK, f"plugins=[{__name__}]", f"callbacks=[no_improvement,{acting}]"]
    assert program.main([*first, "hydra.run.dir=run"]) == 0
    resume = ["resume=run", "total_steps=128"]
    refuses(resume, "callbacks[1]._target_", f"{__name__}.Acting")
    assert a3c_exp.load("run")
    assert program.main([*resume, f"plugins=[{__name__}]"]) == 0
    assert program.main(["resume=run", "total_steps=192", "callbacks=[no_improvement]"]) == 0
    assert program.main(["resume=run", "total_steps=256"]) == 0


def test_a_run_that_a_callback_has_ended_goes_on_without_it(here: Path) -> None:
    rule = "callbacks=[{_target_:a3c_exp.callbacks.NoImprovement,evaluations:1}]"
    for words, reason in (
        ([*QUICK, "total_steps=600", "eval.every=32", rule, "hydra.run.dir=run"], "no_improvement"),
        (["resume=run"], "no_improvement"),
        (["resume=run", "callbacks=[]"], "total_steps"),
    ):
        assert program.main(words) == 0
        assert summary(here / "run")["stop_reason"] == reason


# Stop rules.


def test_no_improvement_ends_a_run_after_so_many_evaluations(tmp_path: Path) -> None:
    """A policy that does not learn is never better."""
    rule = {"_target_": "a3c_exp.callbacks.NoImprovement", "evaluations": 3}
    done = train(
        tmp_path,
        callbacks=[rule],
        eval__every=40,
        total_steps=10**6,
        optimizer__learning_rate=1e-12,
    )
    assert done.summary["stop_reason"] == "no_improvement"
    assert (
        len(
            [
                point
                for point in read_points(tmp_path / "metrics.csv")
                if "eval/mean_reward" in point
            ]
        )
        == 4
    )


# Points that are logged while callbacks are notified of a point.


@dataclass(kw_only=True)
class Answering(Callback):
    """Logs a point whenever it is notified of one, and notes those that it is notified of."""

    name: str = "a"
    seen: list[str] = field(default_factory=list)

    def on_point(self, run: RunView, step: int, values: Mapping[str, float]) -> None:
        self.seen.extend(values)
        run.log({f"{name}/{self.name}": 1.0 for name in values})


def test_a_point_that_is_logged_meanwhile_comes_after_the_first_one_and_not_to_who_logged_it() -> (
    None
):
    """Neither of two that answer each other is asked again, so that this comes to an end."""
    a, b, both = Answering(name="a"), Answering(name="b"), Answering(name="c")
    logged: list[str] = []

    def log(values: Mapping[str, float]) -> None:
        logged.extend(values)
        hooks.on_point(0, values)

    run: Any = SimpleNamespace(log=log)
    hooks = Hooks(run, [a], [b, both])
    log({"p": 1.0})
    assert logged[:4] == ["p", "p/a", "p/b", "p/c"], "after all have been notified of the first one"
    assert a.seen == ["p", "p/b", "p/c", "p/b/c", "p/c/b"]
    assert b.seen == ["p", "p/a", "p/c", "p/a/c", "p/c/a"]
    log({"q": 1.0})
    assert "q" in both.seen and "q/a" in both.seen
