"""A report on runs: tables, learning curves and comparisons, over the seeds of each configuration.

    python -m a3c_exp.report outputs/<sweep> [more folders] [to=<folder>] [random=20] [plugins=[my_package]]

Every folder is searched for runs, and `report/` in the first one is written: index.html (one page with everything),
pictures as PNG, tables as CSV. to=<folder> writes it elsewhere. The tables are printed too. Runs may still be going on.
Runs that failed, were interrupted or cannot be read are left out and named; the exit code is then 1. Runs that differ
only in their seed are one configuration, named by the settings in which configurations differ. random=n adds the mean
return of random actions over n episodes. For an environment of your own, `plugins` names its package as in training,
and `trust` settings that may write files or connect. The pictures and the page need the extra `report`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from a3c_exp.common.reading import expanded, parse_key_values
from a3c_exp.config.schema import build
from a3c_exp.errors import ConfigError, RunError, exit_code, named, one_line, printable, require
from a3c_exp.report.page import PAGE
from a3c_exp.report.report import Report
from a3c_exp.report.runs import RecordedRun, find_runs
from a3c_exp.run.run_folder import check_links

if TYPE_CHECKING:
    from a3c_exp.envs import EnvBatch

FOLDER = "report"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Settings of the command. to: folder to write. random: episodes of the random policy, 0 for none. plugins: as in
    training. trust: as of `python -m a3c_exp.evaluate`."""

    to: str | None = None
    random: int = 0
    plugins: tuple[str, ...] = ()
    trust: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(self.random >= 0, "random", self.random, "a whole number >= 0")


def main(arguments: Sequence[str]) -> int:
    options = [argument for argument in arguments if argument.startswith(("to=", "random=", "plugins=", "trust="))]
    folders = [Path(argument) for argument in arguments if argument not in options]
    wants_help = not {"-h", "--help"}.isdisjoint(arguments)
    if not folders or wants_help:
        print((__doc__ or "").strip())
        return 0 if wants_help else 2
    return exit_code(lambda: _command(folders, options))


def _command(folders: Sequence[Path], options: Sequence[str]) -> int:
    parsed = build(parse_key_values(options), Options)
    folder = expanded(parsed.to) if parsed.to else expanded(folders[0]) / FOLDER
    if parsed.to is None:
        with named("to"):
            check_links(folders[0], FOLDER)
    if folder.exists() and not folder.is_dir():
        raise ConfigError("to", str(folder), "must be a folder")
    runs, left_out = find_runs(folders)
    report = Report(runs, left_out, _random_returns(runs, parsed) if parsed.random else {})
    print(printable(report.text()))
    try:
        problems = report.write(folder)
    except ImportError:
        lacks = "the pictures and the page need matplotlib: pip install 'a3c-exp[report]'"
        print(printable(f"a3c_exp: {folder}: only the tables are written: {lacks}"), file=sys.stderr)
        return 1
    except OSError as error:
        print(printable(f"a3c_exp: {folder}: the report cannot be written: {one_line(error)}"), file=sys.stderr)
        return 1
    for line in problems:
        print(printable(line))
    print(printable(f"Report: {folder / PAGE}"))
    return int(bool(left_out or problems))


def _random_returns(runs: Sequence[RecordedRun], options: Options) -> dict[str, float]:
    """The mean return of random actions in each environment. Raises ConfigError."""
    configs = {run.environment: run.config | {"plugins": list(options.plugins)} for run in reversed(runs)}
    return {env: _random_return(config, options.random, options.trust) for env, config in configs.items()}


def _random_return(config: Mapping[str, Any], episodes: int, trust: Sequence[str]) -> float:
    """The mean return of uniformly random actions in the environment of a configuration. Raises ConfigError."""
    from a3c_exp.config.builder import load_experiment
    from a3c_exp.envs import close_within

    experiment = load_experiment(config, to_train=False, trusted=trust)
    env = experiment.env.make(1, [0])
    try:
        return float(np.mean(_random_episodes(env, episodes, experiment.eval.max_steps)))
    except RunError as error:
        raise ConfigError("random", episodes, f"cannot be played: {str(error).partition(chr(10))[0]}") from error
    finally:
        close_within(env)


def _random_episodes(env: EnvBatch, episodes: int, max_steps: int) -> list[float]:
    """The returns of so many episodes of the first environment. Raises RunError if it fails again and again."""
    env.action_space.seed(0)
    returns: list[float] = []
    total, steps = 0.0, 0
    env.reset()
    while len(returns) < episodes:
        step = env.step(np.stack([env.action_space.sample()]))
        total, steps = total + float(step.reward[0]), steps + 1
        if step.broken is not None and step.broken[0]:
            total, steps = 0.0, 0
        elif step.episode_over[0] or steps == max_steps:
            returns.append(total)
            total, steps = 0.0, 0
    return returns


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
