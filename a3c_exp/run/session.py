"""One session of a run: it is opened, new or resumed; it trains; it is saved and summed up."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from a3c_exp.common.log import log
from a3c_exp.common.reading import UnreadableError
from a3c_exp.common.settings import comparable
from a3c_exp.common.signals import BreaksIn, Interruption, interruptions
from a3c_exp.core.cpu import one_thread
from a3c_exp.core.events import Event
from a3c_exp.core.experiment import Built, Experiment, RunContext, store_spec
from a3c_exp.core.store import SharedStore
from a3c_exp.ending import StopReason
from a3c_exp.errors import (
    FAILURES,
    ConfigError,
    FolderError,
    RunError,
    leaves_debugger,
    named,
    one_line,
)
from a3c_exp.exit_codes import run_exit_code
from a3c_exp.networks import ActorCritic
from a3c_exp.run import files, outcome, provenance, run_folder
from a3c_exp.run.checkpoint import STATE_ERRORS, load_latest, load_state
from a3c_exp.run.console import ONLY_FILE, LiveLineHandler, run_log
from a3c_exp.run.files import RunOutput
from a3c_exp.run.hooks import Hooks
from a3c_exp.run.loop import consume
from a3c_exp.run.milestones import Milestones
from a3c_exp.run.open_run import OpenRun
from a3c_exp.run.recorders import Recorders
from a3c_exp.run.statistics import RunStatistics
from a3c_exp.run.view import View


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
    built: Built,
    config: Mapping[str, Any],
    folder: Path,
    earlier: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    label: str | None = None,
    make_room: Callable[[], object] = lambda: None,
) -> Iterator[Session]:
    """Open a run in `folder`: a new one, or the one whose checkpoint is there.

    A run is opened in this order: all is read and checked, then a new run's configuration is
    written, then the log is opened, then the tables and TensorBoard's file. A resumed run's
    configuration and summary change last, so that whatever fails before leaves the run as it was.

    Args:
        experiment: already checked.
        built: its network, with the parameters that the seed draws. It is the run's from now on.
        config: the plain configuration it was built from, which is saved in the folder.
        folder: locked by the caller, and without another run.
        earlier: the configuration in the folder of a run that is resumed. None: a new run.
        overrides: those of this run alone, for its summary.
        label: of a run of a sweep, whose runs lie in one folder. If it is not empty the terminal
            shows the run's warnings alone, with this in front. None: it is part of none.
        make_room: deletes an earlier run's files in the folder. Called when all has been read, and
            the configuration has been written but has not its name yet.

    Raises FolderError for a checkpoint that cannot be used, before anything is written, and for a
    folder that cannot be written to.
    """
    with ExitStack() as stack:
        # with more of them a decomposition draws other last digits
        stack.enter_context(one_thread())
        network = built.network
        store, statistics = _build(experiment, built)
        if experiment.init_from is not None and earlier is None:
            with named("init_from"):
                _start_from(store, Path(experiment.init_from))
        try:
            saved = None
            if earlier is not None:
                saved = _restore(store, statistics, network, folder, earlier)
            _claim(folder, None if saved else config, make_room)
            terminal = stack.enter_context(run_log(folder / run_folder.LOG_FILE, label=label or ""))
            interruption = Interruption()
            run = OpenRun(
                experiment=experiment,
                config=config,
                folder=folder,
                sweep=None if label is None else folder.absolute().parent.name,
                store=store,
                network=network,
                statistics=statistics,
                milestones=Milestones(lambda: store.training_seconds),
                interruption=interruption,
                output=RunOutput(folder, interruption),
            )
            if saved is not None:
                _continue(run, saved)
            opened = Session(run, terminal, overrides)
            _log_memory(experiment, built, is_resumed=saved is not None)
            if saved is not None:
                run.hooks.states.restore(saved.state.get("callbacks", {}))
                files.write_text(folder / run_folder.CONFIG_FILE, run_folder.config_text(config))
            # a resumed run has not ended any more
            (folder / run_folder.SUMMARY_FILE).unlink(missing_ok=True)
            _log_warnings(run)
        except (OSError, UnreadableError) as error:
            raise FolderError(folder, f"cannot be written: {error}") from error
        yield opened


# The steps in which a run is opened.


@dataclass(frozen=True, slots=True)
class Saved:
    """What a run continues from: a checkpoint, and the configuration that it had.

    warning: why the checkpoint is not the latest one, or "".
    """

    state: dict[str, Any]
    path: Path
    warning: str
    config: Mapping[str, Any]


def _build(experiment: Experiment, built: Built) -> tuple[SharedStore, RunStatistics]:
    """Build what workers share, with the network's parameters, and the statistics."""
    store = experiment.backend.store(store_spec(experiment, *built))
    store.initialize(built.network.vector)
    workers = experiment.worker_count
    environments = workers * experiment.envs_per_worker
    statistics = RunStatistics(environments, window=experiment.stop.window, workers=workers)
    return store, statistics


