"""Runs as a report sees them: found in folders, read from their files, and grouped by configuration."""

from __future__ import annotations

import json
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from a3c_exp.cli.startup import conf_folder
from a3c_exp.common.reading import UnreadableError, expanded, parse_json, parse_yaml, read_text
from a3c_exp.common.settings import flatten
from a3c_exp.config.final import TYPED
from a3c_exp.config.removed import without_removed
from a3c_exp.config.schema import TARGET
from a3c_exp.core.events import RECENT
from a3c_exp.errors import FAILED, ConfigError, did_you_mean
from a3c_exp.run.metrics import SECONDS, STEP, points_file, read_points
from a3c_exp.run.run_folder import CONFIG_FILE, SUMMARY_FILE, environment_of

Array = NDArray[np.float64]
Axis = Literal["steps", "seconds"]

IGNORED = ("seed", "plugins")
"""Settings that do not separate configurations."""

BROKEN = (*FAILED, "interrupted")
"""Stop reasons of runs that are left out."""

UNFINISHED = "unfinished"
"""The stop reason of a run without a summary: it is going on, or it was killed."""

EVALUATION = "eval/mean_reward"
RETURN, EPISODES = "rollout/ep_rew_mean", "rollout/episodes"


@dataclass(frozen=True, slots=True)
class Curve:
    """A learning curve, float64 [N] each. N may be 0.

    steps: of the environments. seconds: since the run's start. returns: mean of the last 100 training episodes, or of
    all where fewer have ended. full: bool [N], whether 100 have ended. last: the last value of every curve, by name.
    """

    steps: Array
    seconds: Array
    returns: Array
    full: NDArray[np.bool_]
    last: Mapping[str, float] = field(default_factory=dict)

    def along(self, axis: Axis) -> Array:
        return self.steps if axis == "steps" else self.seconds


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A run that its files describe. settings: its configuration with dotted keys."""

    folder: Path
    settings: dict[str, Any]
    summary: dict[str, Any]
    curve: Curve

    @property
    def environment(self) -> str:
        """See `environment_of`."""
        return environment_of({"env": {key: self.settings.get(f"env.{key}") for key in ("id", "game", TARGET)}})

    @property
    def seed(self) -> Any:
        return self.settings.get("seed")

    @property
    def stop_reason(self) -> str:
        return str(self.summary["stop_reason"])

    @property
    def ended(self) -> bool:
        return self.stop_reason != UNFINISHED

    @property
    def threshold(self) -> float | None:
        """The return that counts as solved; None for none."""
        return _number(self.settings, "reward_threshold")

    @property
    def steps(self) -> float | None:
        return _first(_number(self.summary, "steps"), *self.curve.steps[-1:])

    @property
    def seconds(self) -> float | None:
        told = (_number(self.summary, name) for name in ("training_seconds", "wall_seconds"))
        return _first(*told, *self.curve.seconds[-1:])

    @property
    def final_return(self) -> float | None:
        """The mean of the last 100 training episodes, or of all where fewer have ended."""
        return _first(_number(self.summary, "mean_return_100"), *self.curve.returns[-1:])

    @property
    def best_return(self) -> float | None:
        """That of the best evaluation, or the highest mean of 100 training episodes of a run without evaluations."""
        return _first(_number(self.summary, "best_eval_return"), *sorted(self.curve.returns[self.curve.full])[-1:])

    @property
    def solved_steps(self) -> float | None:
        return _first(_number(self.summary, "solved_at_steps"), *self.curve.steps[self._reached])

    @property
    def solved_seconds(self) -> float | None:
        return _first(_number(self.summary, "solved_at_seconds"), *self.curve.seconds[self._reached])

    @property
    def _reached(self) -> NDArray[np.bool_]:
        """Where the curve of a run that has not ended is solved: bool [N]."""
        threshold = math.inf if self.threshold is None or self.ended else self.threshold
        return self.curve.full & (self.curve.returns >= threshold)

    @property
    def steps_per_second(self) -> float | None:
        told = _number(self.summary, "steps_per_second")
        return self.steps / self.seconds if told is None and self.steps is not None and self.seconds else told

    @property
    def staleness(self) -> float | None:
        return _number(self.summary, "staleness_mean")

    def score(self, curve: str | None) -> float | None:
        """The last value of a curve; None: the final return. None if the run has no such number."""
        return self.final_return if curve is None else self.curve.last.get(curve)


def find_runs(folders: Iterable[Path]) -> tuple[list[RecordedRun], dict[Path, str]]:
    """All runs below `folders`, by path, and the folders of runs that are left out, with the reason.

    A run counts once, however many of the folders it is in. Raises ConfigError for a folder without runs, and if no run
    is left.
    """
    runs: dict[Path, RecordedRun] = {}
    left_out: dict[Path, str] = {}
    for folder in folders:
        places = run_folders(expanded(folder))
        if not places:
            raise ConfigError("folder", str(folder), f"must hold runs: no {CONFIG_FILE} is below it")
        for place in [place for place in places if place not in runs and place not in left_out]:
            try:
                run = read_run(place)
            except (ConfigError, UnreadableError) as error:
                left_out[place] = f"cannot be read: {error}"
            else:
                if run.stop_reason in BROKEN:
                    left_out[place] = run.stop_reason
                else:
                    runs[place] = run
    if not runs:
        place, reason = next(iter(left_out.items()))
        raise ConfigError("folder", str(place), f"no run is left to report on: {reason}")
    return [runs[place] for place in sorted(runs)], left_out


def find_curve(runs: Sequence[RecordedRun], name: str) -> str:
    """The whole name of a curve that one of the runs has; that of a curve of `rollout/` may lack the prefix, and `eval`
    is the mean return of evaluations.

    Raises ConfigError if there is none.
    """
    known = {each: None for run in runs for each in run.curve.last if each not in (STEP, SECONDS)}
    for whole in (name, f"rollout/{name}", *([EVALUATION] if name == "eval" else [])):
        if whole in known:
            return whole
    guess = did_you_mean(name, [each.removeprefix("rollout/") for each in known])
    raise ConfigError("rank", name, f"must be a curve of one of the runs: {guess}")


def run_folders(folder: Path) -> list[Path]:
    """The folders of runs below a folder, itself included, by path."""
    places = [Path(at) for at, _, files in os.walk(folder) if CONFIG_FILE in files or SUMMARY_FILE in files]
    return sorted(path.resolve() for path in places)


def read_run(folder: Path) -> RecordedRun:
    """The run in `folder`. Raises UnreadableError for damaged files, and ConfigError as `without_removed`."""
    with _named(CONFIG_FILE):
        config = parse_yaml(read_text(folder / CONFIG_FILE))
        if not isinstance(config, dict) or not isinstance(config.get("env"), dict):
            raise UnreadableError("it is not the configuration of a run")
    config = without_removed(config)
    config.pop(TYPED, None)
    with _named(SUMMARY_FILE):
        try:
            summary = parse_json(read_text(folder / SUMMARY_FILE))
        except FileNotFoundError:
            summary = {"stop_reason": UNFINISHED}
        if not isinstance(summary, dict) or not isinstance(summary.get("stop_reason"), str):
            raise UnreadableError("it is not the summary of a run")
    points = points_file(folder)
    with _named(points.name):
        curve = read_curve(points)
    return RecordedRun(folder, settings_of(config), summary, curve)


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Let errors of reading begin with the name of the file."""
    try:
        yield
    except UnreadableError as error:
        raise UnreadableError(f"{name}: {error}") from None
    except OSError as error:
        raise UnreadableError(f"{name}: {error.strerror}") from error


