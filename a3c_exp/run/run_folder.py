"""A run's folder: the names of its files, and whether a run may write there."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

from a3c_exp.common.reading import UnreadableError, check_plain, expanded, read_text
from a3c_exp.errors import ConfigError, FolderError, one_line
from a3c_exp.run.files import copy_as, set_aside

CONFIG_FILE = "config.yaml"
SUMMARY_FILE = "summary.json"
EPISODES_FILE = "episodes.csv"
METRICS_FILE = "metrics.csv"
VIDEOS = "videos"
_NUMBERED = re.compile("step_([0-9]{1,18})[.]ckpt")
CHECKPOINTS = "checkpoints"
LATEST = "latest.ckpt"
BEST = "best.ckpt"


def environment_of(config: Mapping[str, Any]) -> str:
    """The environment of a configuration: its registered name, its game, or else its class."""
    env = config.get("env") or {}
    return str(
        next((env[key] for key in ("id", "game", "_target_") if env.get(key) is not None), None)
    )


def read_summary(folder: Path) -> dict[str, Any] | None:
    """The summary of a run that has ended; None without one that can be read."""
    try:
        summary = json.loads(read_text(folder / SUMMARY_FILE))
        check_plain(summary)
    except (
        OSError,
        UnreadableError,
        ValueError,
        RecursionError,
    ):  # a stranger's file may hold anything
        return None
    return summary if isinstance(summary, dict) else None


EVENTS = "events.out.tfevents."
WRITTEN = (
    CONFIG_FILE,
    SUMMARY_FILE,
    EPISODES_FILE,
    "metrics.",
    CHECKPOINTS,
    VIDEOS,
    EVENTS,
    "train.log",
    "trace.json",
)
"""How the names begin of all that a run writes into its folder: files that it replaces have others
beside them."""


def check_links(folder: Path, *starts: str) -> None:
    """Raise FolderError if a link in a run's folder leads out of it: a file elsewhere would be
    written.

    An archive from anyone may hold links. starts: how the names begin that are looked at, with all
    below them; those that a run writes, if none is given.
    """
    root = expanded(folder).resolve()
    for top in sorted(root.iterdir()) if root.is_dir() else ():
        if not top.name.startswith(starts or WRITTEN):
            continue
        for path in (top, *sorted(top.rglob("*"))):
            if path.is_symlink() and not path.resolve().is_relative_to(root):
                raise FolderError(
                    folder, f"has a link that leads out of it: {path.relative_to(root)}"
                )


def config_text(config: Mapping[str, Any]) -> str:
    """A plain configuration as YAML, which `config.saved` reads back unchanged.

    Raises ConfigError for a text that begins an interpolation, `${`, and is none.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        return OmegaConf.to_yaml(OmegaConf.create(dict(config)))
    except OmegaConfBaseException as error:
        raise ConfigError(
            error.full_key or "configuration", dict(config), one_line(error)
        ) from error


def best_checkpoint(folder: Path) -> Path:
    """A run's best checkpoint, or the latest if there was no evaluation. It may not exist."""
    checkpoints = expanded(folder) / CHECKPOINTS
    return checkpoints / (BEST if (checkpoints / BEST).exists() else LATEST)


def numbered_checkpoints(folder: Path) -> dict[Path, int]:
    """A run's numbered checkpoints and their steps, the last one first."""
    paths = (expanded(folder) / CHECKPOINTS).glob("step_*.ckpt")
    found = {path: int(number[1]) for path in paths if (number := _NUMBERED.fullmatch(path.name))}
    return dict(sorted(found.items(), key=itemgetter(1), reverse=True))


def latest_checkpoints(folder: Path) -> list[Path]:
    """What a run may go on from, the first one first: its latest checkpoint and the numbered ones;
    the best if it was killed before it saved another."""
    checkpoints = expanded(folder) / CHECKPOINTS
    found = [
        path for path in (checkpoints / LATEST, *numbered_checkpoints(folder)) if path.exists()
    ]
    return found or [path for path in (checkpoints / BEST,) if path.exists()]


def make_latest(path: Path) -> None:
    """Let a numbered checkpoint be the latest one too. A damaged one, in whose place it comes, is
    set aside."""
    if path.name not in (LATEST, BEST):
        latest = path.with_name(LATEST)
        if latest.exists():
            set_aside(latest)
        copy_as(path, latest)
