"""A table of finished runs: one row for each configuration, over its seeds.

    python -m a3c_exp.report outputs/<sweep> [more folders] [random=20] [plugins=[my_package]]

Every folder is searched for runs. Runs that failed, were interrupted or cannot be read are left out and listed below
the table. Runs that differ only in their seed share a row; a row is named by the settings in which the rows differ.
random=n adds the mean return of random actions over n episodes. For an environment of your own, `plugins` names its
package as in training.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import yaml

from a3c_exp.config.schema import build, flatten, parse_key_values
from a3c_exp.errors import FAILED, ConfigError, exit_code, one_line, require
from a3c_exp.run import markdown
from a3c_exp.run.run_folder import CONFIG_FILE, SUMMARY_FILE, has_former_keys, written_by

# Settings that do not separate rows.
IGNORED = ("seed", "plugins")

# Stop reasons of runs that are left out.
BROKEN = (*FAILED, "interrupted")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Settings of the command. random: episodes of the random policy, 0 for none. plugins: as in training."""

    random: int = 0
    plugins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(self.random >= 0, "random", self.random, "a whole number >= 0")


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run that has ended. settings: its configuration with dotted keys."""

    settings: dict[str, Any]
    config: dict[str, Any]
    summary: dict[str, Any]


def find_runs(folders: Iterable[Path]) -> tuple[list[FinishedRun], dict[Path, str]]:
    """All ended runs below `folders`, by path, and the folders of runs that cannot be read, with the reason.

    Raises ConfigError for a folder without runs, and if no run can be read.
    """
    runs: list[FinishedRun] = []
    damaged: dict[Path, str] = {}
    seen: set[Path] = set()  # `folders` may overlap: a run counts once
    for folder in folders:
        paths = sorted(path.resolve() for path in folder.expanduser().rglob(SUMMARY_FILE))
        if not paths:
            raise ConfigError("folder", str(folder), f"must hold finished runs: no {SUMMARY_FILE} is below it")
        for path in [path for path in paths if path not in seen]:
            seen.add(path)
            try:
                runs.append(_read(path.parent))
            except ConfigError as error:
                damaged[path.parent] = error.problem
            except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
                damaged[path.parent] = one_line(error)
    if not runs:
        place, reason = next(iter(damaged.items()))
        raise ConfigError("folder", str(place), f"its run cannot be read: {reason}")
    return runs, damaged


def _read(folder: Path) -> FinishedRun:
    """The run in `folder`. Raises ConfigError for one with former names of settings, and other errors for damaged
    files."""
    summary = json.loads((folder / SUMMARY_FILE).read_text(encoding="utf-8"))
    config = yaml.safe_load((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    for key in ("stop_reason", "solved_at_steps"):
        summary[key]
    if has_former_keys(config):
        raise ConfigError("folder", str(folder), written_by(folder))
    return FinishedRun(_settings(config), config, summary)


def without_broken(runs: Sequence[FinishedRun]) -> tuple[list[FinishedRun], Counter[str]]:
    """Runs that ended normally, and the number of others by stop reason. Raises ConfigError if none ended normally."""
    broken = Counter(run.summary["stop_reason"] for run in runs if run.summary.get("stop_reason") in BROKEN)
    kept = [run for run in runs if run.summary.get("stop_reason") not in BROKEN]
    if not kept:
        raise ConfigError("folder", f"{len(runs)} runs", f"must hold finished ones, not only {' and '.join(broken)}")
    return kept, broken


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    # 2e6 on the command line and 2000000 are one setting.
    settings = {key: int(value) if _is_whole(value) else value for key, value in flatten(config)}
    if settings.get("init_from") is not None:
        settings["init_from"] = "a run"  # a different one for each seed
    return settings


def _is_whole(value: object) -> bool:
    return isinstance(value, float) and value.is_integer()


def group(runs: Sequence[FinishedRun]) -> dict[str, list[FinishedRun]]:
    """Runs by configuration without the seed, in order of appearance.

    The key is the environment, followed by the settings in which runs of that environment differ.
    """
    groups: dict[str, list[FinishedRun]] = {}
    for env in dict.fromkeys(map(_environment, runs)):
        members = [run for run in runs if _environment(run) == env]
        keys = sorted({key for run in members for key in run.settings if key not in IGNORED})
        differing = [key for key in keys if len({json.dumps(run.settings.get(key)) for run in members}) > 1]
        for run in members:
            special = [f"{key}={run.settings[key]}" for key in differing if run.settings.get(key) not in (None, {})]
            groups.setdefault(", ".join([env, *special]), []).append(run)
    return groups


def _environment(run: FinishedRun) -> str:
    """The name of a run's environment: its registered name, its game, or else its class."""
    names = (run.settings.get(f"env.{key}") for key in ("id", "game", "_target_"))
    return str(next((name for name in names if name is not None), None))


