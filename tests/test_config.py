"""The whole configuration: checks across components, and the configuration in a run's folder."""

from __future__ import annotations

import importlib.util
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from refusals import refused
from runs import QUICK, put

import a3c_exp
from a3c_exp import compose
from a3c_exp.config.builder import Made, check, load_experiment, load_final
from a3c_exp.config.saved import read_config
from a3c_exp.core.cpu import usable_cores
from a3c_exp.run.run_folder import config_text
from a3c_exp.schedules import Linear


@pytest.fixture(scope="module")
def default() -> dict[str, Any]:
    return compose()


def changed(config: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """A copy of a configuration, with settings by their keys:
    `changed(config, **{"env.id": "Acrobot-v1"})`."""
    config = deepcopy(config)
    for key, value in settings.items():
        put(config, key, value)
    return config


def test_a_coefficient_may_be_a_schedule(default: dict[str, Any]) -> None:
    schedule = {"_target_": "a3c_exp.schedules.Linear", "start": 0.02, "end": 0.0}
    algorithm: Any = load_experiment(
        changed(default, **{"algorithm.entropy_coefficient": schedule})
    ).algorithm
    assert algorithm.entropy_coefficient == Linear(start=0.02, end=0.0)


def test_the_smallest_numbers_are_taken(default: dict[str, Any]) -> None:
    least: dict[str, Any] = dict.fromkeys(
        ("total_steps", "workers", "envs_per_worker", "rollout_length", "quorum"), 1
    )
    settings = least | {"update": "sync", "seed": 0, "record_episodes": 0}
    assert load_experiment(changed(default, **settings)).total_steps == 1


# What is refused.


@pytest.mark.parametrize(
    ("settings", "key", "value"),
    [
        ({"rollout_length": 0}, "rollout_length", 0),
        ({"rollout_length": "episode"}, "envs_per_worker", 16),
        ({"epsilon": 1.5}, "epsilon", 1.5),
        ({"total_steps": 0}, "total_steps", 0),
        ({"stop.max_episodes": 0}, "stop.max_episodes", 0),
        ({"eval.every": 0}, "eval.every", 0),
        ({"plugins": 7}, "plugins", 7),
        ({"optimizer.param_groups": {"nose": {}}}, "optimizer.param_groups", "nose"),
        ({"network.distribution": "cauchy"}, "network.distribution", "cauchy"),
        ({"network.distribution": "beta"}, "network.distribution", "beta"),
        (
            {"network": {"_target_": "a3c_exp.networks.Lstm", "distribution": "beta"}},
            "network.distribution",
            "beta",
        ),
        ({"env.normalize_rewards": "centred"}, "env.normalize_rewards", "centred"),
        ({"env.id": "CartPol-v1"}, "env.id", "CartPol-v1"),
        ({"init_from": "nowhere"}, "init_from", str(Path("nowhere").absolute())),
        ({"update": "sync", "optimizer_state": "per_worker"}, "optimizer_state", "per_worker"),
        ({"update": "sync", "quorum": 0}, "quorum", 0),
        ({"update": "sync", "quorum": 4, "workers": 3}, "quorum", 4),
        ({"quorum": 2}, "quorum", 2),
    ],
)
def test_a_value_that_cannot_be_used_is_named_with_its_key(
    settings: dict[str, Any], key: str, value: object, default: dict[str, Any]
) -> None:
    refused(lambda: load_experiment(changed(default, **settings)), key, value)


def test_without_ray_its_backend_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose(["backend=ray"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "a3c-exp[ray]" in refused(lambda: load_experiment(config), "backend.address", "local")
    load_experiment(config, to_train=False)  # not needed to evaluate such a run


def test_epsilon_needs_discrete_actions(default: dict[str, Any]) -> None:
    load_experiment(
        default | {"epsilon": {"_target_": "a3c_exp.schedules.Linear", "start": 0.4, "end": 0.1}}
    )
    refused(lambda: load_experiment(compose(["env=pendulum", "epsilon=0.1"])), "epsilon", 0.1)


def test_each_configuration_of_a_sweep_has_its_evaluations_environment_checked(
    default: dict[str, Any],
) -> None:
    made: Made = []
    _, experiment = load_final(changed(default, **{"eval.env": {"max_episode_steps": 100}}))
    check(experiment, made=made)
    _, other = load_final(changed(default, **{"eval.env": {"id": "Acrobot-v1"}}))
    refused(lambda: check(other, made=made), "eval.env")


def test_a_start_from_a_run_of_another_network_is_refused(
    tmp_path: Path, default: dict[str, Any]
) -> None:
    run = a3c_exp.train([*QUICK, "network.hidden_sizes=[8]"], tmp_path / "run")
    # as a program may write it
    start = {"init_from": str(run.folder), "network.hidden_sizes": (8,)}
    same = changed(default, **start)
    load_experiment(changed(same, **{"network.init": "glorot"}))  # its parameters are not drawn
    for key, value, hint in (
        ("network.hidden_sizes", (64,), "parameters, for CartPole-v1, not"),
        ("network.activation", "relu", "network.activation=tanh"),
        ("env.normalize_observations", True, "env.normalize_observations=true"),
        ("env.id", "Acrobot-v1", "for CartPole-v1, not"),
    ):
        other = changed(same, **{key: value})
        assert hint in refused(lambda other=other: load_experiment(other), "init_from")  # type: ignore[misc]
    shared = {"env.normalize_observations": "shared"}
    start = {
        "init_from": str(
            a3c_exp.train([*QUICK, "env.normalize_observations=shared"], tmp_path / "shared").folder
        )
    }
    load_experiment(changed(default, **start, **shared))
    other = changed(default, **start, **{"env.normalize_observations": True})
    assert "env.normalize_observations=true" in refused(lambda: load_experiment(other), "init_from")
    damaged = run.folder / "checkpoints" / "latest.ckpt"
    damaged.write_bytes(damaged.read_bytes()[:-9])
    assert "damaged" in refused(lambda: load_experiment(same), "init_from")


def test_a_start_compares_what_one_of_the_two_configurations_leaves_to_the_network(
    tmp_path: Path,
) -> None:
    quick = [*QUICK, "plugins=[user_modules]"]
    run = a3c_exp.train([*quick, "network={_target_:user_modules.Leaky,slope:0.1}"], tmp_path / "r")
    start = [*quick, f"init_from={run.folder}"]

    def load(settings: str) -> None:
        load_experiment(compose([*start, f"network={{_target_:user_modules.Leaky{settings}}}"]))

    load(",slope:0.1,sizes:[4]")
    assert "network.slope=0.1" in refused(lambda: load(""), "init_from")


def test_a_network_too_large_for_the_memory_is_refused(default: dict[str, Any]) -> None:
    """A module of one's own may have any size; those of this package have limits."""
    for width in (10**7, 10**18):
        network = {"_target_": "user_modules.Residual", "width": width}
        config = default | {"plugins": ["user_modules"], "network": network}
        refused(lambda config=config: load_experiment(config), "network", "Residual")  # type: ignore[misc]


@pytest.mark.parametrize(
    ("words", "harmless", "warned", "start"),
    [
        ("returns=n_step_zero rollout_length=8", "returns.n=5", "returns.n=8", "returns: n = 8 "),
        (
            "backend=ga3c backend.lag=accept workers=2 envs_per_worker=1 rollout_length=5",
            "backend.training_batch=20",
            "backend.training_batch=21",
            "backend: training_batch=21 ",
        ),
        (
            "env=pendulum",
            "env.normalize_rewards=true",
            "env.wrappers=[NormalizeReward]",
            "env: NormalizeReward ",
        ),
        ("update=sync", "seed=1", "optimizer.staleness_power=1", "optimizer.staleness_power: "),
        ("seed=1", "workers=32", f"workers={32 * usable_cores() + 1}", "workers: "),
        ("optimizer_state=per_worker", "optimizer=adam", "optimizer=sgd", "optimizer_state: "),
        ("reward_threshold=null", "stop.worker_return=5", "stop.window=20", "stop.window: "),
        (
            "env=lunar_continuous",
            "seed=1",
            "network.distribution=beta",
            "algorithm.entropy_coefficient: ",
        ),
        (
            "env=pong network=lstm network@network.encoder=cnn",
            "seed=1",
            "optimizer=rmsprop",
            "optimizer: RMSProp ",
        ),
    ],
)
def test_what_runs_but_is_probably_not_meant_is_warned_about(
    words: str, harmless: str, warned: str, start: str
) -> None:
    if "env=pong" in words:
        pytest.importorskip("ale_py", reason="Atari games: pip install 'a3c-exp[atari]'")
    assert load_final(compose([*words.split(), harmless]))[1].warnings == []
    [warning] = load_final(compose([*words.split(), warned]))[1].warnings
    assert warning.startswith(start)


# A run's folder is not trusted.


def test_a_configuration_reads_back_as_it_was_written(
    tmp_path: Path, default: dict[str, Any]
) -> None:
    kwargs = {"word": "true", "number": 1e-5, "large": 1e7, "nothing": None}
    # texts that look like something else
    config = changed(default, **{"init_from": "1e5", "env.kwargs": kwargs})
    (tmp_path / "config.yaml").write_text(config_text(config))
    assert read_config(tmp_path) == config


@pytest.mark.parametrize(
    "text", ["a: [", "- a list", "a: !!python/object/apply:os.system ['true']", "\x00", ""]
)
def test_a_damaged_configuration_is_refused_and_runs_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    assert "is damaged" in refused(lambda: read_config(tmp_path), "folder", str(tmp_path))
