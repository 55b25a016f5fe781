"""What earlier versions had and this one has not, so that their configurations still read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from a3c_exp.common.settings import TARGET
from a3c_exp.common.trust import PACKAGE
from a3c_exp.errors import ConfigError

REMOVED: dict[str, object] = {
    "accumulate_rollouts": 1,
    "algorithm.value_clip": None,
    "backend.local_epochs": False,
    "backend.placement": "spread",
    "backend.wire_dtype": "float32",
    "env.on_error": "restart",
    "late": "drop",
    "network.channels_last": "auto",
    "network.critic_channels_last": None,
    "network.encoder.channels_last": "auto",
    "network.head_bias": True,
    "network.kernels": "auto",
    "network.encoder.kernels": "auto",
    "network.encoder.head_bias": True,
}
"""Settings that are gone, by dotted keys, and the value that meant nothing: a saved configuration
with another value is refused."""


def without_removed(config: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """A saved configuration in the settings of this version.

    path: of an inner mapping, with a dot at its end. Raises ConfigError for a removed setting that
    did something.
    """
    of_a_plugin = TARGET in config and not str(config[TARGET]).startswith(f"{PACKAGE}.")
    found: dict[str, Any] = {}
    for name, value in config.items():
        key = f"{path}{name}"
        if key not in REMOVED or of_a_plugin:
            found[name] = without_removed(value, f"{key}.") if isinstance(value, Mapping) else value
        elif value != REMOVED[key]:
            raise ConfigError(
                key, value, f"is gone from this version, which only knows what {REMOVED[key]} did"
            )
    return found
