"""The whole configuration: checks across components, and the configuration in a run's folder."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from runs import QUICK

import a3c_exp
import a3c_exp.__main__ as program
from a3c_exp import ConfigError, compose
from a3c_exp.cli.evaluate import main as evaluate
from a3c_exp.config import removed
from a3c_exp.config.builder import load_experiment
from a3c_exp.config.saved import read_config
from a3c_exp.errors import exit_code
from a3c_exp.export.__main__ import main as export
from a3c_exp.report.__main__ import main as report
from a3c_exp.report.runs import find_runs
from a3c_exp.run import checkpoint
from a3c_exp.run.run_folder import config_text
from a3c_exp.schedules import Linear


@pytest.fixture(scope="module")
def composed() -> dict[str, Any]:
    return compose()


@pytest.fixture
def config(composed: dict[str, Any]) -> dict[str, Any]:
    """The default configuration, free to change."""
    return deepcopy(composed)


def change(config: dict[str, Any], key: str, value: object) -> dict[str, Any]:
    *places, name = key.split(".")
    node = config
    for place in places:
        node = node[place]
    node[name] = value
    return config


def test_a_coefficient_may_be_a_schedule(config: dict[str, Any]) -> None:
    schedule = {"_target_": "a3c_exp.schedules.Linear", "start": 0.02, "end": 0.0}
    algorithm: Any = load_experiment(change(config, "algorithm.entropy_coefficient", schedule)).algorithm
    assert algorithm.entropy_coefficient == Linear(start=0.02, end=0.0)


# What is refused.


def test_without_ray_its_backend_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose(["backend=ray"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError) as refusal:
        load_experiment(config)
    assert str(refusal.value) == "backend.address = 'local': needs Ray: pip install 'a3c-exp[ray]'"
    load_experiment(config, check=False)  # not needed to evaluate such a run


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("seed", -1, "seed = -1: must be a"),
        ("gamma", "high", "gamma = 'high': must be a"),
        ("gamma", 1.01, "gamma = 1.01: must be a"),
        ("workers", "many", "workers = 'many': must be a"),
        ("rollout_length", 0, "rollout_length = 0: must be a"),
        ("rollout_length", "episode", "envs_per_worker = 16: must be 1"),
        ("epsilon", 1.5, "epsilon = 1.5: must be a"),
        ("total_steps", 0, "total_steps = 0: must be a"),
        ("schedule.end", -1, "schedule = -1.0: must be a"),
        ("optimizer_state", "none", "optimizer_state = 'none': must be 'shared'"),
        ("stop.max_episodes", 0, "stop.max_episodes = 0: must be a"),
        ("eval.every", 0, "eval.every = 0: must be a"),
        ("plugins", 7, "plugins = 7: must be a"),
        ("optimizer.param_groups", {"nose": {}}, "optimizer.param_groups = 'nose':"),
        ("network.hidden_sizes", [0], "network.hidden_sizes = (0,): must be at"),
        ("returns", None, "returns = None: must be a"),
        ("returns", {"_target_": "a3c_exp.schedules.Constant"}, "returns._target_ = 'a3c_exp.schedules.Constant':"),
        ("env.id", "CartPol-v1", "env.id = 'CartPol-v1': no such environment"),
        ("env._target_", "gymnasium.make", "env._target_ = 'gymnasium.make': must be a"),
        (
            "init_from",
            "nowhere",
            f"init_from = '{Path('nowhere').absolute()}': must be the folder of a run: it has no readable config.yaml",
        ),
    ],
)
def test_a_value_that_cannot_be_used_is_named_with_its_key(
    key: str, value: object, words: str, config: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError) as refused:
        load_experiment(change(config, key, value))
    assert str(refused.value).startswith(words)
    assert "\n" not in str(refused.value)


def test_synchronous_rounds_have_one_optimizer_state(config: dict[str, Any]) -> None:
    change(change(config, "update", "sync"), "optimizer_state", "per_worker")
    with pytest.raises(ConfigError, match="optimizer_state = 'per_worker': must be 'shared' where update=sync"):
        load_experiment(config)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"quorum": 0, "update": "sync"}, "quorum = 0: must be a"),
        ({"quorum": 2}, "quorum = 2: needs update=sync: there"),
        ({"quorum": 4, "update": "sync"}, "quorum = 4: must be at"),
    ],
)
def test_a_quorum_needs_rounds_that_it_can_close(settings: dict[str, Any], words: str, config: dict[str, Any]) -> None:
    for key, value in ({"workers": 3} | settings).items():
        change(config, key, value)
    with pytest.raises(ConfigError) as refused:
        load_experiment(config)
    assert str(refused.value).startswith(words)


def test_epsilon_needs_discrete_actions() -> None:
    epsilon = {"_target_": "a3c_exp.schedules.Linear", "start": 0.4, "end": 0.1}
    load_experiment(change(compose(), "epsilon", epsilon))
    with pytest.raises(ConfigError, match=r"epsilon = .*: must be 0 where actions are not Discrete"):
        load_experiment(change(compose(["env=pendulum"]), "epsilon", 0.1))


def test_a_start_from_a_run_of_another_network_is_refused(tmp_path: Path, config: dict[str, Any]) -> None:
    run = a3c_exp.train([*QUICK, "network.hidden_sizes=[8]"], tmp_path / "run")
    with pytest.raises(ConfigError, match=r"init_from = .*: must be a run of the same network"):
        load_experiment(change(config, "init_from", str(run.folder)))
    same = change(change(config, "network.hidden_sizes", [8]), "init_from", str(run.folder))
    load_experiment(same)
    load_experiment(change(deepcopy(same), "network.hidden_sizes", (8,)))  # as a program may write it
    load_experiment(change(deepcopy(same), "network.init", "glorot"))  # its parameters are not drawn
    with pytest.raises(ConfigError, match=r"init_from = .*: .* it has network.activation=tanh, not relu"):
        load_experiment(change(deepcopy(same), "network.activation", "relu"))
    with pytest.raises(ConfigError, match=r"init_from = .*: must be a run with env.normalize_observations=true, as"):
        load_experiment(change(deepcopy(same), "env.normalize_observations", True))
    with pytest.raises(ConfigError, match=r"parameters, not \d+; it was of CartPole-v1, not Acrobot-v1"):
        load_experiment(change(deepcopy(same), "env.id", "Acrobot-v1"))
    (run.folder / "config.yaml").write_text(config_text(same | {"env": "CartPole-v1"}))
    with pytest.raises(ConfigError, match=r"init_from = .*: .*; it was of None, not Acrobot-v1"):
        load_experiment(change(deepcopy(same), "env.id", "Acrobot-v1"))
    checkpoint.save(run.folder / "checkpoints" / "latest.ckpt", {"other": 1})
    with pytest.raises(ConfigError, match=r"init_from = .*: is a damaged checkpoint: store"):
        load_experiment(same)


def test_a_network_too_large_for_the_memory_is_refused(config: dict[str, Any]) -> None:
    """A module of one's own may have any size; those of this package have limits."""
    config |= {"plugins": ["user_modules"]}
    for width in (10**7, 10**18):
        config["network"] = {"_target_": "user_modules.Residual", "width": width}
        with pytest.raises(ConfigError, match="network = 'Residual': is too large for the memory here"):
            load_experiment(config)


