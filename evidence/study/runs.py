"""Runs of this project: the user's command in a process of its own, then an evaluation of the final
policy."""

from __future__ import annotations

import contextlib
import datetime
import json
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import a3c_exp
from a3c_exp.common.estimates import Scores as Floats
from a3c_exp.run.run_folder import SUMMARY_FILE, read_summary
from evidence.study import tables
from evidence.study.records import Record

ROOT = Path(__file__).resolve().parents[2]
EPISODES = 100
FIRST_EVALUATION_SEED = 10_000
"""Seed of the final evaluation, plus the run's own. Evaluations never share environment seeds with
training."""


class RunFailedError(Exception):
    """A training run that failed; the message names its log."""


@dataclass(frozen=True)
class Training:
    """`python -m a3c_exp <overrides>`.

    drawn: episodes of the final policy in which its actions are sampled. max_episode_steps: the
        time limit of all episodes after training; None: the environment's own.
    """

    overrides: tuple[str, ...]
    drawn: int = EPISODES
    max_episode_steps: int | None = None

    @property
    def command(self) -> str:
        return shlex.join(["python", "-m", "a3c_exp", *self.overrides])

    def settings(self) -> Mapping[str, Any]:
        return _settings(self.overrides)

    def run(self, seed: int, folder: Path) -> Record:
        """Train in `folder` and evaluate."""
        summary = self._train(seed, folder)
        final = self._returns(folder, seed, "latest")
        drawn = self._returns(folder, seed, "latest", greedy=False)
        has_best = summary["best_eval_return"] is not None

        return replace(
            _record(f"{self.command} seed={seed}", seed, summary),
            greedy_return=_mean(final),
            greedy_deviation=round(float(final.std(ddof=1)), 3),
            greedy_episodes=len(final),
            best_return=_mean(self._returns(folder, seed, "best")) if has_best else None,
            drawn_return=_mean(drawn),
            drawn_lowest=round(float(drawn.min()), 3),
            drawn_episodes=len(drawn),
        )

    def _train(self, seed: int, folder: Path) -> Mapping[str, Any]:
        """Train in `folder`, and return the run's summary. A run that is there already is resumed,
        or starts again where a resumed one would not be the same: on a deterministic backend its
        environments would start new episodes, and a limit in seconds would start at 0."""
        settings = self.settings()
        is_deterministic = settings["backend"]["_target_"].endswith((".Serial", ".Simulated"))
        restarts = is_deterministic or settings["stop"]["max_seconds"] is not None
        existing = "restart" if restarts else "resume"
        origin = [f"seed={seed}", f"hydra.run.dir={folder}", f"existing={existing}"]
        log = folder.with_name(f"{folder.name}.log")
        execute(["-m", "a3c_exp", *self.overrides, *origin], log)
        return dict(json.loads((folder / SUMMARY_FILE).read_text(encoding="utf-8")))

    def _returns(
        self, folder: Path, seed: int, checkpoint: Literal["best", "latest"], *, greedy: bool = True
    ) -> Floats:
        """Return the returns of fresh episodes with the policy of a checkpoint."""
        from a3c_exp.core.cpu import one_thread
        from a3c_exp.evaluate import Options, evaluate_run, load_run

        episodes = EPISODES if greedy else self.drawn
        first = FIRST_EVALUATION_SEED + seed
        options = Options(episodes=episodes, checkpoint=checkpoint, greedy=greedy, seed=first)

        with one_thread():
            loaded = load_run(folder, checkpoint, self.settings()["plugins"])
            if self.max_episode_steps is not None:
                env: Any = loaded.experiment.env
                env = replace(env, max_episode_steps=self.max_episode_steps)
                loaded = replace(loaded, experiment=replace(loaded.experiment, env=env))
            return evaluate_run(loaded, folder, options).returns


@dataclass(frozen=True)
class Trial(Training):
    """A run that is trained and not evaluated. common: those of its overrides that all runs in its
    table share."""

    common: tuple[str, ...] = ()

    def settings(self) -> Mapping[str, Any]:
        return _settings(self.common)

    def run(self, seed: int, folder: Path) -> Record:
        return _record(f"{self.command} seed={seed}", seed, self._train(seed, folder))