def _start_from(store: SharedStore, folder: Path) -> None:
    """Load the parameters and observation statistics of the run in `folder`, and nothing else of
    it.

    Raises FolderError if it cannot be read, or has another network than when this run was made.
    """
    try:
        store.start_from(load_state(run_folder.best_checkpoint(folder))["store"])
    except STATE_ERRORS as error:
        raise FolderError(folder, f"must be a run of the same network: {error}") from error


def _restore(
    store: SharedStore,
    statistics: RunStatistics,
    network: ActorCritic,
    folder: Path,
    earlier: Mapping[str, Any],
) -> Saved:
    """Continue from the checkpoint in a folder.

    Raises FolderError if the checkpoint does not fit the configuration, and ConfigError for fewer
    total steps than it has made.
    """
    saved = Saved(*load_latest(folder), config=earlier)
    try:
        store.restore(saved.state["store"])
        statistics.restore(saved.state["statistics"])
    except STATE_ERRORS as error:
        raise FolderError(
            folder, f"its checkpoint does not fit its configuration: {error}"
        ) from error

    total = store.spec.total_steps
    if total < store.steps and total != earlier.get("total_steps"):
        raise ConfigError(
            "total_steps", total, f"must be {store.steps} or more: the run has made so many steps"
        )
    network.check_constants(saved.state["store"], folder)
    return saved


def _claim(folder: Path, config: Mapping[str, Any] | None, make_room: Callable[[], object]) -> None:
    """Make the folder of a run its own. config: of a new run.

    A resumed run's configuration is written last: a folder that cannot be written to keeps the run
    that it has.
    """
    (folder / run_folder.CHECKPOINTS).mkdir(parents=True, exist_ok=True)
    if config is not None:
        text = run_folder.config_text(config)
        files.write_text(folder / run_folder.CONFIG_FILE, text, make_room)


def _continue(run: OpenRun, saved: Saved) -> None:
    """Take up what a run had reached, and make the checkpoint that it continues from its latest
    one."""
    if saved.warning:
        log.warning("%s", saved.warning)
        run_folder.make_latest(saved.path)
    run.milestones.restore(saved.state)
    run.milestones.best_return = _best_return(saved, run)


def _best_return(saved: Saved, run: OpenRun) -> float | None:
    """Return the best evaluation: a run that was killed may have saved a better policy after its
    last checkpoint.

    None if evaluations had other settings than they have now: their returns say nothing about
    today's.
    """
    earlier, present = (
        comparable({**config.get("eval", {}), "every": None})
        for config in (saved.config, run.config)
    )
    if earlier != present:
        log.warning(
            "evaluations have other settings than before: "
            "the best return so far does not count any more"
        )
        return None

    returns = [saved.state["best_eval_return"]]
    with suppress(ConfigError):
        best = load_state(run.folder / run_folder.CHECKPOINTS / run_folder.BEST)
        returns.append(best["best_eval_return"])
    return max((value for value in returns if value is not None), default=None)


