"""The whole configuration: that every option of every choice runs, and what is checked across components."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.singleton import Singleton
from omegaconf.basecontainer import BaseContainer

import a3c_exp
from a3c_exp import ConfigError, checkpoint, compose
from a3c_exp.backends.processes import Processes
from a3c_exp.backends.ray import Ray
from a3c_exp.backends.ray.cluster import connected
from a3c_exp.config import Experiment, check_folder, config_text, load_experiment, read_config, usable_cores
from a3c_exp.returns import GAE
from a3c_exp.schedules import Linear
from a3c_exp.schema import flat
from a3c_exp.startup import conf_folder
from a3c_exp.worker import build_network, layout

OPTIONS = sorted(f"{path.parent.name}={path.stem}" for path in conf_folder().glob("*/*.yaml"))
# What an option needs beside it, where that is not the default.
NEEDS = {
    "env=gym": ["env.id=CartPole-v1"],
    "env=atari": ["env.game=freeway"],
    "critic_returns=vtrace": ["returns=vtrace"],
    "experiment=pong": ["algorithm.minibatch_size=16"],
} | {
    f"network={name}": ["env=gym", "env.id=CarRacing-v3", "env.max_episode_steps=100", "rollout_length=8"]
    for name in ("cnn", "cnn_nature", "cnn_impala", "cnn_small")
}
PRESETS = [option for option in OPTIONS if option.startswith("experiment=")]
FEW_STEPS = ["workers=2", "envs_per_worker=2", "rollout_length=128", "total_steps=100", "eval.every=null"]


@pytest.fixture(scope="module")
def composed() -> dict[str, Any]:
    return compose()


@pytest.fixture
def config(composed: dict[str, Any]) -> dict[str, Any]:
    """The default configuration, free to change."""
    return deepcopy(composed)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """One for all options that need one: it takes seconds to start."""
    if importlib.util.find_spec("ray") is None:  # not imported: that is for `connected`
        pytest.skip("clusters: pip install 'a3c-exp[ray]'")
    experiment = load_experiment(compose(["backend=ray", "workers=1"]))
    network, env = build_network(experiment)
    assert isinstance(experiment.backend, Ray)
    with connected(experiment.backend, 1, layout(experiment, network, env.observation_space.shape)):
        yield


def change(config: dict[str, Any], key: str, value: object) -> dict[str, Any]:
    *places, name = key.split(".")
    node = config
    for place in places:
        node = node[place]
    node[name] = value
    return config


# The files.


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_composes_and_trains_a_few_steps(
    option: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Presets with the workers and rollouts that they ask for; Atari games and clusters take too long for that."""
    overrides = [option, *FEW_STEPS, *NEEDS.get(option, ())]
    composed = compose(overrides)
    if composed["env"]["_target_"] == "a3c_exp.envs.Atari":
        pytest.importorskip("ale_py", reason="Atari games: pip install 'a3c-exp[atari]'")
        overrides.append("rollout_length=8")
    elif option in PRESETS:
        overrides = [option, "total_steps=100", "eval.every=null"]
    if composed["backend"]["_target_"] == "a3c_exp.backends.ray.Ray":
        request.getfixturevalue("cluster")
        overrides.append("workers=1")
    if not option.startswith("backend=") and list(composed["backend"]) == ["_target_"]:
        overrides.append("backend=serial")  # quicker, where a preset does not say how its own backend is to be
    run = a3c_exp.train(overrides, tmp_path / "run")
    assert run.summary["stop_reason"] == "total_steps"
    assert run.summary["steps"] >= 100
    assert run.summary["updates"] > 0


def test_the_defaults_are_cartpole_with_a_process_for_each_core(config: dict[str, Any]) -> None:
    experiment = load_experiment(config)
    assert config["env"]["id"] == "CartPole-v1"
    assert isinstance(experiment.backend, Processes)
    assert isinstance(experiment.returns, GAE)
    assert experiment.critic_returns is None
    assert experiment.worker_count == usable_cores() >= 1


def test_every_setting_of_the_whole_run_is_in_the_main_file_with_a_word_about_it() -> None:
    lines = (conf_folder() / "config.yaml").read_text().partition("\n\n")[2].partition("\nhydra:")[0].splitlines()
    settings = [line for line in lines if not line.rstrip().endswith(":")]
    assert {line.partition(":")[0] for line in lines if line[:1] not in ("", " ", "#")} == (
        set(Experiment.__dataclass_fields__)
        - {"env", "network", "returns", "algorithm", "optimizer", "schedule", "backend"}
    )
    assert all("#" in line for line in settings if line.strip() and not line.startswith("checkpoint"))


