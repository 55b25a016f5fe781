"""Environments, estimators and programs as people write them, each with one peculiarity."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from refusals import refused
from runs import BANDIT, LINUX, QUICK, config, train, wait_until
from scripted import Bandit

import a3c_exp
import a3c_exp.__main__ as program
from a3c_exp.common.arrays import Floats
from a3c_exp.config.builder import load_experiment
from a3c_exp.envs import Gym
from a3c_exp.evaluate import load_run
from a3c_exp.returns import Returns, Trajectory
from a3c_exp.schedules import Schedule

Register = Callable[[str, Any], str]

# What an environment is made with.


class Server(Bandit):
    """Listens on a port as long as it lives."""

    def __init__(self, at: dict[str, int], folders: list[str]) -> None:
        super().__init__()
        self.socket = socket.create_server(("127.0.0.1", at["port"]))
        Path(folders[0]).mkdir()

    def close(self) -> None:
        self.socket.close()


def test_copies_have_ports_and_names_of_their_own(register: Register, tmp_path: Path) -> None:
    """Of workers and of an evaluation, though all have one setting. They are registered here:
    workers know them."""
    name = register("Server-v0", Server)
    kwargs = {"at": {"port": "{port}"}, "folders": [f"{tmp_path}/copy-{{copy}}"]}
    done = train(tmp_path / "run", name, "processes", env__kwargs=kwargs, workers=2, eval__every=80)
    assert done.summary["stop_reason"] == "total_steps"
    assert len(list(tmp_path.glob("copy-*"))) >= 2 * 4 + 1


@pytest.mark.parametrize(
    ("env", "wrapper"),
    [
        ("Pendulum-v1", {"RescaleAction": {"min_action": [-0.5], "max_action": [0.5]}}),
        ("CarRacing-v3", {"wrapper": "ResizeObservation", "shape": [42, 42]}),
    ],
)
def test_a_wrapper_gets_arrays_where_it_asks_for_them_and_tuples_elsewhere(
    env: str, wrapper: dict[str, Any]
) -> None:
    pytest.importorskip("cv2", reason="images: pip install 'a3c-exp[images]'")
    batch = Gym(id=env, wrappers=(wrapper,)).make(1, [0])
    assert batch.observation_space.shape == (42, 42, 3) or float(batch.action_space.high[0]) == 0.5  # type: ignore[attr-defined]
    batch.close()


# What is refused before anything is written.


class Peculiar(Bandit):
    """Has a reset or a step of an old interface, or raises."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        assert kind != "is not made"

    def reset(self, **options: Any) -> Any:
        observation, info = super().reset(**options)
        return observation if self.kind == "one value" else (observation, info)

    def step(self, action: Any) -> Any:
        match self.kind:
            case "four values":
                return super().step(action)[:4]
            case "several rewards":
                return (super().step(action)[0], np.array([1.0, -2.0]), False, False, {})
            case "raises":
                raise ValueError("x" * 100_000)
        return super().step(action)


class Spaceless(gymnasium.Env[Any, Any]):
    def reset(self, **options: Any) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("one value", r"returned .* not \(observation, info\)"),
        ("four values", r"returned .* not \(observation, reward, "),
        ("several rewards", r"the reward array\(\[ 1., -2.\]\)"),
        ("raises", r"ValueError: x{2000}\.\.\. .*test_environments_of_others\.py:\d+\)$"),
    ],
)
def test_a_first_step_that_fails_is_one_line(kind: str, words: str, register: Register) -> None:
    run_config = config(register("Peculiar-v0", Peculiar), env__kwargs={"kind": kind})
    assert re.search(words, refused(lambda: load_experiment(run_config), "env", "Gym"))


def test_an_environment_that_cannot_be_made_is_one_line_with_its_place(register: Register) -> None:
    run_config = config(register("Peculiar-v0", Peculiar), env__kwargs={"kind": "is not made"})
    problem = refused(lambda: load_experiment(run_config), "env.kwargs")
    assert re.search(r"AssertionError.*test_environments_of_others\.py:\d+\)$", problem)