def _first(*values: float | None) -> float | None:
    """The first value that there is."""
    return next((float(value) for value in values if value is not None), None)


def _number(values: Mapping[str, Any], name: str) -> float | None:
    """A finite number, or None."""
    value = values.get(name)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def read_curve(path: Path) -> Curve:
    """The learning curve in a file of points, by step; an empty one if there is no such file yet.

    Points without a return are those of other metrics. Where nothing is said about episodes, their number is infinite.
    Raises UnreadableError for a damaged file, and OSError.
    """
    rows, last = [], dict[str, float]()
    for point in read_points(path):
        last |= {name: value for name, value in point.items() if math.isfinite(value)}
        row = [point[STEP], point[SECONDS], point.get(RETURN, math.nan)]
        if all(map(math.isfinite, row)):
            rows.append([*row, point.get(EPISODES, math.inf)])
    steps, seconds, returns, episodes = np.ascontiguousarray(np.array(sorted(rows), np.float64).reshape(-1, 4).T)
    return Curve(steps, seconds, returns, episodes >= RECENT, last)


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a configuration by their dotted keys. 2e6 on the command line and 2000000 are one setting."""
    settings = {
        key: int(value) if isinstance(value, float) and value.is_integer() else value for key, value in flatten(config)
    }
    if settings.get("init_from") is not None:
        settings["init_from"] = "a run"  # a different one for each seed
    return settings


def group(runs: Sequence[RecordedRun]) -> dict[str, dict[str, list[RecordedRun]]]:
    """Runs by environment and by configuration without the seed, in order of appearance.

    A configuration is named by the settings in which runs of that environment differ: `returns=GAE, gamma=0.9`. Of a
    component, the class is named, and of its settings those in which runs with that class differ. The name is that of
    the environment if nothing differs.
    """
    groups = {}
    for env in dict.fromkeys(run.environment for run in runs):
        members = [run for run in runs if run.environment == env]
        keys = _differing(members)
        same: dict[tuple[str, ...], list[RecordedRun]] = {}
        for run in members:
            same.setdefault(tuple(_as_json(run.settings.get(key)) for key in keys), []).append(run)
        names = [_name(alike[0], keys) or env for alike in same.values()]
        groups[env] = {
            name if names.count(name) == 1 else _full_name(alike[0], keys): alike
            for name, alike in zip(names, same.values(), strict=True)
        }
    return groups


def swept(runs: Sequence[RecordedRun], most: int) -> dict[str, dict[Path, float]]:
    """The settings with more than `most` different positive numbers in these runs, each by folder."""
    found = {}
    for key in _differing(runs):
        values = {run.folder: _number(run.settings, key) or 0.0 for run in runs}
        positive = {folder: value for folder, value in values.items() if value > 0}
        if len(set(positive.values())) > most:
            found[key] = positive
    return found


def _differing(runs: Sequence[RecordedRun]) -> list[str]:
    """The settings that differ between runs of the same components."""
    values: dict[tuple[str, str], set[str]] = defaultdict(set)  # by setting and class of its component
    for key in {key for run in runs for key in run.settings if key not in IGNORED}:
        component = f"{key.removesuffix(f'.{TARGET}').rpartition('.')[0]}.{TARGET}"  # in which the setting is
        for run in runs:
            values[key, str(run.settings.get(component))].add(_as_json(run.settings.get(key)))
    return sorted({key for (key, _), different in values.items() if len(different) > 1})


def _name(run: RecordedRun, keys: Iterable[str]) -> str:
    parts = []
    for key in keys:
        value = run.settings.get(key)
        if value in (None, {}):
            continue
        parent, _, last = key.rpartition(".")
        parts.append(f"{parent}={_option(parent, str(value))}" if last == TARGET else f"{key}={value}")
    return ", ".join(parts)


@cache
def _option(group: str, target: str) -> str:
    """A class as it is chosen on the command line: the option of its group that has it, with the shortest name; of a
    user's own, the class with its module."""
    files = sorted((conf_folder() / group).glob("*.yaml"), key=lambda path: len(path.stem))
    found = (path.stem for path in files if f"\n{TARGET}: {target}\n" in f"\n{path.read_text()}")
    return next(found, target)


def _full_name(run: RecordedRun, keys: Iterable[str]) -> str:
    """The name where short ones are equal: every class with its module, every value as JSON."""
    return ", ".join(f"{key.removesuffix(f'.{TARGET}')}={_as_json(run.settings.get(key))}" for key in keys)


def _as_json(value: object) -> str:
    return json.dumps(value, default=str)
