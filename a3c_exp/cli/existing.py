"""Runs that are already in the folder where one is asked for: continued, begun anew, left as they
are, or refused.

`existing` is one of
    refuse: a folder that has a run is refused;
    resume: a finished run stays as it is, and so does one without an ended episode, since another
        would be no better; one that was cut continues from its checkpoint, the others begin anew;
    restart: every run begins anew.
`resume=<folder>` is CONTINUE: there is a run, and it continues from its checkpoint even if it has
finished.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from a3c_exp.common.reading import expanded
from a3c_exp.common.settings import comparable
from a3c_exp.config.saved import as_typed, is_whole, read_config
from a3c_exp.ending import BY_TOTALS, FAILED, StopReason
from a3c_exp.errors import ConfigError, FolderError
from a3c_exp.run.run_folder import (
    CONFIG_FILE,
    LOG_FILE,
    check_names,
    latest_checkpoints,
    own_files,
    read_summary,
)

CONTINUE = "continue"
Action = Literal["begin", "resume", "leave"]
MAY_CHANGE = (
    "backend",
    "callbacks",
    "checkpoint",
    "eval",
    "log",
    "plugins",
    "stop",
    "total_steps",
    "vars",
    "workers",
)
"""Settings and components that may change when a run goes on."""


def find_action(
    folder: Path,
    config: Mapping[str, Any],
    existing: str,
    earlier: Mapping[str, Any] | None = None,
) -> Action:
    """What is to be done in `folder` for a run of `config`. Changes nothing.

    existing: see above. earlier: the configuration of the run that is there, if it has been read.
    Raises FolderError for a folder that a run may not or cannot write to, and for a run that is
    refused: any with `refuse`, one with other settings with `resume`. Settings are compared as they
    were typed: `auto` is equal to whatever it stood for then.
    """
    check_names(folder)
    if existing == CONTINUE:
        assert earlier is not None
        return "leave" if _is_over(folder, config, earlier) else "resume"

    if not (folder / CONFIG_FILE).exists():
        _check_nothing_is_lost(folder)
        return "begin"
    if existing == "refuse":
        raise FolderError(folder, "must be without a run: resume= goes on with the one in it")
    if existing == "restart":
        _check_own(folder)
        return "begin"
    if earlier is None:
        earlier = read_config(folder, config.get("plugins") or ())

    here = typed_settings(config)
    there = typed_settings(earlier)
    differences = [key for key in {**here, **there} if here.get(key, ...) != there.get(key, ...)]
    if differences and not _means_the_same(config, earlier):
        examples = ", ".join(
            f"{key}={there.get(key)} there, {here.get(key)} here" for key in differences[:3]
        )
        way = "another folder keeps it, existing=restart begins it anew"
        if all(key.partition(".")[0] in MAY_CHANGE for key in differences):
            way = f"resume={folder} with these settings goes on with it"

        raise FolderError(folder, f"has a run with other settings: {examples}; {way}")
    how = how_ended(folder)
    if how == "cut" and latest_checkpoints(folder):
        return "resume"
    is_hopeless = (read_summary(folder) or {}).get("stop_reason") == StopReason.NO_EPISODES
    return "leave" if how == "finished" or is_hopeless else "begin"


def how_ended(folder: Path) -> Literal["finished", "failed", "cut"]:
    """How the run in a folder has ended. One that goes on, or lacks a file that it could not write,
    counts as cut."""
    summary = read_summary(folder) or {}
    reason = summary.get("stop_reason")
    if reason in (None, StopReason.INTERRUPTED) or summary.get("unwritten"):
        return "cut"
    return "failed" if reason in FAILED else "finished"


def _means_the_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two configurations describe one experiment: an earlier version's has fewer
    settings."""
    from a3c_exp.config.builder import build_experiment

    with suppress(ConfigError):
        return build_experiment(as_typed(one)) == build_experiment(as_typed(other))
    return False


def _is_over(folder: Path, config: Mapping[str, Any], earlier: Mapping[str, Any]) -> bool:
    """Return whether a run has finished, and would do so at once if it went on with the settings of
    `config`."""
    reason = (read_summary(folder) or {}).get("stop_reason")
    # a limit of seconds is one of each session
    if how_ended(folder) != "finished" or reason == StopReason.MAX_SECONDS:
        return False

    ends = ["stop", "total_steps"]
    # a callback ended it, or each worker's own rule
    if reason not in BY_TOTALS:
        ends += ["callbacks", "workers"]

    return all(config.get(key) == earlier.get(key) for key in ends)


def typed_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a configuration as they were typed, by dotted keys: see `comparable`."""
    typed = as_typed(config)
    if isinstance(start := typed.get("init_from"), str):
        typed["init_from"] = str(expanded(start).absolute())
    return comparable(typed)


def saved_runs(sweep: Path) -> dict[str, Path]:
    """The folders of the runs in a sweep's folder, by `identity` of their configurations."""
    folders: dict[str, Path] = {}
    for file in sorted(sweep.glob(f"*/{CONFIG_FILE}")):
        with suppress(ConfigError):  # it is refused only if a run wants to be there
            # a copy's name is the later one
            folders.setdefault(identity(read_config(file.parent)), file.parent)

    return folders


def identity(config: Mapping[str, Any]) -> str:
    """A text that two configurations share if they are the same: of all settings but `plugins`."""
    return json.dumps(typed_settings({**config, "plugins": []}), sort_keys=True)


def _check_nothing_is_lost(folder: Path) -> None:
    """Raise FolderError for a folder without a run that holds a file which a run would write.

    None of this program's kills leaves another one than that in which config.yaml was written.
    """
    for path in own_files(folder):
        if path.name != f"{CONFIG_FILE}.partial":
            raise FolderError(
                folder, f"has no run, but a file that a run would write: {path.relative_to(folder)}"
            )


def _check_own(folder: Path) -> None:
    """Raise FolderError unless a configuration in a folder is that of a run: another program's may
    have its name."""
    try:
        config = read_config(folder)
    except FolderError as error:
        raise FolderError(folder, f"{error.problem}; nothing is deleted beside it") from error
    if not is_whole(config):
        raise FolderError(
            folder, f"its {CONFIG_FILE} is not that of a run; nothing is deleted beside it"
        )


def clear(folder: Path, *, keep_log: bool) -> None:
    """Delete what an earlier run has written into `folder`, so that another one can begin. Other
    files stay, and so does the configuration, which the other one replaces.

    keep_log: train.log stays too, and may say why the earlier run failed.
    Raises FolderError, before anything is deleted, for what must not be written.
    """
    files = own_files(folder)
    for path in (folder, *files, *(path.parent for path in files)):
        if path.exists() and not os.access(path, os.W_OK):
            raise FolderError(folder, f"cannot be written: {path} is protected")

    for path in files:
        is_kept = keep_log and path.name == LOG_FILE
        if not is_kept and not path.name.startswith(CONFIG_FILE):
            path.unlink()
