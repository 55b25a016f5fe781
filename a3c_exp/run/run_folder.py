"""A run's folder: the names of its files, its configuration, and whether a new run may write there."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from a3c_exp.common.plugins import PACKAGE
from a3c_exp.common.reading import UnreadableError, expanded, parse_json, parse_yaml, read_text
from a3c_exp.errors import ConfigError, one_line
from a3c_exp.run.files import set_aside

CONFIG_FILE = "config.yaml"
SUMMARY_FILE = "summary.json"
EPISODES_FILE = "episodes.csv"
METRICS_FILE = "metrics.csv"
CHECKPOINTS, LATEST, PREVIOUS, BEST = "checkpoints", "latest.ckpt", "previous.ckpt", "best.ckpt"

FORMER_KEYS = {
    "": frozenset({"goal", "moments", "accumulate"}),
    "algorithm": frozenset({"entropy"}),
    "network": frozenset({"sizes", "features", "cells"}),
}
"""Keys before they were renamed, by component ("": the run itself): every configuration had some, and none has now."""


def read_config(folder: str | Path, plugins: Sequence[str] = (), key: str = "resume") -> dict[str, Any]:
    """The configuration in a run's folder, with `plugins` in place of its own.

    A folder may come from anyone, so it cannot itself allow code: the user names the plugins again.
    key: the setting that names the folder, for errors. Raises ConfigError.
    """
    config = read_settings(expanded(folder), key)
    allowed = plugins if isinstance(plugins, str) else list(plugins)  # the schema refuses a text, not each letter of it
    return config | {"plugins": allowed}


def read_settings(folder: Path, key: str) -> dict[str, Any]:
    """The content of a run's configuration file, plain data of this version's names. Raises ConfigError."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        config = parse_yaml(read_text(folder / CONFIG_FILE))
        OmegaConf.create(config if isinstance(config, dict) else {})  # refuses interpolations that are none
    except OSError:
        raise ConfigError(key, str(folder), f"must be the folder of a run: it has no readable {CONFIG_FILE}") from None
    except (UnreadableError, OmegaConfBaseException) as error:
        raise ConfigError(key, str(folder), f"its {CONFIG_FILE} is damaged: {' '.join(str(error).split())}") from error
    if not isinstance(config, dict) or not config:
        raise ConfigError(key, str(folder), f"its {CONFIG_FILE} is damaged: it holds no settings")
    if has_former_keys(config):
        raise ConfigError(key, str(folder), written_by(folder))
    return {str(name): value for name, value in config.items()}


def check_files(folder: Path, key: str) -> None:
    """Raise ConfigError for anything in a run's folder that is no regular file and no folder, such as a FIFO.

    To open one, for reading or for writing, may wait for ever. A folder that is not there holds none.
    """
    for place in (folder, folder / CHECKPOINTS):
        for path in sorted(place.iterdir()) if place.is_dir() else ():
            if path.exists() and not (path.is_file() or path.is_dir()):
                raise ConfigError(key, str(folder), f"holds {path.name}, which is neither a file nor a folder")


def has_former_keys(config: Mapping[Any, Any]) -> bool:
    """Return whether an earlier version wrote a configuration. A plugin's components may have any keys."""
    if not FORMER_KEYS[""].isdisjoint(config):
        return True
    components = {name: config.get(name) for name in FORMER_KEYS}
    return any(
        isinstance(node, Mapping)
        and str(node.get("_target_")).startswith(f"{PACKAGE}.")
        and not FORMER_KEYS[name].isdisjoint(node)
        for name, node in components.items()
    )


def read_summary(folder: Path) -> dict[str, Any] | None:
    """The summary of a run that has ended; None without one that can be read."""
    try:
        summary = parse_json(read_text(folder / SUMMARY_FILE))
    except (OSError, UnreadableError):
        return None
    return summary if isinstance(summary, dict) else None


def commit_of(folder: Path) -> str | None:
    """The commit of the program that wrote the run in `folder`; None if there is no summary, or it has none."""
    commit = (read_summary(folder) or {}).get("commit")
    return None if commit is None else str(commit) or None


def written_by(folder: Path) -> str:
    """The program that wrote the run in `folder`, for errors about one that this program cannot read."""
    commit = commit_of(folder)
    if commit is None:
        return f"was written by another version of a3c_exp, of which its {SUMMARY_FILE} has no commit"
    return f"was written by commit {commit[:7]}: use that checkout"


def check_links(folder: Path, key: str, start: str = "") -> None:
    """Raise ConfigError for `key` if a link in a run's folder leads out of it: a file elsewhere would be written.

    An archive from anyone may hold links. start: only names that start so, and what is below them.
    """
    root = expanded(folder).resolve()
    for path in sorted(root.rglob("*")):
        if not path.relative_to(root).parts[0].startswith(start):
            continue
        if path.is_symlink() and not path.resolve().is_relative_to(root):
            raise ConfigError(key, str(folder), f"has a link that leads out of it: {path.relative_to(root)}")


def config_text(config: Mapping[str, Any]) -> str:
    """A plain configuration as YAML, which `read_config` reads back unchanged.

    Raises ConfigError for a text that begins an interpolation, `${`, and is none.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        return OmegaConf.to_yaml(OmegaConf.create(dict(config)))
    except OmegaConfBaseException as error:
        raise ConfigError(error.full_key or "configuration", dict(config), one_line(error)) from error


def best_checkpoint(folder: Path) -> Path:
    """A run's best checkpoint, or the latest if there was no evaluation. It may not exist."""
    checkpoints = expanded(folder) / CHECKPOINTS
    return checkpoints / (BEST if (checkpoints / BEST).exists() else LATEST)


def latest_checkpoint(folder: Path) -> Path:
    """A run's latest checkpoint, or the best if it was killed before it saved another. It may not exist."""
    checkpoints = expanded(folder) / CHECKPOINTS
    existing = [name for name in (LATEST, PREVIOUS, BEST) if (checkpoints / name).exists()]
    return checkpoints / (existing or [LATEST])[0]


def make_latest(path: Path) -> None:
    """Let the checkpoint before the latest one take its place; nothing, for any other checkpoint.

    The next save would replace it by the damaged one, and a kill during that save would leave none. The damaged one is
    set aside.
    """
    if path.name == PREVIOUS:
        latest = path.with_name(LATEST)
        if latest.exists():
            set_aside(latest)
        path.rename(latest)


def check_folder(folder: Path, key: str = "folder") -> Path:
    """`folder` as an absolute path that a new run may write to. Makes nothing.

    key: the setting that names the folder, for errors. Raises ConfigError.
    """
    folder = expanded(folder).absolute()
    if (folder / CONFIG_FILE).exists():
        raise ConfigError(key, str(folder), "must be without a run: resume=<folder> continues the one in it")
    check_writable(folder, key)
    return folder


def check_writable(folder: Path, key: str) -> None:
    """Raise ConfigError for `key` unless `folder`, an absolute path, can be written to or made. Makes nothing."""
    existing = folder
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(key, str(folder), f"cannot be written: {existing} is no folder that this user may write to")
