"""Components on the command line: chosen by name, written out, in place of a preset's, or of the
user's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from refusals import Refuses
from runs import QUICK

import a3c_exp.__main__ as program
from a3c_exp import compose
from a3c_exp.cli.hydra_compose import compose_jobs, to_container
from a3c_exp.cli.hydra_overrides import parse, sweep
from a3c_exp.cli.hydra_session import hydra_session
from a3c_exp.common.settings import flatten
from a3c_exp.config.builder import load_experiment


@pytest.mark.parametrize("given", ["{_target_: a3c_exp.schedules.Linear, end: 0.5}", "0.25"])
def test_a_schedule_takes_the_place_of_the_one_that_a_preset_has_set(given: str) -> None:
    """The two are not merged: the result would have the settings of both."""
    key = "algorithm.entropy_coefficient"
    assert "start" in compose(["env=lunar_continuous"])["algorithm"]["entropy_coefficient"]
    algorithm = compose(["env=lunar_continuous", f"{key}={given}"])["algorithm"]
    assert algorithm["entropy_coefficient"] == yaml.safe_load(given)


@pytest.mark.parametrize(
    ("command", "gone", "stays"),
    [
        ("experiment=threads_n_step_zero returns=gae", "returns.n", "optimizer.betas"),
        (
            "experiment=ppo_pong_solved algorithm=a3c",
            "algorithm.epochs",
            "algorithm.entropy_coefficient.start",
        ),
        ("experiment=ppo_pong_solved env=lunar network=mlp", "env.height", "algorithm.epochs"),
        (
            "experiment=lstm_cartpole network@network.encoder=mlp",
            "network.no_such_setting",
            "network.hidden_size",
        ),
    ],
)
def test_a_component_takes_the_place_of_a_presets_and_what_it_does_not_know_goes(
    command: str, gone: str, stays: str
) -> None:
    preset = compose(command.split()[:1])
    chosen = compose(command.split())
    load_experiment(chosen)
    assert gone not in dict(flatten(chosen))
    assert dict(flatten(chosen))[stays] == dict(flatten(preset))[stays]


@pytest.mark.parametrize(
    ("command", "gone"),
    [
        ("env=lunar optimizer=torch_adam", "optimizer.learning_rate"),
        ("experiment=mine optimizer.param_groups={}", "network.initial_std"),
    ],
)
def test_so_does_one_of_torch_and_one_that_an_experiment_chooses(
    command: str, gone: str, here: Path
) -> None:
    files = {
        "optimizer/torch_adam.yaml": "_target_: torch.optim.AdamW\nlr: 1.0e-3\n",
        "network/own.yaml": "_target_: user_modules.Gru\nwidth: 8\n",
        "experiment/mine.yaml": "# @package _global_\n"
        "defaults: [override /env: lunar_continuous, override /network: own]\n",
    }
    for name, text in files.items():
        (here / "dir" / name).parent.mkdir(parents=True, exist_ok=True)
        (here / "dir" / name).write_text(text)
    chosen = compose([*command.split(), "plugins=[user_modules]"], "dir")
    load_experiment(chosen)
    assert gone not in dict(flatten(chosen))


def test_an_empty_mapping_takes_the_place_of_another() -> None:
    chosen = compose(["env=lunar_continuous", "optimizer.param_groups={}", "+env.kwargs={}"])
    assert (chosen["optimizer"]["param_groups"], chosen["env"]["kwargs"]) == ({}, {})


def test_a_setting_that_no_component_knows_is_refused(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Only settings that the replaced component knows are dropped, neither typed nor mistyped
    ones."""
    files = {
        "env/mine.yaml": (
            "# @package _global_\ndefaults: [gym, override /network: mlp]\nenv: {id: A-v0, sale: "
            "1}\n"
        ),
        "experiment/mine.yaml": (
            "# @package _global_\ndefaults: [override /algorithm: ppo]\nalgorithm: {epoch: 3}\n"
        ),
    }
    for name, text in files.items():
        (here / "dir" / name).parent.mkdir(parents=True, exist_ok=True)
        (here / "dir" / name).write_text(text)
    for command, key in {
        "experiment=threads_n_step_zero returns=gae returns.n=3": "returns.n",
        "--config-dir dir env=mine": "env.sale",
        "--config-dir dir experiment=mine algorithm=ppo": "algorithm.epoch",
        "experiment=ppo_pong_solved algorithm=a3c algorithm={epochs:9}": "algorithm.epochs",
    }.items():
        assert program.main(command.split()) == 2
        assert capfd.readouterr().err.startswith(f"a3c_exp: {key} = "), command


def test_a_component_that_is_written_out_has_no_settings_of_a_preset() -> None:
    sgd = "{_target_:a3c_exp.optimizers.SGD,learning_rate:0.1}"
    chosen = compose(["env=lunar", f"optimizer={sgd}", "+optimizer.momentum=0.5"])
    assert chosen["optimizer"] == {
        "_target_": "a3c_exp.optimizers.SGD",
        "learning_rate": 0.1,
        "momentum": 0.5,
    }


@pytest.mark.parametrize(
    ("command", "group", "expected"),
    [
        (
            "schedule={_target_:a3c_exp.schedules.Constant,value:0.5},linear",
            "schedule",
            ["Constant", "Linear"],
        ),
        (
            "experiment=threads_n_step_zero rollout_length=5 returns=glob(n_step*)",
            "returns",
            ["NStep", "NStepZero"],
        ),
    ],
)
def test_a_sweep_over_components(command: str, group: str, expected: list[str]) -> None:
    """By name and written out, over all options of a name, and in place of a preset's."""
    with hydra_session() as hydra:
        jobs = [
            to_container(whole.node)
            for whole in compose_jobs(hydra, sweep(parse([*QUICK, *command.split()], hydra.loader)))
        ]
    assert [job[group]["_target_"].rpartition(".")[2] for job in jobs] == expected


def test_a_component_that_cannot_be_pickled_is_refused_for_processes(
    here: Path, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    (here / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from a3c_exp.returns import NStep\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Noted(NStep):\n"
        "    def __post_init__(self):\n"
        "        object.__setattr__(self, 'note', lambda: 1)\n"
    )
    monkeypatch.syspath_prepend(here)
    command = [*QUICK, "plugins=[mine]", "returns={_target_: mine.Noted}", "hydra.run.dir=run"]
    assert "pickled" in refuses([*command, "backend=processes"], "returns", "Noted")
    assert not (here / "run").exists()
    assert program.main(command) == 0
