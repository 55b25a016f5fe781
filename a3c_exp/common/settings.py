"""Settings in nested mappings, by their dotted keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """The settings of a configuration by their dotted keys. An empty mapping is a setting too."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
