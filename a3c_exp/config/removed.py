"""What earlier versions had and this one has not, so that their configurations still read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from a3c_exp.common.trust import PACKAGE
from a3c_exp.errors import ConfigError

ANY = object()
"""In REMOVED: a setting that is dropped whatever its value."""

REMOVED: dict[str, object] = {
    "backend.local_epochs": False,
    "backend.placement": "spread",
    "backend.wire_dtype": "float32",
    "env.on_error": "restart",
    "late": "drop",
    "network.channels_last": "auto",
    "network.critic_channels_last": None,
    "network.encoder.channels_last": "auto",
    "network.head_bias": True,
    "network.encoder.head_bias": True,
}
"""Settings that are gone, by dotted keys, and the value that meant nothing: a saved configuration with another value is
refused."""

RENAMED_CLASSES: dict[str, tuple[str, dict[str, object]]] = {}
"""Former names of classes: the present name, and settings to add."""

TARGET = "_target_"


def without_removed(config: Mapping[str, Any]) -> dict[str, Any]:
    """A saved configuration in the settings and classes of this version.

    Raises ConfigError for a removed setting that did something.
    """
    return _present(config, "")


def _present(node: Mapping[str, Any], path: str) -> dict[str, Any]:
    target = node.get(TARGET)
    name, added = RENAMED_CLASSES.get(target, (target, {})) if isinstance(target, str) else (target, {})
    of_a_plugin = TARGET in node and not str(target).startswith(f"{PACKAGE}.")
    found: dict[str, Any] = {}
    for key, value in node.items():
        dotted = f"{path}{key}"
        if dotted in REMOVED and not of_a_plugin:
            if REMOVED[dotted] is not ANY and REMOVED[dotted] != value:
                raise ConfigError(
                    dotted, value, f"is gone from this version, which only knows what {REMOVED[dotted]} did"
                )
            continue
        found[key] = _present(value, f"{dotted}.") if isinstance(value, Mapping) else value
    return (
        found | {TARGET: name} | {key: value for key, value in added.items() if key not in found} if target else found
    )
