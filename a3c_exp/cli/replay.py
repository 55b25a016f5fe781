"""`replay=<run>`: a new run that follows the order of a recorded one, with settings of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from a3c_exp.common.reading import expanded
from a3c_exp.common.settings import TARGET
from a3c_exp.config.saved import LOG_EVERY, as_typed, read_config
from a3c_exp.core.order_file import RecordedSession, read_order
from a3c_exp.errors import ConfigError, FolderError, one_line
from a3c_exp.run.run_folder import SUMMARY_FILE, latest_checkpoints

REPLAY = "a3c_exp.run.replay.Replay"
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

    changed: dotted keys of the settings that it has in place of the recorded ones.
    Raises FolderError if the order cannot be used.
    """
    from a3c_exp.run.replay import WATCHING, learning_settings

    config = read_config(folder)
    place = expanded(folder).absolute()
    order = read_order(place)
    first = order.sessions[0]
    last = order.sessions[-1]
    there = learning_settings(config)
    recorded = learning_settings(last.config)
    for key in {**there, **recorded}:
        if there.get(key) != recorded.get(key):
            problem = f"the order is of a run with {key}={recorded.get(key)}, not {there.get(key)}"
            raise FolderError(folder, problem)
    _check_whole(place, order.sessions)

    watching = (*WATCHING, "backend")
    exact = all(key.partition(".")[0] in watching for key in changed)
    config = as_typed(config, [LOG_EVERY])  # a deterministic backend has points by steps
    return config | {
        "backend": {TARGET: REPLAY, "folder": str(place), "exact": exact},
        "callbacks": [],
        "record": None,
        "stop": _NO_RULES,
        # those of a resumed run may have changed
        **{key: first.config.get(key) for key in ("total_steps", "workers")},
    }


_NO_RULES: Mapping[str, Any] = dict.fromkeys(
    ("max_episodes", "max_seconds", "mean_return", "worker_episodes", "worker_return")
)


def check_resumable(folder: str, config: Mapping[str, Any]) -> None:
    """Raise FolderError for a run that is a replay."""
    backend = config.get("backend")
    if isinstance(backend, Mapping) and backend.get(TARGET) == REPLAY:
        raise FolderError(folder, f"is a replay: replay={backend.get('folder')} begins it anew")


def check_replayable(key: str, value: object) -> None:
    """Raise ConfigError for a setting that a replay cannot change."""
    if key.partition(".")[0] in OF_THE_ORDER and key != "backend.break_at":
        problem = "cannot change in a replay: the order is of a run without it"
        raise ConfigError(key, value, problem)


def _check_whole(folder: Path, sessions: Sequence[RecordedSession]) -> None:
    """Raise FolderError for an order that has less than the run's latest checkpoint, or that lacks
    the end of a run that has ended."""
    from a3c_exp.run.checkpoint import load_state

    try:
        last_version = [session.last_version for session in sessions][-1]
    except ValueError as error:
        raise FolderError(folder, f"its order is damaged: {one_line(error)}") from error
    if not sessions[-1].has_ended and (folder / SUMMARY_FILE).exists():
        raise FolderError(folder, "its order is cut: the run has ended, and its order has not")
    checkpoints = latest_checkpoints(folder)
    saved = load_state(checkpoints[0])["store"]["version"] if checkpoints else 0
    if saved > last_version:
        problem = f"its order is cut: it has {last_version:,} updates, and a checkpoint {saved:,}"
        raise FolderError(folder, problem)