COLUMNS = (
    "runs", "seeds", "solved", "steps until then", "seconds until then",
    "last 100 training episodes", "best evaluation", "steps/s", "staleness",
)  # fmt: skip


def table(groups: Mapping[str, Sequence[FinishedRun]], random_episodes: int = 0, plugins: Sequence[str] = ()) -> str:
    """A Markdown table with one row for each group: medians over seeds, with their range in brackets.

    plugins: as in training, for the environments of the random policy. Raises ConfigError.
    """
    columns = list(COLUMNS) + (["random policy"] if random_episodes else [])
    rows = []
    for name, runs in groups.items():
        count, seeds = len(runs), len({run.settings.get("seed") for run in runs})
        row = [name, str(count) if count == seeds else f"{seeds}, in {count} runs"]
        has_threshold = runs[0].settings.get("reward_threshold", True) is not None
        row += _cells([run.summary for run in runs], has_threshold)
        if random_episodes:
            row.append(f"{_random_return(runs[0].config | {'plugins': list(plugins)}, random_episodes):.1f}")
        rows.append(row)
    return markdown.table(columns, rows)


def _cells(summaries: Sequence[Mapping[str, Any]], has_threshold: bool) -> list[str]:
    def spread(key: str, digits: int = 1) -> str:
        values = [s[key] for s in summaries if s.get(key) is not None]
        if not values:
            return "-"
        middle = f"{median(values):,.{digits}f}"
        return middle if len(values) == 1 else f"{middle} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"

    solved = sum(s["solved_at_steps"] is not None for s in summaries)
    return [
        f"{solved} of {len(summaries)}" if has_threshold else "-",
        spread("solved_at_steps", 0),
        spread("solved_at_seconds"),
        spread("mean_return_100"),
        spread("best_eval_return"),
        spread("steps_per_second", 0),
        spread("staleness_mean", 2),
    ]


def _random_return(config: Mapping[str, Any], episodes: int) -> float:
    """The mean return of uniformly random actions in the environment of a configuration."""
    from a3c_exp.config.builder import load_experiment
    from a3c_exp.run.policy import LONGEST_EPISODE

    env = load_experiment(config, to_train=False).env.make(1, [0])
    env.action_space.seed(0)
    returns: list[float] = []
    total, steps = 0.0, 0
    env.reset()
    while len(returns) < episodes:
        step = env.step(np.stack([env.action_space.sample()]))
        total, steps = total + float(step.reward[0]), steps + 1
        if step.broken is not None and step.broken[0]:
            total, steps = 0.0, 0
        elif step.episode_over[0] or steps == LONGEST_EPISODE:
            returns.append(total)
            total, steps = 0.0, 0
    env.close()
    return float(np.mean(returns))


def main(arguments: Sequence[str]) -> int:
    options = [argument for argument in arguments if argument.startswith(("random=", "plugins="))]
    folders = [Path(argument) for argument in arguments if argument not in options]
    wants_help = not {"-h", "--help"}.isdisjoint(arguments)
    if not folders or wants_help:
        print((__doc__ or "").strip())
        return 0 if wants_help else 2
    return exit_code(lambda: _command(folders, options))


def _command(folders: Sequence[Path], options: Sequence[str]) -> int:
    parsed = build(parse_key_values(options), Options)
    found, damaged = find_runs(folders)
    runs, broken = without_broken(found)
    print(table(group(runs), parsed.random, parsed.plugins))
    commits = sorted({str(run.summary.get("commit")) for run in runs})
    machines = [run.summary.get("machine") or {} for run in runs]
    processors = sorted({f"{machine.get('processor')}, {machine.get('usable_cores')} cores" for machine in machines})
    print(f"\nCommit {', '.join(commits)}; {'; '.join(processors)}.")
    if broken:
        print(f"Left out: {', '.join(f'{count} {reason}' for reason, count in sorted(broken.items()))}.")
    for folder, reason in damaged.items():
        print(f"Left out: {folder} cannot be read: {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
