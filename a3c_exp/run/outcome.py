"""What a run says of itself: what it trains, how it has ended, and the commands that come next."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from a3c_exp.common.settings import override_text
from a3c_exp.common.trust import PACKAGE, beyond_folder
from a3c_exp.core.experiment import Experiment
from a3c_exp.core.parameters import StoreSpec
from a3c_exp.ending import FAILED, StopReason, reason_text
from a3c_exp.envs.gym import foreign_module
from a3c_exp.run.console import duration, return_text
from a3c_exp.run.files import amount
from a3c_exp.run.run_folder import BEST, CHECKPOINTS, best_checkpoint

SCRIPT = "__main__"
"""The module of a script's own classes, and of a notebook's cells."""
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
    begun = f", from step {steps:,} on" if steps else ""
    limit = f"to step {total:,}" if steps else f"{total:,} steps"
    if goal is None:
        mark = "" if solved is None else f"; a mean return of {solved:g} counts as solved"
        until = f"{'' if steps else 'for '}{limit}{mark}"
    else:
        mark = "" if solved in (None, goal) else f" ({solved:g} counts as solved)"
        until = f"until its mean return is {goal:g}{mark}, at most {limit}"

    return [
        f"training {type(experiment.algorithm).__name__} on {name}, seed {experiment.seed}{begun}",
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


def outcome(summary: Mapping[str, Any], threshold: float | None = None) -> str:
    """How a run has ended: "solved (475) after 105,000 steps, 3.9 s; ended by its goal, at 477.3,
    after 107,000 steps, 4.0 s".

    A run is solved when its mean return first reaches `threshold`, which None leaves out, and ended
    by `stop.mean_return`, which may be higher. Episodes that were under way then count neither for
    the one nor for the other: they may have lowered the mean since.
    """
    reason = summary["stop_reason"]
    clock = clock_note(summary)
    after = _after(summary.get("steps"), summary.get("training_seconds")) + clock
    sentences = []
    if summary.get("solved_at_steps") is not None:
        mark = "" if threshold is None else f" ({threshold:g})"
        solved = _after(summary["solved_at_steps"], summary["solved_at_seconds"]) + clock
        sentences.append(f"solved{mark} after {solved}")

    goal_return = summary.get("goal_return")
    mean = summary.get("mean_return_100")
    if reason == StopReason.MEAN_RETURN and goal_return is not None:
        sentences.append(f"ended by its goal, at {return_text(goal_return)}, after {after}")
    else:
        sentences.append(f"{reason_text(str(reason))} after {after}")
        if mean is not None:
            sentences.append(f"mean return of the last 100 episodes: {return_text(mean)}")
    return "; ".join(sentences)


def _after(steps: int | None, seconds: float | None) -> str:
    seconds = seconds or 0.0
    text = duration(seconds)
    if seconds < 60:
        text = f"{seconds:.1f} s" if seconds >= 1 else f"{seconds:.2g} s"
    return f"{steps or 0:,} steps, {text}"


def clock_note(summary: Mapping[str, Any]) -> str:
    """Return what is said behind the seconds of a run whose clock is simulated; "" for others."""
    return " (simulated)" if summary.get("clock") == "simulated" else ""


def ending(summary: Mapping[str, Any], threshold: float | None) -> list[str]:
    """How a run has ended, its speed, and what else there is to say of it. threshold: the return of
    a solved run."""
    facts = [f"{amount(summary['steps_per_second'] or 0.0)}/s{clock_note(summary)}"]
    best = summary["best_eval_return"]
    if best is not None:
        facts.append(f"best greedy evaluation {return_text(best)}")
    if threshold is not None and summary["solved_at_steps"] is None:
        has_mean = summary["mean_return_100"] is not None
        why = (
            f"training stayed below {threshold:g}" if has_mean else "fewer than 100 episodes ended"
        )
        facts.append(f"not solved: {why}")
    rejected = summary["rejected_updates"]
    return [
        *outcome(summary, threshold).split("; "),
        " | ".join(facts),
        *([f"{rejected:,} updates rejected"] if rejected else []),
    ]


def collapse(folder: Path, mean: float, peak: float, evaluation: float | None) -> str:
    """Return a sentence about training returns that have fallen far below their peak.

    folder: of the run. mean: over the last 100 episodes. peak: the highest of these means.
    evaluation: the mean return of the best one; None if there was none.
    """
    best = folder / CHECKPOINTS / BEST
    if evaluation is not None and evaluation <= mean:
        remedy = f"the best evaluation, {return_text(evaluation)}, is no better"
    elif evaluation is not None and best.exists():
        policy = f"the policy of the best evaluation, {return_text(evaluation)}"
        remedy = f"{short(best)} has {policy}"
    else:
        remedy = "no better policy has been kept (eval.every, checkpoint.keep)"
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
    checkpoint, replayed, if it has recorded its order, reported, and shown by TensorBoard, whose
    page of charts the last line names.

    config, experiment: the run's. What they have of a user's own, and what may act beyond the
        folder, a command allows again.
    """
    python = _program(Path(sys.executable).name)
    folder_text = shlex.quote(short(folder))
    cut = reason in (StopReason.INTERRUPTED, *FAILED)
    again: dict[str, Any] = {}
    is_only_here = False
    if config is not None and experiment is not None:
        packages = _packages(experiment)
        is_only_here = SCRIPT in packages
        if packages:
            again["plugins"] = packages
        if cut:
            again |= beyond_folder(config)
    allowed = _quoted(again)

    if is_only_here:
        call = _resume_call(folder, again) if cut else "run.evaluate()"
        first = [f"in this program, which alone knows all that it has trained: {call}"]
    elif cut:
        first = [f"{python} -m a3c_exp resume={folder_text}{allowed}"]
    elif best_checkpoint(folder).exists():
        first = [f"{python} -m a3c_exp.evaluate {folder_text}{allowed}"]
    else:
        first = []
    if cut:
        return first
    if experiment is not None and experiment.record == "order" and not is_only_here:
        allowed = _quoted({**again, **beyond_folder(config or {})})
        first += [f"{python} -m a3c_exp replay={folder_text}{allowed}"]
    return [
        *first,
        f"{python} -m a3c_exp.report {folder_text}",
        f"{_program('tensorboard')} --logdir {folder_text}",
        CHARTS_PAGE,
    ]


