"""The user's own packages: which modules a configuration may name, and their import."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence

from a3c_exp.errors import ConfigError, one_line

PACKAGE = "a3c_exp"


def is_allowed_module(module: str, plugins: Iterable[str]) -> bool:
    """Return whether a configuration may name code of this module: one of this package, or of a plugin."""
    return any(module == package or module.startswith(f"{package}.") for package in (PACKAGE, *plugins))


def import_plugins(plugins: Sequence[str]) -> None:
    """Import the user's packages, which may register environments. Raises ConfigError."""
    for plugin in plugins:
        try:
            importlib.import_module(plugin)
        except Exception as error:  # a user's module may raise anything
            raise ConfigError("plugins", plugin, f"cannot be imported: {one_line(error)}") from error