def test_an_environment_sets_what_it_needs_and_the_command_line_has_the_last_word() -> None:
    assert compose(["env=cartpole"])["goal"] == 475.0
    assert compose(["env=cartpole", "goal=450"])["stop"]["mean_return"] == 450, "which stops there unless it is told"
    changed = compose(["env=cartpole", "stop.mean_return=490"])
    assert (changed["goal"], changed["stop"]["mean_return"]) == (475, 490)


def test_an_experiment_has_the_last_word_before_the_command_line() -> None:
    config = compose(["experiment=paper", "env=lunar"])
    assert (config["env"]["id"], config["envs_per_worker"], config["rollout_length"]) == ("LunarLander-v3", 1, 20)
    assert compose(["experiment=paper", "rollout_length=5"])["rollout_length"] == 5


def test_atari_brings_a_network_for_pictures_unless_another_is_named() -> None:
    assert compose(["env=pong"])["network"]["_target_"] == "a3c_exp.networks.Cnn"
    assert compose(["env=pong", "network=cnn_impala"])["network"]["_target_"] == "a3c_exp.networks.Impala"
    paper = compose(["experiment=a3c_paper_atari", "env=breakout"])
    assert (paper["env"]["game"], paper["env"]["life_loss"], paper["network"]["init"]) == ("breakout", True, "default")


@pytest.mark.parametrize("option", PRESETS)
def test_a_preset_says_where_it_comes_from(option: str) -> None:
    text = (conf_folder() / f"{option.replace('=', '/')}.yaml").read_text()
    header = text.partition("defaults:")[0]
    assert re.search(r"arXiv|\w+/\w+, |github\.com|our own|after|which has (its|the|their) source", header)


# What their sources say of themselves: a slip of the hand in one of the files would go unnoticed otherwise.
@pytest.mark.parametrize(
    ("preset", "settings"),
    [
        (
            "threads_n_step_zero",
            {
                "env.max_episode_steps": 200, "network.sizes": [128], "network.shared": False,
                "network.activation": "relu6", "network.init": "glorot", "rollout_length": "episode",
                "returns._target_": "a3c_exp.returns.NStepZero", "returns.n": 15,
                "critic_returns._target_": "a3c_exp.returns.Discounted",
                "optimizer._target_": "a3c_exp.optimizers.Adam", "optimizer.learning_rate": 0.01, "gamma": 0.999,
                "algorithm.entropy": 0.1, "workers": 4, "stop.max_episodes": 500,
                "backend._target_": "a3c_exp.backends.threads.Threads",
            },
        ),
        (
            "threads_n_step_max",
            {"returns._target_": "a3c_exp.returns.NStep", "returns.n": 15, "gamma": 0.999, "stop.max_episodes": 500},
        ),
        (
            "threads_continuous",
            {
                "env.id": "Pendulum-v1", "returns._target_": "a3c_exp.returns.NStep", "returns.n": 3, "gamma": 0.9,
                "optimizer.learning_rate": 1e-4, "optimizer.parts.critic.learning_rate": 1e-3, "rollout_length": 10,
                "env.normalize_rewards": True,
            },
        ),
        (
            "lstm_cartpole",
            {
                "network.cells": 16, "rollout_length": 40, "returns._target_": "a3c_exp.returns.GAE",
                "returns.lambda_": 1, "optimizer.max_grad_norm": 40, "env.reward_scale": 0.001,
                "optimizer.learning_rate": 5e-4, "algorithm.value_coefficient": 0.5,
                "network.init": "normalized_columns", "workers": "auto",
                "algorithm.entropy": 0.01 * 0.001,  # the source's, in proportion to rewards without its factor
            },
        ),
        (
            "shared_adam_cartpole",
            {
                "backend._target_": "a3c_exp.backends.processes.Processes", "moments": "shared",
                "optimizer._target_": "a3c_exp.optimizers.Adam", "optimizer.learning_rate": 1e-3,
                "network.sizes": [128], "rollout_length": 5, "gamma": 0.9, "algorithm.entropy": 0,
                "env.max_episode_steps": 300, "stop.mean_return": 200, "workers": "auto",
            },
        ),
        (
            "shared_adam_lunar_continuous",
            {
                "env.id": "LunarLanderContinuous-v3", "rollout_length": 8, "stop.max_episodes": 100, "gamma": 0.9,
                "optimizer.learning_rate": 1e-3, "algorithm.entropy": 0,
            },
        ),
        (
            "dppo_pendulum",
            {
                "workers": 3, "returns.lambda_": 0.95, "gamma": 0.9, "algorithm.epochs": 10, "rollout_length": 32,
                "algorithm.minibatch_size": None, "optimizer.learning_rate": 1e-4,
                "optimizer.parts.critic.learning_rate": 2e-4, "env.normalize_rewards": True,
            },
        ),
        (
            "a3c_paper_atari_lstm",
            {
                "optimizer.decay": 0.99, "optimizer.epsilon": 0.1, "rollout_length": 5, "workers": 16,
                "algorithm.entropy": 0.01, "gamma": 0.99, "schedule.end": 0, "network.cells": 256,
                "network.encoder._target_": "a3c_exp.networks.Cnn", "moments": "shared",
            },
        ),
    ],
)  # fmt: skip
def test_a_preset_has_the_settings_of_its_source(preset: str, settings: dict[str, Any]) -> None:
    found = dict(flat(compose([f"experiment={preset}"])))
    assert {key: found[key] for key in settings} == settings


