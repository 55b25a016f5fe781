"""`import a3c_exp`: training and playing from a program or a notebook."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from hydra import initialize_config_dir, version
from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import JobRuntime
from refusals import Refuses, refused
from runs import QUICK, summary, wait_until

import a3c_exp
import a3c_exp.__main__ as program
from a3c_exp import ConfigError, RunError, compose, evaluate
from a3c_exp.callbacks import Callback, RunView
from a3c_exp.core.experiment import Experiment
from a3c_exp.networks import ActorCritic
from a3c_exp.run.metrics import read_points
from a3c_exp.saved_run import SavedRun


def test_a_run_from_python_restores_the_state_of_hydra(tmp_path: Path) -> None:
    with initialize_config_dir(str(tmp_path), "mine", version_base=None):
        mine = GlobalHydra.instance().hydra
        base = version.getbase()
        compose(["seed=3"])
        with pytest.raises(ConfigError):
            compose(["sed=3"])
        assert GlobalHydra.instance().hydra is mine
        assert version.getbase() == base
        assert JobRuntime.instance().get("name") == "mine"
    assert not GlobalHydra.instance().is_initialized()


def test_a_trained_policy_acts_and_names_of_the_package_stay_the_same(tmp_path: Path) -> None:
    before = {name: getattr(a3c_exp, name) for name in a3c_exp.__all__}
    run = a3c_exp.train(a3c_exp.compose(QUICK), tmp_path / "run")
    policy = a3c_exp.load(run.folder)
    assert policy.act([0.0, 0.0, 0.0, 0.0]) in (0, 1)
    size = sum(parameter.numel() for parameter in policy.network.parameters())
    assert f"{size:,} parameters" in repr(policy) and "Discrete(2)" in repr(policy)
    assert {name: getattr(a3c_exp, name) for name in a3c_exp.__all__} == before


@pytest.mark.parametrize(
    ("name", "call"),
    [("learn", "run.resume("), ("predict", ".act(observation)"), ("save", "run.export()")],
)
def test_a_habit_from_another_library_is_answered_with_the_call(
    name: str, call: str, tmp_path: Path
) -> None:
    run: Any = SavedRun(tmp_path, {})
    with pytest.raises(AttributeError) as caught:
        getattr(run, name)
    assert call in str(caught.value) and "\n" not in str(caught.value)
    assert not hasattr(run, "anything_else")


@pytest.mark.parametrize("env", ["cartpole", "cartpole_memory"])
def test_what_reset_and_step_return_is_no_observation(env: str, tmp_path: Path) -> None:
    policy = a3c_exp.load(a3c_exp.train([*QUICK, f"env={env}"], tmp_path / "run").folder)
    world = gymnasium.make("CartPole-v1")
    for answer in (world.reset(), world.step(0)):
        with pytest.raises(ValueError, match="its first item"):
            policy.act(answer)


def test_training_takes_overrides_or_a_whole_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = [*QUICK, "seed=5"]
    one = a3c_exp.train(overrides, tmp_path / "one")
    other = a3c_exp.train(compose(overrides), str(tmp_path / "other"))
    assert one.folder == tmp_path / "one"
    monkeypatch.chdir(tmp_path)
    unnamed = a3c_exp.train(overrides).folder
    assert unnamed.parent == tmp_path / "outputs" and unnamed.name.startswith("cartpole_a3c_s5_")
    assert one.summary["seed"] == other.summary["seed"] == 5
    assert (tmp_path / "one" / "config.yaml").read_text() == (
        tmp_path / "other" / "config.yaml"
    ).read_text()


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["sed=1"], "sed"),
        (["gamma=2"], "gamma"),
        ([*QUICK, "resume=outputs/run"], "resume"),
        ([*QUICK, "from=outputs/run"], "from"),
        ([*QUICK, "replay=outputs/run"], "replay"),
        ([*QUICK, "jobs=2"], "jobs"),
        ([*QUICK, "hydra.run.dir=elsewhere"], "hydra.run.dir"),
        ([*QUICK, "hydra={_target_:os.system}"], "hydra"),
        ({"gamma": 0.9}, "configuration"),
        *((overrides, "overrides") for overrides in (None, 7, "env=lunar", [1], {"env=lunar"})),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_written(
    overrides: Any, key: str, tmp_path: Path
) -> None:
    refused(lambda: a3c_exp.train(overrides, tmp_path / "run"), key)
    if key == "overrides":
        refused(lambda: a3c_exp.compose(overrides), key)
    assert list(tmp_path.iterdir()) == []


def test_a_setting_as_an_argument_is_answered_with_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train: Any = a3c_exp.train
    assert '["env=cartpole"]' in refused(lambda: train(env="cartpole"), "env", "cartpole")
    run: Any = SavedRun(tmp_path, {})
    for wrong in (400000, "total_steps=2e6"):
        refused(partial(run.resume, wrong), "overrides", wrong)
    refused(lambda: run.export("x.pt"), "file", "x.pt")
    refused(lambda: run.export("x.safetensors"), "format", "onnx")
    refused(lambda: run.export("x.onnx", format="safetensors"), "format", "safetensors")
    with monkeypatch.context() as patch:
        patch.setattr("importlib.util.find_spec", lambda name: None)
        refused(lambda: run.export(format="onnx"), "format", "onnx")


def test_the_package_shows_its_public_names_and_answers_those_of_others() -> None:
    assert dir(a3c_exp) == sorted(a3c_exp.__all__)
    for name, setting in (("PPO", "algorithm=ppo"), ("A3C", "algorithm=a3c")):
        with pytest.raises(AttributeError, match=setting):
            getattr(a3c_exp, name)
    assert not hasattr(a3c_exp, "anything_else")


def test_another_environment_does_not_train_with_the_settings_of_the_default() -> None:
    refused(lambda: compose(["env.id=Acrobot-v1"]), "env.id", "Acrobot-v1")
    refused(lambda: compose(["experiment=ppo", "env.id=Acrobot-v1"]), "env.id", "Acrobot-v1")
    assert compose(["env.id=CartPole-v1"]) == compose([])
    for chosen in ("env=gym", "env=cartpole"):
        assert compose([chosen, "env.id=CartPole-v0"])["env"]["id"] == "CartPole-v0"


def test_a_word_of_commands_is_answered_with_what_does_the_same(tmp_path: Path) -> None:
    assert "open_run('run')" in refused(lambda: a3c_exp.train(["resume=run"]), "resume", "run")
    assert "a3c_exp replay=" in refused(lambda: a3c_exp.train(["replay=run"]), "replay", "run")
    run = SavedRun(tmp_path, {})
    for override, key, value in (
        ("jobs=4", "jobs", "4"),
        ("resume=other", "resume", "other"),
        ("--cfg", "--cfg", ""),
    ):
        refused(partial(run.resume, [override, "total_steps=128"]), key, value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", math.inf),
        ("gamma", np.float64(0.9)),
        ("init_from", "${"),
        ("env", {"_target_": {1, 2}}),
    ],
)
def test_a_configuration_that_is_not_plain_is_refused(
    key: str, value: object, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        a3c_exp.train(a3c_exp.compose(QUICK) | {key: value}, tmp_path / "run")
    assert caught.value.key.startswith(key)
    assert list(tmp_path.iterdir()) == []


def test_a_text_in_place_of_a_component_is_refused_where_the_folder_is_named_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(lambda: a3c_exp.train(compose(QUICK) | {"algorithm": "a3c"}), "algorithm", "a3c")
    assert list(tmp_path.iterdir()) == []


SCRIPTED = ["env=gym", "env.id=scripted:Scripted-v0", "plugins=[scripted]"]


def test_a_run_is_evaluated_and_resumed_from_python(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = a3c_exp.train([*QUICK, *SCRIPTED], tmp_path / "run")
    played = run.evaluate(episodes=3, seed=1)
    assert played.mean_return == played.returns.mean() and len(played.returns) == 3
    assert played.std == pytest.approx(played.returns.std(ddof=1))
    assert f"deviation {played.std:.3g}" in repr(played)
    assert math.isnan(run.evaluate(episodes=1).std)
    assert repr(played).startswith(f"mean return {played.mean_return:.6g} +- ")
    refused(lambda: run.evaluate(episodes=0), "episodes", 0)
    refused(lambda: run.evaluate(games=3), "games", 3)

    resumed = run.resume(["total_steps=128"])
    assert 64 <= run.summary["steps"] < 128 <= resumed.summary["steps"]
    assert run.resume().summary == resumed.summary, "it has all its steps"
    assert "total_steps" in capsys.readouterr().err


def test_a_run_is_exported_and_filmed_from_python(tmp_path: Path) -> None:
    for package in ("onnx", "moviepy"):
        pytest.importorskip(package)
    run = a3c_exp.train(QUICK, tmp_path / "run")
    assert run.export(steps=8) == run.folder / "policy.onnx"
    assert run.export(tmp_path / "mine.onnx", steps=8).is_file()
    film = run.evaluate(episodes=1, video=True).video
    assert film is not None and film.parent == run.folder / "videos" and film.is_file()


def test_an_earlier_run_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused(lambda: a3c_exp.open_run("latest"), "run", "latest")
    first = a3c_exp.train([*QUICK, *SCRIPTED, "seed=1"])
    second = a3c_exp.train([*QUICK, *SCRIPTED, "seed=2"])
    run = a3c_exp.open_run("latest", plugins=["scripted"])
    assert run.folder.absolute() == second.folder and run.summary["seed"] == 2
    assert len(run.evaluate(episodes=2).returns) == 2
    again = a3c_exp.open_run(first.folder, plugins=["scripted"]).resume(["total_steps=128"])
    assert again.summary["resumed"] == 1
    assert a3c_exp.open_run("latest").folder.absolute() == first.folder, "it went on last"
    refused(lambda: a3c_exp.open_run(tmp_path), "run", str(tmp_path))
    refused(lambda: a3c_exp.open_run(first.folder, plugins="scripted"), "plugins", "scripted")
    assert evaluate.main(["latest", "episodes=1", "plugins=[scripted]"]) == 0
    (tmp_path / "latest").mkdir()
    refused(lambda: a3c_exp.load("latest"), "run", "latest")  # a folder of that name goes before


class Counting(Callback):
    """A callback of a program, with something that config.yaml cannot hold."""

    def __init__(self, counts: list[int]) -> None:
        self.counts = counts

    def on_start(self, run: RunView) -> None:
        run.log({"own/starts": len(self.counts)})


def test_a_resumed_run_has_the_callbacks_that_the_program_gave(tmp_path: Path) -> None:
    run = a3c_exp.train(QUICK, tmp_path / "run", callbacks=[Counting([1, 2])])
    run.resume(["total_steps=128"])
    points = read_points(run.folder / "metrics.csv")
    assert [point["own/starts"] for point in points if "own/starts" in point] == [2, 2]


def test_a_run_is_shown_in_one_line_and_as_a_table(tmp_path: Path) -> None:
    run = a3c_exp.train(QUICK, tmp_path / "a & b")
    steps = run.summary["steps"]
    assert re.fullmatch(rf"<run .*a & b: finished after {steps} steps, .*>", repr(run))
    table = run._repr_html_()
    assert "a &amp; b" in table and "<td>total_steps</td>" in table
    assert f"<td>{steps}</td>" in table
    (run.folder / "summary.json").unlink()
    begun = a3c_exp.open_run(run.folder)
    assert begun.summary == {} and "has not ended" in repr(begun)
    assert "<td>-</td>" in begun._repr_html_()


NOTEBOOK = """
import os, sys
from dataclasses import dataclass
import gymnasium, numpy as np
from gymnasium.spaces import Box, Discrete
import a3c_exp
from a3c_exp.algorithms import A3C

