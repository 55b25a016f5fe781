"""One training run: consume the backend's events, and evaluate, save and stop when it is time."""

from __future__ import annotations

import math
import operator
import signal
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from a3c_exp.algorithms.algorithm import CURVE_NAME
from a3c_exp.common.reading import UnreadableError, parse_yaml, read_text
from a3c_exp.common.settings import comparable
from a3c_exp.core.callback import Media
from a3c_exp.core.cpu import one_thread
from a3c_exp.core.events import Event
from a3c_exp.core.experiment import Experiment, RunContext, build_network, store_spec
from a3c_exp.core.store import SharedStore
from a3c_exp.ending import MANY_FAILURES, Ending, StopReason, run_exit_code
from a3c_exp.errors import ConfigError, FolderError, RunError, named, one_line
from a3c_exp.networks import ActorCritic
from a3c_exp.run import callbacks, checkpoint, files, outcome, provenance, run_folder
from a3c_exp.run.checkpoint import STATE_ERRORS, load_latest, load_state
from a3c_exp.run.console import ONLY_FILE, LiveLineHandler, run_log
from a3c_exp.run.evaluations import Evaluations
from a3c_exp.run.files import RunOutput, log
from a3c_exp.run.hooks import Hooks
from a3c_exp.run.interruption import Interruption, interruptions
from a3c_exp.run.metrics import SECONDS, STEP
from a3c_exp.run.statistics import RunStatistics

# Workers that are asked to stop finish their rollout first. After this time the run no longer waits
# for them.
PATIENCE_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Run:
    """The result of a run: its folder and its summary (the content of summary.json)."""

    folder: Path
    summary: dict[str, Any]

    @property
    def exit_code(self) -> int:
        """See `run_exit_code`."""
        return run_exit_code(self.summary)


@contextmanager
def session(
    experiment: Experiment,
    config: Mapping[str, Any],
    folder: Path,
    resume: bool = False,
    overrides: Sequence[str] = (),
    label: str | None = None,
    make_room: Callable[[], object] = lambda: None,
) -> Iterator[Trainer]:
    """Within: the trainer of a run in `folder`; with `resume`, from the latest checkpoint there.

    experiment: already checked. config: the plain configuration it was built from, which is saved
        in the folder.
    folder: locked by the caller, and without another run.
    overrides: those of this run alone, for its summary. label: of a run of a sweep, whose runs lie
    in one folder. If it is not empty the terminal shows the run's warnings alone, with this in
    front. None: it is part of none.
    make_room: deletes an earlier run's files in the folder. Called when all has been read, and the
    configuration has been written but has not its name yet.
    Raises FolderError for a checkpoint that cannot be used, before anything is written, and for a
    folder that cannot be written to.
    """
    with ExitStack() as stack:
        # with more of them a decomposition draws other last digits
        stack.enter_context(one_thread())
        network, env = build_network(experiment)
        store = experiment.backend.store(store_spec(experiment, network, env.observation_space))
        store.initialize(network.vector)
        workers = experiment.worker_count
        statistics = RunStatistics(
            workers * experiment.envs_per_worker, window=experiment.stop.window, workers=workers
        )
        state: dict[str, Any] | None = None
        warning = ""
        if experiment.init_from is not None and not resume:
            with named("init_from"):
                _start_from(store, Path(experiment.init_from))
        try:
            if resume:
                state, latest, warning = load_latest(folder)
                _restore(store, statistics, state, folder)
                network.check_constants(state["store"], folder)
            (folder / run_folder.CHECKPOINTS).mkdir(parents=True, exist_ok=True)
            # else it is the last: a folder that cannot be written to keeps the run that it has
            if not resume:
                files.write_text(
                    folder / run_folder.CONFIG_FILE, run_folder.config_text(config), make_room
                )
            terminal = stack.enter_context(run_log(folder / run_folder.LOG_FILE, label=label or ""))
            if warning:
                log.warning("%s", warning)
                run_folder.make_latest(latest)
            trainer = Trainer(
                experiment,
                config,
                folder,
                store,
                statistics,
                state,
                terminal,
                network,
                overrides,
                label,
            )
            if resume:
                files.write_text(folder / run_folder.CONFIG_FILE, run_folder.config_text(config))
            # a resumed run has not ended any more
            (folder / run_folder.SUMMARY_FILE).unlink(missing_ok=True)
            log.info(network.runtime.description, extra=ONLY_FILE)
            size = outcome.size_warning(store.spec)
            for warning in (*experiment.warnings, *network.warnings, *size):
                log.warning("%s", warning)
        except (OSError, UnreadableError) as error:
            raise FolderError(folder, f"cannot be written: {error}") from error
        yield trainer


