"""One run: when it stops, its evaluations and checkpoints, and the content of its folder."""

from __future__ import annotations

import csv
import itertools
import json
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, Mock

import numpy as np
import pytest
from runs import BACKENDS, SCRIPTED, TARGET, config, latest, same, train, train_config
from scripted import Answer, Bandit
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from a3c_exp import evaluate
from a3c_exp.backends.serial import Serial
from a3c_exp.common.log import log
from a3c_exp.config.builder import load_final
from a3c_exp.core import seeding
from a3c_exp.core.run_view import EvalResult
from a3c_exp.core.seeding import Role
from a3c_exp.envs.sync_batch import SyncEnvBatch
from a3c_exp.errors import ConfigError
from a3c_exp.run import checkpoint
from a3c_exp.run.policy import Policy, evaluate_policy
from a3c_exp.run.recorders.evaluations import Evaluations
from a3c_exp.run.session import Run

# What the curves are called, as everybody's dashboards know them.
CURVES = """
    rollout/ep_rew_mean rollout/ep_len_mean train/policy_loss train/value_loss train/entropy
    train/grad_norm train/parameter_norm train/learning_rate train/explained_variance
    train/mean_value train/n_updates time/steps_per_second workers/staleness_mean
    workers/staleness_max eval/mean_reward eval/mean_ep_length
"""
SUMMARY = """
    seed stop_reason steps episodes updates wall_seconds steps_per_second mean_return_100
    best_eval_return solved_at_steps solved_at_seconds staleness_mean staleness_max
    rejected_updates versions commit command machine
"""
SETTINGS: dict[str, Any] = {
    "total_steps": 400,
    "eval__every": 100,
    "env__normalize_observations": True,
}