def _log_warnings(run: OpenRun) -> None:
    log.info(run.network.runtime.description, extra=ONLY_FILE)
    size = outcome.size_warning(run.store.spec)
    for warning in (*run.experiment.warnings, *run.network.warnings, *size):
        log.warning("%s", warning)


def _log_memory(experiment: Experiment, built: Built, *, is_resumed: bool) -> None:
    memory = experiment.memory
    if memory is None:
        return
    has_behaviour = experiment.algorithm.needs_behaviour
    size = memory.nbytes(built.observation_space, built.network, has_behaviour)
    text = f"memory: {memory.capacity:,} transitions of all workers, {files.amount(size)}B"
    log.info("%s", text)
    if is_resumed and not memory.save:
        log.warning("memory: it was not saved, and is filled anew (memory.save=true saves it)")


Events = Generator[Event | None, None, None]


class Session:
    """A run that has been opened: `run` trains, and ends it in order.

    terminal: where the progress line is. overrides: see `session`.
    """

    def __init__(self, run: OpenRun, terminal: LiveLineHandler, overrides: Sequence[str]) -> None:
        self._run = run
        self._overrides = list(overrides)
        self._commit = provenance.commit()  # now: the code may change during the run
        self._recorders = Recorders(run, terminal)
        view = View(run, self._recorders)
        run.hooks = Hooks(view, self._recorders.everyone, run.experiment.callbacks)

    def run(self) -> Run:
        """Train until a stop rule holds, a worker fails or the user interrupts; then save the state
        and the summary.

        Also returns after a failure or an interruption, which the summary then reports.
        """
        run = self._run
        for line in outcome.opening(run.experiment, run.folder, run.steps):
            log.info("%s", line)

        events = run.experiment.backend.run(self._context(), run.store)
        with interruptions(run.interruption):
            try:
                self._train(events)
            except BaseException as error:  # whatever it is, the state is saved below
                run.interruption.breaks_in = BreaksIn.NOTHING  # Ctrl-C would leave `run` from here
                if isinstance(error, KeyboardInterrupt) or leaves_debugger(error):
                    # The second Ctrl-C, or one that an environment raised: do not wait for workers.
                    run.interruption.signal = run.interruption.signal or signal.SIGINT
                    run.ending.interrupt()
                else:
                    self._fail(error)
            finally:
                try:
                    self._end_workers(events)
                except BaseException as error:
                    # Workers that cannot be ended do not keep the state from being saved.
                    self._fail(error)
                run.interruption.breaks_in = BreaksIn.NOTHING
            return self._finish()

    def _context(self) -> RunContext:
        """Return what workers are built from. Callbacks stay here."""
        experiment = self._run.experiment
        measures = frozenset(
            measure for callback in experiment.callbacks for measure in callback.measures
        )
        saves = experiment.memory is not None and experiment.memory.save
        return RunContext(
            experiment=replace(experiment, callbacks=()),
            resumed=self._run.milestones.resumed,
            measures=measures,
            folder=self._run.folder.absolute() / run_folder.CHECKPOINTS if saves else None,
        )

    def _train(self, events: Events) -> None:
        """Take all events, and make the last evaluation."""
        run = self._run
        run.interruption.breaks_in = BreaksIn.ANY_SIGNAL  # a tracker may wait for its server
        run.hooks.on_start()
        run.interruption.breaks_in = BreaksIn.SECOND_CTRL_C
        consume(run, self._recorders, events)

        if not run.ending.is_interrupted:
            self._end_workers(events)  # those that were not waited for
            self._count_lost(run.store.state())
            run.hooks.errors.keep = self._fail
            run.hooks.on_trained()
            self._recorders.evaluations.evaluate_final()
        if run.interruption.signal is not None:
            run.ending.be_continued()

    def _end_workers(self, events: Events) -> None:
        interruption = self._run.interruption
        # A deterministic backend closes environments here, and one may hang in it.
        closes_environments = self._run.experiment.backend.deterministic
        interruption.breaks_in = BreaksIn.SECOND_CTRL_C if closes_environments else BreaksIn.NOTHING
        events.close()
        interruption.breaks_in = BreaksIn.SECOND_CTRL_C

    def _fail(self, error: BaseException) -> None:
        """Note an error as the reason for the end; but not after a signal, which workers may have
        received too."""
        ending = self._run.ending
        is_in_words = isinstance(error, RunError | ConfigError)
        text = str(error) if is_in_words else "".join(traceback.format_exception(error)).rstrip()
        if self._run.interruption.signal is not None:
            ending.interrupt()
            if not isinstance(error, RunError):
                log.warning("while the run was ending: %s", text)
            return

        ending.fail(error.reason if isinstance(error, RunError) else StopReason.FAILED, text)
        log.error(text)

    def _count_lost(self, store_state: Mapping[str, Any]) -> None:
        """Count what workers that were not waited for have done: their last events are lost."""
        statistics = self._run.statistics
        steps = store_state["steps"] - statistics.steps
        updates = store_state["version"] - statistics.updates
        statistics.add(Event(worker=-1, steps=steps, updates=updates))

    def _finish(self) -> Run:
        """Save the run, say how it has ended, and notify callbacks."""
        run = self._run
        run.milestones.stop_clock()
        run.hooks.errors.keep = self._fail
        self._recorders.evaluations.end()
        store_state = run.store.state()
        self._count_lost(store_state)
        self._recorders.curves.log_new()
        self._recorders.checkpoints.save(store_state)
        self._recorders.close(run.ending.is_finished)
        summary = self._write_summary()
        self._say_how_it_ended(summary)

        run.hooks.errors.keep = None  # all is saved
        run.interruption.breaks_in = (
            BreaksIn.ANY_SIGNAL if run.interruption.signal is None else BreaksIn.SECOND_CTRL_C
        )
        try:
            run.hooks.on_end(summary)
        except FAILURES as error:
            log.exception("on_end of a callback failed")
            raise RunError(f"on_end of a callback failed: {one_line(error)}") from error
        return Run(run.folder, summary)

    def _write_summary(self) -> dict[str, Any]:
        """Write summary.json, and return its content."""
        output = self._run.output
        summary = self._summary()
        path = self._run.folder / run_folder.SUMMARY_FILE
        output.write(path.name, files.write_json, path, summary)
        summary["unwritten"] = sorted(output.unwritten)
        return summary

    def _say_how_it_ended(self, summary: Mapping[str, Any]) -> None:
        run = self._run
        for line in outcome.ending(summary, run.experiment.reward_threshold):
            log.info("%s", line)

        peak = summary["collapsed_from"]
        if peak is not None:
            mean = summary["mean_return_100"]
            evaluation = summary["best_eval_return"]
            log.warning("%s", outcome.collapse(run.folder, mean, peak, evaluation))

        has_more = run.ending.is_finished or run.experiment.backend.resumable
        if run.sweep is None and has_more:
            commands = outcome.next_commands(
                summary["stop_reason"], run.folder, run.config, run.experiment
            )
            for line in commands:
                log.info("  %s", line)

    def _summary(self) -> dict[str, Any]:
        run = self._run
        milestones = run.milestones
        seconds = milestones.seconds
        steps = run.statistics.steps
        solved_steps, solved_seconds = milestones.solved or (None, None)
        return {
            "seed": run.experiment.seed,
            "stop_reason": run.ending.stop_reason,
            "error": run.ending.error,
            "signal": run.interruption.signal,
            "unwritten": sorted(run.output.unwritten),
            **run.statistics.summary(),
            "training_seconds": round(seconds, 3),
            "clock": run.experiment.backend.clock,
            "steps_per_second": round(steps / seconds, 1) if seconds > 0 else None,
            "best_eval_return": milestones.best_return,
            "goal_return": milestones.goal_return,
            "solved_at_steps": solved_steps,
            "solved_at_seconds": None if solved_seconds is None else round(solved_seconds, 3),
            "resumed": milestones.resumed,
            "versions": provenance.versions(),
            "commit": self._commit,
            "command": provenance.command_line(),
            "overrides": self._overrides,
            "machine": provenance.machine(),
        }
