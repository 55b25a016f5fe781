"""What a configuration may do: which code it may name, and which settings of a run's folder count.

A folder may come from anyone. It runs no code, writes to no place and connects to nothing unless
the user names that again: docs/security.md.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from a3c_exp.common.settings import flatten
from a3c_exp.errors import FAILURES, ConfigError, one_line, place_of

PACKAGE = "a3c_exp"

CHECKED_ELSEWHERE = ("callbacks", "env.id", "env.wrappers", "init_from", "plugins")
"""Settings whose texts are judged where their meaning is known, or which name what is only read."""

_WORD = re.compile(r"([\w +-]|\{port\}|\{copy\})*")
_DOTTED_KEY = re.compile(r"[\w +.-]*")


def is_allowed_module(module: str, plugins: Iterable[str]) -> bool:
    """Return whether a configuration may name code of this module: one of this package, or of a
    plugin."""
    packages = [PACKAGE, *(plugin.partition(":")[0] for plugin in plugins)]
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def import_plugins(plugins: Sequence[str]) -> None:
    """Import the user's packages, which may register environments; of 'module:function' call the
    function, once in a process. Raises ConfigError."""
    for plugin in plugins:
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


def is_plain(value: object) -> bool:
    """Return whether a value names no file and no address: numbers, and texts of words."""
    if isinstance(value, str):
        return _WORD.fullmatch(value) is not None
    if isinstance(value, Mapping):
        return all(
            _DOTTED_KEY.fullmatch(str(key)) and is_plain(item) for key, item in value.items()
        )
    if isinstance(value, Sequence):
        return all(map(is_plain, value))
    return True


def texts_to_trust(config: Mapping[str, Any], to_train: bool) -> Iterator[tuple[str, Any]]:
    """The settings of a configuration, by dotted keys, whose text or name may be that of a file or
    an address.

    to_train: whether those of its backend count.
    """
    for key, value in flatten(config if to_train else {**config, "backend": None}):
        checked = key in CHECKED_ELSEWHERE or key.rpartition(".")[2] == "_target_"
        if not checked and not is_plain({key: value}):
            yield key, value


def check_trust(settings: Iterable[tuple[str, object]], trusted: Sequence[str]) -> None:
    """Raise ConfigError for settings of a run's folder that may write files or connect, unless the
    user trusts them.

    settings: such settings, by their dotted keys. trusted: dotted keys, each with all below it.
    """
    for key, value in settings:
        if not any(key == each or key.startswith(f"{each}.") for each in trusted):
            problem = "may write files or connect, and a run's folder may come from anyone"
            raise ConfigError(key, value, f"{problem}: allow it with trust=[{key}]")
