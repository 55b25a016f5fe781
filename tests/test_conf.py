"""The files of conf/: every option composes and runs, presets have the settings of their
sources."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

import a3c_exp
from a3c_exp import compose
from a3c_exp.backends.processes import Processes
from a3c_exp.cli.startup import conf_folder
from a3c_exp.common.reading import parse_yaml
from a3c_exp.common.settings import flatten
from a3c_exp.config.builder import load_experiment
from a3c_exp.core.cpu import usable_cores
from a3c_exp.core.experiment import Experiment
from a3c_exp.envs.gym import PACKAGES
from a3c_exp.evaluate import load_run
from a3c_exp.returns import GAE

ROOT = Path(__file__).parents[1]
OPTIONS = {f"{path.parent.name}={path.stem}" for path in conf_folder().glob("*/*.yaml")}
# these are in tests/test_callbacks.py
OPTIONS -= {option for option in OPTIONS if option.startswith("callback=")}
ENVS = sorted(option for option in OPTIONS if option.startswith("env="))
PRESETS = sorted(option for option in OPTIONS if option.startswith("experiment="))
CORNERS = "plugins=[scripted] env=gym env.id=scripted:Corners-v0 env.kwargs.size=84"
# Options of the other groups, several in a run.
TOGETHER = [
    (
        "algorithm=a3c returns=discounted critic_returns=discounted optimizer=adam "
        "network=mlp backend=serial"
    ),
    (
        "returns=vtrace critic_returns=vtrace optimizer=rmsprop schedule=constant "
        "memory=sequences network=lstm backend=threads"
    ),
    (
        "algorithm=ppo algorithm.minibatch_size=8 returns=gae critic_returns=n_step "
        f"network=cnn {CORNERS}"
    ),
    (
        "returns=gae_095 critic_returns=gae optimizer=sgd network=cnn_nature "
        f"backend=processes {CORNERS}"
    ),
    (
        "returns=n_step critic_returns=n_step_zero schedule=linear network=cnn_impala "
        f"backend=ga3c {CORNERS}"
    ),
    "algorithm=acer returns=retrace memory=sequences backend=serial",
    "network=dict env=gym env.id=Blackjack-v1 backend=simulated",
    f"returns=n_step_zero returns.n=5 optimizer=rmsprop_tf network=cnn_small {CORNERS}",
    *(
        f"algorithm={name} returns=n_step returns.n=1 epsilon=0.1"
        for name in ("one_step_q", "n_step_q", "sarsa")
    ),
    *(
        f"algorithm={name} returns=n_step epsilon=0.1 memory=transitions memory.min_size=0"
        for name in ("n_step_q", "dqn")
    ),
]
# What an environment or a preset needs beside it, to be quick too.
NEEDS = {"env=gym": ["env.id=CartPole-v1"], "env=atari": ["env.game=freeway"]}
NEEDS |= {name: ["env.id=Hopper-v5"] for name in ("env=mujoco", "experiment=ppo_mujoco")}
NEEDS |= {
    f"experiment={name}": ["memory.min_size=0"]
    for name in (
        "dqn",
        "dqn_cartpole",
        "dqn_lunar",
        "acer",
        "acer_cartpole",
        "acer_lunar",
        "acer_pong",
    )
}
NEEDS |= {"experiment=ppo_pong_solved": ["algorithm.minibatch_size=16"]}
SMALL = {"workers": 1, "envs_per_worker": 2, "rollout_length": 8}
SERIAL = {"_target_": "a3c_exp.backends.serial.Serial"}


@cache
def _composed(*words: str) -> str:
    return str(yaml.safe_dump(compose(words)))


def composed(*words: str) -> Any:
    """The configuration of a command, composed once: half of the time of these tests goes there."""
    return yaml.safe_load(_composed(*words))


# Of several files that differ in numbers alone, or of one that trains in another test, the
# experiment is made.
ALIKE = re.compile(
    r"env=(acrobot|bipedal|breakout|lunar|lunar_continuous|mountaincar|mountaincar_continuous|pendulum|pong)|experiment=("
    r"a3c_paper_\w+|acer_(lunar|pong)|dppo_cluster_\w+|dppo_pendulum_solved|dqn_lunar|ga3c_(cartpole_solved|pong\w*)|impala_pong|lunar_solved"
    r"|n_step_q(_lunar_solved|_paper_atari|_pong_solved)?|one_step_q|parameter_server_cartpole\w*|ppo_\w+|sarsa"
    r"|shared_adam_lunar_continuous|threads_n_step_max|threads_n_step_zero_solved|universe_pong)"
)


@pytest.mark.parametrize("word", ["memory=null", "~memory"])
def test_a_preset_without_its_memory_has_none(word: str) -> None:
    assert composed("experiment=acer_cartpole")["memory"]["capacity"]
    assert composed("experiment=acer_cartpole", word)["memory"] is None


def train_a_few_steps(config: dict[str, Any], folder: Path) -> None:
    eval_settings = config["eval"] | {"every": None}
    run = a3c_exp.train(config | {"total_steps": 32, "eval": eval_settings}, folder)
    assert run.summary["stop_reason"] == "total_steps"
    assert run.summary["updates"] > 0


def test_every_option_is_among_those_that_are_tried() -> None:
    together = {word for words in TOGETHER for word in words.split()}
    assert {*ENVS, *PRESETS, *together, "backend=ray"} >= OPTIONS, "Ray starts in test_ray"


@pytest.mark.parametrize("words", TOGETHER, ids=range(len(TOGETHER)))
def test_options_train_a_few_steps(words: str, tmp_path: Path) -> None:
    config = compose(words.split()) | SMALL
    train_a_few_steps(
        config if "backend" in words else config | {"backend": SERIAL}, tmp_path / "run"
    )


@pytest.mark.parametrize("option", [*ENVS, *PRESETS])
def test_every_environment_and_preset_trains_a_few_steps(option: str, tmp_path: Path) -> None:
    """Presets with the workers and rollouts that they ask for, but for Atari games, which take too
    long for that."""
    config = composed(option, *NEEDS.get(option, []))
    for start, (package, extra) in PACKAGES.items():
        if str(config["env"].get("id")).startswith(start):
            pytest.importorskip(package, reason=f"pip install 'a3c-exp[{extra}]'")
    atari = config["env"]["_target_"] == "a3c_exp.envs.Atari"
    if atari:
        pytest.importorskip("ale_py", reason="Atari games: pip install 'a3c-exp[atari]'")
        # to measure them takes seconds, and has tests of its own
        config["env"]["normalize_observations"] = [128, 64]
    if "mujoco" in option:
        pytest.importorskip("mujoco", reason="robots: pip install 'a3c-exp[mujoco]'")
    if atari or option in ENVS:
        config |= SMALL
    if config["backend"]["_target_"] != "a3c_exp.backends.ga3c.Ga3c":
        config["backend"] = SERIAL
    if ALIKE.fullmatch(option):
        load_experiment(config)
        return
    train_a_few_steps(config, tmp_path / "run")
    # a run's folder needs no `plugins`, though its environment is of another package
    if option in ENVS and not atari:
        load_run(tmp_path / "run")


def test_the_defaults_are_cartpole_with_a_process_for_each_core() -> None:
    config = compose()
    experiment = load_experiment(config)
    assert config["env"]["id"] == "CartPole-v1"
    assert isinstance(experiment.backend, Processes)
    assert isinstance(experiment.returns, GAE)
    assert experiment.critic_returns is None
    assert experiment.worker_count == usable_cores() >= 1


def test_every_setting_of_the_whole_run_is_in_the_main_file() -> None:
    groups = {"env", "network", "returns", "algorithm", "optimizer", "schedule", "backend"}
    main = yaml.safe_load((conf_folder() / "config.yaml").read_text())
    assert main.keys() - {"defaults", "hydra"} == Experiment.__dataclass_fields__.keys() - groups


def test_an_environment_sets_what_it_needs_and_the_command_line_has_the_last_word() -> None:
    assert compose(["env=cartpole"])["reward_threshold"] == 475.0
    assert compose(["env=cartpole", "reward_threshold=450"])["stop"]["mean_return"] == 450, (
        "it stops there"
    )
    changed = compose(["env=cartpole", "stop.mean_return=490"])
    assert (changed["reward_threshold"], changed["stop"]["mean_return"]) == (475, 490)


def test_an_experiment_has_the_last_word_before_the_command_line() -> None:
    config = compose(["experiment=paper", "env=lunar"])
    assert (config["env"]["id"], config["envs_per_worker"], config["rollout_length"]) == (
        "LunarLander-v3",
        1,
        20,
    )
    assert compose(["experiment=paper", "rollout_length=5"])["rollout_length"] == 5


def test_atari_brings_a_network_for_images_unless_another_is_named() -> None:
    assert compose(["env=pong"])["network"]["_target_"] == "a3c_exp.networks.Cnn"
    assert (
        compose(["env=pong", "network=cnn_impala"])["network"]["_target_"]
        == "a3c_exp.networks.Impala"
    )
    paper = compose(["experiment=a3c_paper_atari", "env=breakout"])
    assert (paper["env"]["game"], paper["env"]["terminal_on_life_loss"]) == ("breakout", True)
    assert paper["network"]["init"] == "default"


# What a preset learns is in evidence/results/, with the whole configuration of its runs.
SETTINGS = (ROOT / "evidence" / "results" / "presets.yaml").read_text(encoding="utf-8")
RECORDS = {
    name.removeprefix("preset_"): settings for name, settings in parse_yaml(SETTINGS).items()
}
SHORTER = {"a3c_paper_atari_5000000", "ga3c_pong_solved_15_5000000", "universe_pong_15_10000000"}
"""Records of runs with fewer steps, and perhaps a lower threshold, than their presets."""
BESIDE = {"paper": ("env=cartpole", "workers=4")}
"""Words of a record's command beside its preset."""
MAY_DIFFER = {"env.normalize_observations", "total_steps", "reward_threshold", "stop.mean_return"}