def _restore(
    store: SharedStore, statistics: RunStatistics, state: Mapping[str, Any], folder: Path
) -> None:
    """Continue from a checkpoint. Raises FolderError if the checkpoint does not fit the
    configuration, and
    ConfigError for fewer total steps than it has made."""
    try:
        store.restore(state["store"])
        statistics.restore(state["statistics"])
    except STATE_ERRORS as error:
        raise FolderError(
            folder, f"its checkpoint does not fit its configuration: {error}"
        ) from error
    total = store.spec.total_steps
    recorded = parse_yaml(read_text(folder / run_folder.CONFIG_FILE)).get("total_steps")
    if total < store.steps and total != recorded:
        raise ConfigError(
            "total_steps", total, f"must be {store.steps} or more: the run has made so many steps"
        )


def _start_from(store: SharedStore, folder: Path) -> None:
    """Load the parameters and observation statistics of the run in `folder`, and nothing else of
    it.

    Raises FolderError if it cannot be read, or has another network than when this run was made.
    """
    try:
        store.start_from(load_state(run_folder.best_checkpoint(folder))["store"])
    except STATE_ERRORS as error:
        raise FolderError(folder, f"must be a run of the same network: {error}") from error


def _checked(name: str) -> str:
    """The name of a curve. Raises ValueError if TensorBoard refuses it, or a column of every point
    has it."""
    if name in (STEP, SECONDS) or not CURVE_NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is no name of a curve: letters, digits, spaces and _-./ are; {STEP}, "
            f"{SECONDS} not"
        )
    return name


