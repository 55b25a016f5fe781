"""Which code a configuration may name, and which settings of a run's folder the user names again.

A folder may come from anyone: docs/security.md.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from a3c_exp.common.settings import flatten
from a3c_exp.errors import FAILURES, ConfigError, one_line, place_of, require

PACKAGE = "a3c_exp"

ACTING_OUTSIDE = ("HumanRendering", "RecordVideo", "Mlflow", "Wandb")
"""Wrappers of gymnasium that open a window or write to any folder, and callbacks that connect to a
server."""


def is_allowed_module(module: str, plugins: Iterable[str]) -> bool:
    """Return whether a configuration may name code of this module: one of this package, or of a
    plugin."""
    packages = [PACKAGE, *(plugin.partition(":")[0] for plugin in plugins)]
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def import_plugins(plugins: Sequence[str]) -> None:
    """Import the user's packages, which may register environments; of 'module:function' call the
    function, once in a process. Raises ConfigError."""
    for plugin in plugins:
        is_file = "/" in plugin or plugin.endswith(".py")
        require(not is_file, "plugins", plugin, "a module's name, as after `import`, not its file")
        module, _, function = plugin.partition(":")
        try:
            imported = importlib.import_module(module)
            if function:
                _call_once(getattr(imported, function))
        except FAILURES as error:  # a user's module may raise anything
            absent = isinstance(error, ModuleNotFoundError) and error.name == module
            advice = ". Install it, or name its folder in PYTHONPATH" if absent else place_of(error)
            problem = f"cannot be imported: {one_line(error)}{advice}"
            raise ConfigError("plugins", plugin, problem) from error


@cache
def _call_once(function: Callable[[], object]) -> None:
    function()


def acts_outside(entry: object) -> bool:
    """Return whether a wrapper or a callback, or any of a list, is one of ACTING_OUTSIDE."""
    return any(name in str(entry) for name in ACTING_OUTSIDE)


def beyond_folder(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run's folder, by dotted keys, that count only if the user names them
    again."""
    lists = ("callbacks", "env.wrappers", "eval.env.wrappers")
    return {
        key: value
        for key, value in flatten(config)
        if (key in lists and acts_outside(value)) or (key == "backend.address" and value != "local")
    }
