"""`replay=<run>`: a new run that follows the order of a recorded one, with settings of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from a3c_exp.common.reading import expanded
from a3c_exp.common.settings import TARGET
from a3c_exp.config.saved import LOG_EVERY, as_typed, read_config
from a3c_exp.errors import ConfigError, FolderError, one_line
from a3c_exp.run.run_folder import ORDER_FILE, latest_checkpoints, read_summary

if TYPE_CHECKING:
    from a3c_exp.run.order_file import RecordedSession

REPLAY_CLASS = "a3c_exp.run.replay.Replay"
OF_THE_ORDER = (
    "backend",
    "env",
    "envs_per_worker",
    "init_from",
    "lock",
    "quorum",
    "record",
    "rollout_length",
    "seed",
    "stop",
    "update",
    "workers",
)
"""Settings without which the order of a run means nothing, or which would end it."""


def replay_config(folder: str, changed: Sequence[str]) -> dict[str, Any]:
    """Return the configuration of a run that follows the order of the run in a folder.

    changed: dotted keys of the settings that differ from the recorded ones.
    Raises FolderError if the order cannot be used.
    """
    from a3c_exp.run.order_file import read_order
    from a3c_exp.run.replay import WATCHING, learning_settings

    config = read_config(folder)
    path = expanded(folder).absolute()
    order = read_order(path)
    first = order.sessions[0]
    last = order.sessions[-1]
    there = learning_settings(config)
    recorded = learning_settings(last.config)
    for key in {**there, **recorded}:
        if there.get(key) != recorded.get(key):
            problem = f"the order is of a run with {key}={recorded.get(key)}, not {there.get(key)}"
            raise FolderError(folder, problem)
    if first.start is not None:
        raise FolderError(folder, f"its first session has no {ORDER_FILE}")
    _check_whole(path, last)

    # those of the order are named as they are, or refused
    watching = (*WATCHING, *OF_THE_ORDER)
    exact = all(key.partition(".")[0] in watching for key in changed)
    config = as_typed(config, [LOG_EVERY])  # a deterministic backend has points by steps
    return config | {
        "backend": {TARGET: REPLAY_CLASS, "folder": str(path), "exact": exact},
        "callbacks": [],
        "record": None,
        "stop": {},
        # those of a resumed run may have changed
        **{key: first.config.get(key) for key in ("total_steps", "workers")},
    }


def check_resumable(folder: str, config: Mapping[str, Any]) -> None:
    """Raise FolderError for a run that is a replay."""
    backend = config.get("backend")
    if isinstance(backend, Mapping) and backend.get(TARGET) == REPLAY_CLASS:
        raise FolderError(folder, f"is a replay: replay={backend.get('folder')} begins it anew")


def check_replayable(key: str, value: object) -> None:
    """Raise ConfigError for a setting that a replay cannot change."""
    if key.partition(".")[0] in OF_THE_ORDER and key != "backend.break_at":
        problem = "cannot change in a replay: the order is of a run with another one"
        raise ConfigError(key, value, problem)


def _check_whole(folder: Path, last: RecordedSession) -> None:
    """Raise FolderError for an order that lacks the run's latest checkpoint, or its end if it has
    left none."""
    from a3c_exp.run.checkpoint import load_state

    checkpoints = latest_checkpoints(folder)
    if checkpoints:
        version = load_state(checkpoints[0])["store"]["version"]
    else:
        version = (read_summary(folder) or {}).get("updates")
    try:
        is_cut = version is not None and version not in last.saved
    except ValueError as error:
        raise FolderError(folder, f"{ORDER_FILE} is damaged: {one_line(error)}") from error
    if is_cut:
        problem = f"has {last.last_version:,} updates, and not the checkpoint of update {version:,}"
        raise FolderError(folder, f"{ORDER_FILE} is cut: it {problem}")