def rows(folder: Path) -> list[dict[str, str]]:
    with open(folder / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def points(folder: Path) -> dict[str, list[int]]:
    """The steps of every curve in the event file."""
    (file,) = folder.glob("events.out.tfevents.*")
    found: dict[str, list[int]] = {}
    for event in EventFileLoader(str(file)).Load():
        for value in event.summary.value:
            found.setdefault(value.tag, []).append(event.step)
    return found


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(
        tmp_path_factory.mktemp("run"), TARGET, seed=7, env__kwargs={"length": 3}, **SETTINGS
    )


class Stray(BaseException):
    """As the errors of some libraries are, which are no exceptions."""


class TestWhatARunLeaves:
    def test_what_the_summary_says(self, done: Run) -> None:
        summary = done.summary
        assert json.loads((done.folder / "summary.json").read_text()) == summary
        assert summary.keys() >= set(SUMMARY.split())
        assert done.exit_code == 0
        assert (summary["seed"], summary["stop_reason"]) == (7, "total_steps")
        assert (summary["steps"], summary["updates"], summary["episodes"]) == (
            400,
            25,
            4 * (100 // 3),
        )
        assert (
            summary["staleness_mean"],
            summary["staleness_max"],
            summary["rejected_updates"],
        ) == (0, 0, 0)
        assert summary["solved_at_steps"] is summary["solved_at_seconds"] is None
        assert summary["mean_return_100"] < 0
        assert 0 < summary["training_seconds"] <= summary["wall_seconds"]
        assert summary["steps_per_second"] == pytest.approx(
            400 / summary["training_seconds"], rel=0.1
        )

    def test_every_curve_is_in_tensorboard_and_in_the_table(self, done: Run) -> None:
        drawn = points(done.folder)
        table = rows(done.folder)
        for name in CURVES.split():
            steps = [int(row["step"]) for row in table if row[name]]
            assert steps == drawn[name] == sorted(steps)
        assert drawn["eval/mean_reward"] == [112, 208, 304, 400], (
            "at the steps of what was evaluated"
        )
        assert float(table[-1]["wall_seconds"]) <= done.summary["training_seconds"] + 0.001, (
            "of training alone"
        )


class TestPointsBySteps:
    def test_equal_serial_runs_have_equal_curves(self, done: Run, tmp_path: Path) -> None:
        """All but those of time, whatever the machine's speed."""
        again = train(tmp_path, TARGET, seed=7, env__kwargs={"length": 3}, **SETTINGS)
        timed = ("wall_seconds", "time/steps_per_second")
        curves = [
            [{**row, **dict.fromkeys(timed)} for row in rows(run.folder)] for run in (done, again)
        ]
        # of each update and each evaluation
        assert curves[0] == curves[1] and len(curves[0]) == 25 + 4

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_they_come_every_so_many_steps(self, backend: str, tmp_path: Path) -> None:
        """Reports of threads and processes come ten times a second, and points no faster."""
        train(tmp_path, backend=backend, log__every=100, total_steps=800)
        multiples = [step // 100 for step in points(tmp_path)["train/n_updates"]]
        assert multiples == sorted(set(multiples)) and multiples[-1] == 8
        assert backend != "serial" or multiples == list(range(1, 9))

    def test_by_time_a_short_run_has_the_first_and_the_last(self, tmp_path: Path) -> None:
        train(tmp_path, log__every=None)
        assert points(tmp_path)["train/n_updates"] == [16, 160]

    def test_auto_is_by_time_on_other_backends(self) -> None:
        every = {name: load_final(config(backend=name))[1].log.every for name in BACKENDS}
        assert every == {"serial": 1, "threads": None, "processes": None}
        assert load_final(config(total_steps=10**7))[1].log.every == 20_000


ENDS: dict[str, dict[str, Any]] = {
    "total_steps": {"total_steps": 500},
    "max_episodes": {"stop__max_episodes": 50},
    "max_seconds": {"stop__max_seconds": 0.3},
    "mean_return": {"reward_threshold": 0.0, "stop__mean_return": 0.0},
}


@pytest.mark.parametrize(
    ("backend", "reason"), [*(("threads", end) for end in ENDS), ("serial", "max_episodes")]
)
def test_a_run_ends_by_its_rule_and_is_saved_as_it_is_then(
    reason: str, backend: str, tmp_path: Path
) -> None:
    done = train(tmp_path, backend=backend, **{"workers": 2, "total_steps": 10**9} | ENDS[reason])
    summary, state = done.summary, latest(tmp_path)
    assert (done.exit_code, summary["stop_reason"]) == (0, reason)
    assert state["store"]["steps"] == summary["steps"]
    assert state["store"]["version"] == summary["updates"]
    match reason:
        case "total_steps":
            assert 500 <= summary["steps"] < 500 + 2 * 16
        case "max_episodes":
            assert summary["episodes"] >= 50
            assert summary["episodes"] == summary["steps"], (
                "every episode is counted, those under way at the end too"
            )
        case "max_seconds":
            assert 0.3 <= summary["training_seconds"] < 30
        case "mean_return":
            assert 100 <= summary["solved_at_steps"] <= summary["steps"]
            assert 0 < summary["solved_at_seconds"] <= summary["training_seconds"]


class TestTheRewardThreshold:
    @pytest.mark.parametrize(
        ("settings", "reason", "solved"),
        [
            # before a hundred episodes of a step
            ({"reward_threshold": 0.0, "total_steps": 96}, "total_steps", None),
            (
                {"reward_threshold": 0.0, "stop__mean_return": 0.0, "total_steps": 10**9},
                "mean_return",
                112,
            ),
            ({"reward_threshold": 0.0}, "total_steps", 112),  # noted, but nothing stops there
            # it is not the stop rule
            ({"reward_threshold": 1.1, "stop__mean_return": 0.0}, "mean_return", None),
            # raw rewards count
            ({"stop__mean_return": 2.0, "env__reward_scale": 1000.0}, "total_steps", None),
        ],
    )
    def test_is_judged_after_a_hundred_episodes(
        self, settings: dict[str, Any], reason: str, solved: int | None, tmp_path: Path
    ) -> None:
        summary = train(tmp_path, **{"total_steps": 320} | settings).summary
        assert (summary["stop_reason"], summary["solved_at_steps"]) == (reason, solved)


def test_a_run_ends_in_order_where_no_thread_is_to_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit of processes, as of a container, also counts threads."""
    monkeypatch.setattr(
        threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread"))
    )
    done = train(tmp_path, eval__every=80)
    assert (done.summary["stop_reason"], done.exit_code) == ("total_steps", 0)
    assert latest(tmp_path)["store"]["steps"] == 160
    assert (
        "can't start new thread\nthere are no evaluations any more"
        in (tmp_path / "train.log").read_text()
    )


class TestEvaluation:
    def test_changes_nothing_about_the_training(self, tmp_path: Path) -> None:
        settings: dict[str, Any] = {
            "workers": 3,
            "total_steps": 800,
            "env__normalize_observations": True,
        }
        train(tmp_path / "without", TARGET, **settings)
        done = train(tmp_path / "with", TARGET, eval__every=50, **settings)
        assert done.summary["best_eval_return"] is not None
        assert same(latest(tmp_path / "without")["store"], latest(tmp_path / "with")["store"])

    @pytest.mark.parametrize("backend", ["serial", "threads"])
    def test_the_best_checkpoint_is_what_was_evaluated_best(
        self, backend: str, tmp_path: Path
    ) -> None:
        done = train(tmp_path, TARGET, backend, eval__every=160, total_steps=1600)
        values = [
            float(row["eval/mean_reward"]) for row in rows(tmp_path) if row["eval/mean_reward"]
        ]
        assert done.summary["best_eval_return"] == pytest.approx(max(values))
        loaded = evaluate.load_run(tmp_path, "best", ["scripted"])
        seeds = seeding.environment_seeds(0, Role.EVALUATION, 0, 4)
        episodes = evaluate_policy(loaded.policy, loaded.experiment.env.make(4, seeds), 4)
        assert episodes.returns.mean() == pytest.approx(max(values))

    def test_the_last_one_is_of_the_final_parameters(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The steps of a rollout are counted with the first of its minibatches, and one is due
        then."""
        states = self.pretend(monkeypatch, [1.0, 2.0, 3.0])
        ppo = {"_target_": "a3c_exp.algorithms.PPO", "minibatch_size": 4}
        train(
            tmp_path,
            algorithm=ppo,
            envs_per_worker=4,
            rollout_length=4,
            eval__every=16,
            total_steps=32,
        )
        final = latest(tmp_path)["store"]
        assert [state["steps"] for state in states] == [16, 32, 32]
        assert same(states[-1]["parameters"], final["parameters"])
        assert not same(states[-2]["parameters"], final["parameters"])

    def test_its_environments_are_closed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made: set[SyncEnvBatch] = set()
        closed: set[SyncEnvBatch] = set()
        first_reset = SyncEnvBatch.reset
        close = SyncEnvBatch.close

        def reset(batch: SyncEnvBatch) -> np.ndarray[Any, Any]:
            made.add(batch)
            return first_reset(batch)

        def note_close(batch: SyncEnvBatch) -> None:
            closed.add(batch)
            close(batch)

        monkeypatch.setattr(SyncEnvBatch, "reset", reset)
        monkeypatch.setattr(SyncEnvBatch, "close", note_close)
        train(tmp_path, TARGET, eval__every=100, workers=1)
        assert len(made) > 2  # the worker's, and those of several evaluations
        assert made <= closed

    def test_a_worse_one_does_not_replace_the_best(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        states = self.pretend(monkeypatch, [math.nan, 3.0, 2.0, 3.0])
        done = train(tmp_path, eval__every=40)
        assert len(states) == 4
        best = checkpoint.load_file(tmp_path / "checkpoints" / "best.ckpt")
        assert done.summary["best_eval_return"] == best["best_eval_return"] == 3
        assert same(best["store"], states[1])

    def test_the_best_checkpoint_is_of_the_moment_of_its_policy(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The run goes on while a policy is evaluated: what it learns of meanwhile is of another
        time."""
        self.pretend(monkeypatch, itertools.chain([3.0], itertools.repeat(1.0)), seconds=0.2)
        train(tmp_path, backend="threads", eval__every=40, total_steps=6000)
        best = checkpoint.load_file(tmp_path / "checkpoints" / "best.ckpt")
        at = best["store"]["steps"]
        assert best["statistics"]["steps"] == at < 6000
        assert (
            max(
                best["statistics"]["recent_end_steps"].max(initial=0),
                best["statistics"]["episodes"],
            )
            <= at
        )

    def pretend(
        self, monkeypatch: pytest.MonkeyPatch, returns: Iterable[float], seconds: float = 0.0
    ) -> list[dict[str, Any]]:
        """Let evaluations have these returns, and take so long. Returns the states that they are
        of."""
        found = iter(returns)
        states = list[dict[str, Any]]()

        def evaluated(
            evaluations: Evaluations, state: dict[str, Any], closing: ExitStack
        ) -> EvalResult:
            states.append(state)
            time.sleep(seconds)
            return EvalResult(state["steps"], next(found), 1.0)

        monkeypatch.setattr(Evaluations, "_evaluate", evaluated)
        return states

    def test_a_failing_one_is_the_last_one_and_told_with_its_traceback(
        self, tmp_path: Path
    ) -> None:
        victim = seeding.environment_seeds(0, Role.EVALUATION, 0, 4)[0]
        faults = {"fault": "raise", "victim": victim, "every": 1}
        settings: dict[str, Any] = {"env__kwargs": faults, "plugins": ["faulty"], "eval__every": 16}
        done = train(tmp_path, "faulty:Misbehaving-v0", **settings)
        assert (done.exit_code, done.summary["stop_reason"]) == (0, "total_steps")
        told = (tmp_path / "train.log").read_text()
        assert told.count("the evaluation failed") == 1 and "scripted to fail" in told

    def test_one_without_an_end_is_cut_and_said(self, tmp_path: Path) -> None:
        endless: dict[str, Any] = {
            "env__kwargs": {"lengths": [0]},
            "eval__every": 100,
            "eval__max_steps": 50,
        }
        done = train(tmp_path, SCRIPTED, **endless)
        assert (done.summary["stop_reason"], done.summary["cut_eval_episodes"]) == (
            "total_steps",
            8,
        )
        assert {row["eval/mean_ep_length"] for row in rows(tmp_path)} >= {"50.0"}
        (line,) = [
            line
            for line in (tmp_path / "train.log").read_text().splitlines()
            if "eval.max_steps" in line
        ]
        assert "step 112" in line and "4 of 4" in line

    def test_the_last_one_can_be_interrupted(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It would take long. A resumed run makes it, and no more steps."""
        handler, actions, pending = signal.getsignal(signal.SIGINT), Policy.actions, [signal.SIGINT]

        def interrupting(*arguments: Any) -> Any:
            if pending:
                os.kill(os.getpid(), pending.pop())
            return actions(*arguments)

        monkeypatch.setattr(Policy, "actions", interrupting)
        endless: dict[str, Any] = {"env__kwargs": {"lengths": [0]}, "eval__every": 10**9}
        done = train(tmp_path, SCRIPTED, **endless)
        assert (done.summary["stop_reason"], done.summary["signal"], done.exit_code) == (
            "interrupted",
            2,
            130,
        )
        assert (done.summary["steps"], done.summary["best_eval_return"]) == (160, None)
        assert signal.getsignal(signal.SIGINT) is handler
        done = train_config(config(SCRIPTED, **endless, eval__max_steps=50), tmp_path, resume=True)
        assert (done.summary["stop_reason"], done.summary["steps"]) == ("total_steps", 160)
        assert done.summary["best_eval_return"] is not None

    def test_one_that_hangs_is_left_behind(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Neither the run nor its end waits for it."""
        released = threading.Event()
        monkeypatch.setattr(Policy, "actions", lambda *_, **__: released.wait() and 1 / 0)
        done = train(
            tmp_path, backend="threads", eval__every=40, total_steps=400, backend__stall_seconds=1.5
        )
        assert any(thread.name == "evaluation" for thread in threading.enumerate()), (
            "it hangs still"
        )
        released.set()
        assert (done.summary["stop_reason"], done.exit_code) == ("total_steps", 0)
        assert (tmp_path / "train.log").read_text().count("the evaluation hung") == 1


class TestCheckpoints:
    @pytest.fixture
    def states(self, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
        """What is saved."""
        found: list[dict[str, Any]] = []
        save = checkpoint.save

        def watched(path: Path, state: dict[str, Any]) -> None:
            found.append(state)
            with open(path.parent.parent / "episodes.csv") as file:
                assert len(list(csv.DictReader(file))) == state["statistics"]["episodes"], (
                    "written before it"
                )
            save(path, state)

        monkeypatch.setattr(checkpoint, "save", watched)
        return found

    def test_agree_with_themselves_while_events_are_under_way(
        self, states: list[dict[str, Any]], tmp_path: Path
    ) -> None:
        """What the workers have sent and what they have done differ by a tenth of a second; a
        checkpoint must not."""
        settings: dict[str, Any] = {
            "total_steps": 10**9,
            "checkpoint__every": 1,
            "stop__max_seconds": 0.5,
        }
        train(tmp_path, backend="threads", workers=2, **settings)
        assert len(states) > 2
        for state in states:
            assert state["statistics"]["steps"] == state["store"]["steps"]
            assert state["statistics"]["updates"] == state["store"]["version"]


class TestStartingFromAnotherRun:
    def test_takes_its_best_parameters_and_its_statistics(self, tmp_path: Path) -> None:
        settings: dict[str, Any] = {"env__normalize_observations": True}
        train(tmp_path / "first", TARGET, eval__every=50, **settings)
        best = checkpoint.load_file(tmp_path / "first" / "checkpoints" / "best.ckpt")["store"]
        still: dict[str, Any] = {
            "optimizer": "a3c_exp.optimizers.SGD",
            "optimizer__learning_rate": 1e-30,
        }
        init = str(tmp_path / "first")
        done = train(
            tmp_path / "second", TARGET, seed=1, init_from=init, total_steps=16, **settings, **still
        )
        state = latest(done.folder)["store"]
        assert same(state["parameters"], best["parameters"])
        assert state["stats"][0] == best["stats"][0] + 16
        assert (done.summary["steps"], done.summary["updates"], done.summary["resumed"]) == (
            16,
            1,
            0,
        )


class TestWhereItRuns:
    def test_a_folder_that_cannot_be_written_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(ConfigError, match="cannot be written"):
            train(tmp_path / "file" / "run")

    def test_another_thread_than_the_main_one_will_do(self, tmp_path: Path) -> None:
        done = []
        thread = threading.Thread(target=lambda: done.append(train(tmp_path)))
        thread.start()
        thread.join()
        assert done[0].summary["stop_reason"] == "total_steps"

    def test_a_run_that_diverges_says_why_keeps_what_is_sound_and_warns_again_when_resumed(
        self, tmp_path: Path
    ) -> None:
        run_config = config(
            SCRIPTED, env__kwargs={"fails_at": 9, "failure": "huge"}, total_steps=10**9
        )
        for resume, rejected in ((False, 20), (True, 40)):
            done = train_config(run_config, tmp_path, resume)
            assert (done.exit_code, done.summary["stop_reason"]) == (1, "failed")
            assert "finite" in done.summary["error"]
            assert done.summary["rejected_updates"] == rejected
            assert rows(tmp_path)[-1]["train/rejected_updates"] == str(rejected)
            assert (tmp_path / "train.log").read_text().count(
                "a gradient that was not finite"
            ) == rejected // 20
            assert np.isfinite(latest(tmp_path)["store"]["parameters"]).all()

    def test_workers_that_cannot_be_ended_cost_nothing_of_what_was_learned(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As where the head of a cluster is gone by then."""

        work = Serial.run

        def unending(serial: Serial, *arguments: Any) -> Any:
            close = Mock(side_effect=OSError("nobody answers"))
            return MagicMock(__iter__=lambda _: work(serial, *arguments), close=close)

        monkeypatch.setattr(Serial, "run", unending)
        done = train(tmp_path)
        assert done.exit_code == 1
        assert "nobody answers" in done.summary["error"]
        assert latest(tmp_path)["store"]["steps"] == done.summary["steps"] == 160

    @pytest.mark.parametrize(
        ("error", "code", "reason"),
        [(KeyboardInterrupt("closed"), 130, "interrupted"), (Stray(), 1, "failed")],
    )
    def test_what_an_environment_raises_that_is_no_exception_ends_the_run_in_order(
        self,
        error: BaseException,
        code: int,
        reason: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """A window that the user closes may raise KeyboardInterrupt. It is no signal, and no
        success."""
        step, calls = Bandit.step, itertools.count()

        def raising(env: Bandit, action: Any) -> Answer:
            if next(calls) > 20:
                raise error
            return step(env, action)

        monkeypatch.setattr(Bandit, "step", raising)
        done = train(tmp_path)
        assert (done.exit_code, done.summary["stop_reason"]) == (code, reason)
        assert ("Stray" in (done.summary["error"] or "")) == (reason == "failed")
        assert latest(tmp_path)["store"]["steps"] == done.summary["steps"] > 0

    def test_ctrl_c_while_a_failure_is_logged_does_not_keep_the_run_from_being_saved(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupt(record: logging.LogRecord) -> bool:
            for _ in range(2 * (record.levelno == logging.ERROR)):
                os.kill(os.getpid(), signal.SIGINT)
            return True

        monkeypatch.setattr(Bandit, "step", Mock(side_effect=Stray()))
        monkeypatch.setattr(log, "filters", [interrupt])
        done = train(tmp_path)
        assert "Stray" in done.summary["error"]
        assert (tmp_path / "summary.json").exists()

    def test_a_run_without_one_finite_gradient_has_failed(self, tmp_path: Path) -> None:
        """It may be too short to refuse as many in a row as end a run."""
        done = train(
            tmp_path, SCRIPTED, env__kwargs={"fails_at": 1, "failure": "huge"}, total_steps=80
        )
        assert done.summary["rejected_updates"] > 0 == done.summary["updates"]
        assert "refused" in done.summary["error"]
        assert done.exit_code == 1