def test_the_critic_may_learn_from_another_estimator() -> None:
    experiment = load_experiment(compose(["returns=n_step", "critic_returns=discounted"]))
    assert type(experiment.returns) is not type(experiment.critic_returns)


def test_the_critics_own_estimator_can_be_taken_away() -> None:
    preset = "experiment=threads_continuous"
    assert compose([preset])["critic_returns"] == {"_target_": "a3c_exp.returns.Discounted"}
    assert compose([preset, "~critic_returns"])["critic_returns"] is None


def test_a_coefficient_may_be_a_schedule(config: dict[str, Any]) -> None:
    schedule = {"_target_": "a3c_exp.schedules.Linear", "start": 0.02, "end": 0.0}
    algorithm: Any = load_experiment(change(config, "algorithm.entropy", schedule)).algorithm
    assert algorithm.entropy == Linear(start=0.02, end=0.0)


# What is refused.


def test_without_ray_its_backend_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose(["backend=ray"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError) as refusal:
        load_experiment(config)
    assert str(refusal.value) == "backend.address = 'local': needs Ray: pip install 'a3c-exp[ray]'"
    load_experiment(config, check=False)  # to look at what such a run has learned, it is not needed


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("seed", -1, "seed = -1: must be a whole number >= 0"),
        ("gamma", "high", "gamma = 'high': must be a number"),
        ("gamma", 1.01, "gamma = 1.01: must be a number from 0 to 1"),
        ("gamma", -0.1, "gamma = -0.1: must be a number from 0 to 1"),
        ("workers", 0, "workers = 0: must be a whole number from 1 to 65536, or 'auto'"),
        ("workers", "many", "workers = 'many': must be a whole number or 'auto'"),
        ("envs_per_worker", 0, "envs_per_worker = 0: must be a whole number from 1 to 65536"),
        ("rollout_length", 0, "rollout_length = 0: must be a whole number >= 1, or 'episode'"),
        ("rollout_length", 2.5, "rollout_length = 2.5: must be a whole number or 'episode'"),
        ("rollout_length", "episode", "envs_per_worker = 16: must be 1 where rollout_length=episode"),
        ("accumulate", 0, "accumulate = 0: must be a whole number >= 1"),
        ("epsilon", 1.5, "epsilon = 1.5: must be a number from 0 to 1, or a schedule"),
        ("total_steps", 0, "total_steps = 0: must be a whole number >= 1"),
        ("update", "often", "update = 'often': must be 'async' or 'sync'"),
        ("lock", 1, "lock = 1: must be true or false"),
        ("schedule.end", -1, "schedule = -1.0: must be a number >= 0 where the run ends, too"),
        ("epsilon", 2, "epsilon = 2.0: must be a number from 0 to 1, or a schedule"),
        ("moments", "none", "moments = 'none': must be 'shared' or 'worker'"),
        ("stop", 5, "stop = 5: must be a mapping with the keys max_episodes, max_seconds, mean_return"),
        ("stop.max_episodes", 0, "stop.max_episodes = 0: must be a whole number >= 1, or null"),
        ("stop.max_seconds", 0, "stop.max_seconds = 0.0: must be a number > 0, or null"),
        ("eval.every", 0, "eval.every = 0: must be a whole number of steps >= 1, or null"),
        ("eval.episodes", 0, "eval.episodes = 0: must be a whole number >= 1"),
        ("checkpoint.every", 0, "checkpoint.every = 0: must be a whole number of steps >= 1, or null"),
        ("plugins", 7, "plugins = 7: must be a list, each item text"),
        ("optimizer.learning_rate", -1, "optimizer.learning_rate = -1.0: must be a number > 0"),
        ("optimizer.parts", {"nose": {}}, "optimizer.parts = 'nose': "),
        ("network.sizes", [0], "network.sizes = (0,): must be whole numbers >= 1"),
        ("network.activation", "sigm", "network.activation = 'sigm': must be 'tanh', 'relu', "),
        ("returns", None, "returns = None: must be a mapping that names a Returns by _target_"),
        ("returns", {"_target_": "a3c_exp.schedules.Constant"}, "returns._target_ = 'a3c_exp.schedules.Constant': "),
        ("env.id", "CartPol-v1", "env.id = 'CartPol-v1': no such environment is registered"),
        ("env._target_", "gymnasium.make", "env._target_ = 'gymnasium.make': must be a component class of a3c_exp"),
        ("init_from", "nowhere", "init_from = 'nowhere': must be the folder of a run: it has no readable config.yaml"),
    ],
)
def test_a_value_that_cannot_be_used_is_named_with_its_key(
    key: str, value: object, words: str, config: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError) as refused:
        load_experiment(change(config, key, value))
    assert str(refused.value).startswith(words)
    assert "\n" not in str(refused.value)


