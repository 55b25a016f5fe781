"""Packages whose environments need no `plugins`, since their names say who registers them."""

from __future__ import annotations

import importlib
import importlib.util

import gymnasium

from a3c_exp.errors import ConfigError

PACKAGES = {"ALE/": ("ale_py", "atari"), "MiniGrid-": ("minigrid", "minigrid"), "dm_control/": ("shimmy", "dm_control")}
"""By the start of the names: the package to import, and the extra that installs it."""


def register(start: str, key: str, value: str) -> None:
    """Register the environments whose names begin with `start`, one of PACKAGES.

    Raises ConfigError about a setting if their package is not installed.
    """
    package, extra = PACKAGES[start]
    if importlib.util.find_spec(package) is None:
        raise ConfigError(key, value, f"needs {package}: pip install 'a3c-exp[{extra}]'")
    gymnasium.register_envs(importlib.import_module(package))
