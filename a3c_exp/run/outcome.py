"""What a run says of itself: what it trains, how it has ended, and the commands that come next."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from a3c_exp.common.settings import typed
from a3c_exp.common.trust import PACKAGE, beyond_folder
from a3c_exp.core.experiment import Experiment
from a3c_exp.core.parameters import StoreSpec
from a3c_exp.ending import FAILED, StopReason, reason_text
from a3c_exp.run.console import duration, return_text
from a3c_exp.run.files import amount
from a3c_exp.run.run_folder import BEST, CHECKPOINTS, best_checkpoint

LARGE_NETWORK = 20_000_000
"""Parameters: ten times those of the largest preset."""
CHARTS_PAGE = "and open http://localhost:6006/#custom_scalars: the curves by topic"
"""What follows TensorBoard's command, which serves there by default."""


def opening(experiment: Experiment, folder: Path, steps: int) -> list[str]:
    """What is trained, where and with what. steps: those that a resumed run has made."""
    env: Any = experiment.env
    name = getattr(env, "id", getattr(env, "game", type(env).__name__))
    network = (
        type(experiment.network) if experiment.network.nameable else experiment.network.module_class
    )
    total = experiment.total_steps
    goal = experiment.stop.mean_return
    solved = experiment.reward_threshold
    workers = experiment.worker_count
    envs = experiment.envs_per_worker
    until = "for " if goal is None else f"until its mean return is {goal:g}, at most "
    until += f"steps {steps:,} to {total:,}" if steps else f"{total:,} steps"
    if goal is None and solved is not None:
        until += f"; a mean return of {solved:g} counts as solved"
    return [
        f"training {type(experiment.algorithm).__name__} on {name}, seed {experiment.seed}",
        until,
        f"{workers} worker{'s' * (workers > 1)} of {envs} environment{'s' * (envs > 1)} each, "
        f"backend {type(experiment.backend).__name__.lower()}, network {network.__name__}",
        f"folder: {short(folder)}",
    ]


def size_warning(spec: StoreSpec) -> list[str]:
    """A line on the memory that a network takes which is larger than most are meant to be."""
    if spec.size < LARGE_NETWORK:
        return []
    vector = 4 * spec.size  # float32
    states = spec.workers if spec.per_worker else 1
    checkpoint = (1 + states * spec.optimizer.state_rows) * vector
    return [
        f"network: {spec.size:,} parameters take {amount(spec.nbytes())}B that workers share, "
        f"{amount(2 * vector)}B more in each worker, and {amount(checkpoint)}B a checkpoint. "
        "Smaller images need fewer: "
        "'env.wrappers=[{ResizeObservation: {shape: [84, 84]}}]' (docs/images.md)"
    ]


def outcome(summary: Mapping[str, Any]) -> str:
    """How a run has ended: "solved after 107,000 steps, 4.0 s; mean return of the last 100
    episodes: 477.3".

    A run that a mean return has ended was solved before: a little, or long where `stop.mean_return`
    is higher than `reward_threshold`. Episodes that were under way then are among the last 100, and
    may have lowered the mean.
    """
    reason = str(summary["stop_reason"])
    value = summary.get("mean_return_100")
    after = _after(summary.get("steps"), summary.get("training_seconds"))
    if _is_solved(summary):
        reason = "solved"
        after = _after(summary["solved_at_steps"], summary["solved_at_seconds"])
    else:
        reason = reason_text(reason)
    mean = "" if value is None else f"; mean return of the last 100 episodes: {return_text(value)}"
    return f"{reason} after {after}{mean}"


def _is_solved(summary: Mapping[str, Any]) -> bool:
    is_ended_by_return = summary["stop_reason"] == StopReason.MEAN_RETURN
    return is_ended_by_return and summary.get("solved_at_steps") is not None


def _after(steps: int | None, seconds: float | None) -> str:
    seconds = seconds or 0.0
    return f"{steps or 0:,} steps, {f'{seconds:.1f} s' if seconds < 60 else duration(seconds)}"


def ending(summary: Mapping[str, Any], threshold: float | None) -> list[str]:
    """How a run has ended, its speed, and what else there is to say of it. threshold: the return of
    a solved run."""
    speed, best, solved = (
        summary[key] for key in ("steps_per_second", "best_eval_return", "solved_at_steps")
    )
    facts = [f"{amount(speed or 0.0)}/s"]
    if best is not None:
        facts.append(f"best greedy evaluation {return_text(best)}")
    if threshold is not None and solved is None:
        facts.append(f"not solved: training stayed below {threshold:g}")
    elif _is_solved(summary):
        facts.append(f"{_after(summary['steps'], summary['training_seconds'])} in all")
    elif threshold is not None:
        facts.append(
            f"{threshold:g} was reached after {_after(solved, summary['solved_at_seconds'])}"
        )
    rejected = summary["rejected_updates"]
    return [
        *outcome(summary).split("; "),
        " | ".join(facts),
        *([f"{rejected:,} updates rejected"] if rejected else []),
    ]


def collapse(folder: Path, mean: float, peak: float) -> str:
    """Return a sentence about training returns that have fallen far below their peak.

    folder: of the run. mean: over the last 100 episodes. peak: the highest of these means.
    """
    best = folder / CHECKPOINTS / BEST
    remedy = (
        f"{short(best)} has the policy of the best evaluation"
        if best.exists()
        else "no evaluation has kept a better policy (eval.every)"
    )
    return (
        f"training returns have collapsed: {return_text(mean)} in the mean of the last 100 "
        f"episodes, {return_text(peak)} before; {remedy}"
    )


def next_commands(
    reason: str,
    folder: Path,
    config: Mapping[str, Any] | None = None,
    experiment: Experiment | None = None,
) -> list[str]:
    """Return the commands that come after a run that has ended by `reason`.

    A run that was cut is continued. What a finished one has learned is evaluated, if it has kept a
    checkpoint, reported, and shown by TensorBoard, whose page of charts the last line names.

    config, experiment: the run's. What they have of a user's own, and what may act beyond the
        folder, a command allows again.
    """
    python = _program(Path(sys.executable).name)
    folder_text = shlex.quote(short(folder))
    cut = reason in (StopReason.INTERRUPTED, *FAILED)
    allowed = ""
    if config is not None and experiment is not None:
        modules = (type(callback).__module__.partition(".")[0] for callback in experiment.callbacks)
        # a script's are not in config.yaml
        packages = [name for name in modules if name not in (PACKAGE, "__main__")]
        again: dict[str, Any] = {}
        if plugins := list(dict.fromkeys([*experiment.plugins, *packages])):
            again["plugins"] = plugins
        if cut:
            again |= beyond_folder(config)
        for key, value in again.items():
            allowed += " " + shlex.quote(f"{key}={typed(value)}")
    if cut:
        return [f"{python} -m a3c_exp resume={folder_text}{allowed}"]
    evaluation = (
        [f"{python} -m a3c_exp.evaluate {folder_text}{allowed}"]
        if best_checkpoint(folder).exists()
        else []
    )
    return [
        *evaluation,
        f"{python} -m a3c_exp.report {folder_text}",
        f"{_program('tensorboard')} --logdir {folder_text}",
        CHARTS_PAGE,
    ]


def _program(name: str) -> str:
    """A program beside this Python, as a user types it here."""
    beside_python = os.path.join(os.path.dirname(sys.executable), name)
    return name if shutil.which(name) == beside_python else shlex.quote(short(beside_python))


def short(path: str | Path) -> str:
    """A path as a user types it: relative to the current folder where that is shorter."""
    return min(str(path), os.path.relpath(path), key=len)
