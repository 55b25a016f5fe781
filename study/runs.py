"""This project's runs: the command as a user gives it, in a process of its own, then its final policy played."""

from __future__ import annotations

import contextlib
import datetime
import json
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import a3c_exp
from a3c_exp.run.run_folder import SUMMARY_FILE, latest_checkpoint
from study.entries import RunFailedError
from study.records import Record

ROOT = Path(__file__).resolve().parent.parent
EPISODES = 100
# Final policies are played in episodes that no run has seen: replays draw seeds of their own, whatever this number is.
FIRST_EVALUATION_SEED = 10_000
# How a run ends that has come to its own end.
ENDS = ("total_steps", "max_episodes", "max_seconds", "mean_return")
# And how one ends that can go on: stopped by a signal, or killed before it could write a summary.
INTERRUPTED, KILLED = "interrupted", "killed"
REFUSED = 2  # the exit code of a command that cannot be run


@dataclass(frozen=True)
class Training:
    """`python -m a3c_exp <overrides>`."""

    overrides: tuple[str, ...]

    @property
    def command(self) -> str:
        return shlex.join(["python", "-m", "a3c_exp", *self.overrides])

    def settings(self) -> Mapping[str, Any]:
        return _settings(self.overrides)

    def run(self, seed: int, folder: Path) -> Record:
        """What is in `folder` already is replaced, unless it is this run: then it goes on if it can, or is played."""
        overrides = [*self.overrides, f"seed={seed}"]
        config = a3c_exp.compose(overrides)
        stopped = _stop_reason(folder, config)
        # A run of so many seconds would have all of them again.
        resumable = config["stop"]["max_seconds"] is None and latest_checkpoint(folder).is_file()
        there = stopped in ENDS or (stopped in (INTERRUPTED, KILLED) and resumable and _goes_on(folder))
        if not there:
            shutil.rmtree(folder, ignore_errors=True)
            execute(["-m", "a3c_exp", *overrides, f"hydra.run.dir={folder}"], folder.with_suffix(".log"))
        summary = json.loads((folder / SUMMARY_FILE).read_text(encoding="utf-8"))
        final = _greedy_returns(folder, seed, "latest")
        best = _greedy_returns(folder, seed, "best") if summary["best_eval_return"] is not None else None
        return _record(f"{self.command} seed={seed}", seed, summary, final, best)


@cache
def _settings(overrides: tuple[str, ...]) -> Mapping[str, Any]:
    return {key: value for key, value in a3c_exp.compose(overrides).items() if key != "seed"}


def execute(arguments: Sequence[str], log: Path) -> None:
    """Run this Python with `arguments` in the checkout, its output to `log`; if it must end early, as Ctrl-C ends it,
    once for every signal that comes here (of which the terminal would send it one of its own).

    Raises RunFailedError.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as output:
        command = [sys.executable, *arguments]
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output, process_group=0
        )
        try:
            code = process.wait()
        finally:
            while process.poll() is None:
                with contextlib.suppress(KeyboardInterrupt):
                    process.send_signal(signal.SIGINT)
                    process.wait()
    if code:
        raise RunFailedError(f"exit code {code}: {shlex.join(command)}; its output is in {log}", code)


def _goes_on(folder: Path) -> bool:
    """Resume the run in `folder`; False where it is refused, as with a checkpoint that an older version has written."""
    try:
        execute(["-m", "a3c_exp", f"resume={folder}"], folder.with_suffix(".log"))
    except RunFailedError as failure:
        if failure.code != REFUSED:
            raise
        return False
    return True


def _stop_reason(folder: Path, config: Mapping[str, Any]) -> Any:
    """Why the run in `folder` ended; None where there is none with this configuration."""
    from a3c_exp.run.run_folder import read_config

    try:
        if read_config(folder) != config:
            return None
        summary = folder / SUMMARY_FILE
        return json.loads(summary.read_text(encoding="utf-8"))["stop_reason"] if summary.exists() else KILLED
    except (OSError, ValueError, KeyError, a3c_exp.ConfigError):
        return None


def _greedy_returns(folder: Path, seed: int, checkpoint: Literal["best", "latest"]) -> Any:
    from a3c_exp.cli.evaluate import Options, evaluate_run, load_run
    from a3c_exp.core.cpu import one_thread

    with one_thread():
        options = Options(episodes=EPISODES, checkpoint=checkpoint, seed=FIRST_EVALUATION_SEED + seed)
        return evaluate_run(load_run(folder, checkpoint), folder, options).returns


def _record(command: str, seed: int, summary: Mapping[str, Any], returns: Any, best: Any) -> Record:
    return Record(
        seed=seed,
        steps=summary["steps"],
        seconds=summary["training_seconds"],
        steps_per_second=summary["steps_per_second"],
        solved_steps=summary["solved_at_steps"],
        solved_seconds=summary["solved_at_seconds"],
        last_100=_rounded(summary["mean_return_100"]),
        greedy_return=round(float(returns.mean()), 3),
        greedy_deviation=round(float(returns.std(ddof=1)), 3),
        greedy_episodes=len(returns),
        best_return=None if best is None else round(float(best.mean()), 3),
        staleness_mean=_rounded(summary["staleness_mean"]),
        staleness_max=summary["staleness_max"],
        date=datetime.date.today().isoformat(),
        commit=summary["commit"] or "unknown",
        machine=describe(summary["machine"]),
        command=command,
    )


def describe(machine: Mapping[str, Any]) -> str:
    """A machine in a few words."""
    return f"{machine['processor']}, {machine['usable_cores']} cores"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