@dataclass(frozen=True)
class Replayed(Trial):
    """The order of a recorded run, followed with other settings.

    recorded: name of the recorded run of each seed, which `common` makes where it is not there.
    changed: the overrides of the replay.
    """

    recorded: str = ""
    changed: tuple[str, ...] = ()

    def settings(self) -> Mapping[str, Any]:
        return _settings(self.overrides)

    def run(self, seed: int, folder: Path) -> Record:
        recorded = folder.with_name(f"{self.recorded}_s{seed}")
        with tables.alone_in(folder.parent):  # another replay may want the same run
            if not _is_whole(recorded):
                words = [*self.common, f"seed={seed}", f"hydra.run.dir={recorded}"]
                log = recorded.with_name(f"{recorded.name}.log")
                execute(["-m", "a3c_exp", *words, "existing=restart"], log)

        shutil.rmtree(folder, ignore_errors=True)  # of a replay that was interrupted
        words = [f"replay={recorded}", *self.changed, f"hydra.run.dir={folder}"]
        execute(["-m", "a3c_exp", *words], folder.with_name(f"{folder.name}.log"))
        summary = json.loads((folder / SUMMARY_FILE).read_text(encoding="utf-8"))
        place = recorded.relative_to(ROOT) if recorded.is_relative_to(ROOT) else recorded
        command = shlex.join(["python", "-m", "a3c_exp", f"replay={place}", *self.changed])
        return _record(command, seed, summary)


def _is_whole(folder: Path) -> bool:
    """Return whether the run in a folder has made all its steps."""
    summary = read_summary(folder)
    return summary is not None and summary["stop_reason"] == "total_steps"


@cache
def _settings(overrides: tuple[str, ...]) -> Mapping[str, Any]:
    return {key: value for key, value in a3c_exp.compose(overrides).items() if key != "seed"}


def execute(arguments: Sequence[str], log: Path) -> None:
    """Run this Python with `arguments` in the checkout, its output in `log`. Raises RunFailedError.

    Each Ctrl-C here is passed on to the process, which is in a process group of its own: otherwise
    a terminal would send it every signal too.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as output:
        command = [sys.executable, *arguments]
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            process_group=0,
        )

        try:
            with _lock:
                _running.add(process)
                if _interrupted.is_set():
                    process.send_signal(_ending())
            code = process.wait()
        finally:
            with _lock:
                _running.discard(process)
            while process.poll() is None:
                with contextlib.suppress(KeyboardInterrupt):
                    process.send_signal(_ending())
                    process.wait()

    if code:
        raise RunFailedError(f"exit code {code}: {shlex.join(command)}; its output is in {log}")


def _ending() -> signal.Signals:
    """Return the signal that ends a run. Where Ctrl-C is ignored, as after `nohup` in a script,
    runs ignore it too."""
    is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    return signal.SIGTERM if is_ignored else signal.SIGINT


_running: set[subprocess.Popen[bytes]] = set()
_lock = threading.Lock()
_interrupted = threading.Event()


def interrupt() -> None:
    """End the runs of other threads in order, and those that they are about to start."""
    with _lock:
        _interrupted.set()
        for process in _running:
            process.send_signal(_ending())


def _record(command: str, seed: int, summary: Mapping[str, Any]) -> Record:
    return Record(
        seed=seed,
        steps=summary["steps"],
        seconds=summary["training_seconds"],
        steps_per_second=summary["steps_per_second"],
        solved_steps=summary["solved_at_steps"],
        solved_seconds=summary["solved_at_seconds"],
        last_100=None
        if summary["mean_return_100"] is None
        else round(summary["mean_return_100"], 3),
        stop_reason=summary["stop_reason"],
        staleness_mean=None
        if summary["staleness_mean"] is None
        else round(summary["staleness_mean"], 3),
        staleness_max=summary["staleness_max"],
        date=datetime.date.today().isoformat(),
        commit=summary["commit"] or "unknown",
        machine=describe(summary["machine"]),
        command=command,
    )


def describe(machine: Mapping[str, Any]) -> str:
    """Processor and cores, as text."""
    return f"{machine['processor']}, {machine['usable_cores']} cores"


def _mean(returns: Floats) -> float:
    return round(float(returns.mean()), 3)
