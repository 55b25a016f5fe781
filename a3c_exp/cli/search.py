"""A search: trials whose settings Optuna chooses by the scores of earlier ones, each over the seeds of the command.

Nothing of a search is kept but its runs. The sampler is seeded, so the same command asks for the same trials as long as
their scores are the same, and the scores of finished runs are in their folders. So a search that was cut goes on.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

from hydra.core.override_parser.types import IntervalSweep

from a3c_exp.cli.hydra_compose import choices_of, parse
from a3c_exp.cli.processes import Job, say
from a3c_exp.common.reading import UnreadableError
from a3c_exp.errors import ConfigError
from a3c_exp.report.runs import BROKEN, read_run

EVALUATION = "eval/mean_reward"

Jobs = list[list[str]]
"""The overrides of each run."""


def search(
    hydra: Any,
    overrides: Sequence[str],
    trials: int,
    at_once: int,
    objective: str,
    check: Callable[[Jobs], None],
    run: Callable[[Jobs], tuple[list[Job], int]],
) -> int:
    """Run `trials` trials, print the best, and return the exit code. Raises ConfigError.

    overrides: ranges and choices in them are searched; those of `seed` are the runs of each trial.
    at_once: runs at the same time. objective: see `score_of`.
    check: raises ConfigError for jobs that cannot run. run: makes the runs of jobs; returns them and the exit code.
    """
    if find_spec("optuna") is None:
        raise ConfigError("search", trials, "needs the extra search: pip install 'a3c-exp[search]'")
    import optuna

    typed = parse(overrides, hydra)
    fixed = [str(each.input_line) for each in typed if not each.is_sweep_override()]
    searched = {each.key_or_group: each for each in typed if each.is_sweep_override()}
    seeds = [[text] for text in choices_of(searched.pop("seed"))] if "seed" in searched else [[]]
    if not searched:
        raise ConfigError("search", trials, "needs settings to choose: <setting>=loguniform(1e-4,1e-2), or a,b,c")
    space, ends = dict[str, Any](), list[list[str]]()
    for key, each in searched.items():
        value: Any = each.value()
        if isinstance(value, IntervalSweep):
            space[key] = optuna.distributions.FloatDistribution(value.start, value.end, log="log" in value.tags)
            ends.append([text for end in (value.start, value.end) for text in _texts({key: end})])
        else:
            space[key] = optuna.distributions.CategoricalDistribution(choices_of(each))
            ends.append(choices_of(each))
    check([[*fixed, *(some[number % len(some)] for some in ends)] for number in range(max(map(len, ends)))])

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=0, constant_liar=True)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    scores: dict[tuple[str, ...], float] = {}
    failed = False
    together = max(1, at_once // len(seeds))
    for first in range(0, trials, together):
        asked = [study.ask(space) for _ in range(min(together, trials - first))]
        new = {_texts(trial.params): trial.number for trial in reversed(asked) if _texts(trial.params) not in scores}
        jobs = []
        for texts, number in new.items():
            say(f"trial {number + 1} of {trials}: {' '.join(texts)}")
            for seed in seeds:
                name = "_".join([f"trial-{number + 1:03d}", *seed]).replace("=", "-")
                jobs.append([*fixed, *texts, *seed, f"hydra.sweep.subdir={name}"])
        runs, code = run(jobs) if jobs else ([], 0)
        if code > 1:  # it was interrupted
            return code
        failed = failed or code == 1
        found = iter([score_of(job.folder, objective) for job in runs])
        scores |= {texts: fmean(itertools.islice(found, len(seeds))) for texts in new}
        if objective not in ("best", "last") and max(scores.values()) == -math.inf:
            raise ConfigError("objective", objective, "must be best, last or a curve that the runs have")
        for trial in asked:
            study.tell(trial, scores[_texts(trial.params)])
    best = study.best_trial
    settings = " ".join(_texts(best.params))
    say(f"the best of {trials} trials is {best.number + 1}: {settings}: {objective} {best.value:.5g}")
    return int(failed)


def _texts(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Chosen settings as overrides: numbers by key, and choices, which are overrides already."""
    return tuple(each if isinstance(each, str) else f"{key}={each:.5g}" for key, each in settings.items())


def score_of(folder: Path, objective: str) -> float:
    """What a search maximizes: `best` or `last`, the best or the last evaluation, or the last value of a curve.

    Of a run without evaluations `best` is the highest mean return of 100 training episodes and `last` that of the last
    100; of all, where fewer have ended. Minus infinity if the run has failed or has no such number.
    """
    try:
        run = read_run(folder)
    except (ConfigError, UnreadableError):
        return -math.inf
    curve, final = run.curve.last, run.final_return
    names = {"best": run.best_return if run.best_return is not None else final, "last": curve.get(EVALUATION, final)}
    score = names[objective] if objective in names else curve.get(objective, curve.get(f"rollout/{objective}"))
    return -math.inf if score is None or run.stop_reason in BROKEN else score
