"""`resume=<run>`: a run's own configuration, with the few settings that may change on the way.

Nothing is composed again but a backend that is given: the folder is there already, and what it holds was composed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from a3c_exp.cli.hydra_compose import compose, parse, unknown_key
from a3c_exp.errors import ConfigError

MAY_CHANGE = ("backend", "checkpoint", "eval", "plugins", "stop", "total_steps", "workers")


def is_resume(override: str) -> bool:
    """Whether it is `resume=<folder>`."""
    return override.lstrip("+").startswith("resume=") and override.partition("=")[2] != "null"


def resume_folder(overrides: Sequence[str]) -> str:
    """The folder that is given, taken as it stands: no quotes are needed where it has commas or equal signs."""
    folders = [override.partition("=")[2].strip("'\"") for override in overrides if is_resume(override)]
    if len(folders) != 1 or not folders[0]:
        raise ConfigError("resume", ", ".join(folders), "must be one run's folder")
    return folders[0]


def resumed(overrides: Sequence[str], config_dir: str | None = None) -> tuple[dict[str, Any], Path]:
    """The configuration that a resumed run goes on with, and its folder.

    overrides: `resume=<folder>` and any of MAY_CHANGE; `plugins` has to be given again, since a folder may come from
    anyone and cannot itself allow code. config_dir: where a backend of one's own is. Raises ConfigError.
    """
    from a3c_exp.run.run_folder import read_config

    folder = resume_folder(overrides)
    changes = parse([override for override in overrides if not is_resume(override)])
    for change in changes:
        if change.is_sweep_override():
            values = str(change.input_line).partition("=")[2]
            raise ConfigError(change.key_or_group, values, "must be one value in a resumed run")
        if change.is_delete():
            raise ConfigError(change.key_or_group, None, "must be one value in a resumed run")
        if change.key_or_group.partition(".")[0] not in MAY_CHANGE:
            problem = f"cannot change in a resumed run; what can: {', '.join(MAY_CHANGE)}"
            raise ConfigError(change.key_or_group, change.value(), problem)
    config = read_config(folder)
    options = [str(change.input_line) for change in changes if change.key_or_group == "backend"]
    if options:
        config["backend"] = compose(options, config_dir)["backend"]
    for change in changes:
        if change.key_or_group != "backend":
            _apply(config, change)
    return config, Path(folder).expanduser().absolute()


def _apply(config: dict[str, Any], change: Override) -> None:
    """Set one value in the plain configuration. Keys that are not there are refused, as everywhere."""
    problem = unknown_key(change, config)
    if problem is not None:
        raise problem
    node = config
    *places, name = change.key_or_group.split(".")
    for place in places:
        node = node[place]
    try:
        value = OmegaConf.to_container(OmegaConf.create({name: change.value()}), resolve=True)
    except OmegaConfBaseException as complaint:
        raise ConfigError(change.key_or_group, change.value(), f"cannot be resolved: {complaint}") from complaint
    assert isinstance(value, dict)
    both = isinstance(value[name], dict) and isinstance(node[name], dict)
    node[name] = {**node[name], **value[name]} if both else value[name]