def test_statistics_of_its_own_are_no_use_to_a_worker_of_synchronous_rounds(config: dict[str, Any]) -> None:
    change(change(config, "update", "sync"), "moments", "worker")
    with pytest.raises(ConfigError, match="moments = 'worker': must be 'shared' where update=sync"):
        load_experiment(config)


@pytest.mark.parametrize("epsilon", [0.1, {"_target_": "a3c_exp.schedules.Linear", "start": 0.4, "end": 0.1}])
def test_blind_actions_are_for_discrete_ones_only(epsilon: Any) -> None:
    load_experiment(change(compose(), "epsilon", epsilon))
    with pytest.raises(ConfigError, match=r"epsilon = .*: must be 0 where actions are not Discrete: they are Box"):
        load_experiment(change(compose(["env=pendulum"]), "epsilon", epsilon))


def test_a_missing_choice_is_named(config: dict[str, Any]) -> None:
    del config["network"]
    with pytest.raises(ConfigError, match="network = None: must be given: a mapping that names a Network"):
        load_experiment(config)


def test_a_start_from_a_run_of_another_network_is_refused(tmp_path: Path, config: dict[str, Any]) -> None:
    run = a3c_exp.train(["backend=serial", *FEW_STEPS, "network.sizes=[8]"], tmp_path / "run")
    with pytest.raises(ConfigError, match=r"init_from = .*: must be a run of the same network"):
        load_experiment(change(config, "init_from", str(run.folder)))
    same = change(change(config, "network.sizes", [8]), "init_from", str(run.folder))
    load_experiment(same)
    load_experiment(change(deepcopy(same), "network.sizes", (8,)))  # as a program may write it
    load_experiment(change(deepcopy(same), "network.init", "glorot"))  # parameters that are there are not drawn
    with pytest.raises(ConfigError, match=r"init_from = .*: .* it has network.activation=tanh, not relu"):
        load_experiment(change(deepcopy(same), "network.activation", "relu"))
    with pytest.raises(ConfigError, match=r"init_from = .*: must be a run with env.normalize_observations=true, as"):
        load_experiment(change(deepcopy(same), "env.normalize_observations", True))
    with pytest.raises(ConfigError, match=r"parameters, not \d+; it was of CartPole-v1, not Acrobot-v1"):
        load_experiment(change(deepcopy(same), "env.id", "Acrobot-v1"))
    checkpoint.save(run.folder / "checkpoints" / "latest.ckpt", {"other": 1})
    with pytest.raises(ConfigError, match=r"init_from = .*: its checkpoint is not that of a run"):
        load_experiment(same)


def test_a_network_beyond_all_memory_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="network = 'Mlp': is too large for the memory here"):
        load_experiment(change(config, "network.sizes", [10**8, 10**8]))
    with pytest.raises(ConfigError, match="network = 'Mlp': is too large for the memory here"):
        load_experiment(change(config, "network.sizes", [10**18, 8]))


def test_a_start_from_a_damaged_checkpoint_is_refused(tmp_path: Path, config: dict[str, Any]) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "latest.ckpt").write_bytes(b"PK not really")
    with pytest.raises(ConfigError, match=r"init_from = .*latest.ckpt': is no checkpoint, or a damaged one"):
        load_experiment(change(config, "init_from", str(tmp_path)))


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
    for network in ("cnn", "cnn_impala", "lstm network@network.encoder=cnn"):
        overrides = ["env=pong", *f"network={network}".split()]
        assert load_experiment(compose(overrides)).warnings == []
        (warning,) = load_experiment(compose([*overrides, "optimizer=rmsprop"])).warnings
        assert warning.startswith("optimizer: RMSProp whose mean square starts at 0 begins with steps of several rates")