class Mine(gymnasium.Env):
    observation_space, action_space = Box(-1, 1, (2,), np.float32), Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}
    def step(self, action):
        self.steps += 1
        return np.zeros(2, np.float32), 1.0, self.steps == 5, False, {}

@dataclass(frozen=True, kw_only=True)
class Own(A3C):
    pass

gymnasium.register("Mine-v0", Mine)
words = ["env=gym", "env.id=Mine-v0", "workers=1", "total_steps=64", "eval.every=null"]
run = a3c_exp.train(words, "env")
print(run.evaluate(episodes=2).mean_return)
print(a3c_exp.open_run("env").resume(["total_steps=2000"]).summary["steps"])
own = ["plugins=[__main__]", "algorithm={_target_: __main__.Own}", "backend=serial"]
run = a3c_exp.train([*own, *words[2:]], "loss")
print(len(run.evaluate(episodes=2).returns))
policies = run.load_policy(), a3c_exp.load(run), a3c_exp.load("loss", plugins=["__main__"])
print(len({policy.act(np.zeros(4)) for policy in policies}))
try:
    a3c_exp.load("loss")
except a3c_exp.ConfigError as error:
    print(error)
print(run.resume(["total_steps=2000"]).summary["steps"])
"""


def test_what_a_notebook_defines_is_played_and_resumed_there_and_refused_elsewhere(
    tmp_path: Path, refuses: Refuses, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notebook.py").write_text(NOTEBOOK)
    done = subprocess.run(
        [sys.executable, "notebook.py"], cwd=tmp_path, capture_output=True, text=True
    )
    played, steps, episodes, actions, refusal, more = done.stdout.splitlines()
    assert (float(played), int(episodes)) == (5.0, 2), done.stderr
    assert actions == "1" and 'plugins=["__main__"]' in refusal
    assert int(steps) >= 2000 and int(more) >= 2000
    assert done.stderr.count("run.evaluate()") == 4, "no command knows these classes"
    assert "a3c_exp.evaluate" not in done.stderr

    monkeypatch.chdir(tmp_path)
    for words, main in (
        (["env"], evaluate.main),
        (["resume=env", "total_steps=4000"], program.main),
        (["from=env"], program.main),
    ):
        line = refuses(words, "env.id", "Mine-v0", main=main)
        assert "plugins=[" in line and "did you mean" not in line
    line = refuses(["loss"], "algorithm._target_", "__main__.Own", main=evaluate.main)
    assert "plugins=[" in line


def test_a_run_builds_one_network_beside_those_of_its_workers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The one that has been checked is the one whose parameters it begins with."""
    built = Experiment.build_network
    networks = []

    def build(self: Experiment, *arguments: Any) -> ActorCritic:
        networks.append(built(self, *arguments))
        return networks[-1]

    monkeypatch.setattr(Experiment, "build_network", build)
    a3c_exp.train([*QUICK, "backend=serial", "workers=2", "eval.every=null"], tmp_path / "run")
    assert len(networks) == 3


