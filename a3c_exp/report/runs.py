"""Runs as a report sees them: found in folders, read from their files, and grouped by
configuration."""

from __future__ import annotations

import json
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from a3c_exp.cli.startup import conf_folder
from a3c_exp.common.reading import UnreadableError, expanded, parse_yaml
from a3c_exp.common.settings import TARGET, comparable
from a3c_exp.config.saved import TYPED, read_config
from a3c_exp.core.events import RECENT
from a3c_exp.ending import FAILED, StopReason
from a3c_exp.errors import ConfigError, FolderError, did_you_mean
from a3c_exp.run.metrics import SECONDS, STEP, read_points
from a3c_exp.run.run_folder import (
    CONFIG_FILE,
    METRICS_FILE,
    SUMMARY_FILE,
    environment_of,
    read_summary,
)

Doubles = NDArray[np.float64]
Axis = Literal["steps", "seconds", "episodes"]

IGNORED = ("seed", "plugins", "checkpoint", "log", "record_episodes")
"""Settings and components that do not separate configurations: training does not depend on them."""

UNFINISHED = "unfinished"
"""The stop reason of a run without a summary: it is going on, or it was killed."""

EVALUATION = "eval/mean_reward"
RETURN = "rollout/ep_rew_mean"
EPISODES = "rollout/episodes"


@dataclass(frozen=True, slots=True)
class Curve:
    """A learning curve, float64 [N] each. N may be 0.

    steps: of the environments.
    seconds: of training.
    episodes: that have ended; infinite where the file does not say.
    returns: mean of the last 100 training episodes, or of all where fewer have ended.
    last: the last value of every curve, by name.
    evaluations: mean returns of evaluations [M].
    """

    steps: Doubles
    seconds: Doubles
    episodes: Doubles
    returns: Doubles
    last: Mapping[str, float]
    evaluations: Doubles

    @property
    def full(self) -> NDArray[np.bool_]:
        """Return bool [N], whether 100 episodes have ended."""
        return self.episodes >= RECENT

    def along(self, axis: Axis) -> Doubles:
        return {"steps": self.steps, "seconds": self.seconds, "episodes": self.episodes}[axis]


RUN_NUMBERS = {
    "steps": "steps",
    "seconds": "training_seconds",
    "final_return": "mean_return_100",
    "best_return": "best_eval_return",
    "solved_steps": "solved_at_steps",
    "solved_seconds": "solved_at_seconds",
    "steps_per_second": "steps_per_second",
    "staleness": "staleness_mean",
}
"""Numbers of a run, and their names in its summary."""


@dataclass(frozen=True)
class RecordedRun:
    """A run that its files describe.

    settings: its configuration with dotted keys.
    """

    folder: Path
    settings: dict[str, Any]
    summary: dict[str, Any]
    curve: Curve

    @property
    def environment(self) -> str:
        """See `environment_of`."""
        return environment_of(
            {"env": {key: self.settings.get(f"env.{key}") for key in ("id", "game", TARGET)}}
        )

    @property
    def stop_reason(self) -> str:
        return str(self.summary.get("stop_reason", UNFINISHED))

    @property
    def ended(self) -> bool:
        return self.stop_reason not in (UNFINISHED, StopReason.INTERRUPTED)

    @property
    def threshold(self) -> float | None:
        """Return the return that counts as solved; None for none."""
        return _finite_number(self.settings, "reward_threshold")

    @cached_property
    def numbers(self) -> dict[str, float | None]:
        """Return RUN_NUMBERS as the summary gives them, or else the learning curve; None for what
        neither knows.

        final_return: the mean of the last 100 training episodes, or of all where fewer have ended.
        best_return: of the best evaluation, or the highest mean of 100 training episodes of a run
            without evaluations.
        """
        curve = self.curve
        threshold = math.inf if self.threshold is None or self.ended else self.threshold
        solved = curve.full & (curve.returns >= threshold)
        measured = curve.evaluations if curve.evaluations.size else curve.returns[curve.full]

        of_curve = {
            "steps": curve.steps[-1:],
            "seconds": curve.seconds[-1:],
            "final_return": curve.returns[-1:],
            "best_return": np.sort(measured)[-1:],
            "solved_steps": curve.steps[solved],
            "solved_seconds": curve.seconds[solved],
        }

        numbers = {name: _finite_number(self.summary, key) for name, key in RUN_NUMBERS.items()}
        for name, values in of_curve.items():
            if numbers[name] is None and values.size:
                numbers[name] = float(values[0])

        steps = numbers["steps"]
        seconds = numbers["seconds"]
        if numbers["steps_per_second"] is None and steps is not None and seconds:
            numbers["steps_per_second"] = steps / seconds

        return numbers

    def score(self, curve: str | None) -> float | None:
        """Return the last value of a curve; None: the final return. None if the run has no such
        number.

        The final return of a run that `stop.mean_return` has ended is that one: what it is above is
        luck.
        """
        if curve is not None:
            return self.curve.last.get(curve)
        if self.stop_reason == StopReason.MEAN_RETURN:
            goal = _finite_number(self.settings, "stop.mean_return")
            if goal is not None:
                return goal

        return self.numbers["final_return"]


