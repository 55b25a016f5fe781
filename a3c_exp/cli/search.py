"""A search: trials whose settings Optuna chooses by the scores of earlier ones, each over the seeds
of the command.

Nothing of a search is kept but its runs. The sampler is seeded, so the same command asks for the
same trials as long as their scores are the same, and the scores of finished runs are in their
folders. So a search that was cut goes on.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from hydra.core.override_parser.types import IntervalSweep, Override

from a3c_exp.cli.existing import how_ended
from a3c_exp.cli.hydra_compose import compose_jobs, to_container
from a3c_exp.cli.hydra_overrides import sweep
from a3c_exp.cli.hydra_session import HydraSession
from a3c_exp.cli.processes import Job
from a3c_exp.config.builder import Made, load_experiment
from a3c_exp.errors import ConfigError, require, require_package, say
from a3c_exp.exit_codes import ExitCode
from a3c_exp.report.runs import EVALUATION, read_run

Jobs = Sequence[list[str]]
"""The overrides of each run."""
RunJobs = Callable[[Jobs], tuple[list[Job], int]]
"""Makes runs, and gives an exit code."""
Settings = tuple[str, ...]
"""The overrides that a trial has chosen."""
MOST_PROBES = 200
"""Combinations of choices that are checked before the first trial."""


class Search:
    """A search for the settings with the highest score.

    overrides: ranges and choices in them are searched; those of `seed` are the runs of each trial.
    at_once: runs at the same time. objective: see `score_of`. Raises ConfigError for what cannot be
    searched.
    """

    def __init__(
        self,
        session: HydraSession,
        overrides: Sequence[Override],
        trials: int,
        at_once: int,
        objective: str,
    ) -> None:
        require_package("search", trials, "search", "optuna")
        searched: dict[str, Override] = {}
        self._fixed: list[str] = []
        for override in overrides:
            if override.is_sweep_override():
                searched[override.key_or_group] = override
            else:
                self._fixed.append(str(override.input_line))

        seeds = sweep([searched.pop("seed")]) if "seed" in searched else [[]]
        if not searched:
            problem = "needs settings to choose: <setting>=loguniform(1e-4,1e-2), or a,b,c"
            raise ConfigError("search", trials, problem)

        self._seeds = list(dict.fromkeys(map(tuple, seeds)))
        self._trials = trials
        self._together = max(1, at_once // len(self._seeds))
        self._objective = objective
        self._ranges: dict[str, Any] = {}
        self._choices: dict[str, Sequence[str]] = {}  # the overrides `key=text` of each key
        for key, override in searched.items():
            if isinstance(interval := override.value(), IntervalSweep):
                self._ranges[key] = _checked_range(key, interval)
            else:
                self._choices[key] = [text for (text,) in sweep([override])]

        self._chosen: dict[int, Settings] = {}
        self._scores: dict[Settings, float] = {}
        self._session = session
        made: Made = []
        for settings in self._probes():
            self._check(settings, made)

    def _probes(self) -> Iterable[Settings]:
        """Return settings that trials may choose: each choice and the first combinations of them,
        and of each range its ends and a number within, since a setting may take whole numbers
        only."""
        import optuna

        probes: dict[str, Sequence[Any]] = dict(self._choices)
        within: dict[str, Sequence[Any]] = dict(self._choices)
        for key, interval in self._ranges.items():
            low = interval.start
            number = type(low)(low + (interval.end - low) / math.pi)
            probes[key] = [low, interval.end, number]
            within[key] = [number]

        longest = max(map(len, probes.values()))
        diagonal = [tuple(some[i % len(some)] for some in probes.values()) for i in range(longest)]
        combinations = itertools.islice(itertools.product(*within.values()), MOST_PROBES)
        for values in dict.fromkeys([*diagonal, *combinations]):
            trial = optuna.trial.FixedTrial(dict(zip(probes, values, strict=True)))
            yield self._settings(trial)

    def _check(self, settings: Settings, made: Made) -> None:
        """Raise ConfigError if a run cannot have the settings of a trial. made: see
        `builder.check`."""
        for run in compose_jobs(self._session, [[*self._fixed, *settings]]):
            load_experiment(to_container(run.node), made=made)

    def _settings(self, trial: Any) -> Settings:
        """What a trial of Optuna's chooses."""
        texts = [trial.suggest_categorical(key, choices) for key, choices in self._choices.items()]
        for key, interval in self._ranges.items():
            is_whole = isinstance(interval.start, int)  # int(interval(8,64))
            suggest = trial.suggest_int if is_whole else trial.suggest_float
            number = suggest(key, interval.start, interval.end, log="log" in interval.tags)
            texts.append(f"{key}={number}" if is_whole else f"{key}={number:.5g}")

        return tuple(texts)

    def run(self, run: RunJobs) -> int:
        """Make the trials, print the best, and return the exit code.

        run: makes runs, and gives an exit code. Raises ConfigError for an objective that no run
        has.
        """
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler = optuna.samplers.TPESampler(seed=0, constant_liar=True)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        worst: int = ExitCode.DONE
        for done in range(0, self._trials, self._together):
            trials = [study.ask() for _ in range(min(self._together, self._trials - done))]
            self._chosen |= {trial.number: self._settings(trial) for trial in trials}
            worst = max(worst, self._score(trials, run))
            for trial in trials:
                study.tell(trial, self._scores[self._chosen[trial.number]])

        best = study.best_trial
        winner = " ".join(self._chosen[best.number])
        say(
            f"the best of {self._trials} trials is {best.number + 1}: {winner}: "
            f"{self._objective} {best.value:.5g}"
        )
        return worst

    def _score(self, trials: Sequence[Any], run: RunJobs) -> int:
        """Make the runs of trials whose settings have no score yet; return the exit code."""
        # of equal ones
        first = {self._chosen[trial.number]: trial.number + 1 for trial in reversed(trials)}
        worst: int = ExitCode.DONE
        new = []
        overrides = []
        for texts in reversed(first):
            if texts in self._scores:
                continue

            say(f"trial {first[texts]} of {self._trials}: {' '.join(texts)}")
            try:
                self._check(texts, [])
            except ConfigError as error:
                say(f"trial {first[texts]} cannot be run, and counts as failed: {error}")
                self._scores[texts] = -math.inf
                worst = ExitCode.FAILED
                continue

            new.append(texts)
            for seed in self._seeds:
                name = "_".join([f"trial-{first[texts]:03d}", *seed]).replace("=", "-")
                overrides.append([*self._fixed, *texts, *seed, f"hydra.sweep.subdir={name}"])
        if not overrides:
            return worst

        jobs, code = run(overrides)
        for number, texts in enumerate(new):
            start = number * len(self._seeds)
            self._scores[texts] = fmean(
                -math.inf if job.status == "failed" else score_of(job.folder, self._objective)
                for job in jobs[start : start + len(self._seeds)]
            )

        is_curve = self._objective not in ("best", "last")
        has_finished = any(how_ended(job.folder) == "finished" for job in jobs)
        if is_curve and has_finished and max(self._scores.values()) == -math.inf:
            problem = "must be best, last or a curve that the runs have"
            raise ConfigError("objective", self._objective, problem)

        return max(worst, code)


def _checked_range(key: str, interval: IntervalSweep) -> IntervalSweep:
    """Return a range. Raises ConfigError for one in which there is no number."""
    low: Any = interval.start
    high: Any = interval.end
    text = f"{low:g} to {high:g}"
    require(low <= high, key, text, "a range whose end is the larger")
    is_possible = low > 0 or "log" not in interval.tags
    require(is_possible, key, text, "a range above 0, as it is logarithmic")
    return interval


def score_of(folder: Path, objective: str) -> float:
    """What a search maximizes: `best` or `last`, the best or the last evaluation, or the last value
    of a curve.

    Of a run without evaluations `best` is the highest mean return of 100 training episodes and
    `last` that of the last 100; of all, where fewer have ended. Minus infinity if the run has
    failed or has no such number.
    """
    try:
        run = read_run(folder)
    except ConfigError:
        return -math.inf

    curve = run.curve.last
    final = run.numbers["final_return"]
    best = run.numbers["best_return"]
    if objective == "best":
        score = final if best is None else best
    elif objective == "last":
        score = curve.get(EVALUATION, final)
    else:
        score = curve.get(objective, curve.get(f"rollout/{objective}"))

    return -math.inf if score is None else score
