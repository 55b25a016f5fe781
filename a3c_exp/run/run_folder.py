"""A run's folder: the names of its files, and whether a run may write there."""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import Any

from a3c_exp.common.reading import UnreadableError, check_plain, expanded, read_text
from a3c_exp.errors import ConfigError, FolderError, either, one_line
from a3c_exp.run.files import copy_as, set_aside

CONFIG_FILE = "config.yaml"
SUMMARY_FILE = "summary.json"
EPISODES_FILE = "episodes.csv"
METRICS_FILE = "metrics.csv"
ORDER_FILE = "order.bin"  # of record=order
LOG_FILE = "train.log"
TRACE_FILE = "trace.json"  # of callbacks.Profile
EVENTS = "events.out.tfevents."
VIDEOS = "videos"
CHECKPOINTS = "checkpoints"
LATEST = "latest.ckpt"
BEST = "best.ckpt"

RUNS_FOLDER = "outputs"
LAST_RUN = "latest"
"""The folder below which runs are made, and the word for the last one of them."""

_STEP_COUNT = "(0|[1-9][0-9]{0,17})"
_NUMBERED = re.compile(rf"step_{_STEP_COUNT}\.ckpt")
_REPLACED = "|".join(
    map(re.escape, (CONFIG_FILE, SUMMARY_FILE, EPISODES_FILE, METRICS_FILE, ORDER_FILE))
)
_OWN_FILES = re.compile(
    rf"({_REPLACED})(\.partial)?|{re.escape(LOG_FILE)}|{re.escape(TRACE_FILE)}"
    rf"|{re.escape(EVENTS)}[0-9]{{10}}\..+\.[0-9]+\.0"
    rf"|{CHECKPOINTS}/({re.escape(LATEST)}|{re.escape(BEST)}|{_NUMBERED.pattern}"
    r"|memory_[0-9]+\.npz)(\.partial)?"
    rf"|{VIDEOS}/{_STEP_COUNT}(\.part)?\.mp4"
)
"""All that a run writes into its folder, and what is left of a file that was being written."""


def locate_run(name: str | Path, having: str = CONFIG_FILE) -> Path:
    """Return the folder that a user names; for LAST_RUN, that of the run below RUNS_FOLDER which
    has begun or gone on last.

    A folder of that name goes before. having: a file of the runs that count. Raises FolderError if
    there is no run.
    """
    folder = expanded(name)
    if str(name) != LAST_RUN or folder.exists():
        return folder

    runs = [
        config
        for pattern in ("*", "*/*")  # of its own, or in a sweep's folder
        for config in Path(RUNS_FOLDER).glob(f"{pattern}/{CONFIG_FILE}")
        if config.with_name(having).exists()
    ]
    if not runs:
        kind = "run" if having == CONFIG_FILE else f"run with {having}"
        raise FolderError(name, f"there is no {kind} in {RUNS_FOLDER}/")
    # A run writes its configuration when it begins, and once more when it goes on.
    return max(runs, key=lambda config: config.stat().st_mtime_ns).parent


def alike(folder: Path) -> str:
    """Return a hint for a folder that is not there: LAST_RUN, and up to three runs whose names
    begin like its own."""
    begin_so = Path(RUNS_FOLDER).glob(f"{glob.escape(folder.name)}*/{CONFIG_FILE}")
    runs = sorted(str(config.parent) for config in begin_so)[-3:]
    hint = f"{LAST_RUN} is the last run in {RUNS_FOLDER}/"
    return f"{hint}; did you mean {either(map(repr, runs))}?" if runs else hint


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


def own_files(folder: Path) -> list[Path]:
    """The files of a run in `folder`, in the order in which they are deleted. A user's own beside
    them are not among them.

    The summary is the first: whenever this is cut, the run there is an unfinished one.
    """
    paths = [*folder.glob("*"), *folder.glob(f"{CHECKPOINTS}/*"), *folder.glob(f"{VIDEOS}/*")]
    run_files = [
        path for path in paths if _OWN_FILES.fullmatch(path.relative_to(folder).as_posix())
    ]
    return sorted(run_files, key=lambda path: path.name != SUMMARY_FILE)


def check_names(folder: Path, *names: str) -> None:
    """Raise FolderError if what is to be written in a folder is there as something else than a
    file, or than a folder if its name has no suffix.

    names: of what is to be written; those of a run, if none is given.
    """
    root = expanded(folder)
    try:
        if root.exists() and not root.is_dir():
            raise FolderError(folder, "is there, and is no folder")

        paths = [root / name for name in names or (CHECKPOINTS, VIDEOS)]
        if not names:
            paths += own_files(root)
        for path in paths:
            is_right = path.is_file() if path.suffix else path.is_dir()
            if path.exists() and not is_right:
                kind = "file" if path.suffix else "folder"
                raise FolderError(folder, f"{path.relative_to(root)} is there, and is no {kind}")
    except OSError as error:
        raise FolderError(folder, f"cannot be used: {one_line(error)}") from error


def begins_with(path: Path, mark: str) -> bool:
    """Return whether a file begins with a text, by which its writer is known."""
    with suppress(OSError), open(path, "rb") as file:
        return file.read(len(mark)) == mark.encode()
    return False


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
    numbers = {path: int(number[1]) for path in paths if (number := _NUMBERED.fullmatch(path.name))}
    return dict(sorted(numbers.items(), key=itemgetter(1), reverse=True))


def latest_checkpoints(folder: Path) -> list[Path]:
    """What a run may go on from, the first one first: its latest checkpoint and the numbered ones;
    the best if it was killed before it saved another."""
    checkpoints = expanded(folder) / CHECKPOINTS
    latest = [
        path for path in (checkpoints / LATEST, *numbered_checkpoints(folder)) if path.exists()
    ]
    return latest or [path for path in (checkpoints / BEST,) if path.exists()]


def make_latest(path: Path) -> None:
    """Let a numbered checkpoint be the latest one too. A damaged one, in whose place it comes, is
    set aside."""
    if path.name not in (LATEST, BEST):
        latest = path.with_name(LATEST)
        if latest.exists():
            set_aside(latest)
        copy_as(path, latest)