def _resume_call(folder: Path, again: Mapping[str, Any]) -> str:
    """Return the call that continues a run in a program, whose `train` has raised.

    again: settings that it names again.
    """
    overrides = [
        f"{key}={override_text(value)}" for key, value in again.items() if key != "plugins"
    ]
    plugins = f", plugins={again['plugins']}" if "plugins" in again else ""
    return f"a3c_exp.open_run({short(folder)!r}{plugins}).resume({overrides or ''})"


def _packages(experiment: Experiment) -> list[str]:
    """Return the packages that a command has to allow for a run's components: its plugins, the one
    that has registered its environment if none of them may have, and those of its callbacks."""
    packages = [*experiment.plugins]
    module = foreign_module(experiment.env)
    if module == SCRIPT or (module is not None and not packages):
        packages.append(module.partition(".")[0])

    # a script's callbacks are not in config.yaml
    watching = (type(callback).__module__.partition(".")[0] for callback in experiment.callbacks)
    packages += [name for name in watching if name not in (PACKAGE, SCRIPT)]
    return list(dict.fromkeys(packages))


def _quoted(settings: Mapping[str, Any]) -> str:
    """Return settings as the end of a command."""
    return "".join(
        f" {shlex.quote(f'{key}={override_text(value)}')}" for key, value in settings.items()
    )


def _program(name: str) -> str:
    """A program beside this Python, as a user types it here."""
    beside_python = os.path.join(os.path.dirname(sys.executable), name)
    return name if shutil.which(name) == beside_python else shlex.quote(short(beside_python))


def short(path: str | Path) -> str:
    """A path as a user types it: relative to the current folder where that is shorter."""
    return min(str(path), os.path.relpath(path), key=len)
