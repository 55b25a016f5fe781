"""A run's own configuration: `resume=<run>`, with the few settings that may change, and `from=<run>`, for a new run.

Only components that are given are composed. All else is read from the run's folder, and checked as any configuration
is.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from a3c_exp.cli.hydra_compose import compose, first_line, parse, run_folder, set_value
from a3c_exp.common.reading import expanded
from a3c_exp.common.settings import flatten
from a3c_exp.config.final import NORMALIZATION, as_typed, without_typed
from a3c_exp.config.saved import read_config
from a3c_exp.config.schema import TARGET
from a3c_exp.errors import ConfigError, named

RUN_DIR, TRUST = "hydra.run.dir", "trust"
MAY_CHANGE = ("backend", "checkpoint", "eval", "plugins", "stop", "total_steps", "workers")


def names_folder(key: str, override: str) -> bool:
    """Return whether an override is `key=<folder>`, for the key resume or from."""
    return override.lstrip("+").startswith(f"{key}=") and override.partition("=")[2] != "null"


def names_any(key: str, overrides: Sequence[str]) -> bool:
    return any(names_folder(key, override) for override in overrides)


def named_folder(overrides: Sequence[str], key: str) -> str:
    """The folder of `key=<folder>`, which needs no quotes around commas and equal signs. Raises ConfigError."""
    folders = [override.partition("=")[2].strip("'\"") for override in overrides if names_folder(key, override)]
    if len(folders) != 1 or not folders[0]:
        raise ConfigError(key, ", ".join(folders), "must be one run's folder")
    return folders[0]


def trusted_keys(overrides: Sequence[str]) -> tuple[str, ...]:
    """The settings of a run's folder that may act beyond it: those of `trust=[...]`, and those that the command gives.

    Raises ConfigError.
    """
    keys: list[str] = []
    composed = ("backend",) if names_any("resume", overrides) else ()  # anew, so that nothing of it is the folder's
    for change in _changes(overrides):
        key = change.key_or_group
        is_single = not (change.is_delete() or change.is_sweep_override())
        value = _resolved(key, change.value()) if is_single else None
        if key == TRUST:
            keys += _keys(value)
        elif isinstance(value, dict) and TARGET not in value and key not in composed:
            # It is merged: what it does not name, or has no value for, is the folder's.
            keys += [name for name, each in flatten(value, f"{key}.") if each not in ({}, "???")]
        else:
            keys.append(key)
    return tuple(keys)


def _keys(value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ConfigError(TRUST, value, "must be a list of settings: trust=[env.wrappers]")
    return [str(each) for each in value]


def _changes(overrides: Sequence[str]) -> list[Override]:
    """The overrides but the one that names the folder. Raises ConfigError."""
    return parse([text for text in overrides if not any(names_folder(key, text) for key in ("resume", "from"))])


def resumed_config(overrides: Sequence[str], config_dir: str | None = None) -> tuple[dict[str, Any], Path]:
    """The configuration that a resumed run continues with, and its folder.

    overrides: `resume=<folder>` and any of MAY_CHANGE. `plugins` must be given again, since a folder may come from
    anyone and cannot itself allow code. `trust` is no setting: see `trusted_keys`.
    config_dir: where a backend of the user's own is. Raises ConfigError.
    """
    folder = named_folder(overrides, "resume")
    changes = [change for change in _changes(overrides) if change.key_or_group != TRUST]
    for change in changes:
        key = change.key_or_group
        if change.is_sweep_override() or change.is_delete():
            value = None if change.is_delete() else change.get_value_string()
            raise ConfigError(key, value, "must be one value in a resumed run")
        if key.partition(".")[0] not in MAY_CHANGE:
            problem = f"cannot change in a resumed run; what can: {', '.join(MAY_CHANGE)}"
            raise ConfigError(key, change.value(), problem)
    with named("resume"):
        config = read_config(folder)
    options = [str(change.input_line) for change in changes if change.key_or_group == "backend"]
    if options:
        config["backend"] = compose(options, config_dir)["backend"]
    for change in changes:
        if change.key_or_group != "backend":
            config = _changed(config, change.key_or_group, change.value())
    return config, expanded(folder).absolute()


def copied_config(overrides: Sequence[str], config_dir: str | None = None) -> tuple[dict[str, Any], Path]:
    """The configuration of a new run with the settings of another, and the folder of the new one.

    overrides: `from=<folder>`, any settings, any components by name (of which the component alone is taken, no other
    settings that its file has), and hydra.run.dir. As in `resumed_config`, `plugins` must be given again, and `trust`
    is no setting. Raises ConfigError.
    """
    with named("from"):
        config = read_config(named_folder(overrides, "from"))
    folder, changes = None, _changes(overrides)
    if any(change.key_or_group.partition(".")[0] in ("env", "network") for change in changes):
        config = as_typed(config, [NORMALIZATION])  # it is measured again
    for change in changes:
        key = change.key_or_group
        if key == TRUST:
            continue
        if change.is_sweep_override() or change.is_delete() or (change.is_hydra_override() and key != RUN_DIR):
            value = None if change.is_delete() else change.get_value_string()
            raise ConfigError(key, value, "cannot go with from: it takes single values, and hydra.run.dir")
        if key == RUN_DIR:
            folder = Path(str(change.value()))
        elif isinstance(change.value(), str) and isinstance(config.get(key), (dict, type(None))) and key in config:
            config = without_typed(config, key) | {key: compose([str(change.input_line)], config_dir)[key]}
        else:
            config = _changed(config, key, change.value())
    return config, folder or run_folder(config)


def _changed(config: dict[str, Any], key: str, value: object) -> dict[str, Any]:
    """The configuration with another value at a dotted key, which config.schema checks later. Raises ConfigError.

    A mapping is merged with what is there, unless it is a component that is written out.
    """
    node = OmegaConf.create(without_typed(config, key))
    set_value(node, key, _resolved(key, value))
    changed: Any = OmegaConf.to_container(node, resolve=False)
    return dict(changed)


def _resolved(key: str, value: object) -> Any:
    """A value with its interpolations resolved, a mapping perhaps where a text was. Raises ConfigError."""
    try:
        resolved: Any = OmegaConf.to_container(OmegaConf.create({"value": value}), resolve=True)
    except (OmegaConfBaseException, ValueError) as complaint:
        raise ConfigError(key, value, f"cannot be resolved: {first_line(complaint)}") from complaint
    return resolved["value"]