def test_an_environment_needs_spaces(register: Register) -> None:
    run_config = config(register("Spaceless-v0", Spaceless))
    assert "observation_space" in refused(
        lambda: load_experiment(run_config), "env.id", "Spaceless-v0"
    )


class Warns(Bandit):
    """gymnasium warns of it, as of bounds that lose digits in float32."""

    def __init__(self) -> None:
        super().__init__()
        gymnasium.logger.warn(f"made in {os.getpid()}")


def test_what_gymnasium_warns_of_is_not_repeated_by_every_worker(
    register: Register,
    tmp_path: Path,
    recwarn: pytest.WarningsRecorder,
    capfd: pytest.CaptureFixture[str],
) -> None:
    train(tmp_path / "run", register("Warns-v0", Warns), "processes", workers=2, total_steps=64)
    assert any(f"made in {os.getpid()}" in str(warning.message) for warning in recwarn), (
        "of the first one, in this process"
    )
    assert "made in" not in capfd.readouterr().err, "where workers would write"


# Estimators and schedules of a user's own.


@dataclass(frozen=True, kw_only=True)
class Own(Returns):
    """The rewards to the rollout's end, in one of several wrong forms."""

    form: str

    def __call__(self, trajectory: Trajectory, gamma: float) -> Any:
        sums: Floats = np.cumsum(trajectory.rewards[::-1], axis=0)[::-1]
        match self.form:
            case "one":
                return sums
            case "float64":
                return sums.astype(np.float64), sums
            case "infinite":
                return sums / np.float32(0), sums
            case "writes":
                trajectory.rewards[:] = 0
            case "raises":
                raise KeyError("lambda")
            case "corrects":  # without off_policy = True
                assert trajectory.log_probs is not None
                sums = sums * (trajectory.target_log_probs - trajectory.log_probs)  # type: ignore[operator]
        return sums - trajectory.values, sums


@dataclass(frozen=True, kw_only=True)
class Meant(Own):
    across_episodes = True


@dataclass(frozen=True)
class WarmUp(Schedule):
    """Written in steps, where progress goes from 0 to 1."""

    def __call__(self, progress: float) -> float:
        return min(progress / 10_000, 1.0)


def own(form: str, name: str = "Own", **settings: Any) -> dict[str, Any]:
    returns = {"_target_": f"{__name__}.{name}", "form": form}
    return config(BANDIT, plugins=["scripted", __name__], **settings) | {"returns": returns}


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("one", "not ndarray|not float32"),
        ("float64", "float64"),
        ("infinite", "finite"),
        ("writes", "rewards"),
        ("raises", "KeyError"),
        ("corrects", "off_policy = False"),
    ],
)
def test_an_estimator_is_tried_before_the_start(form: str, words: str) -> None:
    assert re.search(words, refused(lambda: load_experiment(own(form)), "returns", "Own"))


def test_an_estimator_that_crosses_episodes_is_told_unless_it_means_to() -> None:
    assert any("Own before the end" in text for text in load_experiment(own("sums")).warnings)
    assert not load_experiment(own("sums", "Meant")).warnings


def test_a_schedule_that_leaves_no_learning_rate_is_told() -> None:
    run_config = own("sums", "Meant") | {"schedule": {"_target_": f"{__name__}.WarmUp"}}
    [warning] = load_experiment(run_config).warnings
    assert warning.startswith("schedule: ") and "0.0001" in warning


# Programs around a run.


def test_one_run_trains_in_a_process_at_a_time(tmp_path: Path) -> None:
    ended: list[a3c_exp.RunError] = []

    def second() -> None:
        wait_until((tmp_path / "first" / "metrics.csv").exists)
        try:
            a3c_exp.train(QUICK, tmp_path / "second")
        except a3c_exp.RunError as error:
            ended.append(error)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=second)
    thread.start()
    with pytest.raises(SystemExit):
        a3c_exp.train([*QUICK, "total_steps=1e9", "stop.max_seconds=60"], tmp_path / "first")
    thread.join()
    assert "in this process already" in str(ended[0])
    assert not (tmp_path / "second").exists()


