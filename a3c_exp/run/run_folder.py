"""A run's folder: what its files are called, its configuration, and whether a new run may write there."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from a3c_exp.errors import ConfigError

CONFIG_FILE = "config.yaml"
SUMMARY_FILE = "summary.json"
CHECKPOINTS, LATEST, BEST = "checkpoints", "latest.ckpt", "best.ckpt"


def read_config(folder: str | Path, plugins: Sequence[str] = (), key: str = "resume") -> dict[str, Any]:
    """The configuration that a run's folder keeps, with `plugins` in place of those that it names.

    A folder may come from anyone, so it cannot itself allow code: the user names the plugins again.
    key: the setting that errors are put down to. Raises ConfigError.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    path = Path(folder).expanduser() / CONFIG_FILE
    try:
        config = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except (OSError, UnicodeDecodeError):
        raise ConfigError(key, str(folder), f"must be the folder of a run: it has no readable {CONFIG_FILE}") from None
    except (YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(key, str(folder), f"its {CONFIG_FILE} is damaged: {' '.join(str(error).split())}") from error
    if not isinstance(config, dict) or not config:
        raise ConfigError(key, str(folder), f"its {CONFIG_FILE} is damaged: it holds no settings")
    named = plugins if isinstance(plugins, str) else list(plugins)  # a text is refused as such, not by its letters
    return {str(name): value for name, value in config.items()} | {"plugins": named}


def config_text(config: Mapping[str, Any]) -> str:
    """A plain configuration as YAML, which `read_config` reads back unchanged."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(dict(config)))


def best_checkpoint(folder: Path) -> Path:
    """A run's best checkpoint, or the latest where no evaluation has been made. It may not exist."""
    checkpoints = folder.expanduser() / CHECKPOINTS
    return checkpoints / (BEST if (checkpoints / BEST).exists() else LATEST)


def latest_checkpoint(folder: Path) -> Path:
    """A run's latest checkpoint, or the best where it was killed before it had saved another. It may not exist."""
    checkpoints = folder.expanduser() / CHECKPOINTS
    killed_early = (checkpoints / BEST).exists() and not (checkpoints / LATEST).exists()
    return checkpoints / (BEST if killed_early else LATEST)


def check_folder(folder: Path, key: str = "folder") -> Path:
    """`folder` as an absolute path that a new run may write to; nothing is made yet.

    key: the setting that errors are put down to. Raises ConfigError.
    """
    folder = folder.expanduser().absolute()
    if (folder / CONFIG_FILE).exists():
        raise ConfigError(key, str(folder), "must be without a run: go on with that one by resume=<folder>")
    place = folder
    while not place.exists():
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise ConfigError(key, str(folder), f"cannot be written: {place} is no folder that this user may write to")
    return folder
