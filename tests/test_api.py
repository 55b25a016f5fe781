"""`import a3c_exp`: training and playing from a program or a notebook."""

from __future__ import annotations

import math
import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra import initialize_config_dir, version
from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import JobRuntime
from refusals import refused
from runs import QUICK, summary, wait_until

import a3c_exp
from a3c_exp import ConfigError, RunError, compose
from a3c_exp.core.experiment import Experiment
from a3c_exp.networks import ActorCritic


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
    assert a3c_exp.load(run.folder).act([0.0, 0.0, 0.0, 0.0]) in (0, 1)
    assert {name: getattr(a3c_exp, name) for name in a3c_exp.__all__} == before


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
