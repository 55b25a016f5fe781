"""One run from its configuration to its summary: drains the backend's events, and decides when to evaluate, save and
stop."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from a3c_exp import checkpoint, provenance
from a3c_exp.config import CONFIG_FILE, Experiment, config_text, load_experiment
from a3c_exp.console import Progress, Terminal, run_log
from a3c_exp.errors import ConfigError, RunError
from a3c_exp.evaluator import Evaluation, Evaluator
from a3c_exp.events import Event
from a3c_exp.metrics import Tally, Writer
from a3c_exp.parameters import SharedParameters
from a3c_exp.threading_limits import one_thread
from a3c_exp.worker import Setup, build_network, layout

log = logging.getLogger("a3c_exp")

CHECKPOINTS = "checkpoints"
LATEST, BEST = "latest.ckpt", "best.ckpt"

# Curves get a point this often at first, and less often later: about two thousand in a run of any length.
LOG_SECONDS = 0.5
LOG_SHARE = 1 / 1000


@dataclass(frozen=True, slots=True)
class Run:
    """What a run left: its folder and its summary (the content of summary.json)."""

    folder: Path
    summary: dict[str, Any]

    @property
    def exit_code(self) -> int:
        """0; 1 if it failed or its result could not be written; 128 + the signal if it was interrupted (Ctrl-C: 130)."""
        if self.summary["signal"] is not None:
            return 128 + int(self.summary["signal"])
        return int(self.summary["stop_reason"] == "failed" or bool(self.summary["unwritten"]))


def run(config: Mapping[str, Any], folder: Path, resume: bool = False) -> Run:
    """Train as a checked configuration says, in `folder`; with `resume`, go on from the latest checkpoint there.

    Returns also when a worker failed or the user interrupted: the summary says so. Raises ConfigError for a checkpoint
    that cannot be used, before anything is written.
    """
    experiment = load_experiment(config, check=False)
    network, env = build_network(experiment)
    store = experiment.backend.store(layout(experiment, network, env.observation_space.shape))
    store.initialise(network.vector)
    state = None
    if resume:
        state = checkpoint.load(folder / CHECKPOINTS / LATEST, key="resume")
        _restore(store, state["store"], folder)
    elif experiment.init_from is not None:
        _start_from(store, Path(experiment.init_from))
    (folder / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
    (folder / CONFIG_FILE).write_text(config_text(config), encoding="utf-8")
    with run_log(folder / "train.log") as terminal, one_thread():
        return _Session(experiment, config, folder, store, state, terminal).run()


def _restore(store: SharedParameters, state: Mapping[str, Any], folder: Path) -> None:
    try:
        store.restore(state)
    except ValueError as error:
        raise ConfigError("resume", str(folder), f"its checkpoint does not fit its configuration: {error}") from error


def _start_from(store: SharedParameters, folder: Path) -> None:
    """Begin with another run's parameters and what it knew of its observations; everything else is new."""
    path = folder / CHECKPOINTS / BEST
    state = checkpoint.load(path if path.exists() else folder / CHECKPOINTS / LATEST, key="init_from")["store"]
    try:
        store.start_from(state)
    except ValueError as error:
        raise ConfigError("init_from", str(folder), f"must be a run of the same network: {error}") from error


