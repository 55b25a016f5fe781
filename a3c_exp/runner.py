"""One run from its configuration to its summary: drains the backend's events, and decides when to evaluate, save and
stop."""

from __future__ import annotations

import logging
import math
import time
import traceback
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from a3c_exp import checkpoint, files, provenance
from a3c_exp.config import (
    BEST,
    CHECKPOINTS,
    CONFIG_FILE,
    LATEST,
    SUMMARY_FILE,
    Experiment,
    best_checkpoint,
    config_text,
    latest_checkpoint,
    load_experiment,
    read_config,
)
from a3c_exp.console import Progress, Terminal, run_log
from a3c_exp.errors import ConfigError, RunError
from a3c_exp.evaluator import Evaluation, Evaluator
from a3c_exp.events import Event
from a3c_exp.interruption import Interruption, interruptions
from a3c_exp.metrics import Tally, Writer
from a3c_exp.parameters import SharedParameters
from a3c_exp.threading_limits import one_thread
from a3c_exp.worker import Setup, build_network, layout

log = logging.getLogger("a3c_exp")

# Curves get a point this often at first, and less often later: about two thousand in a run of any length.
LOG_SECONDS = 0.5
LOG_SHARE = 1 / 1000

# Workers that are asked to stop finish their rollout first. After this long they are no longer waited for.
PATIENCE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Run:
    """What a run left: its folder and its summary (the content of summary.json)."""

    folder: Path
    summary: dict[str, Any]

    @property
    def exit_code(self) -> int:
        """0; 1 if it failed, or its result could not be written; 128 + the signal that interrupted it (Ctrl-C: 130)."""
        if self.summary["signal"] is not None:
            return 128 + int(self.summary["signal"])
        return int(self.summary["stop_reason"] == "failed" or bool(self.summary["unwritten"]))