def find_runs(folders: Iterable[Path]) -> tuple[list[RecordedRun], dict[Path, str]]:
    """Return all runs below `folders`, by path, and the folders of runs that are left out, with the
    reason.

    A run counts once, however many of the folders it is in. Raises ConfigError for a folder without
    runs, and if no run is left.
    """
    paths: set[Path] = set()
    for folder in folders:
        paths_below = run_folders(expanded(folder))
        if not paths_below:
            problem = f"must be a folder with runs: no {CONFIG_FILE} is there or below"
            raise ConfigError("folder", str(folder), problem)
        paths.update(paths_below)

    runs = []
    left_out = {}
    for path in sorted(paths):
        try:
            runs.append(read_run(path))
        except ConfigError as error:
            left_out[path] = error.problem if isinstance(error, FolderError) else str(error)

    if not runs:
        path, reason = next(iter(left_out.items()))
        raise ConfigError("folder", str(path), f"no run is left to report on: {reason}")

    return runs, left_out


def find_curve(runs: Sequence[RecordedRun], name: str) -> str:
    """Return the whole name of a curve that one of the runs has; that of a curve of `rollout/` may
    lack the prefix, and `eval` is the mean return of evaluations.

    Raises ConfigError if there is none.
    """
    curves = {curve for run in runs for curve in run.curve.last} - {STEP, SECONDS}
    candidates = [name, f"rollout/{name}"]
    if name == "eval":
        candidates.append(EVALUATION)
    for candidate in candidates:
        if candidate in curves:
            return candidate

    guess = did_you_mean(name, [curve.removeprefix("rollout/") for curve in curves])
    raise ConfigError("rank", name, f"must be a curve of one of the runs: {guess}")


def run_folders(folder: Path) -> list[Path]:
    """Return the folders of runs below a folder, itself included, by path. Trackers keep files of
    the same names."""
    paths = []
    for path, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in ("wandb", "mlruns")]
        if "hydra.yaml" in files:  # those that Hydra writes beside a run's
            continue
        if CONFIG_FILE in files or SUMMARY_FILE in files:
            paths.append(Path(path).resolve())

    return sorted(paths)


def read_run(folder: Path) -> RecordedRun:
    """Return the run in `folder`. Raises ConfigError as `read_config`, for damaged files, and for a
    run that is left out."""
    config = read_config(folder)
    if not isinstance(config.get("env"), dict):
        raise FolderError(folder, f"its {CONFIG_FILE} is damaged: it has no env")
    config.pop(TYPED, None)

    summary = read_summary(folder) or {}
    if "stop_reason" not in summary and (folder / SUMMARY_FILE).exists():
        problem = f"its {SUMMARY_FILE} is damaged: it does not say how the run ended"
        raise FolderError(folder, problem)
    if summary.get("stop_reason") in FAILED:
        raise FolderError(folder, summary["stop_reason"])

    try:
        curve = read_curve(folder / METRICS_FILE)
    except (OSError, UnreadableError) as error:
        raise FolderError(folder, f"its {METRICS_FILE} is damaged: {error}") from error

    return RecordedRun(folder, dotted_settings(config), summary, curve)


def _finite_number(values: Mapping[str, Any], name: str) -> float | None:
    """Return a finite number, or None."""
    value = values.get(name)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def read_curve(path: Path) -> Curve:
    """Return the learning curve in a file of points, by step; an empty one if there is no such file
    yet.

    Points without a return are those of other metrics. Where nothing is said about episodes, their
    number is infinite. Raises UnreadableError for a damaged file, and OSError.
    """
    rows = []
    last = dict[str, float]()
    evaluations = []
    for point in read_points(path):
        last |= {name: value for name, value in point.items() if math.isfinite(value)}
        evaluation = point.get(EVALUATION, math.nan)
        if math.isfinite(evaluation):
            evaluations.append(evaluation)
        row = [point[STEP], point[SECONDS], point.get(RETURN, math.nan)]
        if all(map(math.isfinite, row)):
            rows.append([*row, point.get(EPISODES, math.inf)])

    columns = np.array(sorted(rows), np.float64).reshape(-1, 4).T
    steps, seconds, returns, episodes = np.ascontiguousarray(columns)
    return Curve(steps, seconds, episodes, returns, last, np.array(evaluations))


