"""What a run says at its start and at its end, and the commands that it names."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf
from refusals import refused
from runs import config, train
from stores import make_spec

from a3c_exp import compose
from a3c_exp.callbacks import Callback, NoImprovement
from a3c_exp.cli.execute import recorded
from a3c_exp.cli.hydra_compose import to_container
from a3c_exp.cli.hydra_overrides import parse
from a3c_exp.common.settings import override_text
from a3c_exp.config.builder import build_experiment, load_experiment
from a3c_exp.networks import ActorCritic
from a3c_exp.optimizers import RMSProp
from a3c_exp.run.console import return_text
from a3c_exp.run.outcome import ending, next_commands, opening, outcome, short, size_warning

SUMMARY: dict[str, Any] = {
    "stop_reason": "total_steps",
    "mean_return_100": 477.3,
    "steps": 107_000,
    "training_seconds": 4.04,
    "steps_per_second": 26_485.1,
    "best_eval_return": 500.0,
    "solved_at_steps": None,
    "rejected_updates": 0,
}


def test_a_large_network_tells_its_memory_and_a_way_to_a_smaller_one() -> None:
    """RMSProp keeps one number a parameter: 4 bytes each, 8 with the parameter itself."""
    assert size_warning(make_spec(size=19_999_999, param_slices={})) == []
    [line] = size_warning(
        make_spec(size=10**8, param_slices={}, optimizer=RMSProp(learning_rate=1.0))
    )
    assert "100,000,000 parameters take 800MB" in line and "800MB a checkpoint" in line
    assert "ResizeObservation" in line


def test_a_run_tells_it_before_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("a3c_exp.run.outcome.LARGE_NETWORK", 1)
    train(tmp_path)
    text = (tmp_path / "train.log").read_text()
    assert 0 < text.index("WARNING network: ") < text.index("training A3C")


def test_a_network_that_the_memory_cannot_hold_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def bind(network: ActorCritic) -> None:
        np.zeros(2**50)

    monkeypatch.setattr(ActorCritic, "bind", bind)
    assert "MemoryError" in refused(lambda: load_experiment(config()), "network", "Mlp")


class Users(Callback):
    __module__ = "user_callbacks.stopping"


@pytest.mark.parametrize(
    ("summary", "text"),
    [
        (
            {"stop_reason": "mean_return", "goal_return": 475.2}
            | {"solved_at_steps": 105_000, "solved_at_seconds": 3.96},
            "solved after 105,000 steps, 4.0 s; "
            "ended by its goal, at 475.2, after 107,000 steps, 4.0 s",
        ),
        (
            {"solved_at_steps": 9000, "solved_at_seconds": 77.0},
            "solved after 9,000 steps, 1:17; finished after 107,000 steps, 4.0 s; mean return of",
        ),
        ({"training_seconds": 0.012}, "finished after 107,000 steps, 0.012 s; "),
        (
            {"mean_return_100": None, "training_seconds": 3723},
            "finished after 107,000 steps, 1:02:03",
        ),
        (
            {"stop_reason": "mean_return", "goal_return": 260.0, "mean_return_100": 252.8},
            "ended by its goal, at 260.0, after 107,000 steps, 4.0 s",
        ),
        ({"stop_reason": "max_seconds"}, "reached stop.max_seconds after "),
        ({"stop_reason": "interrupted"}, "interrupted after "),
        (
            {"stop_reason": "callback said so", "mean_return_100": None},
            "callback said so after 107,000 steps, 4.0 s",
        ),
    ],
)
def test_a_run_says_in_words_how_it_has_ended(summary: dict[str, Any], text: str) -> None:
    assert outcome(SUMMARY | summary).startswith(text)


@pytest.mark.parametrize(
    ("summary", "threshold", "text"),
    [
        ({}, None, "26.5k/s | best greedy evaluation 500.0"),
        ({}, 500.0, "not solved: training stayed below 500"),
        ({"mean_return_100": None}, 500.0, "not solved: fewer than 100 episodes ended"),
        ({"rejected_updates": 3}, None, "3 updates rejected"),
    ],
)
def test_the_last_line_says_what_else_there_is(
    summary: dict[str, Any], threshold: float | None, text: str
) -> None:
    assert ending(SUMMARY | summary, threshold)[-1].endswith(text)


def test_a_goal_is_said_with_the_return_that_has_reached_it(tmp_path: Path) -> None:
    """Episodes that were under way end after it, and may have lower returns."""
    goals: dict[str, Any] = {
        "stop__mean_return": 0.5,
        "reward_threshold": 0.25,
        "stop__window": 100,
    }
    done = train(tmp_path, total_steps=10**6, **goals)
    assert done.summary["stop_reason"] == "mean_return"
    assert done.summary["goal_return"] >= 0.5
    first, second, *_ = ending(done.summary, 0.25)
    assert first.startswith("solved (0.25) after ")
    goal_return = return_text(done.summary["goal_return"])
    assert second.startswith(f"ended by its goal, at {goal_return}, after ")


@pytest.mark.parametrize(
    "changes", [[], ["stop.mean_return=null"], ["env=pendulum", "network=lstm"]]
)
def test_the_first_lines_say_what_is_trained_where_and_with_what(changes: list[str]) -> None:
    config = compose([*changes, "workers=2", "seed=7"])
    experiment = build_experiment(config)
    lines = opening(experiment, Path("outputs") / "run", 0)
    assert config["env"]["id"] in lines[0] and "seed 7" in lines[0]
    assert f"{experiment.total_steps:,} steps" in lines[1]
    if experiment.reward_threshold is not None:
        assert f"{experiment.reward_threshold:g}" in lines[1]
    assert all(
        word in lines[2]
        for word in ("2 workers", "processes", "Lstm" if "network=lstm" in changes else "Mlp")
    )
    assert lines[3:] == ["folder: outputs/run"]
    assert max(map(len, lines)) < 80, "a terminal does not cut them"
    first, second, *_ = opening(experiment, Path("x"), 300)
    assert first.endswith(" 300 on") and f"to step {experiment.total_steps:,}" in second, "resumed"


@pytest.mark.parametrize(("goal", "said"), [(260, True), (200, False)])
def test_the_first_lines_say_both_returns_where_a_goal_is_not_that_of_a_solved_run(
    goal: int, said: bool
) -> None:
    experiment = build_experiment(compose(["env=lunar", "workers=2", f"stop.mean_return={goal}"]))
    lines = opening(experiment, Path("x"), 0)
    assert f" {goal}" in lines[1]
    assert ("200 counts as solved" in lines[1]) is said
    assert max(map(len, lines)) < 80, "a terminal does not cut them"


def test_the_next_commands_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program is named in full where the shell would not find it; a folder with a space is
    quoted."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "a run"
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable))
    python = os.path.basename(sys.executable)
    assert next_commands("interrupted", folder) == [f"{python} -m a3c_exp resume='a run'"]
    compare, watch, page = next_commands("total_steps", folder)
    assert compare.startswith(f"{python} -m a3c_exp.report "), (
        "without a checkpoint there is no policy to evaluate"
    )
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / "latest.ckpt").touch()
    evaluate, compare, watch, page = next_commands("total_steps", folder)
    assert evaluate.startswith(f"{python} -m a3c_exp.evaluate ") and compare.startswith(
        f"{python} -m a3c_exp.report "
    )
    assert "--logdir 'a run'" in watch
    assert "#custom_scalars" in page

    def allowed(reason: str, callback: Callback, **settings: Any) -> list[str]:
        """What the commands allow again: a folder cannot itself allow code, or what acts beyond
        it."""
        run_config = config(**settings)
        experiment = replace(build_experiment(run_config), callbacks=(callback,))
        run_config["callbacks"] = [recorded(callback)]
        return [
            line.partition("'a run'")[2]
            for line in next_commands(reason, folder, run_config, experiment)
        ]

    own = {"plugins": ["scripted", "user_modules"]}
    filming = [{"RecordVideo": {"video_folder": "films"}}]
    run_config = config(lock=True, record="order", env__wrappers=filming)
    _, replay, *_ = next_commands("total_steps", folder, run_config, build_experiment(run_config))
    assert replay == (
        f"{python} -m a3c_exp replay='a run' 'plugins=[scripted]' "
        "'env.wrappers=[{RecordVideo:{video_folder:films}}]'"
    )
    assert allowed("interrupted", Callback(), env__wrappers=filming, **own) == [
        " 'plugins=[scripted,user_modules]' 'env.wrappers=[{RecordVideo:{video_folder:films}}]'"
    ]
    assert allowed("total_steps", Callback(), **own) == [
        " 'plugins=[scripted,user_modules]'",
        "",
        "",
        "",
    ]
    assert allowed("interrupted", Users()) == [" 'plugins=[scripted,user_callbacks]'"]
    assert allowed("interrupted", NoImprovement()) == [" 'plugins=[scripted]'"]
    monkeypatch.setenv("PATH", "")
    assert "/" in next_commands("interrupted", folder)[0].split()[0]


def test_a_command_names_the_package_of_an_environment_and_a_script_its_method(
    register: Callable[[str, Any], str], tmp_path: Path
) -> None:
    """No command knows what a script or a notebook has registered itself."""

    def command(entry_point: Any) -> str:
        whole = config(register("Own-v0", entry_point), plugins=[])
        [line] = next_commands("interrupted", tmp_path, whole, build_experiment(whole))
        return line

    assert command("scripted.envs:Bandit").endswith(" 'plugins=[scripted]'")
    assert "plugins" not in command("gymnasium.envs.classic_control:CartPoleEnv")
    for of_script in ("__main__:Own", partial(type("Own", (), {"__module__": "__main__"}), 3)):
        call = f"a3c_exp.open_run({short(tmp_path)!r}, plugins=['__main__']).resume()"
        assert command(of_script).endswith(call), "train has raised, and returned no run"


@pytest.mark.parametrize(
    "value",
    [
        ["a word", "it's", "a,b", "sqlite:///mine.db", "1e5", "null", "", "a\\"],
        [None, True, 1, 1e-5, {"name": {"inside": [2]}, "_target_": "a.B"}],
        [{"my_a3c.wrappers:Slow": None}, {"a b,{c}": {"(x)=[y]\\": 1, "${a}": 2}}],
    ],
)
def test_a_value_in_a_command_reads_back(value: list[Any]) -> None:
    [override] = parse([f"callbacks={override_text(value)}"])
    assert to_container(OmegaConf.create({"a": override.value()}))["a"] == value
