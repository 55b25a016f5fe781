"""One training run: consume the backend's events, and evaluate, save and stop when it is time."""

from __future__ import annotations

import logging
import math
import signal
import time
import traceback
from collections.abc import Generator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from a3c_exp.common.reading import parse_yaml, read_text
from a3c_exp.core.cpu import one_thread
from a3c_exp.core.events import Event
from a3c_exp.core.experiment import Experiment, RunContext, build_network, store_spec
from a3c_exp.core.store import SharedStore
from a3c_exp.errors import PREEMPTED, ConfigError, FolderError, RunError, named
from a3c_exp.run import files, provenance, run_folder
from a3c_exp.run.console import LiveLineHandler, Progress, run_log
from a3c_exp.run.curves import CurveWriter
from a3c_exp.run.episode_log import EpisodeLog
from a3c_exp.run.evaluator import Evaluator
from a3c_exp.run.interruption import Interruption, interruptions
from a3c_exp.run.metrics import ResumePoint
from a3c_exp.run.output import RunOutput
from a3c_exp.run.rules import Every, find_stop_reason, leaving_rule
from a3c_exp.run.saved_state import STATE_ERRORS, constants_of, load_latest, load_state
from a3c_exp.run.session import Session
from a3c_exp.run.statistics import RunStatistics, TrainingClock

log = logging.getLogger("a3c_exp")

# Workers that are asked to stop finish their rollout first. After this time the run no longer waits for them.
PATIENCE_SECONDS = 5.0
# Between points of the curves are LOG_SECONDS plus LOG_SHARE of the time since the start: a run of an hour has two
# thousand points, and a run of a day five thousand.
LOG_SECONDS, LOG_SHARE = 0.5, 1 / 1000
# Failures of workers that the log shows: a run may have thousands.
MOST_WARNINGS = 100


@dataclass(frozen=True, slots=True)
class Run:
    """The result of a run: its folder and its summary (the content of summary.json)."""

    folder: Path
    summary: dict[str, Any]

    @property
    def exit_code(self) -> int:
        """0; 1 if the run failed or a file could not be written; 128 + the signal that interrupted it (Ctrl-C: 130),
        but PREEMPTED for SIGUSR2."""
        signum = self.summary["signal"]
        if signum is not None:
            return PREEMPTED if signum == signal.SIGUSR2 else 128 + int(signum)
        return int(self.summary["error"] is not None or bool(self.summary["unwritten"]))


def run(
    experiment: Experiment,
    config: Mapping[str, Any],
    folder: Path,
    resume: bool = False,
    session: Session | None = None,
) -> Run:
    """Train in `folder`; with `resume`, continue from the latest checkpoint there.

    experiment: already checked. config: the plain configuration it was built from, which is saved in the folder.
    folder: locked by the caller, and without another run.
    Also returns after a worker's failure or an interruption, which the summary then reports. Raises FolderError for a
    checkpoint that cannot be used, before anything is written, and for a folder that cannot be written to.
    """
    session = Session() if session is None else session
    with one_thread():  # with more of them a decomposition draws other last digits
        network, env = build_network(experiment)
    store = experiment.backend.store(store_spec(experiment, network, env.observation_space))
    store.initialize(network.vector)
    state: dict[str, Any] | None = None
    warning = ""
    if experiment.init_from is not None and not resume:
        with named("init_from"):
            _start_from(store, Path(experiment.init_from))
    with ExitStack() as stack:
        try:
            if resume:
                state, latest, warning = load_latest(folder)
                _restore(store, state, folder)
                network.check_constants(state["store"], folder)
            (folder / run_folder.CHECKPOINTS).mkdir(parents=True, exist_ok=True)
            files.write_text(folder / run_folder.CONFIG_FILE, run_folder.config_text(config))
            terminal = stack.enter_context(run_log(folder / "train.log", label=session.label))
            stack.enter_context(one_thread())
            if warning:
                log.warning("%s", warning)
                run_folder.make_latest(latest)
            constants = constants_of(network)
            trainer = Trainer(experiment, config, folder, store, state, terminal, constants, session)
            log.info(network.runtime.description)
            pixels = experiment.env.normalize_observations
            if isinstance(pixels, tuple):
                log.info("pixels: less %g, over %g", round(pixels[0]), pixels[1])
            (folder / run_folder.SUMMARY_FILE).unlink(missing_ok=True)  # a resumed run has not ended any more
        except OSError as error:
            raise FolderError(folder, f"cannot be written: {error}") from error
        return trainer.run()


