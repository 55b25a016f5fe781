"""Settings: in nested mappings, by their dotted keys; as a component declares them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

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
    """The settings of a configuration by their dotted keys, equal ones alike: with lists for tuples, and 2000000 for
    2e6."""

    def number(text: str) -> float:
        return int(value) if (value := float(text)).is_integer() else value

    return dict(flatten(json.loads(json.dumps(config), parse_float=number)))