def dotted_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a configuration by their dotted keys: see `comparable`."""
    settings = comparable(config)
    if settings.get("init_from") is not None:
        settings["init_from"] = "a run"  # a different one for each seed
    return settings


def group(runs: Sequence[RecordedRun]) -> dict[str, dict[str, list[RecordedRun]]]:
    """Group runs by environment and by configuration without the seed, in order of appearance.

    A configuration is named by the settings in which runs of that environment differ:
    `returns=GAE, gamma=0.9`. Of a component, the class is named, and of its settings those in which
    runs with that class differ. The name is that of the environment if nothing differs. A folder is
    added where names are equal: its name, and its path where those are equal too.
    """
    groups = {}
    for env in dict.fromkeys(run.environment for run in runs):
        members = [run for run in runs if run.environment == env]
        keys = _differing_settings(members)
        configurations: dict[tuple[str, ...], list[RecordedRun]] = {}
        for run in members:
            values = tuple(_as_json(run.settings.get(key)) for key in keys)
            configurations.setdefault(values, []).append(run)

        firsts = [alike[0] for alike in configurations.values()]
        names = [_configuration_name(run, keys) or env for run in firsts]
        names = _told_apart(names, [run.folder.name for run in firsts])
        names = _told_apart(names, [str(run.folder) for run in firsts])
        groups[env] = dict(zip(names, configurations.values(), strict=True))
    return groups


def _told_apart(names: Sequence[str], marks: Sequence[str]) -> list[str]:
    """Return names, each with its mark where several are equal."""
    return [
        name if names.count(name) == 1 else f"{name} ({mark})"
        for name, mark in zip(names, marks, strict=True)
    ]


def swept(runs: Sequence[RecordedRun], most: int) -> dict[str, dict[Path, float]]:
    """Return the settings with more than `most` different positive numbers in these runs, each by
    folder."""
    settings = {}
    for key in _differing_settings(runs):
        values = {run.folder: _finite_number(run.settings, key) or 0.0 for run in runs}
        positive = {folder: value for folder, value in values.items() if value > 0}
        if len(set(positive.values())) > most:
            settings[key] = positive
    return settings


def _differing_settings(runs: Sequence[RecordedRun]) -> list[str]:
    """Return the settings that differ between runs of the same components."""
    keys = {key for run in runs for key in run.settings if key.partition(".")[0] not in IGNORED}

    values: dict[tuple[str, str], set[str]] = defaultdict(set)  # by setting and component's class
    for key in keys:
        component = key.removesuffix(f".{TARGET}").rpartition(".")[0]
        for run in runs:
            component_class = str(run.settings.get(f"{component}.{TARGET}"))
            values[key, component_class].add(_as_json(run.settings.get(key)))

    return sorted({key for (key, _), different in values.items() if len(different) > 1})


def _configuration_name(run: RecordedRun, keys: Iterable[str]) -> str:
    parts = []
    for key in keys:
        value = run.settings.get(key)
        if value in (None, {}):
            continue

        parent, _, last = key.rpartition(".")
        if last == TARGET:
            parts.append(f"{parent}={_option(run, parent, value)}")
        else:
            parts.append(f"{key}={value}")

    return ", ".join(parts)


def _option(run: RecordedRun, group: str, target: object) -> str:
    """Return a class as it is chosen on the command line: of the options of its group that have it,
    the one with most of the run's settings; of a user's own, the word that was typed, or else the
    class with its module."""
    options = _options(group)

    def likeness(option: str) -> int:
        settings = options[option].items()
        return sum(run.settings.get(f"{group}.{key}") == value for key, value in settings)

    fitting = [option for option, settings in options.items() if settings.get(TARGET) == target]
    if fitting:
        return max(fitting, key=likeness)

    word = ""
    overrides = run.summary.get("overrides")
    for override in overrides if isinstance(overrides, list) else []:
        key, _, value = str(override).partition("=")
        if key == group:
            word = value

    return word if word.isidentifier() else str(target)


@cache
def _options(group: str) -> dict[str, dict[str, Any]]:
    """Return the settings in the files of a group's options, those with the shortest names
    first."""
    files = sorted((conf_folder() / group).glob("*.yaml"), key=lambda path: len(path.stem))
    return {path.stem: comparable(parse_yaml(path.read_text())) for path in files}


def _as_json(value: object) -> str:
    return json.dumps(value, default=str)