# A run's folder is not trusted.


def test_a_configuration_reads_back_as_it_was_written(tmp_path: Path, config: dict[str, Any]) -> None:
    change(config, "init_from", "1e5")  # texts that look like something else
    change(config, "env.kwargs", {"word": "true", "number": 1e-5, "large": 1e7, "nothing": None})
    (tmp_path / "config.yaml").write_text(config_text(config))
    assert read_config(tmp_path) == config


def test_the_plugins_of_a_folder_are_replaced_by_the_users_own(tmp_path: Path, config: dict[str, Any]) -> None:
    (tmp_path / "config.yaml").write_text(config_text(change(config, "plugins", ["evil"])))
    assert read_config(tmp_path)["plugins"] == []
    assert read_config(tmp_path, ["mine"])["plugins"] == ["mine"]


@pytest.mark.parametrize("text", ["a: [", "- a list", "a: !!python/object/apply:os.system ['true']", "\x00", ""])
def test_a_damaged_configuration_is_refused_and_runs_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"resume = .*") as refused:
        load_experiment(read_config(tmp_path))
    assert "\n" not in str(refused.value)


def test_a_folder_for_a_run_is_where_one_can_be_made(tmp_path: Path) -> None:
    assert check_folder(tmp_path / "new" / "run") == tmp_path / "new" / "run"
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        check_folder(tmp_path / "file" / "run")


# From Python.


def test_a_run_from_python_leaves_no_state_of_hydra_and_disturbs_none(tmp_path: Path) -> None:
    with initialize_config_dir(str(tmp_path), version_base="1.2"):
        mine = GlobalHydra.instance().hydra
        singletons, resolvers = dict(Singleton._instances), dict(BaseContainer._resolvers)
        compose(["seed=3"])
        with pytest.raises(ConfigError):
            compose(["sed=3"])
        assert GlobalHydra.instance().hydra is mine
        assert singletons == Singleton._instances
        assert resolvers == BaseContainer._resolvers
    assert not GlobalHydra.instance().is_initialized()


def test_every_name_of_the_package_is_still_itself_after_it_has_been_used(tmp_path: Path) -> None:
    before = {name: getattr(a3c_exp, name) for name in a3c_exp.__all__}
    a3c_exp.load(a3c_exp.train(a3c_exp.compose(["backend=serial", *FEW_STEPS]), tmp_path / "run").folder)
    assert {name: getattr(a3c_exp, name) for name in a3c_exp.__all__} == before


def test_training_takes_overrides_or_a_whole_configuration(tmp_path: Path) -> None:
    overrides = ["backend=serial", *FEW_STEPS, "seed=5"]
    one = a3c_exp.train(overrides, tmp_path / "one")
    other = a3c_exp.train(compose(overrides), str(tmp_path / "other"))
    assert one.folder == tmp_path / "one"
    assert one.summary["seed"] == other.summary["seed"] == 5
    assert (tmp_path / "one" / "config.yaml").read_text() == (tmp_path / "other" / "config.yaml").read_text()


def test_training_names_a_folder_itself_where_none_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = a3c_exp.train(["backend=serial", *FEW_STEPS, "seed=5"])
    assert run.folder.parent == tmp_path / "outputs"
    assert run.folder.name.endswith("_s5")


def test_a_bad_configuration_raises_before_anything_is_written(tmp_path: Path) -> None:
    for overrides in (["sed=1"], ["gamma=2"], {"gamma": 0.9}):
        with pytest.raises(ConfigError):
            a3c_exp.train(overrides, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_trained_policy_acts(tmp_path: Path) -> None:
    run = a3c_exp.train(["backend=serial", *FEW_STEPS], tmp_path / "run")
    assert a3c_exp.load(run.folder).act([0.0, 0.0, 0.0, 0.0]) in (0, 1)


@pytest.mark.parametrize("override", ["resume=outputs/run", "hydra.run.dir=elsewhere"])
def test_what_only_the_command_line_understands_is_refused_from_python(override: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is for the command line: `folder` says where"):
        a3c_exp.train(["backend=serial", *FEW_STEPS, override], tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_start_may_differ_in_where_a_memory_would_have_begun(tmp_path: Path) -> None:
    lstm = ["backend=serial", *FEW_STEPS, "network=lstm", "network.cells=4", "network.encoder.sizes=[4]"]
    run = a3c_exp.train(lstm, tmp_path / "run")
    load_experiment(a3c_exp.compose([*lstm, "network.forget_bias=0", f"init_from={run.folder}"]))
