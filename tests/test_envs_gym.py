"""The gymnasium component: what it makes, and what a user is told when it cannot."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Space, Text, Tuple
from refusals import refused
from scripted import Echo

from a3c_exp.envs import Atari, EnvBatch, Gym, SyncEnvBatch


class TestGym:
    def test_options_are_those_of_each_reset(self, register: Any) -> None:
        """A copy each: an environment may change them."""
        resets: list[Any] = []

        class Optional(Echo):
            def reset(self, *, seed: Any = None, options: Any = None) -> Any:
                resets.append(dict(options))
                options.clear()
                return self.observation, {}

        name = register("Optional-v0", lambda: Optional(Box(-1, 1, (1,)), Discrete(2), np.zeros(1)))
        options = {"difficulty": 3}
        batch = Gym(id=name, reset_options=options, max_steps_guard=1).make(2, [0, 1])
        batch.reset()
        batch.step(np.zeros(2, np.int64))
        assert resets == [options] * 4

    @pytest.mark.parametrize("settings", [{"vectorized": True}, {"engine": "envpool"}])
    def test_environments_that_reset_themselves_have_no_options(self, settings: Any) -> None:
        refused(lambda: Gym(id="CartPole-v1", reset_options={"a": 1}, **settings), "reset_options")

    def test_wrappers_go_on_by_name_the_innermost_first(self) -> None:
        wrappers = (
            {"TimeAwareObservation": {"normalize_time": True}},
            {"FrameStackObservation": {"stack_size": 3}},
        )
        batch = Gym(id="CartPole-v1", wrappers=wrappers).make(1, [0])
        assert batch.observation_space.shape == (3, 5)

    def test_a_wrapper_of_a_plugin_goes_on_too(self) -> None:
        environment = Gym(id="CartPole-v1", wrappers=("gymnasium.wrappers:FlattenObservation",))
        environment.validate(["gymnasium"])
        assert environment.make(1, [0]).observation_space.shape == (4,)

    @pytest.mark.parametrize("vectorized", [False, True])
    def test_it_draws_its_first_environment(self, vectorized: bool) -> None:
        scripted = Gym(id="scripted:Scripted-v0", vectorized=vectorized, kwargs={"lengths": [9]})
        batch = scripted.make(2, [0, 1], "rgb_array")
        batch.reset()
        batch.step(np.array([0, 0]))
        np.testing.assert_array_equal(batch.render(), np.ones((4, 6, 3), np.uint8), strict=True)

    @pytest.mark.parametrize("mode", [None, "rgb_array"])
    def test_observations_may_be_what_is_drawn(self, mode: str | None) -> None:
        """Whether or not somebody watches besides."""
        images = Gym(
            id="CartPole-v1",
            kwargs={"render_mode": "rgb_array"},
            wrappers=("AddRenderObservation",),
        )
        batch = images.make(1, [0], mode)
        assert batch.reset().shape == (1, 400, 600, 3)
        assert batch.step(np.array([0])).obs.dtype == np.uint8

    def test_games_are_known_by_their_old_names_too(self) -> None:
        pytest.importorskip("ale_py", reason="Atari games: pip install 'a3c-exp[atari]'")
        batch = made(Gym(id="PongNoFrameskip-v4"))
        assert batch.observation_space.shape == (210, 160, 3)

    def test_a_reward_may_be_an_array_of_one_number(self) -> None:
        """As home-made environments of continuous actions often have it."""

        class Squared(gymnasium.RewardWrapper[Any, Any]):
            def reward(self, reward: Any) -> Any:
                return np.array([reward]) ** 2

        env = Squared(gymnasium.make("Pendulum-v1"))
        batch = SyncEnvBatch([env, env], [0, 1])
        batch.reset()
        assert batch.step(np.zeros((2, 1), np.float32)).reward.shape == (2,)


def made(
    environment: Gym, plugins: tuple[str, ...] = ("scripted",), render_mode: str | None = None
) -> EnvBatch:
    environment.validate(plugins)
    return environment.make(1, [0], render_mode)


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"id": "LunarLander-v2"}, "id", "'LunarLander-v3'"),
    ({"id": "CartPole"}, "id", "'CartPole-v1'"),
    ({"id": "scripted:Scripted-v7"}, "id", "'Scripted-v0'"),
    ({"id": "scripted.none:A-v0"}, "id", "ModuleNotFoundError"),
    ({"id": "Acrobot-v1", "vectorized": True}, "vectorized", "no native vector environment"),
    ({"vectorized": True, "wrappers": ("FlattenObservation",)}, "vectorized", "false"),
    ({"engine": "envpol"}, "engine", "envpool"),
    ({"engine": "envpool", "wrappers": ("TimeAwareObservation",)}, "engine", "wrappers"),
    ({"engine": "m:f", "wrappers": ("FlattenObservation",)}, "engine", "wrappers"),
    ({"engine": "scripted:nothing"}, "engine", "nothing"),
    ({"kwargs": {"gravity_": 1}}, "kwargs", "gravity_"),
    ({"id": "LunarLander-v3", "kwargs": {"gravity": 5.0}}, "kwargs", "gravity"),
    ({"wrappers": ("FlatenObservation",)}, "wrappers", "'FlattenObservation'"),
    ({"wrappers": ("ImgObsWrapper",)}, "wrappers", "module:Class"),
    ({"wrappers": ("AddRenderObservation",)}, "wrappers", "does not fit CartPole-v1"),
    ({"wrappers": ({"ClipAction": {}},)}, "wrappers", "does not fit CartPole-v1"),
    ({"wrappers": ({"A": {}, "B": {}},)}, "wrappers", "{name: {argument: value}}"),
    ({"max_episode_steps": 0}, "max_episode_steps", ">= 1"),
    ({"reward_scale": 0.0}, "reward_scale", "> 0"),
    ({"reward_scale": 1e39}, "reward_scale", "3e38"),
    ({"reward_clip": -1.0}, "reward_clip", "> 0"),
    ({"terminal_reward": 1e39}, "terminal_reward", ""),
]


class TestErrors:
    """Each names the key, the value and what is allowed."""

    @pytest.mark.parametrize(("settings", "key", "hint"), REFUSED, ids=str)
    def test_what_cannot_be_made(self, settings: dict[str, Any], key: str, hint: str) -> None:
        value = settings["wrappers"][0] if key == "wrappers" else settings[key]
        assert hint in refused(lambda: made(Gym(**{"id": "CartPole-v1"} | settings)), key, value)

    def test_a_window_for_workers(self) -> None:
        refused(
            lambda: Gym(id="CartPole-v1", kwargs={"render_mode": "human"}),
            "kwargs.render_mode",
            "human",
        )

    def test_a_module_that_the_user_has_not_allowed_is_not_imported(self) -> None:
        assert "plugins=[antigravity]" in refused(lambda: made(Gym(id="antigravity:Fly-v0")), "id")
        assert "antigravity" not in sys.modules
        refused(
            lambda: made(Gym(id="CartPole-v1", wrappers=("os:system",))), "wrappers", "os:system"
        )

    def test_a_wrapper_of_another_package_than_the_environments_own(self) -> None:
        own = ("minigrid.wrappers:OneHotPartialObsWrapper",)
        Gym(id="MiniGrid-MemoryS7-v0", wrappers=own).validate([])
        refused(lambda: Gym(id="CartPole-v1", wrappers=own).validate([]), "wrappers", own[0])
        refused(
            lambda: Gym(id="MiniGrid-MemoryS7-v0", wrappers=("os:system",)).validate([]),
            "wrappers",
            "os:system",
        )
        refused(lambda: made(Gym(id="scripted_not:A-v0")), "id")
        refused(lambda: made(Gym(id="CartPole-v1", engine="os:system")), "engine", "os:system")

    @pytest.mark.parametrize(
        ("name", "extra"),
        [
            ("ALE/Pong-v5", "atari"),
            ("MiniGrid-Empty-5x5-v0", "minigrid"),
            ("VizdoomBasic-v1", "doom"),
            ("dm_control/cartpole-balance-v0", "dm_control"),
            ("Hopper-v5", "mujoco"),
        ],
    )
    def test_the_package_of_an_extra_is_missing(
        self, name: str, extra: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        assert f"a3c-exp[{extra}]" in refused(lambda: made(Gym(id=name)), "id", name)

    def test_a_package_that_registers_lacks_another_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "shimmy.py").write_text("import imageio_that_is_missing\n")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "shimmy", raising=False)
        name = "dm_control/cartpole-balance-v0"
        assert "imageio_that_is_missing" in refused(lambda: made(Gym(id=name)), "id", name)

    def test_the_system_lacks_a_library_of_a_package(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "vizdoom").mkdir()
        (tmp_path / "vizdoom" / "__init__.py").write_text('raise ImportError("libz.so.1: missing")')
        monkeypatch.syspath_prepend(tmp_path)
        for name in [name for name in sys.modules if name.partition(".")[0] == "vizdoom"]:
            monkeypatch.delitem(sys.modules, name)
        name = "VizdoomBasic-v1"
        assert "libz.so.1: missing" in refused(lambda: made(Gym(id=name)), "id", name)

    @pytest.mark.parametrize(("module", "key"), [("ale_py.vector_env", "game"), ("cv2", "crop")])
    def test_atari_lacks_a_part(
        self, module: str, key: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip("ale_py")
        pytest.importorskip("cv2")
        spec = ModuleSpec(module, None, origin="there")
        monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)
        monkeypatch.setitem(sys.modules, module, None)
        pong = Atari(game="pong", crop=(0, 210, 0, 160))
        assert module in refused(lambda: pong.make(1, [0]), key)

    def test_the_package_of_atari_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        assert "a3c-exp[atari]" in refused(lambda: Atari(game="pong").make(1, [0]), "game")

    def test_the_vector_form_of_atari_is_a_component_of_its_own(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """gymnasium's way to it clips rewards without a word."""
        pong = replace(gymnasium.registry["Scripted-v0"], entry_point="ale_py.env:AtariEnv")
        monkeypatch.setitem(gymnasium.registry, "ALE/Pong-v5", replace(pong, id="ALE/Pong-v5"))
        vector = Gym(id="ALE/Pong-v5", vectorized=True)
        assert "env=atari" in refused(lambda: vector.make(1, [0]), "vectorized")

    def test_a_package_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """gymnasium's own message says how to install it."""
        monkeypatch.setitem(sys.modules, "cv2", None)
        wrapper = {"ResizeObservation": {"shape": [8, 8]}}
        assert "pip install" in refused(
            lambda: made(Gym(id="scripted:Corners-v0", wrappers=(wrapper,))), "wrappers"
        )

    @pytest.mark.parametrize(
        ("observations", "actions", "hint"),
        [
            (Dict({"a": Discrete(2), "b": Text(3)}), Discrete(2), "Text"),
            (Text(3), Discrete(2), "Text"),
            (Discrete(2), Dict({"a": Discrete(2)}), "Dict"),
            (Discrete(2), Tuple([Discrete(2), Box(0, 1)]), "one agent"),
            (Discrete(2), Box(0, 5, (2,), np.int32), "int32"),
        ],
    )
    def test_spaces_that_no_policy_here_understands(
        self, observations: Space[Any], actions: Space[Any], hint: str, register: Any
    ) -> None:
        name = register("Echo-v0", lambda: Echo(observations, actions, None))
        assert hint in refused(lambda: made(Gym(id=name)), "id")

    @pytest.mark.parametrize(
        ("name", "hint"), [("Scripted", "it offers rgb_array"), ("Bandit", "render_mode")]
    )
    def test_a_way_of_drawing_that_it_does_not_have(self, name: str, hint: str) -> None:
        assert hint in refused(
            lambda: made(Gym(id=f"scripted:{name}-v0"), render_mode="ansi"), "id"
        )

    def test_a_film_of_a_class_that_cannot_be_drawn(self, register: Any) -> None:
        name = register("Plain-v0", lambda: Echo(Discrete(2), Discrete(2), None))
        problem = refused(lambda: made(Gym(id=name), render_mode="rgb_array"), "id", name)
        for needed in ("render_mode=None", "'render_modes': ['rgb_array']", "render()"):
            assert needed in problem

    def test_a_class_of_the_program_that_is_not_registered(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys.modules["__main__"], "Walk", Echo, raising=False)
        line = 'gymnasium.register("Walk-v0", entry_point=Walk)'
        for name in ("Walk", "Walk-v3", "__main__:Walk"):
            assert line in refused(partial(made, Gym(id=name)), "id", name)
        env = Gym(id="__main__:Walk")
        assert line in refused(partial(env.validate, []), "id", env.id)
        env.validate(["__main__"])


@pytest.mark.parametrize(("settings", "warns"), [({"vectorized": True}, True), ({}, False)])
def test_a_guard_that_a_native_vector_does_not_keep_is_warned_of(
    settings: dict[str, Any], warns: bool
) -> None:
    env = Gym(id="CartPole-v1", max_steps_guard=30, **settings)
    assert ("max_steps_guard" in (env.warning() or "")) == warns
    assert Gym(id="CartPole-v1", vectorized=True).warning() is None
