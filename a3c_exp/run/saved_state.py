"""The state of a run as its checkpoints hold it: which values there are, of which types and in which ranges.

`checkpoint` reads any nested plain data. Here they are checked before anything is built from them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from a3c_exp.common.reading import LARGEST
from a3c_exp.core.counters import RNG_WORDS
from a3c_exp.errors import FolderError, shown
from a3c_exp.run import checkpoint, run_folder

if TYPE_CHECKING:
    from a3c_exp.networks import ActorCritic

Check = Callable[[Any], str | None]
"""Returns what a value must be if it is something else: "a whole number"; None if it is right."""


STATE_ERRORS = (KeyError, IndexError, TypeError, ValueError, AttributeError)
"""Errors that a whole state may raise where it is restored: it is of another network, or of another optimizer."""


def constants_of(network: ActorCritic) -> dict[str, Any]:
    """What a policy has besides parameters and statistics: buffers and frozen parameters, for the store's part of a
    checkpoint."""
    constants = {name: tensor.numpy().copy() for name, tensor in network.constants().items()}
    return {"constants": constants} if constants else {}


def load_state(path: Path) -> dict[str, Any]:
    """The state of a run in a checkpoint, as `Trainer` saves it. Raises FolderError: see `checkpoint.load`."""
    state = checkpoint.load(path)
    problem = _find_problem(state, _STATE, "")
    if problem is not None:
        raise FolderError(path, f"is a damaged checkpoint: {problem}")
    return state


def load_latest(folder: Path) -> tuple[dict[str, Any], Path, str]:
    """The state that the run in `folder` continues from, its checkpoint, and a warning if that is not latest.ckpt.

    A latest checkpoint that is refused has the one before it in its place, if the run was cut before its end. Raises
    FolderError as `load_state` does.
    """
    path = run_folder.latest_checkpoint(folder)
    previous = path.with_name(run_folder.PREVIOUS)
    try:
        missing = f"there is no {run_folder.LATEST}: the run goes on from {path.name}"
        return load_state(path), path, "" if path.name == run_folder.LATEST else missing
    except FolderError as refused:
        if path == previous or not previous.exists():
            raise
        try:
            state = load_state(previous)
        except FolderError:
            raise refused from None
        text = f"{path.name} {refused.problem}: the run goes on from {previous.name}, step {state['store']['steps']}"
        return state, previous, text


def _whole(value: Any) -> str | None:
    most = LARGEST // 2  # counters of 64 bits go on from there
    return None if type(value) is int and 0 <= value <= most else f"a whole number from 0 to {most}"


def _number(value: Any) -> str | None:
    return None if type(value) in (int, float) and abs(value) < math.inf else "a finite number"


def _or_null(check: Check) -> Check:
    def check_or_null(value: Any) -> str | None:
        problem = None if value is None else check(value)
        return problem and f"{problem}, or null"

    return check_or_null


def _list(*checks: Check) -> Check:
    def check_list(value: Any) -> str | None:
        fits = isinstance(value, list) and len(value) == len(checks)
        if fits and all(check(item) is None for check, item in zip(checks, value, strict=True)):
            return None
        return f"a list of {len(checks)} numbers"

    return check_list


def _array(kinds: str, dimensions: int, *, finite: bool = False) -> Check:
    """kinds: numpy's letters of what its numbers may be: f, floating-point; i, whole; u, whole and not negative."""

    def check_array(value: Any) -> str | None:
        if not isinstance(value, np.ndarray) or value.dtype.kind not in kinds or value.ndim != dimensions:
            return f"an array of numbers of {dimensions} dimension{'s' if dimensions > 1 else ''}"
        if finite and not np.isfinite(value).all():
            return "finite: the training had diverged, or the file has been changed"
        return None

    return check_array


def _rng_states(value: Any) -> str | None:
    """Rows of `core.counters.pack_rng`, whose last two numbers are a flag and 32 bits."""
    if (problem := _array("u", 2)(value)) is not None:
        return problem
    fits = value.shape[1] == RNG_WORDS and (value[:, -2] <= 1).all() and (value[:, -1] < 2**32).all()
    return None if fits else "states of generators"


def _arrays(value: Any) -> str | None:
    fits = isinstance(value, dict) and all(isinstance(each, np.ndarray) for each in value.values())
    return None if fits and all(each.dtype.kind in "biufc" for each in value.values()) else "arrays of numbers, by name"


def _pixels(value: Any) -> str | None:
    if (problem := _array("f", 1, finite=True)(value)) is not None:
        return problem
    return None if value.shape == (2,) and value[1] > 0 else "a mean and a deviation > 0"


_STATE: Mapping[str, Any] = {
    "store": {
        "parameters": _array("f", 1, finite=True),
        "optimizer_state": _array("f", 3),
        "version": _whole,
        "applied_gradients": _array("i", 1),
        "worker_episodes?": _array("i", 1),
        "steps": _whole,
        "stats": _array("f", 1, finite=True),
        "rng_states": _rng_states,
        "constants?": _arrays,
        "pixels?": _pixels,  # of runs of before: see `config.saved`
    },
    "statistics": {
        **dict.fromkeys(("steps", "updates", "rejected", "episodes"), _whole),
        **dict.fromkeys(("restarts?", "env_errors?", "late_gradients?", "cut_eval_episodes?"), _whole),
        "seconds": _number,
        "staleness": _list(_whole, _whole, _whole),
        "recent_end_steps": _array("i", 1),
        "recent_returns": _array("f", 1),
        "recent_lengths": _array("i", 1),
    },
    "resumed": _whole,
    "training_seconds": _number,
    "best_eval_return": _or_null(_number),
    "solved": _or_null(_list(_whole, _number)),
}
"""The check of each value by its name; names with a question mark may be missing."""


def _find_problem(value: Any, schema: Mapping[str, Any] | Check, place: str) -> str | None:
    """The first value that the schema refuses, in words; None if there is none."""
    if not isinstance(schema, Mapping):
        problem = schema(value)
        return problem and f"{place} is {_short(value)}, and must be {problem}"
    if not isinstance(value, dict):
        return f"{place} is {_short(value)}, and must be a mapping"
    for name, inner in schema.items():
        key = name.rstrip("?")
        inside = f"{place}.{key}" if place else key
        if key not in value:
            if key == name:
                return f"{inside} is missing"
            continue
        problem = _find_problem(value[key], inner, inside)
        if problem is not None:
            return problem
    return None


def _short(value: Any) -> str:
    return f"an array of {value.dtype} {value.shape}" if isinstance(value, np.ndarray) else shown(value)