def test_what_runs_but_is_probably_not_meant_is_warned_about() -> None:
    assert load_experiment(compose(["returns=n_step_zero", "returns.n=5", "rollout_length=8"])).warnings == []
    (warning,) = load_experiment(compose(["returns=n_step_zero", "returns.n=8", "rollout_length=8"])).warnings
    assert warning.startswith("returns: n = 8 ")
    agents = ["backend=ga3c", "workers=2", "envs_per_worker=1", "rollout_length=5"]
    assert load_experiment(compose([*agents, "backend.training_batch=20"])).warnings == []
    (warning,) = load_experiment(compose([*agents, "backend.training_batch=21"])).warnings
    assert warning.startswith("backend: training_batch=21 is more than agents have room for")


def test_wrappers_that_normalise_by_themselves_are_warned_about() -> None:
    (warning,) = load_experiment(compose(["env=pendulum", "env.wrappers=[NormalizeReward]"])).warnings
    assert warning.startswith("env: NormalizeReward keeps statistics") and "env.normalize_rewards=true" in warning


def test_an_optimizer_that_may_kill_convolutions_is_warned_about() -> None:
    pytest.importorskip("ale_py", reason="Atari games: pip install 'a3c-exp[atari]'")
    overrides = ["env=pong", "network=lstm", "network@network.encoder=cnn"]
    assert load_experiment(compose(overrides), check=False).warnings == []
    (warning,) = load_experiment(compose([*overrides, "optimizer=rmsprop"]), check=False).warnings
    assert warning.startswith("optimizer: RMSProp whose mean square starts at 0")


