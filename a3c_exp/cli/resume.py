"""A run's own configuration: `resume=<run>`, with the few settings that may change, and
`from=<run>`, for a new run.

Only components that are given are composed. All else is read from the run's folder, and checked as
any configuration is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from a3c_exp.cli.arguments import CommandLine
from a3c_exp.cli.execute import Plan
from a3c_exp.cli.existing import CONTINUE, MAY_CHANGE
from a3c_exp.cli.hydra_compose import compose, parse, set_value, to_container
from a3c_exp.common.settings import TARGET, flatten
from a3c_exp.config.saved import LOG_EVERY, NORMALIZATION, as_typed, read_config, without_typed
from a3c_exp.config.schema import build
from a3c_exp.errors import ConfigError, named, require

RUN_DIR = "hydra.run.dir"
TRUST = "trust"


def saved_plan(word: str, folder: str, line: CommandLine) -> Plan:
    """The run of a folder that goes on (`resume`), or a new one with its settings (`from`), changed
    by overrides.

    Of a run that goes on any of MAY_CHANGE may be changed; of a new one any settings, and
    hydra.run.dir. A component that is given by name is taken alone, without other settings that its
    file has. `plugins` must be given again, since a folder may come from anyone and cannot itself
    allow code. `trust` is no setting. Raises ConfigError.
    """
    changes = parse(line.overrides)
    for change in changes:
        _check(change, word)
    with named(word):
        config = read_config(folder, or_file=word == "from")
    place = folder if word == "resume" else None
    trusted = list[str]()
    stale = {"env": NORMALIZATION, "network": NORMALIZATION, "backend": LOG_EVERY}
    if word == "from":
        stale["total_steps"] = LOG_EVERY
    changed = {_place(change).partition(".")[0] for change in changes}
    # they are chosen again
    config = as_typed(config, {stale[name] for name in stale.keys() & changed})

    def order(change: Override) -> tuple[bool, bool, bool]:
        # Components by name come first, as in a new command: a setting that is typed before one
        # belongs to it.
        return (
            _place(change) == RUN_DIR,
            not _names_component(change, config),
            change.package is not None,
        )

    for change in sorted(changes, key=order):
        key = _place(change)
        # The folder's may name the seed, for example. Texts of a saved configuration are not to be
        # resolved again.
        known = (
            {name: each for name, each in config.items() if isinstance(each, int | float)}
            if key == RUN_DIR
            else {}
        )
        # its interpolations resolved
        value: Any = to_container(OmegaConf.create(known | {key: change.value()}))[key]
        if key == TRUST:
            trusted += build(value, tuple[str, ...], TRUST)
            continue
        if key == RUN_DIR:
            fits = bool(value) and not isinstance(value, dict | list)
            require(fits, key, value, "the name of a folder; . for this one")
            place = None if value == "auto" else str(value)
            continue
        config = without_typed(config, key)
        if key == "callbacks" or _names_component(change, config):
            # the default environment has settings for components
            alone = [] if key == "env" else ["env=gym"]
            typed = (
                str(change.input_line)
                if change.package is None
                else f"{change.key_or_group}={value}"
            )
            value = compose([*alone, typed], line.config_dir)[change.key_or_group]
        node = OmegaConf.create(config)
        set_value(node, key, value)
        config = dict(OmegaConf.to_container(node, resolve=False))  # type: ignore[arg-type]
        if isinstance(value, dict) and TARGET not in value:
            # It is merged: what it does not name, or has no value for, is the folder's.
            trusted += [name for name, each in flatten(value, f"{key}.") if each not in ({}, "???")]
        else:
            trusted.append(key)
    return Plan(
        config=config,
        folder=place,
        existing=CONTINUE if word == "resume" else "refuse",
        key=word if word == "resume" else RUN_DIR,
        trusted=trusted,
        overrides=line.overrides,
    )


def _place(change: Override) -> str:
    """The key of what an override sets: `network.encoder` of `network@network.encoder=cnn`."""
    return change.package or change.key_or_group


def _names_component(change: Override, config: Mapping[str, Any]) -> bool:
    """Return whether an override names the file of a component: `optimizer=adam`."""
    return isinstance(change.value(), str) and isinstance(
        config.get(change.key_or_group, ""), (dict, type(None))
    )


def _check(change: Override, word: str) -> None:
    """Raise ConfigError for an override that does not go with `resume` or `from`."""
    key = _place(change)
    if change.is_sweep_override() or change.is_delete():
        value = None if change.is_delete() else change.get_value_string()
        raise ConfigError(key, value, f"cannot go with {word}, which takes single values")
    if word == "resume" and key.partition(".")[0] not in (*MAY_CHANGE, TRUST):
        problem = f"cannot change in a resumed run; what can: {', '.join(MAY_CHANGE)}"
        raise ConfigError(key, change.value(), problem)
