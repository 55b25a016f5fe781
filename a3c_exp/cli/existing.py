"""Runs that are already in the folder where one is asked for: continued, begun anew, left as they are, or refused.

`existing` is one of
    refuse: a folder that has a run is refused;
    resume: a finished run stays as it is, one that was cut continues from its checkpoint, the others begin anew;
    restart: every run begins anew.
`resume=<folder>` is CONTINUE: there is a run, and it continues from its checkpoint even if it has finished.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any

from a3c_exp.common.reading import expanded
from a3c_exp.common.settings import flatten
from a3c_exp.config.final import as_typed
from a3c_exp.config.saved import read_config, read_settings
from a3c_exp.errors import FAILED, ConfigError, FolderError
from a3c_exp.run.run_folder import (
    BEST,
    CHECKPOINTS,
    CONFIG_FILE,
    EPISODES_FILE,
    LATEST,
    METRICS_FILE,
    POINTS_FILE,
    PREVIOUS,
    SUMMARY_FILE,
    latest_checkpoint,
    read_summary,
)

EXISTING = ("refuse", "resume", "restart")
CONTINUE = "continue"
CUT = ("interrupted", "server_died")
"""Stop reasons of runs that continue: nothing is wrong with them."""


class Action(Enum):
    """What is to be done in a folder."""

    BEGIN = "begin"
    RESUME = "resume"
    LEAVE = "leave"


def find_action(folder: Path, config: Mapping[str, Any], existing: str) -> Action:
    """What is to be done in `folder` for a run of `config`. Changes nothing.

    existing: see above.
    Raises FolderError for a run that is refused: any with `refuse`, one with other settings with `resume`. Settings are
    compared as they were typed: `auto` is equal to whatever it stood for then.
    """
    if existing == CONTINUE:
        return Action.RESUME
    if not (folder / CONFIG_FILE).exists():
        _check_nothing_is_lost(folder)
        return Action.BEGIN
    if existing == "refuse":
        raise FolderError(folder, "must be without a run: resume=<folder> continues the one in it")
    if existing == "restart":
        _check_own(folder)
        return Action.BEGIN
    difference = _difference(as_typed(config), as_typed(read_config(folder, config.get("plugins") or ())))
    if difference:
        raise FolderError(folder, f"has a run with other settings: {difference}; existing=restart begins it anew")
    summary = read_summary(folder)
    if summary is None or summary.get("stop_reason") in CUT or summary.get("unwritten"):
        return Action.RESUME if latest_checkpoint(folder).exists() else Action.BEGIN
    return Action.BEGIN if summary.get("stop_reason") in FAILED else Action.LEAVE


def _check_nothing_is_lost(folder: Path) -> None:
    """Raise FolderError for a folder without a run that holds a file which a run would replace.

    None of this program's kills leaves such a folder: config.yaml comes first, and is deleted last.
    """
    checkpoints = [f"{CHECKPOINTS}/{name}" for name in (LATEST, PREVIOUS, BEST)]
    for name in (SUMMARY_FILE, EPISODES_FILE, POINTS_FILE, METRICS_FILE, *checkpoints):
        if (folder / name).exists():
            raise FolderError(folder, f"has no run, but a file that a run would replace: {name}")


def _check_own(folder: Path) -> None:
    """Raise FolderError unless a configuration in a folder is that of a run: another program's may have its name."""
    try:
        config = read_settings(folder)
    except FolderError as error:
        raise FolderError(folder, f"{error.problem}; nothing is deleted beside it") from error
    except ConfigError:  # of a removed setting
        return
    if not all(isinstance(config.get(name), Mapping) for name in ("env", "network", "backend")):
        raise FolderError(folder, f"its {CONFIG_FILE} is not that of a run; nothing is deleted beside it")


def clear(folder: Path, *, keep_log: bool) -> None:
    """Delete what an earlier run has written into `folder`, so that another one can begin. Other files stay.

    keep_log: train.log stays too, and may say why the earlier run failed.
    """
    # The summary first and the configuration last: whenever this is cut, the run in the folder is an unfinished one.
    events = sorted(folder.glob("events.out.tfevents.*"))
    log = [] if keep_log else [folder / "train.log"]
    checkpoints = sorted((folder / CHECKPOINTS).glob("*.ckpt*"))
    names = (EPISODES_FILE, POINTS_FILE, METRICS_FILE, CONFIG_FILE)
    for path in [folder / SUMMARY_FILE, *checkpoints, *events, *log, *(folder / name for name in names)]:
        path.unlink(missing_ok=True)


def _difference(asked: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """The settings in which two configurations differ: "gamma=0.9, not 0.5". Empty if they do not."""
    from omegaconf import OmegaConf

    plain: Any = OmegaConf.to_container(OmegaConf.create(dict(asked)))  # as it is saved: with lists for tuples
    ours, theirs = (dict(flatten(_with_absolute_path(each))) for each in (plain, found))
    none = object()
    keys = [key for key in [*ours, *(theirs.keys() - ours.keys())] if ours.get(key, none) != theirs.get(key, none)]
    return ", ".join(f"{key}={theirs.get(key)}, not {ours.get(key)}" for key in keys[:3])


def _with_absolute_path(config: Mapping[str, Any]) -> dict[str, Any]:
    start = config.get("init_from")
    return {**config, "init_from": str(expanded(start).absolute())} if isinstance(start, str) else dict(config)


class SavedRuns:
    """The runs in a sweep's folder, as they are now."""

    def __init__(self, sweep: Path) -> None:
        self._found: list[tuple[Path, dict[str, Any]]] = []
        for file in sorted(sweep.glob(f"*/{CONFIG_FILE}")):
            with suppress(ConfigError):  # it is refused only if a run wants to be there
                self._found.append((file.parent, as_typed(read_config(file.parent))))

    def find(self, config: Mapping[str, Any]) -> Path | None:
        """The folder of the run of a configuration; None if there is none."""
        plain = {key: value for key, value in config.items() if isinstance(value, (str, int, float, bool))}
        for folder, found in self._found:
            likely = all(found.get(key) == value for key, value in plain.items() if key != "init_from")
            if likely and not _difference(config, {**found, "plugins": config.get("plugins") or []}):
                return folder
        return None
