"""A run's own configuration: `resume=<run>`, with the few settings that may change, and
`from=<run>` and `replay=<run>`, for a new run.

Only components that are given are composed. All else is read from the run's folder, and checked as
any configuration is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from a3c_exp.cli.arguments import RUN_DIR, CommandLine, is_of_hydra, of_file
from a3c_exp.cli.execute import Plan
from a3c_exp.cli.existing import CONTINUE, MAY_CHANGE
from a3c_exp.cli.hydra_compose import compose_unchecked, set_value, to_container
from a3c_exp.cli.hydra_overrides import parse
from a3c_exp.cli.replay import OF_THE_ORDER, check_replayable, check_resumable, replay_config
from a3c_exp.common.reading import expanded
from a3c_exp.common.settings import MISSING, flatten
from a3c_exp.common.trust import beyond_folder
from a3c_exp.config.saved import (
    LOG_EVERY,
    NORMALIZATION,
    as_typed,
    is_whole,
    read_config,
    with_value,
    without_typed,
)
from a3c_exp.errors import ConfigError, FolderError, named, require
from a3c_exp.run.run_folder import CONFIG_FILE, ORDER_FILE, locate_run


def saved_plan(word: str, folder: str, line: CommandLine) -> Plan:
    """The run of a folder that goes on (`resume`), or a new one with its settings (`from`) and
    its order (`replay`), changed by overrides.

    Of a run that goes on any of MAY_CHANGE may be changed; of a new one any settings, and
    hydra.run.dir. `plugins` must be given again, and so must what acts beyond the folder: it may
    come from anyone. Raises ConfigError.
    """
    changes = parse(line.overrides)
    with named(word):
        folder = str(locate_run(folder, ORDER_FILE if word == "replay" else CONFIG_FILE))
        earlier = _saved_config(word, folder, changes)

    beyond = beyond_folder(earlier)
    unchanged = dict(beyond)
    if word == "replay":
        unchanged |= {key: earlier[key] for key in OF_THE_ORDER if key in earlier}
    for change in changes:
        _check(change, word, unchanged)

    settings = [change for change in changes if _changed_key(change) != RUN_DIR]
    config = earlier
    for key in beyond:
        config = with_value(config, key, MISSING)

    config = _changed(_chosen_again(config, word, settings), settings, line.flags.config_dir)
    for key, value in flatten(config):
        if value == MISSING and key in beyond:
            problem = "acts beyond a run's folder, which may come from anyone: name it again"
            raise ConfigError(key, beyond[key], f"{problem}, as {key}=...")

    if word == "resume":
        return Plan(
            config=config,
            folder=folder,
            existing=CONTINUE,
            earlier=earlier,
            key=word,
            overrides=line.overrides,
        )

    run_dirs = [_run_dir(change, config) for change in changes if _changed_key(change) == RUN_DIR]
    run_dir = run_dirs[-1] if run_dirs else None
    return Plan(config=config, folder=run_dir, key=RUN_DIR, overrides=line.overrides)


def _saved_config(word: str, folder: str, changes: Sequence[Override]) -> dict[str, Any]:
    """The configuration that is changed. Raises FolderError."""
    if word == "replay":
        keys = [_changed_key(change) for change in changes]
        return replay_config(folder, [key for key in keys if key != RUN_DIR])

    config = read_config(folder, or_file=word == "from")
    if not is_whole(config) and (file := expanded(folder)).is_file():
        raise FolderError(folder, of_file(file))

    check_resumable(folder, config)
    return config


def _changed(
    config: dict[str, Any], settings: Sequence[Override], config_dir: str | None
) -> dict[str, Any]:
    """The configuration with the settings that overrides change.

    Components by name come first, as in a new command: a setting that is typed before one belongs
    to it.
    """

    def order(change: Override) -> tuple[bool, bool]:
        return not _names_component(change, config), change.package is not None

    for change in sorted(settings, key=order):
        value = _value(change, config, config_dir)
        node = OmegaConf.create(without_typed(config, _changed_key(change)))
        set_value(node, _changed_key(change), value)
        config = dict(OmegaConf.to_container(node, resolve=False))  # type: ignore[arg-type]

    return config


def _chosen_again(
    config: Mapping[str, Any], word: str, settings: Sequence[Override]
) -> dict[str, Any]:
    """The configuration with `auto` where what it stood for depends on a setting that changes."""
    stale = {"env": NORMALIZATION, "network": NORMALIZATION, "backend": LOG_EVERY}
    if word == "from":
        stale["total_steps"] = LOG_EVERY

    changed = {_changed_key(change).partition(".")[0] for change in settings}
    return as_typed(config, {stale[name] for name in stale.keys() & changed})


def _value(change: Override, config: Mapping[str, Any], config_dir: str | None) -> Any:
    """The value that an override sets: of a component by name that of its file alone. Raises
    ConfigError."""
    value = _resolved(change)
    if change.key_or_group != "callbacks" and not _names_component(change, config):
        return value

    # The default environment has settings for components.
    alone = [] if change.key_or_group == "env" else ["env=gym"]
    typed = str(change.input_line)
    if change.package is not None:
        typed = f"{change.key_or_group}={value}"

    return compose_unchecked([*alone, typed], config_dir)[change.key_or_group]


def _resolved(change: Override, settings: Mapping[str, Any] | None = None) -> Any:
    """The value of an override with its interpolations, of `settings`, resolved. Raises
    ConfigError."""
    key = _changed_key(change)
    return to_container(OmegaConf.create({**(settings or {}), key: change.value()}))[key]


def _run_dir(change: Override, config: Mapping[str, Any]) -> str | None:
    """The folder that an override names, which may name the seed, for example. Raises
    ConfigError."""
    # Texts of a saved configuration are not to be resolved again.
    numbers = {name: value for name, value in config.items() if isinstance(value, int | float)}
    value = _resolved(change, numbers)
    fits = bool(value) and not isinstance(value, dict | list)
    require(fits, RUN_DIR, value, "the name of a folder; . for this one")
    return None if value == "auto" else str(value)


def _changed_key(change: Override) -> str:
    """The key of what an override sets: `network.encoder` of `network@network.encoder=cnn`."""
    return change.package or change.key_or_group


def _names_component(change: Override, config: Mapping[str, Any]) -> bool:
    """Return whether an override names the file of a component: `optimizer=adam`."""
    return isinstance(change.value(), str) and isinstance(
        config.get(change.key_or_group, ""), (dict, type(None))
    )


def _check(change: Override, word: str, unchanged: Mapping[str, Any]) -> None:
    """Raise ConfigError for an override that does not go with `resume`, `from` or `replay`.

    unchanged: settings that may be named again, as they are.
    """
    key = _changed_key(change)
    if change.is_sweep_override() or change.is_delete():
        value = None if change.is_delete() else change.get_value_string()
        raise ConfigError(key, value, f"cannot go with {word}, which takes single values")

    if key != RUN_DIR and is_of_hydra(key):
        problem = f"has no effect with {word}, which composes nothing; {RUN_DIR} has"
        raise ConfigError(key, change.value(), problem)

    if key == "experiment":
        problem = f"cannot go with {word}, which composes no preset: type its settings"
        raise ConfigError(key, change.value(), problem)

    is_named_again = key in unchanged and _resolved(change) == unchanged[key]
    if word == "replay" and not is_named_again:
        check_replayable(key, change.value())
    if word == "resume" and key.partition(".")[0] not in MAY_CHANGE and not is_named_again:
        problem = f"cannot change in a resumed run; what can: {', '.join(MAY_CHANGE)}"
        raise ConfigError(key, change.value(), problem)