# A run's folder is not trusted.


def test_a_configuration_reads_back_as_it_was_written(tmp_path: Path, config: dict[str, Any]) -> None:
    change(config, "init_from", "1e5")  # texts that look like something else
    change(config, "env.kwargs", {"word": "true", "number": 1e-5, "large": 1e7, "nothing": None})
    (tmp_path / "config.yaml").write_text(config_text(config))
    assert read_config(tmp_path) == config


@pytest.mark.parametrize("text", ["a: [", "- a list", "a: !!python/object/apply:os.system ['true']", "\x00", ""])
def test_a_damaged_configuration_is_refused_and_runs_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ConfigError, match="is damaged") as refused:
        load_experiment(read_config(tmp_path))
    assert "\n" not in str(refused.value)


def former_run(folder: Path) -> Path:
    """A run that another version of this program could have written."""
    a3c_exp.train(QUICK, folder)
    with checkpoint_version(2):
        checkpoint.save(folder / "checkpoints" / "latest.ckpt", {"parameters": np.zeros(3, np.float32)})
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(summary | {"commit": "abc1234def5678-dirty"}))
    return folder


@contextmanager
def checkpoint_version(version: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "VERSION", version)
        yield


def test_a_run_of_another_version_is_refused_with_the_commit_that_wrote_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = former_run(tmp_path / "run")
    words = "was written by commit abc1234: use that checkout"
    for main, arguments in (
        (program.main, [f"resume={run}", "total_steps=128"]),
        (evaluate, [str(run), "episodes=1"]),
        (program.main, [*QUICK, f"init_from={run}", f"hydra.run.dir={tmp_path / 'new'}"]),
    ):
        capfd.readouterr()
        assert main(arguments) == 2
        err = capfd.readouterr().err
        assert words in err and err.count("\n") == 1, err
    with pytest.raises(ConfigError, match=words):
        a3c_exp.load(run)
    assert not (tmp_path / "new").exists()
    (run / "summary.json").unlink()
    with pytest.raises(ConfigError, match=r"was written by another version of a3c_exp"):
        a3c_exp.load(run)


class TestRemovedSettings:
    @pytest.fixture
    def old_run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
        """A run whose configuration has a setting that is gone."""
        monkeypatch.setitem(removed.REMOVED, "env.former", None)

        def make(value: object, **env: object) -> Path:
            run = a3c_exp.train(QUICK, tmp_path / "run").folder
            whole = yaml.safe_load((run / "config.yaml").read_text())
            whole["env"] |= {"former": value, **env}
            (run / "config.yaml").write_text(yaml.safe_dump(whole))
            return run

        return make

    def test_that_did_nothing_are_dropped(self, old_run: Callable[..., Path]) -> None:
        run = old_run(None)
        assert "former" not in read_config(run)["env"]
        assert program.main([f"resume={run}", "total_steps=256"]) == 0
        assert evaluate([str(run), "episodes=1"]) == 0
        assert a3c_exp.load(run)
        assert not find_runs([run])[1]

    @pytest.mark.parametrize("name", ["resume", "from", "evaluate", "export", "report", "load"])
    def test_that_did_something_are_named(
        self, name: str, old_run: Callable[..., Path], capfd: pytest.CaptureFixture[str]
    ) -> None:
        run = str(old_run(3))
        commands: dict[str, Callable[[], object]] = {
            "resume": lambda: program.main([f"resume={run}"]),
            "from": lambda: program.main([f"from={run}", f"hydra.run.dir={run}2"]),
            "evaluate": lambda: evaluate([run]),
            "export": lambda: export([run]),
            "report": lambda: report([run]),
            "load": lambda: exit_code(lambda: bool(a3c_exp.load(run))),
        }
        capfd.readouterr()
        assert commands[name]() == 2
        err = capfd.readouterr().err
        assert "env.former = 3" in err and err.count("\n") == 1

    def test_of_that_name_in_a_plugin_stay(self, old_run: Callable[..., Path]) -> None:
        assert read_config(old_run(3, _target_="mine.Env"))["env"]["former"] == 3
