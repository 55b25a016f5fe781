"""`env.normalize_observations=background`: the most frequent byte of a random play becomes 0."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import yaml
from gymnasium.spaces import Box, Discrete
from refusals import refused
from runs import CORNERS, QUICK, SMALL_CNN, TARGET, config, latest, train, train_config

from a3c_exp import compose
from a3c_exp.__main__ import main
from a3c_exp.cli.arguments import read_arguments
from a3c_exp.cli.resume import saved_plan
from a3c_exp.config import builder
from a3c_exp.config.builder import count_bytes, load_experiment, load_final, measure
from a3c_exp.config.saved import read_config
from a3c_exp.core.experiment import build_network
from a3c_exp.envs import Gym
from a3c_exp.envs.batch import Normalization
from a3c_exp.run.policy import Policy

QUARTER = 64.0
IMAGES: dict[str, Any] = {"network": SMALL_CNN, "env__normalize_observations": "background"}


def normalization(env: str, check: bool = True, **settings: Any) -> Normalization:
    """What the setting of an experiment stands for."""
    load = load_experiment if check else lambda config: load_final(config)[1]
    return load(config(env, **settings)).env.normalize_observations


def test_it_is_the_most_frequent_byte_of_all_images() -> None:
    """Corners is noise below 100 with a square of 255."""
    counts = count_bytes(Gym(id=CORNERS).make(1, [0]), steps=50)
    assert counts.sum() == 50 * 12 * 12 * 3
    assert counts[100:255].sum() == 0
    assert counts[255] > 2 * counts[:100].max()
    again = count_bytes(Gym(id=CORNERS).make(1, [0]), steps=50)
    np.testing.assert_array_equal(counts, again, "random play has a fixed seed")


def test_of_a_game_it_is_what_its_environments_begin_with() -> None:
    pytest.importorskip("ale_py", reason="Atari games: pip install 'a3c-exp[atari]'")
    experiment = load_final(compose(["env=atari", "env.game=pong"]))[1]
    assert experiment.env.normalize_observations == (87, 64)


def test_a_run_and_its_policy_subtract_it(tmp_path: Path) -> None:
    run_config = config(CORNERS, "processes", total_steps=400, **IMAGES)
    train_config(run_config, tmp_path)
    saved = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert saved["env"]["normalize_observations"] == [255.0, QUARTER]
    assert saved["typed"]["env.normalize_observations"] == "background"
    train_config(run_config | {"total_steps": 600}, tmp_path, resume=True)
    state = latest(tmp_path)["store"]
    assert state["steps"] >= 600
    assert not state["stats"].size, "workers measure nothing"
    pixels = Policy(load_experiment(run_config), state).network.observation_input.pixels
    assert pixels is not None
    assert (pixels.center, pixels.scale) == (255.0, 1 / QUARTER)


AUTO: dict[str, Any] = {"env__normalize_observations": "auto"}


def test_auto_is_the_background_of_images_whose_pixels_the_network_scales() -> None:
    assert normalization(CORNERS, network=SMALL_CNN, **AUTO) == (255.0, QUARTER)
    assert normalization(TARGET, **AUTO) is False, "there are none"


def byte_vector(*, inside_a_dict: bool = False) -> Gym:
    """Bytes that are no pixels: the memory of a console."""
    memory = {
        "observations": Box(0, 255, (4,), np.uint8),
        "actions": Discrete(2),
        "observation": np.arange(4, dtype=np.uint8),
    }
    with_time = ({"TimeAwareObservation": {"flatten": False}},) if inside_a_dict else ()
    return Gym(
        id="scripted:Echo-v0",
        kwargs=memory,
        wrappers=with_time,
        max_episode_steps=9,
        normalize_observations="auto",
    )


def test_auto_is_true_for_vectors_of_bytes() -> None:
    experiment = load_experiment(config(TARGET))
    assert measure(replace(experiment, env=byte_vector())) is True
    parts = byte_vector(inside_a_dict=True)
    assert measure(replace(experiment, env=parts)) is False, "the other parts would be scaled too"


@pytest.mark.parametrize("inside_a_dict", [False, True])
def test_bytes_that_are_not_scaled_are_warned_of(inside_a_dict: bool) -> None:
    experiment = load_experiment(config(TARGET))
    env = byte_vector(inside_a_dict=inside_a_dict)
    for setting, warns in ((False, True), (True, False)):
        with_bytes = replace(experiment, env=replace(env, normalize_observations=setting))
        network, _ = build_network(with_bytes)
        assert any("255" in warning for warning in network.warnings) == warns


@pytest.mark.parametrize(("high", "dtype"), [(255, np.float32), (65535, np.uint16)])
def test_images_that_are_no_bytes_and_not_scaled_are_warned_of(high: int, dtype: type) -> None:
    images = {
        "observations": Box(0, high, (8, 8, 1), dtype),
        "actions": Discrete(2),
        "observation": np.ones((8, 8, 1), dtype),
    }
    env = Gym(id="scripted:Echo-v0", kwargs=images, max_episode_steps=9)
    experiment = load_experiment(config(CORNERS, network=SMALL_CNN))
    for setting, warns in ((False, True), (True, False)):
        with_images = replace(experiment, env=replace(env, normalize_observations=setting))
        network, _ = build_network(with_images)
        assert any("255" in warning for warning in network.warnings) == warns


def test_a_whole_network_that_asks_for_no_images_takes_them_as_they_are(tmp_path: Path) -> None:
    module = {"_target_": "user_modules.OnlyOutputs"}
    settings: dict[str, Any] = {"network": module, "plugins": ["scripted", "user_modules"]}
    train(tmp_path, CORNERS, total_steps=40, **settings, **AUTO)
    shared = config(CORNERS, env__normalize_observations="shared", **settings)
    refused(lambda: load_experiment(shared), "env.normalize_observations", "shared")


def test_a_copy_with_another_environment_measures_again(here: Path) -> None:
    train(here / "run", CORNERS, total_steps=40, **IMAGES)
    common = [f"from={here / 'run'}", "plugins=[scripted]"]
    assert main([*common, "seed=1", "hydra.run.dir=same"]) == 0
    assert read_config(here / "same")["env"]["normalize_observations"] == [255.0, QUARTER]
    changed = saved_plan(
        "from", str(here / "run"), read_arguments([*common, "env.wrappers=[]"])
    ).config
    assert changed["env"]["normalize_observations"] == "background"
    assert "env.normalize_observations" not in changed["typed"]


def test_the_jobs_of_a_sweep_measure_one_environment_once(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = Mock(side_effect=count_bytes)
    monkeypatch.setattr(builder, "count_bytes", count)
    network = "network={_target_:a3c_exp.networks.Cnn,layers:[[8,3,2]],features_dim:32}"
    environment = [f"env.id={CORNERS}", "env.normalize_observations=background"]
    sweep = ["sweep=two", "seed=0,1", "gamma=0.9,0.99", "--cfg", "job"]
    assert main([*QUICK, *sweep, "plugins=[scripted]", "env=gym", *environment, network]) == 0
    assert count.call_count == 1


def test_the_deviation_is_a_quarter_of_the_levels_that_the_space_has() -> None:
    space = Box(0, 3, (2, 8, 8), np.uint8)
    image = np.ones((2, 8, 8), np.uint8)
    few = Gym(
        id="scripted:Echo-v0",
        kwargs={"observations": space, "actions": Discrete(2), "observation": image},
    )
    experiment = load_experiment(config(CORNERS, network=SMALL_CNN))
    with_few = replace(few, normalize_observations="background")
    assert measure(replace(experiment, env=with_few)) == (1.0, 1.0)
    assert replace(few, normalize_observations=(0.0, 0.5)).normalize_observations == (0.0, 0.5), (
        "two levels: as allowed"
    )


@pytest.mark.parametrize(
    ("env", "settings", "key", "hint"),
    [
        (
            TARGET,
            {"env__normalize_observations": "background"},
            "env.normalize_observations",
            "no images of bytes",
        ),
        (
            CORNERS,
            {**IMAGES, "env__kwargs": {"size": 4}},
            "env.normalize_observations",
            "cannot be measured",
        ),
        (CORNERS, {**IMAGES, "plugins": []}, "env.id", "plugins"),
    ],
    ids=["no images", "an environment that fails", "code that may not be imported"],
)
def test_what_cannot_be_measured_is_refused(
    env: str, settings: dict[str, Any], key: str, hint: str
) -> None:
    assert hint in refused(lambda: normalization(env, check=False, **settings), key)