def test_a_reader_who_has_read_enough_is_no_error(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "a3c_exp", "--help"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@LINUX
def test_a_process_of_a_sweep_that_leaves_early_has_failed(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """With exit code 0, as an environment may end it."""
    vanishing = [
        "env=gym",
        "env.id=faulty:Faulty-v0",
        "plugins=[faulty]",
        "env.kwargs={fault: vanish, at: 20}",
    ]
    assert program.main([*QUICK, *vanishing, "sweep=sweep"]) == 1
    assert "its process ended before the run did" in capfd.readouterr().err


@pytest.mark.parametrize("backend", ["processes", "ga3c"])
def test_a_worker_has_all_that_plugins_register(backend: str, tmp_path: Path) -> None:
    """Not its own environment alone, whose specification it is given."""
    wrapper = {"wrapper": "user_modules:Another", "name": "Scripted-v0"}
    plugins = ["user_modules", "scripted"]
    done = train(
        tmp_path,
        "CartPole-v1",
        backend=backend,
        plugins=plugins,
        env__wrappers=[wrapper],
        total_steps=100,
    )
    assert done.summary["episodes"] > 0


# A run that has finished.


def test_a_finished_run_is_not_resumed(
    here: Path, capfd: pytest.CaptureFixture[str], refuses: Callable[..., str]
) -> None:
    """The line says what goes on with it; so does that of a command which finds the run there."""
    assert program.main([*QUICK, "hydra.run.dir=run"]) == 0
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    capfd.readouterr()
    assert program.main(["resume=run"]) == 0
    line = capfd.readouterr().err
    assert "has finished: a larger total_steps" in line and line.count("\n") == 1
    longer = [*QUICK, "total_steps=128", "hydra.run.dir=run", "existing=resume"]
    assert "resume=" in refuses(longer, "hydra.run.dir", str(here / "run"))
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before


# An evaluation in another environment than the training's.


def test_evaluations_may_have_other_arguments(tmp_path: Path) -> None:
    """Episodes of CartPole with the other reward have a return of at most 0."""
    overrides = [*QUICK[:-1], "eval.every=32", "eval.env.kwargs.sutton_barto_reward=true"]
    run = a3c_exp.train(overrides, tmp_path)
    assert run.summary["best_eval_return"] == -1
    assert run.summary["mean_return_100"] is None or run.summary["mean_return_100"] > 1
    loaded = load_run(tmp_path)
    assert loaded.experiment.eval_env.kwargs == {"sutton_barto_reward": True}  # type: ignore[attr-defined]


def test_arguments_of_evaluations_that_are_not_given_are_those_of_training() -> None:
    overrides = [
        "env=gym",
        "env.id=FrozenLake-v1",
        "env.kwargs={is_slippery: false, success_rate: 0.9}",
    ]
    env: Any = load_experiment(
        a3c_exp.compose([*overrides, "eval.env.kwargs.success_rate=0.5"])
    ).eval_env
    assert env.kwargs == {"is_slippery": False, "success_rate": 0.5}


@pytest.mark.parametrize(
    ("given", "key", "value"),
    [
        ("eval.env.nothing=1", "eval.env.nothing", 1),
        ("eval.env.kwargs.nothing=1", "eval.env.kwargs", {"nothing": 1}),
        ("eval.env.id=Acrobot-v1", "eval.env", {"id": "Acrobot-v1"}),
        ("eval.env={_target_: a3c_exp.envs.Gym}", "eval.env", {"_target_": "a3c_exp.envs.Gym"}),
    ],
)
def test_other_arguments_of_evaluations_are_checked(given: str, key: str, value: object) -> None:
    refused(lambda: load_experiment(a3c_exp.compose([*QUICK, given])), key, value)
