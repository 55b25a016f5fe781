"""An environment's own numbers: those in the `info` of the step that ended an episode."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from a3c_exp.common.arrays import Bools
from a3c_exp.envs.answers import shortened
from a3c_exp.errors import shown

Info = Mapping[str, Any]

MOST_CHOSEN = 20
"""Names that are chosen where `info_keys` lists none."""

GYMNASIUMS = (
    "episode",
    "final_info",
    "final_obs",
    "final_observation",
    "terminal_observation",
    "TimeLimit.truncated",
)
"""Names that gymnasium and its wrappers use for themselves. Theirs are also all that begin with an
underscore."""

ENVPOOLS = ("elapsed_step", "env_id")
"""The same of EnvPool."""

EPISODE_COLUMNS = ["step", "worker", "return", "length", "seconds"]
"""Columns of episodes.csv before those of the environment's own numbers."""

TAKEN = (
    "ep_rew_mean",
    "ep_len_mean",
    "episodes",
    "mean_reward",
    "mean_ep_length",
    *EPISODE_COLUMNS,
)
"""Names of other curves of `rollout/` and `eval/`, and of other columns."""

_NAME = re.compile(r"(?=.{1,100}\Z)[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*")
_MOST_TOLD = 10


def is_usable_name(name: object) -> bool:
    """Return whether a curve in TensorBoard and a column of a table may have this name."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None and name not in TAKEN


class InfoNumbers:
    """Chooses the numbers in infos of ended episodes.

    keys: see `Environment.info_keys`.
    chosen: names. Those that are chosen once stay, so that names which change from episode to
        episode do not grow in number.
    episodes: that have ended. Whoever leaves out one without an info counts it.
    """

    def __init__(self, keys: Sequence[str] | None) -> None:
        self.keys = keys
        self.chosen: dict[str, None] = dict.fromkeys(keys or ())
        self._left_out: dict[str, str] = {}
        self.episodes = 0
        self._having: Counter[str] = Counter()  # episodes, by the names of their numbers
        self._other: set[str] = set()  # names of numbers that are more than truth values
        self._told_left_out = False
        self._told_partial = False

    def of(self, info: Info) -> dict[str, float]:
        """Return the finite numbers in the info of an episode that are chosen, by name."""
        numbers = {}
        for name in info if self.keys is None else self.keys:
            number = _as_number(info.get(name))
            # Where no names are chosen, nobody has asked for texts and arrays either.
            is_internal = name in (*GYMNASIUMS, *ENVPOOLS) or str(name).startswith("_")
            if self.keys is None and (number is None or is_internal):
                continue

            is_new_name = len(self.chosen) < MOST_CHOSEN and is_usable_name(name)
            has_room = name in self.chosen or is_new_name
            if has_room and number is not None and math.isfinite(number):
                self.chosen[name] = None
                numbers[name] = number
            elif len(self._left_out) < _MOST_TOLD:
                self._left_out.setdefault(shown(name), shortened(info.get(name)))

        self.episodes += 1
        self._having.update(numbers.keys())
        self._other.update(name for name, number in numbers.items() if number not in (0, 1))

        return numbers

    def warnings(self) -> tuple[str, ...]:
        """Return lines for the log, each once: what has been left out, and truth values that some
        episodes have and others have not."""
        lines = []
        if self._left_out and not self._told_left_out:
            self._told_left_out = True
            parts = ", ".join(f"{name} ({value})" for name, value in self._left_out.items())
            lines.append(
                f"left out of the info of an episode: {parts}; "
                f"env.info_keys chooses up to {MOST_CHOSEN} finite numbers"
            )

        partial = {name: n for name, n in self._having.items() if n < self.episodes}
        truths = [name for name in partial if name not in self._other]
        if truths and not self._told_partial:
            self._told_partial = True
            parts = ", ".join(f"{name} ({partial[name]} of {self.episodes})" for name in truths)
            lines.append(
                f"in the info of some episodes only: {parts}; a mean is of these episodes alone, "
                "so let the environment send it in each"
            )

        return tuple(lines)


def _as_number(value: object) -> float | None:
    """Return a number or a truth value as a float; None for anything else."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if not isinstance(value, int | float | np.bool_ | np.integer | np.floating):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def number_columns(rows: Sequence[Mapping[str, float]]) -> dict[str, NDArray[np.float64]]:
    """Return the numbers of E episodes by name, float64 [E] each, NaN where an episode has none of
    that name."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: np.array([row.get(name, math.nan) for row in rows]) for name in names}


def final_infos(info: Info, ended: Bools) -> dict[int, Info] | None:
    """Return the info of each environment whose episode ended, by index, from that of gymnasium's
    vector environments.

    info: arrays [K] by name. The mask `_name` says which environments have the name; without a mask
        all have it.
    In the mode SAME_STEP the parts of ended episodes lie in `final_info`, arrays again.
    ended: bool [K].
    """
    if not info or not ended.any():
        return None
    return {index: _row(info, index) for index in np.flatnonzero(ended).tolist()}


def _row(info: Info, index: int) -> Info:
    row = {}
    for name, values in info.items():
        if str(name).startswith("_") and str(name)[1:] in info:  # a mask
            continue

        mask = info.get(f"_{name}")
        if mask is not None and not mask[index]:
            continue

        is_array = isinstance(values, np.ndarray) and values.ndim
        has_rows = isinstance(values, list | tuple) or is_array
        row[name] = values[index] if has_rows and len(values) > index else values

    return row
