"""Networks from torch modules: a module's annotated constructor arguments are the schema of its
settings."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from typing import Any, Union

from torch import nn

from a3c_exp.common.settings import Setting, hints_of
from a3c_exp.errors import ConfigError
from a3c_exp.networks import EncoderNetwork, ModuleSpec, Network, WholeNetwork
from a3c_exp.networks.inputs import (
    VECTOR,
    injected_names,
    is_actor_critic,
    observation_form,
    parameters_of,
)

CRITIC = "critic_"
"""Prefix of a setting of the critic's own encoder: `critic_hidden_sizes`. None: as the actor's."""

_SPECS = ("encoder", "critic_encoder")


def module_settings(cls: type[nn.Module], key: str) -> dict[str, Setting]:
    """The settings of a network around a module, by name: those of every network, and the
    constructor's arguments.

    Each setting of an encoder also exists with the prefix CRITIC. Raises ConfigError, under `key`,
    for a constructor that cannot be configured.
    """
    of_module = _constructor_settings(cls, key)
    if is_actor_critic(cls):
        return of_module

    hints = typing.get_type_hints(EncoderNetwork)
    names = [field.name for field in dataclasses.fields(EncoderNetwork) if field.name not in _SPECS]
    if taken := [name for name in names if name in of_module]:
        problem = (
            f"its constructor must not have an argument {taken[0]!r}, "
            "which every network has a setting for"
        )
        raise ConfigError(key, _name(cls), problem)

    common = {name: Setting(hints[name], False) for name in names}
    # Not `hint | None`: an annotation may be no type, and `callable` is none.
    of_critic = {
        f"{CRITIC}{name}": Setting(Union[setting.hint, None], False)  # noqa: UP007
        for name, setting in of_module.items()
    }
    return of_critic | common | of_module


def _constructor_settings(cls: type[nn.Module], key: str) -> dict[str, Setting]:
    injected = injected_names(cls)
    hints = hints_of(cls.__init__, cls, key)
    settings = {}
    for name, parameter in parameters_of(cls).items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            problem = f"its constructor must name each of its arguments, unlike {parameter}"
            raise ConfigError(key, _name(cls), problem)

        if name in injected:
            continue

        if name not in hints:
            problem = (
                f"its constructor's argument {name!r} must have an annotation: "
                "its type is that of the setting"
            )
            raise ConfigError(key, _name(cls), problem)

        settings[name] = Setting(hints[name], parameter.default is parameter.empty)
    return settings


def network_of(cls: type[nn.Module], values: dict[str, Any]) -> Network:
    """The network of a module with these settings, already converted."""
    if is_actor_critic(cls):
        return WholeNetwork(module=ModuleSpec(cls, values))

    names = _constructor_settings(cls, "network")
    common = dict(values)
    actor = {name: common.pop(name) for name in values if name in names}
    of_critic = {name: common.pop(f"{CRITIC}{name}", None) for name in names}
    critic = actor | {name: value for name, value in of_critic.items() if value is not None}
    critic_encoder = ModuleSpec(cls, critic) if critic != actor else None
    return EncoderNetwork(encoder=ModuleSpec(cls, actor), critic_encoder=critic_encoder, **common)


def module_misfit(cls: type[nn.Module], hint: type) -> str | None:
    """The reason why a module cannot stand for a component of the type `hint`; None if it can."""
    if not issubclass(Network, hint) and not issubclass(hint, Network):
        return f"{cls.__name__} is a torch module, which makes a network"
    if inspect.isabstract(cls):
        return f"{cls.__name__} is abstract"
    if is_actor_critic(cls) or observation_form(cls):
        return None

    forms = f"`{VECTOR[0]}`, `channels` with `height` and `width`, or `observation_space`"
    return f"the constructor of {cls.__name__} must ask for its observations: {forms}"


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
