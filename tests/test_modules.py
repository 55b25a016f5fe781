"""Networks of a user's modules in a configuration: their settings, and the classes and values that
are refused."""

from __future__ import annotations

from typing import Any

import pytest
import user_modules
from refusals import refused
from runs import CORNERS, SCRIPTED, config

from a3c_exp.config.builder import load_experiment
from a3c_exp.config.schema import settings_of
from a3c_exp.errors import ConfigError
from a3c_exp.networks import EncoderNetwork, Mlp, ModuleSpec, Network

PLUGINS = ["scripted", "user_modules"]
EVERY = {"init", "init_std", "initial_std", "policy_gain", "shared", "state_dependent_std"}
EVERY |= {"distribution", "squash_mean", "softplus_std", "clip_actions", "head_bias", "dueling"}
LSTM = "a3c_exp.networks.Lstm"


def load(target: str, env: str = SCRIPTED, **settings: Any) -> Network:
    network = {"_target_": target if "." in target else f"user_modules.{target}", **settings}
    return load_experiment(config(env, network=network, plugins=PLUGINS)).network


def test_settings_are_those_of_every_network_of_the_constructor_and_of_the_critic() -> None:
    particular = {"width", "blocks", "critic_width", "critic_blocks"}
    assert settings_of("user_modules.Residual", PLUGINS).keys() == EVERY | particular
    particular = {"hidden_sizes", "activation", "critic_hidden_sizes", "critic_activation"}
    assert settings_of("a3c_exp.networks.Mlp").keys() == EVERY | particular
    assert settings_of("user_modules.Gru", PLUGINS).keys() == {"width"}, (
        "a whole actor-critic has its constructor's"
    )


def test_settings_become_the_record_of_the_network() -> None:
    assert load("Residual", width=5.0, critic_width=3, policy_gain=1) == EncoderNetwork(
        encoder=ModuleSpec(user_modules.Residual, {"width": 5}),
        critic_encoder=ModuleSpec(user_modules.Residual, {"width": 3}),
        policy_gain=1.0,
    )
    as_the_actor = EncoderNetwork(encoder=ModuleSpec(Mlp, {"hidden_sizes": (8,)}), shared=True)
    loaded = load("a3c_exp.networks.Mlp", hidden_sizes=[8], critic_hidden_sizes=None, shared=True)
    assert loaded == as_the_actor


VECTORS = ("Residual", "Lazy", "Normed", "Constants", "Tied", "Gru", "Plain")


@pytest.mark.parametrize("name", [*VECTORS, "Images", "Seen", "SeenRaw"])
def test_modules_for_vectors_and_images_are_accepted(name: str) -> None:
    load(name, SCRIPTED if name in VECTORS else CORNERS)


@pytest.mark.parametrize(
    ("name", "settings", "key", "word"),
    [
        ("Unannotated", {}, "_target_", "'width' must have an annotation"),
        ("Positional", {}, "_target_", "unlike *sizes"),
        ("Clash", {}, "_target_", "'shared'"),
        ("Unreadable", {}, "_target_", "'Decimal' is not defined"),
        ("Unfinished", {}, "_target_", "abstract"),
        ("Blind", {}, "_target_", "must ask for its observations"),
        ("Residul", {}, "_target_", "did you mean 'Residual'?"),
        (
            "a3c_exp.networks.EncoderNetwork",
            {},
            "_target_",
            "Allowed: Cnn, DictEncoder, Impala, Lstm, Mlp",
        ),
        ("Residual", {"inputs": 3}, "inputs", "by the environment's spaces"),
        ("Residual", {"wdth": 3}, "wdth", "did you mean 'width'?"),
        ("Residual", {"width": "3"}, "width", "a whole number"),
        ("Residual", {"critic_width": "x"}, "critic_width", "a whole number or null"),
        ("Residual", {"width": 0}, "", "ValueError: width must be at least 1"),
        ("Residual", {"shared": True, "critic_width": 3}, "critic_width", "shared=true"),
        ("Residual", {"policy_gain": 0}, "policy_gain", "> 0"),
        ("Residual", {"init": "best"}, "init", "'orthogonal'"),
        ("Gru", {"action_space": 3}, "action_space", "by the environment's spaces"),
        ("Gru", {"shared": True}, "shared", "Allowed: width"),
        ("FaultyWhole", {}, "fault", "must be given"),
        (
            LSTM,
            {"encoder": {"_target_": "user_modules.Gru"}},
            "encoder",
            "without a recurrent state",
        ),
        (
            LSTM,
            {"encoder": {"_target_": "user_modules.Images"}},
            "encoder",
            "Images takes images",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_configured_is_refused(
    name: str, settings: dict[str, Any], key: str, word: str
) -> None:
    assert word in refused(lambda: load(name, **settings), f"network.{key}".rstrip("."))


def test_a_module_as_another_component_is_refused() -> None:
    run_config = config(SCRIPTED, returns={"_target_": "user_modules.Residual"}, plugins=PLUGINS)
    with pytest.raises(ConfigError, match="Residual is a torch module, which makes a network"):
        load_experiment(run_config)