def _restore(store: SharedStore, state: Mapping[str, Any], folder: Path) -> None:
    """Load a checkpoint into the store. Raises FolderError if the checkpoint does not fit the configuration, and
    ConfigError for fewer total steps than it has made."""
    try:
        store.restore(state["store"])
        RunStatistics().restore(state["statistics"])
    except STATE_ERRORS as error:
        raise FolderError(folder, f"its checkpoint does not fit its configuration: {error}") from error
    total, recorded = store.spec.total_steps, parse_yaml(read_text(folder / run_folder.CONFIG_FILE)).get("total_steps")
    if total < store.steps and total != recorded:
        raise ConfigError("total_steps", total, f"must be {store.steps} or more: the run has made so many steps")


def _start_from(store: SharedStore, folder: Path) -> None:
    """Load the parameters and observation statistics of the run in `folder`, and nothing else of it."""
    state = load_state(run_folder.best_checkpoint(folder))
    try:
        store.start_from(state["store"])
    except STATE_ERRORS as error:
        raise FolderError(folder, f"must be a run of the same network: {error}") from error


class Trainer:
    """One session of a run, from its start or resumption to its end.

    state: content of the checkpoint that the run continues from; None for a new run.
    constants: for the store's part of checkpoints: see `constants_of`.
    """

    def __init__(
        self, experiment: Experiment, config: Mapping[str, Any], folder: Path, store: SharedStore,
        state: Mapping[str, Any] | None, terminal: LiveLineHandler, constants: Mapping[str, Any], session: Session,
    ) -> None:  # fmt: skip
        self._experiment = experiment
        self._folder = folder
        self._store = store
        self._constants = constants
        self._session = session
        self._interruption = Interruption()
        environments = experiment.worker_count * experiment.envs_per_worker
        self._statistics = RunStatistics(environments, window=experiment.stop.window)
        self._clock = TrainingClock(store)
        self._best_return: float | None = None
        self._resumed = 0
        self._warned: set[str] = set()  # in this session, whatever there was in an earlier one
        self._failures = 0  # of workers, in this session
        self._solved: tuple[int, float] | None = None  # steps and seconds of training
        self._evaluated: dict[str, Any] = {}  # the checkpoint of what is being evaluated
        self._stop_reason: str | None = None
        self._error: str | None = None
        self._commit = provenance.commit()  # now: the code may change during the run
        resumed = None if state is None else self._resume(state)
        rows = experiment.record_episodes
        episodes = EpisodeLog(folder / run_folder.EPISODES_FILE, rows, resumed) if rows else None
        self._output = RunOutput(folder, CurveWriter(folder, config, resumed), episodes)
        self._evaluator = Evaluator(experiment, lambda: self._interruption.signal is not None, self._show_evaluation)
        steps, seconds = self._statistics.steps, self._statistics.seconds
        self._evaluation_due = Every(experiment.eval.every, steps)
        self._checkpoint_due = Every(experiment.checkpoint.every, steps)
        self._next_point = 0.0  # of the curves, in seconds
        # The limit is for this session; the seconds of the statistics include earlier ones.
        limit = None if experiment.stop.max_seconds is None else seconds + experiment.stop.max_seconds
        self._progress = Progress(terminal, self._statistics, experiment.total_steps, limit)
        for warning in experiment.warnings:
            log.warning(warning)

    def _resume(self, state: Mapping[str, Any]) -> ResumePoint:
        self._statistics.restore(state["statistics"])
        self._resumed = state["resumed"] + 1
        self._clock.earlier = state["training_seconds"]
        self._solved = None if state["solved"] is None else (state["solved"][0], state["solved"][1])
        self._best_return = state["best_eval_return"]
        with suppress(ConfigError):  # a run that was killed may have saved a better policy after its last checkpoint
            best = load_state(self._folder / run_folder.CHECKPOINTS / run_folder.BEST)["best_eval_return"]
            self._best_return = max((each for each in (best, self._best_return) if each is not None), default=None)
        return ResumePoint(self._statistics.steps, self._statistics.seconds, self._clock.seconds)

    def run(self) -> Run:
        """Train until a stop rule holds, a worker fails or the user interrupts; then save the state and the summary."""
        log.info("run folder: %s", self._folder)
        if self._resumed and (rule := self._find_stop_reason(wait_for_all=False)):
            log.warning("stop.%s holds already: stop.%s=null goes on past it", rule, rule)
        context = RunContext(experiment=self._experiment, resumed=self._resumed)
        events = self._experiment.backend.run(context, self._store)
        with interruptions(self._interruption):
            try:
                self._drain(events)
                self._evaluate_last()
            except KeyboardInterrupt:  # the second Ctrl-C, or one that an environment raised: do not wait for workers
                self._interruption.signal = self._interruption.signal or signal.SIGINT
                self._stop_reason = "interrupted"
            except BaseException as error:  # whatever it is, the state is saved below
                self._fail(error)
            finally:
                self._interruption.may_break_in = False
                try:
                    events.close()
                except BaseException as error:  # workers that cannot be ended do not keep the state from being saved
                    self._fail(error)
            return self._finish()

    def _fail(self, error: BaseException) -> None:
        """Note an error as the reason for the end; but not after a signal, which workers may have received too."""
        text = str(error) if isinstance(error, RunError) else traceback.format_exc().rstrip()
        if self._interruption.signal is not None:
            self._stop_reason = "interrupted"
            if not isinstance(error, RunError):
                log.warning("while the run was ending: %s", text)
            return
        self._stop_reason = error.reason if isinstance(error, RunError) else "failed"
        self._error = text if self._error is None else f"{self._error}\n{text}"

    def _drain(self, events: Generator[Event | None, None, None]) -> None:
        """Consume events until all workers have ended, or until PATIENCE_SECONDS after they were asked to."""
        deadline = float("inf")
        for event in events:
            if event is not None:
                self._take_event(event)
            if self._stop_reason is None:
                self._stop_reason = self._find_stop_reason()
                if self._stop_reason is not None:
                    self._store.stop()
                    if not self._experiment.backend.deterministic:
                        deadline = time.monotonic() + PATIENCE_SECONDS
            elif time.monotonic() > deadline:
                log.warning("workers that did not finish their rollout within %.0f s are ended", PATIENCE_SECONDS)
                break
            self._run_periodic_tasks()
        self._clock.stop()
        self._log_curve_point()
        if self._statistics.counts.get("rejected") and not self._statistics.updates:
            raise RunError("no gradient was finite, so nothing has been learned: a warning in train.log says more")
        if self._stop_reason is None:
            rule = leaving_rule(self._experiment.stop, self._statistics)
            self._stop_reason = "total_steps" if self._store.steps >= self._experiment.total_steps else rule

    def _take_event(self, event: Event) -> None:
        statistics, threshold = self._statistics, self._experiment.reward_threshold
        if "rejected" in event.counts:
            self._warn_once("rejected", event.explanation or "a gradient that was not finite was refused")
        for warning in event.warnings:
            self._failures += 1
            if self._failures <= MOST_WARNINGS:
                log.warning("%s", warning)
            if self._failures == MOST_WARNINGS:
                log.warning("further failures of workers are not shown; async/restarts counts them")
        statistics.add(event)
        if len(event.episodes):
            guard = self._experiment.env.max_steps_guard
            if guard is not None and event.episodes.lengths.max() >= guard:
                text = f"worker {event.worker}: an episode was truncated after {guard:,} steps (env.max_steps_guard)"
                self._warn_once("guard", text)
            self._output.add_episodes(event.worker, event.episodes, self._clock.seconds)
        if self._solved is None and threshold is not None and statistics.reached(threshold):
            self._solved = statistics.steps, self._clock.seconds

    def _warn_once(self, what: str, text: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            log.warning("%s", text)

    def _find_stop_reason(self, wait_for_all: bool = True) -> str | None:
        """The reason to end now: "interrupted", or a rule of `stop`. wait_for_all: see `rules.find_stop_reason`."""
        if self._interruption.signal is not None:
            return "interrupted"
        return find_stop_reason(self._experiment.stop, self._statistics, self._store, wait_for_all)

    def _run_periodic_tasks(self) -> None:
        """Run the periodic tasks that are due: evaluation, checkpoint, curves, progress line."""
        statistics = self._statistics
        if self._output.lost:
            raise RunError(f"{self._folder} was renamed, moved or deleted: nothing is written there any more")
        self._take_evaluation()
        if not self._evaluator.busy and self._stop_reason is None and self._evaluation_due(statistics.steps):
            self._submit_evaluation()
            self._take_evaluation()
        if self._checkpoint_due(statistics.steps) or self._interruption.save_requested:
            self._interruption.save_requested = False
            self._output.save(run_folder.LATEST, self._checkpoint(self._store.state()))
        if (now := statistics.seconds) >= self._next_point and statistics.has_new_data:
            self._next_point = now + LOG_SECONDS + LOG_SHARE * now
            self._log_curve_point()
        self._progress.update(self._best_return)

    def _evaluate_last(self) -> None:
        """Evaluate the final parameters, unless they have been evaluated."""
        if self._stop_reason == "interrupted" or self._experiment.eval.every is None:
            return
        self._take_evaluation(block=True)
        if self._evaluator.last_steps != self._store.steps and self._interruption.signal is None:
            self._submit_evaluation()
            self._take_evaluation(block=True)

    def _submit_evaluation(self) -> None:
        self._evaluated = self._checkpoint(self._store.state())  # as of now: the run goes on meanwhile
        self._evaluator.submit(self._evaluated["store"])

    def _take_evaluation(self, block: bool = False) -> None:
        """Log a finished evaluation, at the step of its parameters; save these if they are the best so far."""
        result = self._evaluator.result(block)
        if result is None:
            return
        if result.cut:
            limits = self._experiment.eval
            cut = f"{result.cut} of {limits.episodes} episodes were cut after {limits.max_steps} steps (eval.max_steps)"
            self._warn_once("cut", f"evaluation at step {result.steps}: {cut}")
            self._statistics.counts["cut_eval_episodes"] += result.cut
        values = {"eval/mean_reward": result.mean_return, "eval/mean_ep_length": result.mean_length}
        self._output.log(result.steps, values, self._statistics.seconds)
        mean, best = result.mean_return, -math.inf if self._best_return is None else self._best_return
        if mean > best or (mean == best and run_folder.BEST in self._output.unwritten):
            self._best_return = mean
            self._output.save(run_folder.BEST, self._evaluated | {"best_eval_return": mean})
        self._evaluated = {}

    def _show_evaluation(self) -> None:
        self._progress.update(self._best_return, self._speed, self._evaluator.activity)

    def _log_curve_point(self) -> None:
        """Write a point of the curves, if there is anything new since the last one."""
        if self._statistics.has_new_data:
            values = self._statistics.window(self._clock.session)
            self._output.log(self._statistics.steps, values, self._statistics.seconds)

    def _checkpoint(self, store_state: Mapping[str, Any]) -> dict[str, Any]:
        """The content of a checkpoint, as of now."""
        # Events arrive up to a tenth of a second late, so the store is ahead of the statistics.
        ahead = {"steps": store_state["steps"], "updates": store_state["version"]}
        return {
            "store": {**store_state, **self._constants},
            "statistics": self._statistics.state() | ahead,
            "resumed": self._resumed,
            "training_seconds": self._clock.seconds,
            "best_eval_return": self._best_return,
            "solved": None if self._solved is None else list(self._solved),
        }

    def _finish(self) -> Run:
        self._clock.stop()
        with suppress(RunError):  # a run that ends early may have a finished evaluation
            self._take_evaluation()
        self._evaluator.close()
        if self._error is not None:
            log.error(self._error)
        state = self._store.state()
        # Workers that the run did not wait for have changed the parameters, but their last events are lost.
        self._statistics.steps = state["steps"]
        self._statistics.updates = state["version"]
        self._log_curve_point()
        self._output.save(run_folder.LATEST, self._checkpoint(state))
        finished = self._error is None and self._stop_reason != "interrupted"
        self._output.close_curves(success=finished)
        self._output.keep_checkpoints(self._experiment.checkpoint.keep if finished else "both")
        self._progress.close(self._best_return, self._speed)
        summary = self._output.write_summary(self._summary())
        log.info("stopped: %s", summary["stop_reason"])
        return Run(self._folder, summary)

    @property
    def _speed(self) -> float | None:
        """Steps per second of training, earlier sessions included; None before the first step."""
        seconds = self._clock.seconds
        return round(self._statistics.steps / seconds, 1) if seconds > 0 else None

    def _summary(self) -> dict[str, Any]:
        seconds = self._clock.seconds
        solved_steps, solved_seconds = self._solved or (None, None)
        return {
            "seed": self._experiment.seed,
            "stop_reason": self._stop_reason,
            "error": self._error,
            "signal": self._interruption.signal,
            "unwritten": sorted(self._output.unwritten),
            **self._statistics.summary(),
            "training_seconds": round(seconds, 3),
            "steps_per_second": self._speed,
            "best_eval_return": self._best_return,
            "solved_at_steps": solved_steps,
            "solved_at_seconds": None if solved_seconds is None else round(solved_seconds, 3),
            "resumed": self._resumed,
            "versions": provenance.versions(),
            "commit": self._commit,
            "command": self._session.command or provenance.command(),
            "overrides": list(self._session.overrides),
            "machine": provenance.machine(),
        }
