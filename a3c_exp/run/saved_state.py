"""The state of a run as its checkpoints hold it: which values there are, and of which kinds.

`checkpoint` reads any nested plain data. Here they are checked before anything is built from them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from a3c_exp.common.reading import LARGEST
from a3c_exp.core.counters import RNG_WORDS
from a3c_exp.core.events import COUNTS
from a3c_exp.envs.info import is_usable_name
from a3c_exp.errors import FolderError, shown
from a3c_exp.run import checkpoint, run_folder

Check = Callable[[Any], bool]

STATE_ERRORS = (KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError)
"""Errors that a whole state may raise where it is restored: it is of another network, or of another optimizer."""


def load_state(path: Path) -> dict[str, Any]:
    """The state of a run in a checkpoint, as `Trainer` saves it. Raises FolderError: see `checkpoint.load`."""
    state = checkpoint.load(path)
    for key, fits in _STATE.items():
        place = key.rstrip("?")
        value = _value_at(state, place)
        if not (key != place if value is _MISSING else fits(value)):
            text = "missing" if value is _MISSING else " ".join(shown(value).split())
            raise FolderError(path, f"is a damaged checkpoint: {place} is {text}")
    return state


def load_latest(folder: Path) -> tuple[dict[str, Any], Path, str]:
    """The state that the run in `folder` continues from, its checkpoint, and a warning if that is not latest.ckpt.

    A latest checkpoint that is refused has the last numbered one that can be read in its place: a run that was cut has
    that of the save before. Raises FolderError as `load_state` does.
    """
    path, *before = run_folder.latest_checkpoints(folder) or [folder / run_folder.CHECKPOINTS / run_folder.LATEST]
    try:
        missing = f"there is no {run_folder.LATEST}: the run goes on from {path.name}"
        return load_state(path), path, "" if path.name == run_folder.LATEST else missing
    except FolderError as refused:
        for earlier in before:
            with suppress(FolderError):
                state = load_state(earlier)
                step = state["store"]["steps"]
                text = f"{path.name} {refused.problem}: the run goes on from {earlier.name}, step {step}"
                return state, earlier, text
        raise


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= LARGEST // 2  # counters of 64 bits go on from there


def _number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < math.inf


def _list(value: Any, fits: Check, length: int) -> bool:
    return isinstance(value, list) and len(value) == length and all(map(fits, value))


def _mapping(value: Any, kind: type) -> bool:
    return isinstance(value, dict) and all(isinstance(each, kind) for each in value.values())


def _array(form: str, *, finite: bool = False) -> Check:
    """form: numpy's letter of the numbers, and how many dimensions there are: "f1"."""

    def check(value: Any) -> bool:
        if not isinstance(value, np.ndarray) or f"{value.dtype.kind}{value.ndim}" != form:
            return False
        return not finite or bool(np.isfinite(value).all())

    return check


_STATE: Mapping[str, Check] = {
    **dict.fromkeys(["resumed", "store.steps", "store.version"], _count),
    **dict.fromkeys(["statistics.steps", "statistics.updates", "statistics.episodes"], _count),
    **{f"statistics.{name}?": _count for name in COUNTS},
    **dict.fromkeys(["training_seconds", "statistics.seconds"], _number),
    # Those of `store.pixels` are of runs of before: see `config.saved`.
    **dict.fromkeys(["store.parameters", "store.stats", "store.pixels?"], _array("f1", finite=True)),
    **dict.fromkeys(["store.applied_gradients", "store.worker_episodes?"], _array("i1")),
    **dict.fromkeys(["statistics.recent_end_steps", "statistics.recent_lengths"], _array("i1")),
    "statistics.recent_returns": _array("f1"),
    "statistics.recent_names?": lambda value: isinstance(value, list) and all(map(is_usable_name, value)),
    "statistics.recent_numbers?": _array("f2"),
    "statistics.staleness": lambda value: _list(value, _count, 3),
    "store.optimizer_state": _array("f3"),
    "store.multipliers?": lambda value: _array("f1", finite=True)(value) and len(value) == 2,
    "store.rng_states": lambda value: _array("u2")(value) and value.shape[1] == RNG_WORDS,
    "store.constants?": lambda value: _mapping(value, np.ndarray),
    "callbacks?": lambda value: _mapping(value, dict),
    "best_eval_return": lambda value: value is None or _number(value),
    "solved": lambda value: value is None or _list(value, _number, 2),
}
"""Whether each value is one that a run has saved, by its place. Places with a question mark may be empty."""

_MISSING = object()


def _value_at(state: Any, place: str) -> Any:
    for name in place.split("."):
        state = state.get(name, _MISSING) if isinstance(state, Mapping) else _MISSING
    return state
