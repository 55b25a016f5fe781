"""Vector environments that are not gymnasium's own: of a plugin, and of EnvPool."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Text
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import FilterObservation, FlattenObservation
from refusals import refused

import a3c_exp
from a3c_exp.envs import EnvBatch, Gym
from a3c_exp.envs.vector_batch import VectorFilter, VectorFlatten
from a3c_exp.errors import ConfigError

IDS = [
    "CartPole-v1",
    "Acrobot-v1",
    "MountainCar-v0",
    "Pendulum-v1",
    "LunarLander-v3",
    "LunarLanderContinuous-v3",
]
IDS += ["BipedalWalker-v3", "MountainCarContinuous-v0", "Hopper-v5"]
needs_envpool = pytest.mark.skipif(
    find_spec("envpool") is None, reason="pip install 'a3c-exp[envpool]'"
)


def play(batch: EnvBatch, steps: int) -> list[Any]:
    rng = np.random.default_rng(0)
    batch.action_space.seed(int(rng.integers(2**31)))
    batch.reset()
    return [
        batch.step(np.stack([batch.action_space.sample() for _ in range(batch.count)]))
        for _ in range(steps)
    ]


def test_a_function_of_a_plugin_makes_the_environments(tmp_path: Path) -> None:
    """`scripted:engine` makes gymnasium's CartPole: the run is that of
    `env=cartpole env.vectorized=true`."""
    same = [
        "backend=serial",
        "workers=1",
        "total_steps=2000",
        "eval.every=null",
        "env=cartpole",
        "plugins=[scripted]",
    ]
    runs = [
        a3c_exp.train([*same, setting], tmp_path / setting)
        for setting in ("env.engine=scripted:engine", "env.vectorized=true")
    ]
    engines, gymnasiums = (
        a3c_exp.load(run.folder, ["scripted"]).network.state_dict() for run in runs
    )
    assert all((engines[name] == gymnasiums[name]).all() for name in gymnasiums)


class Parts(gymnasium.Env[Any, Any]):
    """Observations of several parts, at random."""

    observation_space = Dict(
        {
            "word": Text(9),
            "grid": Box(0, 255, (2, 3), np.uint8),
            "side": Discrete(4, start=-1),
            "lamps": MultiBinary(3),
        }
    )
    action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 0.0, False, False, {}


def test_parts_of_a_native_vector_are_flattened_as_gymnasium_flattens_them() -> None:
    keys = ["side", "grid", "lamps"]
    vector = VectorFlatten(VectorFilter(SyncVectorEnv([Parts, Parts]), keys))
    single = FlattenObservation(FilterObservation(Parts(), filter_keys=keys))
    observations, _ = vector.reset(seed=1)  # and the second environment 2
    assert vector.single_observation_space == single.observation_space
    assert observations.dtype == single.observation_space.dtype
    for seed, observation in zip([1, 2], observations, strict=True):
        assert np.array_equal(observation, single.reset(seed=seed)[0])


def test_a_part_that_is_not_there_or_that_is_a_text_is_refused() -> None:
    with pytest.raises(ValueError, match="word"):
        VectorFilter(SyncVectorEnv([Parts]), ["words"])
    with pytest.raises(TypeError, match="word"):
        VectorFlatten(SyncVectorEnv([Parts]))
    with pytest.raises(TypeError, match="Dict"):
        VectorFlatten(SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")]))


class Closing(Parts):
    """Counts how many of its environments have been closed."""

    closed = 0

    def close(self) -> None:
        Closing.closed += 1


def closing(name: str = "", num_envs: int = 1, seed: int = 0) -> Any:
    return SyncVectorEnv([Closing] * num_envs)


@pytest.mark.parametrize("settings", [{"engine": f"{__name__}:closing"}, {"vectorized": True}])
def test_a_vector_that_no_policy_can_use_is_closed(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "Closing-v0"
    spec = EnvSpec(name, vector_entry_point=f"{__name__}:closing")
    monkeypatch.setitem(gymnasium.registry, name, spec)
    monkeypatch.setattr(Closing, "closed", 0)
    refused(lambda: Gym(id=name, **settings).make(2, [0, 1]), "id", name)
    assert Closing.closed == 2


@pytest.mark.skipif(find_spec("envpool") is not None, reason="EnvPool is there")
def test_without_envpool_the_extra_is_named() -> None:
    assert "envpool" in refused(
        lambda: Gym(id="CartPole-v1", engine="envpool").make(1, [0]), "engine"
    )


@needs_envpool
@pytest.mark.parametrize("name", IDS)
def test_envpool_is_the_environment_that_gymnasium_has(name: str) -> None:
    """Its spaces, time limit and ends; its random numbers are others."""
    if name == "Hopper-v5":
        pytest.importorskip("mujoco", reason="robots: pip install 'a3c-exp[mujoco]'")
    batch = Gym(id=name, engine="envpool").make(3, [1, 2, 3])
    gymnasium_env = gymnasium.make(name)
    assert batch.observation_space.shape == gymnasium_env.observation_space.shape
    # EnvPool's robots take float64: only the type differs.
    assert str(batch.action_space).replace("float64", "float32") == str(gymnasium_env.action_space)
    limit = gymnasium_env.spec.max_episode_steps if gymnasium_env.spec else None
    assert limit is not None
    began = np.zeros(3, int)
    lengths = []
    for tick, step in enumerate(play(batch, 3 * limit), start=1):
        assert not (step.reward[~step.valid].any() or step.terminated[~step.valid].any())
        began[~step.valid] = tick
        for index in np.flatnonzero(step.episode_over):
            lengths.append(tick - began[index])
            assert step.truncated[index] == (lengths[-1] == limit) or step.terminated[index]
            assert np.array_equal(step.final_obs[index], step.obs[index]), (
                "the next row starts the episode"
            )
    assert lengths and max(lengths) <= limit
    shorter = Gym(id=name, engine="envpool", max_episode_steps=5).make(2, [1, 2])
    assert [bool(step.truncated.all()) for step in play(shorter, 5)] == [False] * 4 + [True]


@needs_envpool
def test_envpool_and_gymnasium_show_the_same_of_minigrid() -> None:
    pytest.importorskip("minigrid", reason="pip install 'a3c-exp[minigrid]'")
    wrappers = (
        {"FilterObservation": {"filter_keys": ["direction", "image"]}},
        "FlattenObservation",
    )
    # the same room for every seed
    environment = {"id": "MiniGrid-Empty-5x5-v0", "wrappers": wrappers}
    batches = [
        Gym(engine=engine, **environment).make(2, [1, 2])  # type: ignore[arg-type]
        for engine in ("envpool", "gymnasium")
    ]
    for envpool, own in zip(*(batch_observations(batch) for batch in batches), strict=True):
        assert np.array_equal(envpool, own)


def batch_observations(batch: EnvBatch) -> list[Any]:
    """The observations of a walk around the room, which turns and goes forward."""
    walk = [2, 2, 1, 2, 0, 0, 2, 1]
    return [batch.reset(), *(batch.step(np.full(batch.count, action)).obs for action in walk)]


@needs_envpool
def test_envpool_repeats_a_run_by_its_seed_and_plays_evaluations(tmp_path: Path) -> None:
    settings = [
        "env=acrobot",
        "env.engine=envpool",
        "backend=serial",
        "workers=1",
        "total_steps=4000",
        "plugins=[]",
    ]
    runs = [a3c_exp.train(settings, tmp_path / name) for name in ("a", "b")]
    one, other = (a3c_exp.load(run.folder).network.state_dict() for run in runs)
    assert all((one[name] == other[name]).all() for name in one)
    assert runs[0].summary["best_eval_return"] is not None


@needs_envpool
def test_an_environment_that_envpool_lacks_is_named() -> None:
    with pytest.raises(ConfigError, match="NoSuch-v0"):
        Gym(id="NoSuch-v0", engine="envpool").make(1, [0])
