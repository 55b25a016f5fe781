"""A search: trials whose settings Optuna chooses by the scores of earlier ones, each over the seeds
of the command.

Nothing of a search is kept but its runs. The sampler is seeded, so the same command asks for the
same trials as long as their scores are the same, and the scores of finished runs are in their
folders. So a search that was cut goes on.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from hydra.core.override_parser.types import IntervalSweep, Override

from a3c_exp.cli.existing import how_ended
from a3c_exp.cli.hydra_compose import compose_jobs, sweep, to_container
from a3c_exp.cli.processes import Job
from a3c_exp.config.builder import load_final
from a3c_exp.errors import ConfigError, require, require_package, say
from a3c_exp.report.runs import EVALUATION, read_run

Jobs = Sequence[list[str]]
"""The overrides of each run."""
RunJobs = Callable[[Jobs], tuple[list[Job], int]]
"""Makes runs, and gives an exit code."""
Settings = tuple[str, ...]
"""The overrides that a trial has chosen."""


@dataclass(frozen=True)
class Space:
    """What a search chooses from. choices: the overrides `key=text` of each key."""

    ranges: Mapping[str, Any]
    choices: Mapping[str, Sequence[str]]

    @staticmethod
    def of(searched: Mapping[str, Override]) -> Space:
        """Raises ConfigError."""
        values = {key: each.value() for key, each in searched.items()}
        ranges: dict[str, Any] = {
            key: value for key, value in values.items() if isinstance(value, IntervalSweep)
        }
        for key, each in ranges.items():
            require(
                each.start <= each.end,
                key,
                f"{each.start:g} to {each.end:g}",
                "a range whose end is the larger",
            )
            above = each.start > 0 or "log" not in each.tags
            require(
                above,
                key,
                f"{each.start:g} to {each.end:g}",
                "a range above 0, as it is logarithmic",
            )
        texts = {
            key: [text for (text,) in sweep([each])]
            for key, each in searched.items()
            if key not in ranges
        }
        return Space(ranges, texts)

    def settings(self, trial: Any) -> Settings:
        """What a trial of Optuna's chooses."""
        found = [trial.suggest_categorical(key, texts) for key, texts in self.choices.items()]
        for key, each in self.ranges.items():
            whole = isinstance(each.start, int)  # int(interval(8,64))
            suggest = trial.suggest_int if whole else trial.suggest_float
            number = suggest(key, each.start, each.end, log="log" in each.tags)
            found.append(f"{key}={number}" if whole else f"{key}={number:.5g}")
        return tuple(found)

    def probes(self) -> list[dict[str, Any]]:
        """Values that are tried before the first trial: each choice, and of each range its ends and
        a number within."""
        # a number within, since a setting may take whole numbers only
        every: dict[str, Sequence[Any]] = {
            key: [
                each.start,
                each.end,
                type(each.start)(each.start + (each.end - each.start) / math.pi),
            ]
            for key, each in self.ranges.items()
        } | dict(self.choices)
        return [
            {key: some[n % len(some)] for key, some in every.items()}
            for n in range(max(map(len, every.values())))
        ]


def search(
    hydra: Any,
    overrides: Sequence[Override],
    trials: int,
    at_once: int,
    objective: str,
    run: RunJobs,
) -> int:
    """Run `trials` trials, print the best, and return the exit code. Raises ConfigError.

    overrides: ranges and choices in them are searched; those of `seed` are the runs of each trial.
    at_once: runs at the same time. objective: see `score_of`. run: makes runs, and gives an exit
        code.
    """
    require_package("search", trials, "search", "optuna")
    import optuna

    fixed = [str(each.input_line) for each in overrides if not each.is_sweep_override()]
    searched = {each.key_or_group: each for each in overrides if each.is_sweep_override()}
    seeds = dict.fromkeys(map(tuple, sweep([searched.pop("seed")]))) if "seed" in searched else [()]
    if not searched:
        raise ConfigError(
            "search", trials, "needs settings to choose: <setting>=loguniform(1e-4,1e-2), or a,b,c"
        )
    space = Space.of(searched)
    probes = [space.settings(optuna.trial.FixedTrial(each)) for each in space.probes()]
    for node in compose_jobs(hydra, [[*fixed, *each] for each in probes]):
        load_final(to_container(node))  # raises ConfigError before the first trial

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        direction="maximize", sampler=optuna.samplers.TPESampler(seed=0, constant_liar=True)
    )
    chosen: dict[int, Settings] = {}
    scores: dict[Settings, float] = {}
    worst = 0
    together = max(1, at_once // len(seeds))
    for done in range(0, trials, together):
        asked = [study.ask() for _ in range(min(together, trials - done))]
        chosen |= {trial.number: space.settings(trial) for trial in asked}
        # of equal ones
        first = {chosen[trial.number]: trial.number + 1 for trial in reversed(asked)}
        new = {texts: number for texts, number in reversed(first.items()) if texts not in scores}
        jobs = []
        for texts, number in new.items():
            say(f"trial {number} of {trials}: {' '.join(texts)}")
            for seed in seeds:
                name = "_".join([f"trial-{number:03d}", *seed]).replace("=", "-")
                jobs.append([*fixed, *texts, *seed, f"hydra.sweep.subdir={name}"])
        runs, code = run(jobs) if jobs else ([], 0)
        if code > 1:  # it was interrupted
            return code
        worst = max(worst, code)
        found = iter(
            [
                -math.inf if job.status == "failed" else score_of(job.folder, objective)
                for job in runs
            ]
        )
        scores |= {texts: fmean(itertools.islice(found, len(seeds))) for texts in new}
        has_finished = any(how_ended(job.folder) == "finished" for job in runs)
        if has_finished and objective not in ("best", "last") and max(scores.values()) == -math.inf:
            raise ConfigError(
                "objective", objective, "must be best, last or a curve that the runs have"
            )
        for trial in asked:
            study.tell(trial, scores[chosen[trial.number]])
    best = study.best_trial
    winner = " ".join(chosen[best.number])
    say(f"the best of {trials} trials is {best.number + 1}: {winner}: {objective} {best.value:.5g}")
    return worst


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
    curve, final, best = run.curve.last, run.numbers["final_return"], run.numbers["best_return"]
    names = {"best": final if best is None else best, "last": curve.get(EVALUATION, final)}
    score = (
        names[objective]
        if objective in names
        else curve.get(objective, curve.get(f"rollout/{objective}"))
    )
    return -math.inf if score is None else score
