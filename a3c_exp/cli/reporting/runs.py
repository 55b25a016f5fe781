"""Runs as a report sees them: found in folders, read from their files, and grouped by configuration."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from a3c_exp.common.settings import flatten
from a3c_exp.config.schema import TARGET
from a3c_exp.errors import FAILED, ConfigError, one_line
from a3c_exp.run.run_folder import CONFIG_FILE, METRICS_FILE, SUMMARY_FILE, has_former_keys, written_by

Array = NDArray[np.float64]

IGNORED = ("seed", "plugins")
"""Settings that do not separate configurations."""

BROKEN = (*FAILED, "interrupted")
"""Stop reasons of runs that are left out."""

UNFINISHED = "unfinished"
"""The stop reason of a run without a summary: it is going on, or it was killed."""

STEP, SECONDS, RETURN = "step", "wall_seconds", "rollout/ep_rew_mean"


@dataclass(frozen=True, slots=True)
class Curve:
    """A learning curve, float64 [N] each: environment steps, seconds since the run's start, and the mean return of the
    last 100 training episodes. N may be 0."""

    steps: Array
    seconds: Array
    returns: Array


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A run that its files describe.

    settings: its configuration with dotted keys. threshold: the return that counts as solved; None for none.
    final_return: mean of the last 100 training episodes. best_return: of the best evaluation, or the highest mean of
        100 training episodes of a run without evaluations. size: bytes in its folder.
    """

    folder: Path
    config: dict[str, Any]
    settings: dict[str, Any]
    summary: dict[str, Any]
    curve: Curve
    stop_reason: str
    threshold: float | None
    steps: float | None
    seconds: float | None
    final_return: float | None
    best_return: float | None
    solved_steps: float | None
    solved_seconds: float | None
    steps_per_second: float | None
    staleness: float | None
    size: int

    @property
    def environment(self) -> str:
        """Its registered name, its game, or else its class."""
        names = (self.settings.get(f"env.{key}") for key in ("id", "game", TARGET))
        return str(next((name for name in names if name is not None), None))

    @property
    def seed(self) -> Any:
        return self.settings.get("seed")

    @property
    def ended(self) -> bool:
        return self.stop_reason != UNFINISHED


def find_runs(folders: Iterable[Path]) -> tuple[list[RecordedRun], dict[Path, str]]:
    """All runs below `folders`, by path, and the folders of runs that are left out, with the reason.

    A run counts once, however many of the folders it is in. Raises ConfigError for a folder without runs, and if no run
    is left.
    """
    runs: dict[Path, RecordedRun] = {}
    left_out: dict[Path, str] = {}
    for folder in folders:
        places = run_folders(folder.expanduser())
        if not places:
            raise ConfigError("folder", str(folder), f"must hold runs: no {CONFIG_FILE} is below it")
        for place in [place for place in places if place not in runs and place not in left_out]:
            try:
                run = read_run(place)
            except ConfigError as error:
                left_out[place] = f"cannot be read: {error.problem}"
            except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, yaml.YAMLError) as error:
                left_out[place] = f"cannot be read: {one_line(error)}"
            else:
                if run.stop_reason in BROKEN:
                    left_out[place] = run.stop_reason
                else:
                    runs[place] = run
    if not runs:
        place, reason = next(iter(left_out.items()))
        others = f" (and {len(left_out) - 1} more)" if len(left_out) > 1 else ""
        raise ConfigError("folder", str(place), f"no run is left to report on: {reason}{others}")
    return [runs[place] for place in sorted(runs)], left_out


def run_folders(folder: Path) -> list[Path]:
    """The folders of runs below a folder, itself included, by path."""
    places = [Path(at) for at, _, files in os.walk(folder) if CONFIG_FILE in files or SUMMARY_FILE in files]
    return sorted(path.resolve() for path in places)


