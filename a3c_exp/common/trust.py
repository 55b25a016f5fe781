"""What a configuration may do: which code it may name, and which settings of a run's folder count.

A folder may come from anyone: docs/security.md.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from a3c_exp.common.settings import TARGET, flatten
from a3c_exp.errors import FAILURES, ConfigError, one_line, place_of, require

PACKAGE = "a3c_exp"

OUTSIDE_WRAPPERS = ("HumanRendering", "RecordVideo")
"""Wrappers of gymnasium that open a window, or write to any folder."""

INSIDE_CALLBACKS = [
    f"{PACKAGE}.callbacks.{name}"
    for name in ("Histograms", "MetricTarget", "NoImprovement", "Profile", "Videos")
]
"""Callbacks that write only below the run's folder, and connect to nothing."""


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
            place = ". Install it, or name its folder in PYTHONPATH" if absent else place_of(error)
            raise ConfigError(
                "plugins", plugin, f"cannot be imported: {one_line(error)}{place}"
            ) from error


@cache
def _call_once(function: Callable[[], object]) -> None:
    function()


def only_inside(wrappers: Iterable[object]) -> list[object]:
    """Return the wrappers without those that act outside of a run's folder."""
    return [each for each in wrappers if not any(name in str(each) for name in OUTSIDE_WRAPPERS)]


def beyond_folder(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run's folder, by dotted keys, that count only if the user names them
    again."""
    beyond = {}
    for key, value in flatten(config):
        # The schema refuses anything but a list.
        entries = list(value) if isinstance(value, list | tuple) else []
        acts = (
            (key == "backend.address" and value != "local")
            or (key == "callbacks" and not all(map(_stays_inside, entries)))
            or (key in ("env.wrappers", "eval.env.wrappers") and only_inside(entries) != entries)
        )
        if acts:
            beyond[key] = value
    return beyond


def _stays_inside(callback: object) -> bool:
    return isinstance(callback, Mapping) and callback.get(TARGET) in INSIDE_CALLBACKS