@pytest.mark.parametrize(
    "record", sorted(name for name in RECORDS if name in SHORTER or f"experiment={name}" in PRESETS)
)
def test_a_preset_has_the_settings_of_its_record(record: str) -> None:
    """A slip of the hand in one of the files would go unnoticed otherwise."""
    name = re.sub(r"(_\d+)+$", "", record) if record in SHORTER else record
    then = dict(flatten(RECORDS[record]))
    now = dict(flatten(composed(f"experiment={name}", *BESIDE.get(record, ()))))
    differing = {key for key in then if then[key] != now.get(key)}
    assert differing <= (MAY_DIFFER if record in SHORTER else {"env.normalize_observations"})


RECORD_OF_SOURCES = (ROOT / "evidence" / "study" / "sources" / "README.md").read_text(
    encoding="utf-8"
)
SECTIONS = re.split(r"^## `(.*)`$", RECORD_OF_SOURCES, flags=re.MULTILINE)[1:]


@pytest.mark.parametrize("name", SECTIONS[::2])
def test_a_preset_has_the_settings_that_the_document_compares_with_its_source(name: str) -> None:
    settings = re.findall(r"`(\S+=\S+)`", SECTIONS[SECTIONS.index(name) + 1])
    assert len(settings) >= 3
    assert compose([f"experiment={name}", *settings]) == composed(f"experiment={name}")


GA3C = """
    workers=32 envs_per_worker=1 rollout_length=5 backend.predictors=2 backend.trainers=2
    backend.training_batch=5 returns._target_=a3c_exp.returns.NStep returns.n=null gamma=0.99
    algorithm.reduction=sum algorithm.entropy_coefficient=0.01 algorithm.value_coefficient=1
    optimizer._target_=a3c_exp.optimizers.RMSProp optimizer.epsilon_inside=true optimizer.decay=0.99
    optimizer.initial_mean_square=1 optimizer.learning_rate=0.0003 optimizer.epsilon=0.1
    optimizer.max_grad_norm=null schedule._target_=a3c_exp.schedules.Constant env.reward_clip=1
    env.normalize_observations=[128,128] network.layers=[[16,8,4],[32,4,2]] network.features_dim=256
"""


def test_ga3c_is_set_as_it_was_published() -> None:
    found = dict(flatten(composed("experiment=ga3c_pong")))
    settings = {
        key: yaml.safe_load(value)
        for key, _, value in (word.partition("=") for word in GA3C.split())
    }
    assert {key: found[key] for key in settings} == settings
