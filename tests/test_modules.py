"""Networks of a user's modules in a configuration: their settings, and the classes and values that are refused."""

from __future__ import annotations

from typing import Any

import pytest
import user_modules
from runs import CORNERS, SCRIPTED, config

from a3c_exp.config.builder import load_experiment
from a3c_exp.config.schema import settings_of
from a3c_exp.errors import ConfigError
from a3c_exp.networks import EncoderNetwork, Mlp, ModuleSpec, Network

PLUGINS = ["scripted", "user_modules"]
EVERY = {"init", "init_std", "initial_std", "kernels", "policy_gain", "shared", "state_dependent_std"}


def load(target: str, env: str = SCRIPTED, plugins: list[str] | None = None, **settings: Any) -> Network:
    network = {"_target_": target, **settings}
    return load_experiment(config(env, network=network, plugins=PLUGINS if plugins is None else plugins)).network


def refused(target: str, **settings: Any) -> str:
    """The text of the refusal, which is one line."""
    with pytest.raises(ConfigError) as raised:
        load(target, **settings)
    assert "\n" not in str(raised.value)
    return str(raised.value)


class TestSettings:
    def test_of_an_encoder_are_those_of_every_network_its_constructors_and_the_critics(self) -> None:
        own = {"width", "blocks", "critic_width", "critic_blocks"}
        assert settings_of("user_modules.Residual", PLUGINS) == EVERY | own
        assert settings_of("a3c_exp.networks.Mlp") == EVERY | {
            "hidden_sizes",
            "activation",
            "critic_hidden_sizes",
            "critic_activation",
        }

    def test_of_a_whole_actor_critic_are_its_constructors(self) -> None:
        assert settings_of("user_modules.Gru", PLUGINS) == {"width"}

    def test_become_the_record_of_the_network(self) -> None:
        network = load("user_modules.Residual", width=5.0, critic_width=3, policy_gain=1)
        assert network == EncoderNetwork(
            encoder=ModuleSpec(user_modules.Residual, {"width": 5}),
            critic_encoder=ModuleSpec(user_modules.Residual, {"width": 3}),
            policy_gain=1.0,
        )

    def test_of_the_critic_that_are_null_are_those_of_the_actor(self) -> None:
        network = load("a3c_exp.networks.Mlp", hidden_sizes=[8], critic_hidden_sizes=None)
        assert network == EncoderNetwork(encoder=ModuleSpec(Mlp, {"hidden_sizes": (8,)}))
        assert load("a3c_exp.networks.Mlp", hidden_sizes=[8], shared=True, critic_hidden_sizes=None)


class TestAccepted:
    @pytest.mark.parametrize("name", ["Residual", "Lazy", "Normed", "Constants", "Tied", "Seen", "Gru", "Plain"])
    def test_modules_for_vectors(self, name: str) -> None:
        load(f"user_modules.{name}")

    @pytest.mark.parametrize("name", ["Pictures", "Seen", "SeenRaw"])
    def test_modules_for_pictures(self, name: str) -> None:
        load(f"user_modules.{name}", CORNERS)


class TestRefused:
    @pytest.mark.parametrize(
        ("name", "problem"),
        [
            ("Unannotated", "its constructor's argument 'width' must have an annotation"),
            ("Positional", "its constructor must name each of its arguments, unlike *sizes: 'int'"),
            ("Keywords", "its constructor must name each of its arguments, unlike **sizes: 'int'"),
            ("Clash", "its constructor must not have an argument 'shared'"),
            ("Unreadable", "the annotations of its constructor cannot be read: name 'Decimal' is not defined"),
            ("Unfinished", "must be the class of a Network: Unfinished is abstract"),
            ("Blind", "must be the class of a Network: the constructor of Blind must ask for its observations"),
        ],
    )
    def test_constructors_that_cannot_be_configured(self, name: str, problem: str) -> None:
        target = f"user_modules.{name}"
        assert refused(target).startswith(f"network._target_ = '{target}': {problem}")

    @pytest.mark.parametrize(
        ("settings", "text"),
        [
            ({"inputs": 3}, "network.inputs = 3: is no setting: Residual is given it by the environment's spaces"),
            ({"wdth": 3}, "network.wdth = 3: is no setting of Residual: did you mean 'width'? Allowed: blocks, "),
            ({"width": "3"}, "network.width = '3': must be a whole number"),
            ({"critic_width": "x"}, "network.critic_width = 'x': must be a whole number or null"),
            (
                {"width": 0},
                "network = 'Residual': it cannot be made with {'width': 0}: ValueError: width must",
            ),
            ({"critic_width": 0}, "network = 'Residual': it cannot be made with {'width': 0}: ValueError: width must"),
            ({"shared": True, "critic_width": 3}, "network.critic_width = 3: must be null where shared=true"),
            ({"policy_gain": 0}, "network.policy_gain = 0.0: must be a number > 0"),
            ({"init": "best"}, "network.init = 'best': must be 'orthogonal', 'glorot', 'normalized_columns'"),
            ({"kernels": "numpy"}, "network.kernels = 'numpy': must be auto or torch: Residual is none of the layers"),
        ],
        ids=str,
    )
    def test_settings_of_an_encoder(self, settings: dict[str, Any], text: str) -> None:
        assert refused("user_modules.Residual", **settings).startswith(text)

    @pytest.mark.parametrize(
        ("settings", "text"),
        [
            ({"outputs": 3}, "network.outputs = 3: is no setting: Gru is given it by the environment's spaces"),
            ({"action_space": 3}, "network.action_space = 3: is no setting: Gru is given it by the environment's"),
            ({"shared": True}, "network.shared = True: is no setting of Gru: Allowed: width"),
            ({"critic_width": 3}, "network.critic_width = 3: is no setting of Gru: Allowed: width"),
        ],
        ids=str,
    )
    def test_settings_of_a_whole_actor_critic(self, settings: dict[str, Any], text: str) -> None:
        assert refused("user_modules.Gru", **settings).startswith(text)

    def test_a_missing_setting(self) -> None:
        text = refused("user_modules.FaultyWhole")
        assert text.startswith("network.fault = None: must be given")

    def test_a_name_that_does_not_exist_with_a_guess(self) -> None:
        text = refused("user_modules.Residul")
        assert "is no component class of user_modules: did you mean 'Residual'? Allowed: " in text
        assert "Unfinished" not in text and "Blind" not in text

    def test_records_that_stand_for_a_module(self) -> None:
        text = refused("a3c_exp.networks.EncoderNetwork")
        assert text.endswith("is no component class of a3c_exp.networks: Allowed: Cnn, Impala, Lstm, Mlp")

    def test_a_module_as_another_component(self) -> None:
        whole = config(SCRIPTED, returns={"_target_": "user_modules.Residual"}, plugins=PLUGINS)
        with pytest.raises(ConfigError, match="class of a Returns: Residual is a torch module, which makes a network"):
            load_experiment(whole)

    def test_a_whole_actor_critic_before_cells(self) -> None:
        text = refused("a3c_exp.networks.Lstm", encoder={"_target_": "user_modules.Gru"})
        assert text.startswith("network.encoder = ")
        assert "must be a network without a recurrent state of its own" in text

    def test_a_module_for_observations_of_another_form(self) -> None:
        assert "Residual takes vectors" in refused("user_modules.Residual", env=CORNERS)
        assert "Pictures takes pictures" in refused("user_modules.Pictures")
        encoder = {"_target_": "user_modules.Pictures"}
        assert refused("a3c_exp.networks.Lstm", encoder=encoder).startswith("network.encoder = 'Pictures': ")