def test_a_run_that_fails_raises_once_its_summary_is_written(tmp_path: Path) -> None:
    with pytest.raises(
        RunError, match=rf"^{re.escape(str(tmp_path / 'run'))}: .*worker 0: environment 0 "
    ):
        a3c_exp.train(
            [*QUICK, *SCRIPTED, "+env.kwargs.fails_at=9", "backend.max_restarts=0"],
            tmp_path / "run",
        )
    assert summary(tmp_path / "run")["stop_reason"] == "env_errors"


@pytest.mark.parametrize(
    ("number", "ends_with"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_signal_ends_the_program_too(
    number: int, ends_with: type[BaseException], tmp_path: Path
) -> None:
    """A loop over seeds does not continue with the next one."""
    table = tmp_path / "run" / "metrics.csv"

    def interrupt() -> None:
        wait_until(lambda: table.is_file() and len(table.read_text().splitlines()) > 2)
        os.kill(os.getpid(), number)

    threading.Thread(target=interrupt).start()
    with pytest.raises(ends_with) as ended:
        a3c_exp.train(
            [*QUICK, "total_steps=1e9", "stop.max_seconds=60", "log.every=100"], tmp_path / "run"
        )
    assert ended.value.args == (128 + number,)
    assert summary(tmp_path / "run")["stop_reason"] == "interrupted"