class _Session:
    """A run while it runs."""

    def __init__(
        self,
        experiment: Experiment,
        config: Mapping[str, Any],
        folder: Path,
        store: SharedParameters,
        state: Mapping[str, Any] | None,
        terminal: Terminal,
    ) -> None:
        self._experiment, self._folder, self._store = experiment, folder, store
        self._tally = Tally(experiment.worker_count * experiment.envs_per_worker)
        self._resumed = 0
        self._earlier_training_seconds = 0.0
        self._solved: tuple[int, float] | None = None
        self._best: float | None = None
        self._reason: str | None = None
        self._error: str | None = None
        self._unwritten: set[str] = set()
        if state is not None:
            self._resume(state)
        self._purge_step = None if state is None else self._tally.steps
        self._writer = Writer(folder, config_text(config), config=config, purge_step=self._purge_step)
        self._evaluator = Evaluator(experiment, background=not experiment.backend.deterministic)
        stop = experiment.stop
        self._progress = Progress(
            terminal, experiment.total_steps, max_seconds=stop.max_seconds, max_episodes=stop.max_episodes
        )
        self._next_log = 0.0
        self._next_evaluation = _next(self._tally.steps, experiment.eval.every)
        self._next_checkpoint = _next(self._tally.steps, experiment.checkpoint.every)
        for warning in experiment.warnings:
            log.warning(warning)

    def _resume(self, state: Mapping[str, Any]) -> None:
        self._tally.restore(state["tally"])
        self._resumed = state["resumed"] + 1
        self._earlier_training_seconds = state["training_seconds"]
        self._best = state["best_eval_return"]
        self._solved = None if state["solved"] is None else (state["solved"][0], state["solved"][1])

    @property
    def _training_seconds(self) -> float:
        return self._earlier_training_seconds + self._store.training_seconds

    def run(self) -> Run:
        """Train until a stop rule holds, a worker fails or the user interrupts; then write down what there is."""
        log.info("run folder: %s", self._folder)
        events = self._experiment.backend.run(Setup(experiment=self._experiment, resumed=self._resumed), self._store)
        with _interruptions() as interruption:
            try:
                self._drain(events, interruption)
            except RunError as error:
                self._reason, self._error = "failed", str(error)
            except KeyboardInterrupt:  # the second Ctrl-C: do not wait for the workers
                self._reason = "interrupted"
            finally:
                events.close()  # type: ignore[attr-defined]
            return self._finish(interruption)

    def _drain(self, events: Iterator[Event | None], interruption: _Interruption) -> None:
        for event in events:
            if event is not None:
                self._tally.add(event)
            if self._reason is None:
                self._reason = self._stop_reason(interruption)
                if self._reason is not None:
                    self._store.stop()
            self._keep_house()
        if self._reason is None:
            self._reason = "total_steps"
        if self._reason != "interrupted" and self._experiment.eval.every is not None:
            self._take(self._evaluator.result(wait=True))
            self._evaluator.submit(self._store.state())
            self._take(self._evaluator.result(wait=True))

    def _stop_reason(self, interruption: _Interruption) -> str | None:
        """Which rule, if any, ends the run now."""
        stop, tally = self._experiment.stop, self._tally
        if interruption.signal is not None:
            return "interrupted"
        if stop.mean_return is not None and tally.reached(stop.mean_return):
            if self._solved is None:
                self._solved = tally.steps, self._training_seconds
            return "mean_return"
        if stop.max_episodes is not None and tally.episodes >= stop.max_episodes:
            return "max_episodes"
        if stop.max_seconds is not None and self._store.training_seconds >= stop.max_seconds:
            return "max_seconds"
        return None

    def _keep_house(self) -> None:
        """Whatever is due: a point of the curves, an evaluation, a checkpoint, the progress line."""
        tally, every = self._tally, self._experiment
        self._take(self._evaluator.result())
        if tally.steps >= self._next_evaluation and not self._evaluator.busy and self._reason is None:
            self._next_evaluation = _next(tally.steps, every.eval.every)
            self._evaluator.submit(self._store.state())
            self._take(self._evaluator.result())
        if tally.steps >= self._next_checkpoint:
            self._next_checkpoint = _next(tally.steps, every.checkpoint.every)
            self._save(LATEST, self._store.state())
        if tally.seconds >= self._next_log:
            self._next_log = tally.seconds + LOG_SECONDS + LOG_SHARE * tally.seconds
            self._log(tally.window())
        self._progress.update(tally, self._best)

    def _take(self, evaluation: Evaluation | None) -> None:
        """Log an evaluation; keep its parameters if it is the best so far."""
        if evaluation is None:
            return
        self._log({"eval/mean_reward": evaluation.mean_return, "eval/mean_ep_length": evaluation.mean_length})
        if self._best is None or evaluation.mean_return > self._best:
            self._best = evaluation.mean_return
            self._save(BEST, evaluation.state)

    def _log(self, values: dict[str, float]) -> None:
        with self._writing("curves"):
            self._writer.log(self._tally.steps, values, self._tally.seconds)

    def _save(self, name: str, store_state: Mapping[str, Any]) -> None:
        # Events are under way for a tenth of a second, so the store is ahead of the tally.
        state = {
            "store": store_state,
            "tally": self._tally.state() | {"steps": store_state["steps"]},
            "resumed": self._resumed,
            "training_seconds": self._training_seconds,
            "best_eval_return": self._best,
            "solved": None if self._solved is None else list(self._solved),
        }
        with self._writing(name):
            checkpoint.save(self._folder / CHECKPOINTS / name, state)

    @contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        """A full disk ends no training: it is said once, what was written before stays whole, and the next write tries
        again."""
        try:
            yield
        except OSError as error:
            if what not in self._unwritten:
                log.error("%s cannot be written: %s", what, error)
            self._unwritten.add(what)
        else:
            self._unwritten.discard(what)

    def _finish(self, interruption: _Interruption) -> Run:
        self._evaluator.close()
        self._log(self._tally.window())
        self._save(LATEST, self._store.state())
        if self._error is not None:
            log.error(self._error)
        with self._writing("curves"):
            self._writer.close(success=self._reason != "failed")
        self._progress.close(self._tally, self._best)
        summary = self._summary(interruption)
        with self._writing("summary.json"):
            checkpoint.write_json(self._folder / "summary.json", summary)
        log.info("stopped: %s", summary["stop_reason"])
        return Run(self._folder, summary)

    def _summary(self, interruption: _Interruption) -> dict[str, Any]:
        totals, seconds = self._tally.summary(), self._training_seconds
        solved_steps, solved_seconds = self._solved or (None, None)
        return {
            "seed": self._experiment.seed,
            "stop_reason": self._reason,
            "error": self._error,
            "signal": interruption.signal,
            "unwritten": sorted(self._unwritten),
            **totals,
            "training_seconds": round(seconds, 3),
            "steps_per_second": round(self._tally.steps / seconds, 1) if seconds > 0 else None,
            "best_eval_return": self._best,
            "solved_at_steps": solved_steps,
            "solved_at_seconds": None if solved_seconds is None else round(solved_seconds, 3),
            "resumed": self._resumed,
            "versions": provenance.versions(),
            "commit": provenance.commit(),
            "command": provenance.command(),
            "machine": provenance.machine(),
        }


def _next(steps: int, every: int | None) -> float:
    """The next multiple of `every` past `steps`; never, without one."""
    return float("inf") if every is None else (steps // every + 1) * every


@dataclass(slots=True)
class _Interruption:
    signal: int | None = None


@contextmanager
def _interruptions() -> Iterator[_Interruption]:
    """SIGINT and SIGTERM ask for an orderly end; a second SIGINT for one at once. In the main thread only: elsewhere
    signals do not arrive."""
    interruption = _Interruption()

    def ask(signum: int, frame: object) -> None:
        if interruption.signal is not None and signum == signal.SIGINT:
            raise KeyboardInterrupt
        interruption.signal = signum

    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            with suppress(TypeError):  # None: a handler that was not set from Python cannot be put back
                signal.signal(number, handler)
