"""`env.normalize_observations=background`: the most frequent byte of a random play becomes 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from gymnasium.spaces import Box, Discrete
from runs import CORNERS, SMALL_CNN, TARGET, config, latest, train, train_config

import a3c_exp
from a3c_exp.__main__ import main
from a3c_exp.cli.resume import saved_config
from a3c_exp.config.background import count_bytes, measure_background
from a3c_exp.config.builder import load_experiment
from a3c_exp.config.final import as_typed
from a3c_exp.config.saved import read_config
from a3c_exp.envs import Atari, Environment, Gym
from a3c_exp.envs.batch import EnvBatch, Normalization
from a3c_exp.errors import ConfigError, RunError
from a3c_exp.run import checkpoint
from a3c_exp.run.policy import make_policy

QUARTER = 64.0
PICTURES: dict[str, Any] = {"network": SMALL_CNN, "env__normalize_observations": "background"}


@dataclass(frozen=True, kw_only=True)
class Failing(Environment):
    normalize_observations: Normalization = "background"

    def make(self, count: int, seeds: Sequence[int], render_mode: str | None = None) -> EnvBatch:
        raise RunError("environment 0 raised ValueError\nTraceback (most recent call last):\n...")


def test_it_is_the_most_frequent_byte_of_all_pictures() -> None:
    """Corners is noise below 100 with a square of 255."""
    env = Gym(id=CORNERS, normalize_observations="background")
    assert measure_background(env) == (255.0, QUARTER)
    counts = count_bytes(env, steps=50)
    assert counts.sum() == 50 * 12 * 12 * 3
    assert counts[100:255].sum() == 0
    assert counts[255] > 2 * counts[:100].max()
    np.testing.assert_array_equal(counts, count_bytes(env, steps=50), "random play has a fixed seed")


@pytest.mark.parametrize(("game", "gray"), [("pong", 87), ("breakout", 0)])
def test_it_is_what_the_environments_of_two_games_begin_with(game: str, gray: int) -> None:
    pytest.importorskip("ale_py", reason="Atari games: pip install 'a3c-exp[atari]'")
    assert measure_background(Atari(game=game)) == (gray, 64)


def test_a_run_and_its_policy_subtract_it(tmp_path: Path) -> None:
    whole = config(CORNERS, "processes", total_steps=400, **PICTURES)
    train_config(whole, tmp_path)
    saved = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert saved["env"]["normalize_observations"] == [255.0, QUARTER]
    assert saved["typed"]["env.normalize_observations"] == "background"
    assert "pixels: less 255, over 64" in (tmp_path / "train.log").read_text()
    train_config(whole | {"total_steps": 600}, tmp_path, resume=True)
    state = latest(tmp_path)["store"]
    assert state["steps"] >= 600
    assert not state["stats"].size, "workers measure nothing"
    pixels = make_policy(load_experiment(whole), state).network.observation_input.pixels
    assert pixels is not None
    assert (pixels.center, pixels.scale) == (255.0, 1 / QUARTER)


AUTO: dict[str, Any] = {"env__normalize_observations": "auto"}


def test_auto_is_the_background_of_pictures_whose_pixels_the_network_scales() -> None:
    assert load_experiment(config(CORNERS, network=SMALL_CNN, **AUTO)).env.normalize_observations == (255.0, QUARTER)


def test_auto_is_false_for_all_other_observations() -> None:
    assert load_experiment(config(TARGET, **AUTO)).env.normalize_observations is False


def test_a_whole_network_that_asks_for_no_pictures_takes_them_as_they_are(tmp_path: Path) -> None:
    own = {"_target_": "user_modules.OnlyOutputs"}
    whole: dict[str, Any] = {"network": own, "plugins": ["scripted", "user_modules"]}
    train(tmp_path, CORNERS, total_steps=40, **whole, **AUTO)
    message = r"env.normalize_observations = 'shared': must be false or auto: the network takes pictures as they are"
    with pytest.raises(ConfigError, match=message):
        load_experiment(config(CORNERS, env__normalize_observations="shared", **whole))


def test_a_run_of_before_keeps_the_numbers_in_its_checkpoints(tmp_path: Path) -> None:
    """Its config.yaml has what they stand for; another play of the same environment may find others."""
    setting = "auto"
    train(tmp_path, CORNERS, total_steps=200, network=SMALL_CNN, env__normalize_observations=[3.0, 60.0])
    for path in (tmp_path / "checkpoints").iterdir():
        state = checkpoint.load(path)
        state["store"]["pixels"] = np.array([3.0, 60.0])
        checkpoint.save(path, state)
    saved = yaml.safe_load((tmp_path / "config.yaml").read_text())
    saved["env"]["normalize_observations"] = setting
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(saved))
    read = read_config(tmp_path, ["scripted"])
    assert read["env"]["normalize_observations"] == [3.0, 60.0]
    assert as_typed(read)["env"]["normalize_observations"] == setting
    pixels = a3c_exp.load(tmp_path, ["scripted"], ["env.id"]).network.observation_input.pixels
    assert pixels is not None
    assert pixels.center == 3.0
    assert main([f"resume={tmp_path}", "total_steps=400", "plugins=[scripted]"]) == 0
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["env"]["normalize_observations"] == [3.0, 60.0]


def test_a_copy_with_another_environment_measures_again(here: Path) -> None:
    train(here / "run", CORNERS, total_steps=40, **PICTURES)
    common = [f"from={here / 'run'}", "plugins=[scripted]"]
    assert main([*common, "seed=1", "hydra.run.dir=same"]) == 0
    assert read_config(here / "same")["env"]["normalize_observations"] == [255.0, QUARTER]
    changed = saved_config(str(here / "run"), ["plugins=[scripted]", "env.wrappers=[]"], resume=False).config
    assert changed["env"]["normalize_observations"] == "background"
    assert "env.normalize_observations" not in changed["typed"]


def test_the_deviation_is_a_quarter_of_the_levels_that_the_space_has() -> None:
    space, picture = Box(0, 3, (2, 8, 8), np.uint8), np.ones((2, 8, 8), np.uint8)
    few = Gym(id="scripted:Echo-v0", kwargs={"observations": space, "actions": Discrete(2), "observation": picture})
    assert measure_background(few) == (1.0, 1.0)


def test_parameters_of_a_run_on_pictures_over_255_are_not_taken_by_one_with_auto(tmp_path: Path) -> None:
    train(tmp_path, CORNERS, network=SMALL_CNN, total_steps=40)
    with pytest.raises(ConfigError, match=r"init_from = .*: must be a run with env.normalize_observations=\[255"):
        load_experiment(config(CORNERS, network=SMALL_CNN, init_from=str(tmp_path), **AUTO))


def test_only_pictures_of_bytes_have_one() -> None:
    message = r"env.normalize_observations = 'background': must be true, 'shared' or false: observations"
    with pytest.raises(ConfigError, match=message):
        load_experiment(config(TARGET, env__normalize_observations="background"))


def test_an_environment_that_cannot_be_played_is_refused_in_one_line() -> None:
    message = "normalize_observations = 'background': cannot be measured (false: it is not): environment 0 raised "
    with pytest.raises(ConfigError) as caught:
        measure_background(Failing())
    assert str(caught.value) == message + "ValueError"


def test_nothing_is_played_that_may_not_be_imported() -> None:
    """A configuration alone may not ask for the code of a module."""
    with pytest.raises(ConfigError, match=r"env.id = 'scripted:Corners-v0': .*plugins"):
        load_experiment(config(CORNERS, plugins=[], **PICTURES), check=False)
