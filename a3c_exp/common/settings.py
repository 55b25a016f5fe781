"""Settings: in nested mappings, by their dotted keys; as a component declares them."""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from a3c_exp.errors import ConfigError

MISSING = "???"  # OmegaConf's mark for a value that the user has to give
TARGET = "_target_"
"""The key by which a mapping names the class of a component."""


class Setting(NamedTuple):
    """The type of a setting, and whether it must be given."""

    hint: Any
    required: bool


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """The settings of a configuration by their dotted keys. An empty mapping is a setting too."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def comparable(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a configuration by their dotted keys, equal ones alike: with lists for
    tuples, and 2000000 for 2e6."""

    def number(text: str) -> float:
        return int(value) if (value := float(text)).is_integer() else value

    return dict(flatten(json.loads(json.dumps(config), parse_float=number)))


def override_text(value: object) -> str:
    """Return a plain value as a command line takes it."""
    if isinstance(value, str):
        is_word = re.fullmatch(r"[A-Za-z_][\w./:-]*", value) is not None
        return value if is_word and value.lower() not in _NO_WORDS else quoted(value)
    if isinstance(value, Mapping):
        items = (f"{_escaped(name)}:{override_text(item)}" for name, item in value.items())
        return f"{{{','.join(items)}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(override_text, value))}]"
    return json.dumps(value)


def _escaped(key: str) -> str:
    """Return a key of a mapping as Hydra's grammar reads it back, which has no quotes around it."""
    return re.sub(r"[\\:,={}\[\]()\s]", r"\\\g<0>", key)


_NO_WORDS = ("null", "true", "false", "nan", "inf")


def quoted(text: str) -> str:
    """A text as Hydra's grammar reads it back, whatever characters it has.

    A backslash is one itself where it stands before a quote or at the end, and is doubled only
    there.
    """
    return (
        "'"
        + re.sub(r"(\\*)('|\Z)", lambda found: found[1] * 2 + found[2].replace("'", "\\'"), text)
        + "'"
    )


def hints_of(annotated: Any, cls: type, key: str) -> dict[str, Any]:
    """The annotations of a component's class, or of its constructor. key: of the class. Raises
    ConfigError."""
    try:
        return typing.get_type_hints(annotated)
    except Exception as error:  # an annotation that cannot be evaluated may raise anything
        name = f"{cls.__module__}.{cls.__qualname__}"
        raise ConfigError(key, name, f"its annotations cannot be read: {error}") from error
