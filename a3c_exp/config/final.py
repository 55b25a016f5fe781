"""The final configuration: plain values in the place of what the machine, the current folder or a measurement decides.

It is what config.yaml holds, and all that a run, its processes and whatever continues it are given. Settings that have
become others stay there as they were typed, under TYPED: `workers=auto` is the same setting on another machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

TYPED = "typed"
"""The key of the settings as they were typed, by dotted keys."""

WORKERS, NORMALIZATION, LOG_EVERY = "workers", "env.normalize_observations", "log.every"
RESOLVED = (WORKERS, NORMALIZATION, LOG_EVERY)
"""Settings that are resolved."""


def value_at(config: Mapping[str, Any], key: str) -> Any:
    """The value at a dotted key; None if there is none."""
    value: Any = config
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def with_value(config: Mapping[str, Any], key: str, value: object) -> dict[str, Any]:
    """The configuration with a value at a dotted key."""
    name, _, inside = key.partition(".")
    return {**config, name: with_value(config.get(name, {}), inside, value) if inside else value}


def as_typed(config: Mapping[str, Any], keys: Iterable[str] = RESOLVED) -> dict[str, Any]:
    """The configuration as it was typed, in the settings `keys`; the others stay final."""
    typed = dict(config.get(TYPED) or {})
    found = {name: value for name, value in config.items() if name != TYPED}
    for key in [key for key in keys if key in typed]:
        found = with_value(found, key, typed.pop(key))
    return found | ({TYPED: typed} if typed else {})


def without_typed(config: Mapping[str, Any], changed: str) -> dict[str, Any]:
    """The configuration after a change at a dotted key: what was typed there before is forgotten."""
    typed = {key: value for key, value in (config.get(TYPED) or {}).items() if not f"{key}.".startswith(f"{changed}.")}
    return {name: value for name, value in config.items() if name != TYPED} | ({TYPED: typed} if typed else {})