def run(config: Mapping[str, Any], folder: Path, resume: bool = False) -> Run:
    """Train as a checked configuration says, in `folder`; with `resume`, go on from the latest checkpoint there.

    Returns also when a worker failed or the user interrupted: the summary says so. Raises ConfigError for a checkpoint
    that cannot be used, before anything is written, and for a folder that cannot be written to.
    """
    experiment = load_experiment(config, check=False)
    network, env = build_network(experiment)
    store = experiment.backend.store(layout(experiment, network, env.observation_space.shape))
    store.initialise(network.vector)
    state = None
    if experiment.init_from is not None and not resume:
        _start_from(store, Path(experiment.init_from))
    with ExitStack() as stack:
        try:
            if resume:
                stack.enter_context(files.alone(folder, "resume"))
                state = checkpoint.load(latest_checkpoint(folder), key="resume")
                _restore(store, state, folder)
            else:
                (folder / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
                stack.enter_context(files.alone(folder, "folder"))
            files.write_text(folder / CONFIG_FILE, config_text(config))
            terminal = stack.enter_context(run_log(folder / "train.log"))
            stack.enter_context(one_thread())
            session = _Session(experiment, config, folder, store, state, terminal)
            (folder / SUMMARY_FILE).unlink(missing_ok=True)  # of an end that is not the end any more
        except OSError as error:
            raise ConfigError("folder", str(folder), f"cannot be written: {error}") from error
        return session.run()


def _restore(store: SharedParameters, state: Mapping[str, Any], folder: Path) -> None:
    try:
        store.restore(state["store"])
        Tally().restore(state["tally"])
        for key in ("resumed", "training_seconds", "best_eval_return", "solved"):
            state[key]
    except checkpoint.MISFITS as error:
        raise ConfigError("resume", str(folder), f"its checkpoint does not fit its configuration: {error}") from error
    total = store.layout.total_steps
    if total < store.steps and total != read_config(folder).get("total_steps"):
        raise ConfigError("total_steps", total, f"must be {store.steps} or more: the run has made so many steps")


def _start_from(store: SharedParameters, folder: Path) -> None:
    """Begin with another run's parameters and what it knew of its observations; everything else is new."""
    state = checkpoint.load(best_checkpoint(folder), key="init_from")
    try:
        store.start_from(state["store"])
    except checkpoint.MISFITS as error:
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
        self._interruption = Interruption()
        self._tally = Tally(experiment.worker_count * experiment.envs_per_worker)
        self._resumed = 0
        self._earlier_training_seconds = 0.0
        self._training_ended: float | None = None
        self._solved: tuple[int, float] | None = None
        self._best: float | None = None
        self._evaluated: int | None = None
        self._begun = self._rejected = False
        self._reason: str | None = None
        self._error: str | None = None
        self._unwritten: set[str] = set()
        self._commit = provenance.commit()  # now: the code may change while the run goes on
        if state is not None:
            self._resume(state)
        purge_step = None if state is None else self._tally.steps
        self._writer = Writer(folder, config_text(config), config=config, purge_step=purge_step)
        self._evaluator = Evaluator(
            experiment, background=not experiment.backend.deterministic, stopped=lambda: self._interruption.asked
        )
        stop = experiment.stop
        # The limit is this session's, the seconds of the tally are those before it too.
        limit = None if stop.max_seconds is None else self._tally.seconds + stop.max_seconds
        self._progress = Progress(terminal, experiment.total_steps, max_seconds=limit, max_episodes=stop.max_episodes)
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
        # A run that was killed may have found a better policy after it last saved its state: it is not to be lost.
        with suppress(ConfigError):
            best = checkpoint.load(self._folder / CHECKPOINTS / BEST)["best_eval_return"]
            self._best = best if self._best is None else max(best, self._best)

    @property
    def _training_seconds(self) -> float:
        if self._training_ended is not None:
            return self._training_ended
        return self._earlier_training_seconds + self._store.training_seconds

    def run(self) -> Run:
        """Train until a stop rule holds, a worker fails or the user interrupts; then write down what there is."""
        log.info("run folder: %s", self._folder)
        if self._resumed and (rule := self._stop_reason(foreseen=True)):
            log.warning("stop.%s holds already: stop.%s=null goes on past it", rule, rule)
        events = self._experiment.backend.run(Setup(experiment=self._experiment, resumed=self._resumed), self._store)
        with interruptions(self._interruption):
            try:
                self._drain(events)
                self._evaluate_last()
            except KeyboardInterrupt:  # the second Ctrl-C: do not wait for the workers
                self._reason = "interrupted"
            except Exception as error:  # whatever it is, what has been learned is not to be lost
                self._fail(error)
            finally:
                self._interruption.may_break_in = False
                self._close(events)
            return self._finish()

    def _close(self, events: Generator[Event | None, None, None]) -> None:
        try:
            events.close()
        except Exception as error:  # workers that cannot be ended cost nothing of what has been learned either
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """The run ends by an error; unless it was asked to end, with a signal that workers may have got too."""
        told = str(error) if isinstance(error, RunError) else traceback.format_exc().rstrip()
        if self._interruption.asked:
            self._reason = "interrupted"
            if not isinstance(error, RunError):
                log.warning("while the run was ending: %s", told)
            return
        self._reason = "failed"
        self._error = told if self._error is None else f"{self._error}\n{told}"

    def _drain(self, events: Generator[Event | None, None, None]) -> None:
        """Take in what workers do until they have ended, or until they should have."""
        deadline = float("inf")
        for event in events:
            if event is not None:
                if not self._begun and (seconds := self._store.training_seconds):
                    self._begun = True
                    self._tally.begin(seconds)
                self._tally.add(event)
                self._warn_of_rejected(event)
                self._note_goal()
            if self._reason is None:
                self._reason = self._stop_reason()
                if self._reason is not None:
                    self._store.stop()
                    if not self._experiment.backend.deterministic:
                        deadline = time.monotonic() + PATIENCE_SECONDS
            elif time.monotonic() > deadline:
                log.warning("workers that did not finish their rollout within %.0f s are ended", PATIENCE_SECONDS)
                break
            self._keep_house()
        self._training_ended = self._training_seconds
        self._log_window()
        if self._tally.rejected and not self._tally.updates:
            raise RunError("no gradient was finite, so nothing has been learned: are all rewards finite?")
        if self._reason is None:
            self._reason = "total_steps"

    def _warn_of_rejected(self, event: Event) -> None:
        if event.rejected and not self._rejected:
            self._rejected = True
            log.warning("a gradient that was not finite was refused")

    def _note_goal(self) -> None:
        goal = self._experiment.goal
        if self._solved is None and goal is not None and self._tally.reached(goal):
            self._solved = self._tally.steps, self._training_seconds

    def _stop_reason(self, foreseen: bool = False) -> str | None:
        """Which rule, if any, ends the run now; foreseen: or once each environment has ended an episode."""
        stop, tally = self._experiment.stop, self._tally
        if self._interruption.asked:
            return "interrupted"
        if stop.mean_return is not None and tally.reached(stop.mean_return, foreseen):
            return "mean_return"
        if stop.max_episodes is not None and tally.episodes >= stop.max_episodes:
            return "max_episodes"
        if stop.max_seconds is not None and self._store.training_seconds >= stop.max_seconds:
            return "max_seconds"
        return None

    def _keep_house(self) -> None:
        """Whatever is due: a point of the curves, an evaluation, a checkpoint, the progress line."""
        tally, experiment = self._tally, self._experiment
        self._take(self._evaluator.result())
        if tally.steps >= self._next_evaluation and not self._evaluator.busy and self._reason is None:
            self._next_evaluation = _next(tally.steps, experiment.eval.every)
            self._evaluate()
            self._take(self._evaluator.result())
        if tally.steps >= self._next_checkpoint:
            self._next_checkpoint = _next(tally.steps, experiment.checkpoint.every)
            self._save(LATEST, self._store.state())
        if tally.seconds >= self._next_log and self._log_window():  # the first point: what the first update has to say
            self._next_log = tally.seconds + LOG_SECONDS + LOG_SHARE * tally.seconds
        self._progress.update(tally, self._best)

    def _evaluate(self) -> None:
        state = self._store.state()
        self._evaluated = state["steps"]
        self._evaluator.submit(state)

    def _evaluate_last(self) -> None:
        """Evaluate what the run ends with."""
        if self._reason == "interrupted" or self._experiment.eval.every is None:
            return
        self._take(self._evaluator.result(wait=True))
        if self._evaluated != self._store.steps and not self._interruption.asked:
            self._evaluate()
            self._take(self._evaluator.result(wait=True))

    def _take(self, evaluation: Evaluation | None) -> None:
        """Log an evaluation, at the step of what was evaluated; keep its parameters if it is the best so far."""
        if evaluation is None:
            return
        values = {"eval/mean_reward": evaluation.mean_return, "eval/mean_ep_length": evaluation.mean_length}
        self._log(evaluation.steps, values)
        mean, best = evaluation.mean_return, self._best
        if not math.isnan(mean) and (best is None or mean > best or (mean == best and BEST in self._unwritten)):
            self._best = mean
            self._save(BEST, evaluation.state)

    def _log_window(self) -> bool:
        """A point of the curves, if anything has been done since the last one; whether it has."""
        moved = self._tally.moved
        if moved:
            self._log(self._tally.steps, self._tally.window())
        return moved

    def _log(self, step: int, values: dict[str, float]) -> None:
        with self._writing("curves"):
            self._writer.log(step, values, self._tally.seconds)

    def _save(self, name: str, store_state: Mapping[str, Any]) -> None:
        # Events are under way for a tenth of a second, so the store is ahead of the tally.
        ahead = {"steps": store_state["steps"], "updates": store_state["version"]}
        state = {
            "store": store_state,
            "tally": self._tally.state() | ahead,
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

    def _finish(self) -> Run:
        self._training_ended = self._training_seconds
        with suppress(RunError):  # of a run that ends early: what its last evaluation has found, if that has ended too
            self._take(self._evaluator.result())
        self._evaluator.close()
        if self._error is not None:
            log.error(self._error)
        state = self._store.state()
        # Where workers were not waited for, their last events are lost, but what they did to the parameters is not.
        self._tally.steps, self._tally.updates = state["steps"], state["version"]
        self._log_window()
        self._save(LATEST, state)
        with self._writing("curves"):
            self._writer.close(success=self._reason not in ("failed", "interrupted"))
        self._progress.close(self._tally, self._best)
        summary = self._summary()
        with self._writing(SUMMARY_FILE):
            checkpoint.write_json(self._folder / SUMMARY_FILE, summary)
        log.info("stopped: %s", summary["stop_reason"])
        return Run(self._folder, summary | {"unwritten": sorted(self._unwritten)})

    def _summary(self) -> dict[str, Any]:
        totals, seconds = self._tally.summary(), self._training_seconds
        solved_steps, solved_seconds = self._solved or (None, None)
        return {
            "seed": self._experiment.seed,
            "stop_reason": self._reason,
            "error": self._error,
            "signal": self._interruption.signal,
            "unwritten": sorted(self._unwritten),
            **totals,
            "training_seconds": round(seconds, 3),
            "steps_per_second": round(self._tally.steps / seconds, 1) if seconds > 0 else None,
            "best_eval_return": self._best,
            "solved_at_steps": solved_steps,
            "solved_at_seconds": None if solved_seconds is None else round(solved_seconds, 3),
            "resumed": self._resumed,
            "versions": provenance.versions(),
            "commit": self._commit,
            "command": provenance.command(),
            "machine": provenance.machine(),
        }


def _next(steps: int, every: int | None) -> float:
    """The next multiple of `every` past `steps`; never, without one."""
    return float("inf") if every is None else (steps // every + 1) * every