def read_run(folder: Path) -> RecordedRun:
    """The run in `folder`. Raises ConfigError for one of another version, and other errors for damaged files."""
    config = yaml.load((folder / CONFIG_FILE).read_text(encoding="utf-8"), _YAML)
    if has_former_keys(config):
        raise ConfigError("folder", str(folder), written_by(folder))
    if not isinstance(config.get("env"), Mapping):
        raise ConfigError("folder", str(folder), f"its {CONFIG_FILE} has no environment")
    try:
        summary = json.loads((folder / SUMMARY_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        summary = {"stop_reason": UNFINISHED}
    return recorded(folder, config, summary, read_curve(folder / METRICS_FILE))


_YAML = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Ten times as fast as the loader in Python, where libyaml is there."""


def recorded(folder: Path, config: dict[str, Any], summary: dict[str, Any], curve: Curve) -> RecordedRun:
    """The run that a configuration, a summary and a curve describe. Raises TypeError where a number is none."""
    settings = _settings(config)
    threshold = _number(settings, "reward_threshold")
    last = {"steps": curve.steps, "seconds": curve.seconds, "return": curve.returns}
    ends = {name: float(column[-1]) if len(column) else None for name, column in last.items()}
    steps = _first(_number(summary, "steps"), ends["steps"])
    seconds = _first(_number(summary, "training_seconds"), _number(summary, "wall_seconds"), ends["seconds"])
    solved_steps, solved_seconds = _number(summary, "solved_at_steps"), _number(summary, "solved_at_seconds")
    unfinished = summary["stop_reason"] == UNFINISHED
    if unfinished and threshold is not None and (reached := np.flatnonzero(curve.returns >= threshold)).size:
        solved_steps, solved_seconds = float(curve.steps[reached[0]]), float(curve.seconds[reached[0]])
    speed = steps / seconds if steps is not None and seconds else None
    return RecordedRun(
        folder=folder,
        config=config,
        settings=settings,
        summary=summary,
        curve=curve,
        stop_reason=str(summary["stop_reason"]),
        threshold=threshold,
        steps=steps,
        seconds=seconds,
        final_return=_first(_number(summary, "mean_return_100"), ends["return"]),
        best_return=_first(
            _number(summary, "best_eval_return"), float(curve.returns.max()) if len(curve.returns) else None
        ),
        solved_steps=solved_steps,
        solved_seconds=solved_seconds,
        steps_per_second=_first(_number(summary, "steps_per_second"), speed),
        staleness=_number(summary, "staleness_mean"),
        size=_size(folder),
    )


def _size(folder: Path) -> int:
    """The bytes of all files in a folder."""
    total = 0
    for at, _, files in os.walk(folder):
        for name in files:
            with suppress(FileNotFoundError):  # a run that goes on renames its files
                total += os.stat(os.path.join(at, name)).st_size
    return total


def _first(*values: float | None) -> float | None:
    """The first value that there is."""
    return next((value for value in values if value is not None), None)


def _number(values: Mapping[str, Any], name: str) -> float | None:
    """A finite number, or None. Raises TypeError for anything else, such as text."""
    value = values.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is {value!r}, no number")
    return float(value) if math.isfinite(value) else None


def read_curve(path: Path) -> Curve:
    """The learning curve in a metrics.csv, by step; an empty one if there is no such file yet.

    Rows without a return are those of other metrics. A row that is incomplete, or no numbers, is skipped: the run may
    be writing it, or was killed while it did.
    """
    rows: list[tuple[float, float, float]] = []
    if path.exists():
        with open(path, newline="", encoding="utf-8-sig", errors="replace") as file:
            lines = csv.reader(line for line in file if line.endswith("\n"))
            header = next(lines, [])
            if RETURN in header:
                places = [header.index(name) for name in (STEP, SECONDS, RETURN)]
                rows = list(_numbers(lines, places, len(header)))
    table = np.array(sorted(rows), np.float64).reshape(-1, 3)
    table = table[np.isfinite(table).all(axis=1)]
    return Curve(*np.ascontiguousarray(table.T))


def _numbers(lines: Iterable[list[str]], places: Sequence[int], width: int) -> Iterable[tuple[float, float, float]]:
    step, seconds, value = places
    for line in lines:
        if len(line) == width and line[value]:
            try:
                yield float(line[step]), float(line[seconds]), float(line[value])
            except ValueError:
                continue


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    # 2e6 on the command line and 2000000 are one setting.
    settings = {key: int(value) if _is_whole(value) else value for key, value in flatten(config)}
    if settings.get("init_from") is not None:
        settings["init_from"] = "a run"  # a different one for each seed
    return settings


def _is_whole(value: object) -> bool:
    return isinstance(value, float) and value.is_integer()


Groups = dict[str, dict[str, list[RecordedRun]]]
"""Runs by environment, then by configuration."""


def group(runs: Sequence[RecordedRun]) -> Groups:
    """Runs by environment and by configuration without the seed, in order of appearance.

    A configuration is named by the settings in which runs of that environment differ: `returns=GAE, gamma=0.9`. Of a
    component, the class is named, and of its settings those in which runs with that class differ. The name is that of
    the environment if nothing differs.
    """
    groups: Groups = {}
    for run in runs:
        groups.setdefault(run.environment, {})
    for env, configurations in groups.items():
        members = [run for run in runs if run.environment == env]
        keys = _differing(members)
        for run in members:
            configurations.setdefault(_name(run, keys) or env, []).append(run)
    return groups


def _differing(runs: Sequence[RecordedRun]) -> list[str]:
    """The settings that differ between runs of the same components."""
    keys = sorted({key for run in runs for key in run.settings if key not in IGNORED})
    return [key for key in keys if _differs(key, runs)]


def _differs(key: str, runs: Sequence[RecordedRun]) -> bool:
    component = f"{key.rpartition('.')[0]}.{TARGET}"
    values: dict[Any, set[str]] = {}  # by the class of the component that the setting is one of
    for run in runs:
        value = json.dumps(run.settings.get(key), default=str)
        values.setdefault(None if key == component else run.settings.get(component), set()).add(value)
    return any(len(different) > 1 for different in values.values())


def _name(run: RecordedRun, keys: Iterable[str]) -> str:
    parts = []
    for key in keys:
        value = run.settings.get(key)
        if value in (None, {}):
            continue
        parent, _, last = key.rpartition(".")
        parts.append(f"{parent}={str(value).rpartition('.')[2]}" if last == TARGET else f"{key}={value}")
    return ", ".join(parts)


def size_text(size: int) -> str:
    """Bytes as text: '3.4 MB'."""
    for limit, unit in ((1e9, "GB"), (1e6, "MB")):
        if size >= limit:
            return f"{size / limit:,.1f} {unit}"
    return f"{size / 1e3:,.0f} kB"