class Trainer:
    """One session of a run, from its start or resumption to its end: the loop over the workers'
    events, the clock, the end. All else is done by callbacks, the package's own (`run.callbacks`)
    and the user's; to them this is a `RunView`.

    state: content of the checkpoint that the run continues from; None for a new run. network: of
    this run alone.
    """

    def __init__(
        self,
        experiment: Experiment,
        config: Mapping[str, Any],
        folder: Path,
        store: SharedStore,
        statistics: RunStatistics,
        state: Mapping[str, Any] | None,
        terminal: LiveLineHandler,
        network: ActorCritic,
        overrides: Sequence[str],
        label: str | None,
    ) -> None:
        self.folder = folder
        self.config = config
        self.sweep = None if label is None else folder.absolute().parent.name
        self.experiment = experiment
        self.statistics = statistics
        self._earlier_seconds = 0.0 if state is None else state["training_seconds"]
        # in seconds of this session, once its workers have ended
        self._ended_at: float | None = None
        self.interruption = Interruption()
        self.output = RunOutput(folder, self.interruption)
        self.best_return = None if state is None else self._best_return(state)
        self._store = store
        self._network = network
        # Buffers and frozen parameters, which a policy has besides parameters and statistics.
        self._constants = {
            name: tensor.numpy().copy() for name, tensor in network.constants().items()
        }
        self._overrides = list(overrides)
        self._resumed = 0 if state is None else state["resumed"] + 1
        self._warned: set[str] = set()  # in this session, whatever there was in an earlier one
        self._solved = None if state is None or state["solved"] is None else tuple(state["solved"])
        self._end = Ending()
        self._deadline = math.inf  # for workers that have been asked to end
        self._commit = provenance.commit()  # now: the code may change during the run
        self._add_callbacks(terminal)
        if state is not None:
            self.hooks.states.restore(state.get("callbacks", {}))

    def _best_return(self, state: Mapping[str, Any]) -> float | None:
        """The best evaluation: a run that was killed may have saved a better policy after its last
        checkpoint.

        None if evaluations had other settings than they have now: their returns say nothing about
        today's. The folder has the earlier configuration until the trainer is made.
        """
        recorded = parse_yaml(read_text(self.folder / run_folder.CONFIG_FILE))
        theirs, ours = (
            comparable({**each.get("eval", {}), "every": None}) for each in (recorded, self.config)
        )
        if theirs != ours:
            log.warning(
                "evaluations have other settings than before: "
                "the best return so far does not count any more"
            )
            return None
        found = [state["best_eval_return"]]
        with suppress(ConfigError):
            found.append(
                load_state(self.folder / run_folder.CHECKPOINTS / run_folder.BEST)[
                    "best_eval_return"
                ]
            )
        return max((each for each in found if each is not None), default=None)

    def _add_callbacks(self, terminal: LiveLineHandler) -> None:
        """Make the package's own callbacks, in the order in which they are called."""
        self._rules = callbacks.StopRules(self)
        line = callbacks.ProgressLine(self, terminal)
        self._evaluations = Evaluations(self, line.update)
        self._checkpoints = callbacks.Checkpoints(self)
        self._curves = callbacks.Curves(self)
        self._own: list[callbacks.Own] = [
            self._rules,
            callbacks.CollapseWarning(self),
            self._evaluations,
            self._checkpoints,
            self._curves,
            line,
        ]
        if self.experiment.record_episodes:
            self._own.append(callbacks.EpisodeTable(self))
        self.hooks: Hooks = Hooks(self, self._own, self.experiment.callbacks)

    # What callbacks may do.

    @property
    def steps(self) -> int:
        return self.statistics.steps

    @property
    def seconds(self) -> float:
        return self._earlier_seconds + self.session_seconds

    @property
    def session_seconds(self) -> float:
        """Seconds of training of this session."""
        return self._store.counters.training_seconds if self._ended_at is None else self._ended_at

    @property
    def stopping(self) -> bool:
        return self._end.reason is not None

    @property
    def dropped(self) -> float:
        return self._curves.dropped

    def stop(self, reason: str) -> None:
        if self._end.stop_by_callback(reason):
            self._let_workers_end()

    def _let_workers_end(self) -> None:
        """Ask workers to end after their rollout, and wait for them a while."""
        self._store.stop()
        if not self.experiment.backend.deterministic:
            self._deadline = time.monotonic() + PATIENCE_SECONDS

    def log(self, values: Mapping[str, float], step: int | None = None) -> None:
        numbers = {
            _checked(name): x if type(x) in (int, float) else float(x) for name, x in values.items()
        }
        self.hooks.on_point(self.steps if step is None else operator.index(step), numbers)

    def log_histogram(self, name: str, values: ArrayLike) -> None:
        numbers = np.asarray(values, np.float64).ravel()
        numbers = numbers[np.isfinite(numbers)]
        # no bins fit between them
        if numbers.size and np.ptp(numbers) < 1e-12 * np.abs(numbers).max():
            numbers = np.full_like(numbers, numbers[0])
        self._log_media("histogram", name, numbers)

    def log_image(self, name: str, pixels: NDArray[np.uint8]) -> None:
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size:
            raise ValueError(
                f"{name} is {pixels.dtype} {list(pixels.shape)}; an image is uint8 [height, "
                "width, 3]"
            )
        self._log_media("image", name, pixels)

    def log_text(self, name: str, markdown: str) -> None:
        self._log_media("text", name, markdown)

    def log_video(self, name: str, path: Path) -> None:
        self._log_media("video", name, path)

    def _log_media(self, kind: Media, name: str, value: object) -> None:
        self.hooks.on_media(self.steps, kind, _checked(name), value)

    def record_evaluations(self) -> None:
        self._evaluations.record()

    def set_multipliers(
        self, *, learning_rate: float | None = None, entropy: float | None = None
    ) -> None:
        self._store.set_multipliers(learning_rate=learning_rate, entropy=entropy)

    def save(self) -> None:
        self.write(run_folder.LATEST, self.checkpoint())

    def evaluate(self) -> None:
        self._evaluations.asked = True

    def module(self) -> ActorCritic:
        self._network.vector[:] = self._store.state()["parameters"]
        if (normalizer := self._store.normalizer()) is not None:
            normalizer.scale_pixels(self._network)
        return self._network

    # What the package's own callbacks may do.

    def write(self, name: str, state: Mapping[str, Any]) -> None:
        """Write a checkpoint, whole or not at all."""
        for each in self._own:
            each.flush()
        path = self.folder / run_folder.CHECKPOINTS / name
        self.output.write(name, checkpoint.save, path, state)
        if name not in self.output.unwritten:
            if name == run_folder.LATEST:
                self.output.write(
                    "numbered checkpoints", self._checkpoints.number_latest, state["store"]["steps"]
                )
            self.hooks.on_checkpoint(path)

    def checkpoint(self, state: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The content of a checkpoint, as of now. state: of the store; None: its present one."""
        state = self._store.state() if state is None else state
        # Events arrive up to a tenth of a second late, so the store is ahead of the statistics.
        ahead = {"steps": state["steps"], "updates": state["version"]}
        return {
            "store": {**state, **({"constants": self._constants} if self._constants else {})},
            "statistics": self.statistics.state() | ahead,
            "resumed": self._resumed,
            "training_seconds": self.seconds,
            "best_eval_return": self.best_return,
            "solved": None if self._solved is None else list(self._solved),
            "callbacks": self.hooks.states.state(),
        }

    # The run.

    def run(self) -> Run:
        """Train until a stop rule holds, a worker fails or the user interrupts; then save the state
        and the summary.

        Also returns after a failure or an interruption, which the summary then reports.
        """
        for line in outcome.opening(self.experiment, self.folder, self.statistics.steps):
            log.info("%s", line)
        # Callbacks stay here: workers are built from the rest.
        measures = frozenset(
            measure for each in self.experiment.callbacks for measure in each.measures
        )
        without = replace(self.experiment, callbacks=())
        context = RunContext(experiment=without, resumed=self._resumed, measures=measures)
        events = self.experiment.backend.run(context, self._store)
        with interruptions(self.interruption):
            try:
                self.interruption.at_once = True  # a tracker may wait for its server
                self.hooks.on_start()
                self.interruption.at_once = False
                self._drain(events)
                if not self._end.is_interrupted:
                    self._end_workers(events)  # those that were not waited for
                    self._count_lost(self._store.state())
                    self.hooks.errors.keep = self._fail
                    self.hooks.on_trained()
                    self._evaluations.evaluate_final()
                if self.interruption.signal is not None:
                    self._end.be_continued()
            except (
                KeyboardInterrupt
            ):  # the second Ctrl-C, or one that an environment raised: do not wait for workers
                self.interruption.signal = self.interruption.signal or signal.SIGINT
                self._end.interrupt()
            except BaseException as error:  # whatever it is, the state is saved below
                self._fail(error)
            finally:
                try:
                    self._end_workers(events)
                except (
                    BaseException
                ) as error:  # workers that cannot be ended do not keep the state from being saved
                    self._fail(error)
                self.interruption.may_break_in = self.interruption.at_once = False
            return self._finish()

    def _end_workers(self, events: Generator[Event | None, None, None]) -> None:
        # On serial, environments are closed here, and one may hang in it.
        self.interruption.may_break_in = self.experiment.backend.deterministic
        events.close()
        self.interruption.may_break_in = True

    def _fail(self, error: BaseException) -> None:
        """Note an error as the reason for the end; but not after a signal, which workers may have
        received too."""
        text = (
            str(error)
            if isinstance(error, RunError | ConfigError)
            else "".join(traceback.format_exception(error)).rstrip()
        )
        if self.interruption.signal is not None:
            self._end.interrupt()
            if not isinstance(error, RunError):
                log.warning("while the run was ending: %s", text)
            return
        self._end.fail(error.reason if isinstance(error, RunError) else StopReason.FAILED, text)
        log.error(text)

    def _drain(self, events: Generator[Event | None, None, None]) -> None:
        """Consume events until all workers have ended, or until PATIENCE_SECONDS after they were
        asked to."""
        for event in events:
            if event is not None:
                self._take_event(event)
            if self.interruption.signal is not None and self._end.stop(StopReason.INTERRUPTED):
                self._let_workers_end()
            if time.monotonic() > self._deadline:
                log.warning(
                    "workers that did not finish their rollout within %.0f s are ended",
                    PATIENCE_SECONDS,
                )
                break
            if self.output.lost:
                raise RunError(
                    f"{self.folder} was renamed, moved or deleted: "
                    "nothing is written there any more"
                )
            self.hooks.on_tick()
        self._ended_at = self.session_seconds
        self._curves.log_new()
        if self.statistics.counts.get("rejected") and not self.statistics.updates:
            raise RunError(
                "all gradients were refused, so nothing has been learned: "
                "a warning in train.log says more"
            )
        failures = self.statistics.counts["restarts"]
        if failures >= MANY_FAILURES and not self.statistics.episodes:
            raise RunError(
                f"no episode has ended, and workers have failed {failures:,} times, "
                "so no return is known: the warnings in train.log say why",
                StopReason.NO_EPISODES,
            )
        is_whole = self._store.steps >= self.experiment.total_steps
        self._end.stop(StopReason.TOTAL_STEPS if is_whole else self._rules.leaving_rule())

    def _take_event(self, event: Event) -> None:
        statistics, threshold = self.statistics, self.experiment.reward_threshold
        if event.explanation is not None:
            self._warn_once("rejected", event.explanation)
        for warning in event.warnings:
            log.warning("%s", warning)
        statistics.add(event)
        if event.replaced:
            self._check_failures()
        if len(event.episodes):
            guard = self.experiment.env.max_steps_guard
            if guard is not None and event.episodes.lengths.max() >= guard:
                text = (
                    f"worker {event.worker}: an episode reached the {guard:,} steps "
                    "of env.max_steps_guard"
                )
                self._warn_once("guard", text)
            for warning in event.episodes.warnings:
                kind = warning.partition(":")[0]  # what it tells of another worker is no news
                self._warn_once(kind, f"worker {event.worker}: {warning}")
            self.hooks.on_episodes(event.worker, event.episodes)
        self.hooks.on_event(event)
        if self._solved is None and threshold is not None and statistics.reached(threshold):
            self._solved = statistics.steps, self.seconds

    def _check_failures(self) -> None:
        """Warn if most episodes end in a failure: that of a worker is one of all its
        environments'."""
        failures, episodes = self.statistics.counts["restarts"], self.statistics.episodes
        envs = self.experiment.envs_per_worker
        if failures >= MANY_FAILURES and failures * envs > episodes:
            text = (
                f"most episodes end in a failure: {failures:,} failures of workers, each with "
                f"{envs} episode{'s' * (envs > 1)} under way, and {episodes:,} ended episodes"
            )
            self._warn_once("failures", text)

    def _warn_once(self, what: str, text: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            log.warning("%s", text)

    def _count_lost(self, state: Mapping[str, Any]) -> None:
        """Count what workers that were not waited for have done: their last events are lost. state:
        the store's."""
        steps, updates = (
            state["steps"] - self.statistics.steps,
            state["version"] - self.statistics.updates,
        )
        self.statistics.add(Event(worker=-1, steps=steps, updates=updates))

    def _finish(self) -> Run:
        self._ended_at = self.session_seconds
        self.hooks.errors.keep = self._fail
        self._evaluations.end()
        state = self._store.state()
        self._count_lost(state)
        self._curves.log_new()
        self.write(run_folder.LATEST, self.checkpoint(state))
        for each in self._own:
            each.close(self._end.is_finished)
        summary = self._summary()
        path = self.folder / run_folder.SUMMARY_FILE
        self.output.write(path.name, files.write_json, path, summary)
        summary["unwritten"] = sorted(self.output.unwritten)
        for line in outcome.ending(summary, self.experiment.reward_threshold):
            log.info("%s", line)
        if (peak := summary["collapsed_from"]) is not None:
            log.warning("%s", outcome.collapse(self.folder, summary["mean_return_100"], peak))
        if self.sweep is None:
            for line in outcome.next_commands(
                summary["stop_reason"], self.folder, self.config, self.experiment
            ):
                log.info("  %s", line)
        self.hooks.errors.keep = None  # all is saved
        self.interruption.may_break_in = True
        self.interruption.at_once = self.interruption.signal is None
        try:
            self.hooks.on_end(summary)
        except Exception as error:
            log.exception("on_end of a callback failed")
            raise RunError(f"on_end of a callback failed: {one_line(error)}") from error
        return Run(self.folder, summary)

    def _summary(self) -> dict[str, Any]:
        seconds = self.seconds
        solved_steps, solved_seconds = self._solved or (None, None)
        return {
            "seed": self.experiment.seed,
            "stop_reason": self._end.stop_reason,
            "error": self._end.error,
            "signal": self.interruption.signal,
            "unwritten": sorted(self.output.unwritten),
            **self.statistics.summary(),
            "training_seconds": round(seconds, 3),
            "steps_per_second": round(self.statistics.steps / seconds, 1) if seconds > 0 else None,
            "best_eval_return": self.best_return,
            "solved_at_steps": solved_steps,
            "solved_at_seconds": None if solved_seconds is None else round(solved_seconds, 3),
            "resumed": self._resumed,
            "versions": provenance.versions(),
            "commit": self._commit,
            "command": provenance.command(),
            "overrides": self._overrides,
            "machine": provenance.machine(),
        }
