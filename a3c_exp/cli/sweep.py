"""Sweeps: every job is composed and checked, then Hydra's launcher runs them, and what failed is said at the end.

Hydra's own sweeper is left out, because it composes every job again before the first one starts, and stops at the first
failure. Other sweepers, which choose their jobs while they run, are called as Hydra calls them.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from hydra._internal.callbacks import Callbacks
from hydra.core.plugins import Plugins
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from a3c_exp.backends import forkserver
from a3c_exp.cli.hydra_compose import compose_jobs, compose_node, for_hydra, setting, sweep, to_container
from a3c_exp.cli.job import SIGNALS, SweepJobs, say, sweep_job, sweeper_job
from a3c_exp.cli.journal import Journal, Outcome, new_journal
from a3c_exp.cli.names import folder_names, labels
from a3c_exp.cli.startup import forked_jobs, importing, prestart
from a3c_exp.cli.words import Words, quoted
from a3c_exp.common.reading import expanded
from a3c_exp.core.cpu import cores_shared, usable_cores
from a3c_exp.errors import PREEMPTED, ConfigError, named, one_line

if TYPE_CHECKING:  # importing it takes seconds: it imports torch
    from a3c_exp.networks import ActorCritic

LOCK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Launcher:
    """A launcher of Hydra's, as the sweep's configuration chooses it.

    at_once: jobs that it runs at the same time on a machine. in_process: one after the other, in this process.
    forked: in processes that are forked from the server (a3c_exp.backends.forkserver), and end with this one.
    """

    name: str
    at_once: int
    in_process: bool
    forked: bool

    @staticmethod
    def of(master: DictConfig, jobs: int) -> Launcher:
        settings = master.hydra.launcher
        if settings is None:
            raise ConfigError("hydra.launcher", None, "must be a launcher")
        name = str(settings.get("_target_")).rpartition(".")[2]
        if name == "JoblibLauncher":
            wanted = int(settings.n_jobs)
            at_once = min(wanted if wanted > 0 else max(1, usable_cores() + 1 + wanted), jobs)
            return Launcher("joblib", at_once, in_process=wanted == 1, forked=wanted != 1)
        if name == "LocalLauncher":  # submitit starts all of them
            return Launcher("submitit_local", jobs, in_process=False, forked=False)
        known = {"BasicLauncher": "basic", "SlurmLauncher": "submitit_slurm"}.get(name, name)
        return Launcher(known, 1, in_process=name == "BasicLauncher", forked=False)


@dataclass(frozen=True, slots=True)
class Job:
    """A job as it was checked. overrides: for the launcher, its folder included. left: its run has finished before."""

    overrides: list[str]
    folder: Path
    label: str
    left: bool


def run_sweep(hydra: Any, name: str, overrides: Sequence[str], words: Words, command: str) -> int:
    """Run a sweep; return the exit code. Raises ConfigError before anything is started or written."""
    try:
        return _run_sweep(hydra, name, overrides, words, command)
    except ConfigError as error:
        if words.sweep is not None and error.key == "hydra.sweep.dir":  # as it was typed
            raise ConfigError("sweep", error.value, error.problem) from error
        raise


def _run_sweep(hydra: Any, name: str, overrides: Sequence[str], words: Words, command: str) -> int:
    run_folders = [text.partition("=")[2] for text in overrides if text.lstrip("+").startswith("hydra.run.dir=")]
    if run_folders:
        problem = "is the folder of one run: sweep=<folder> or hydra.sweep.dir=<folder> is that of a sweep"
        raise ConfigError("hydra.run.dir", run_folders[-1], problem)
    if not sweep(hydra, overrides, name):
        raise ConfigError("command line", " ".join(overrides), "is a sweep without a run: one of its choices is empty")
    overrides = [*overrides, *words.overrides, "hydra.mode=MULTIRUN"]
    master = compose_node(hydra, overrides, name, RunMode.MULTIRUN)
    combinations = sweep(hydra, overrides, name)
    if not str(master.hydra.sweeper.get("_target_")).endswith(".BasicSweeper"):
        return _run_sweeper(hydra, name, overrides, combinations[0], command)
    launcher = Launcher.of(master, len(combinations))
    existing = words.existing or "resume"
    jobs = _check_jobs(hydra, name, combinations, existing, launcher)
    root = Path(jobs[0].folder.parent if words.sweep is None else Path(words.sweep).absolute())
    make_folder(root, "hydra.sweep.dir")
    with open_dict(master):
        master.hydra.sweep.dir = str(root)  # a launcher writes its own files there
    OmegaConf.save(master, root / "multirun.yaml")
    with new_journal(root) as journal:
        told = SweepJobs(
            journal=journal, folders=tuple(str(job.folder) for job in jobs), labels=tuple(job.label for job in jobs),
            existing=existing, command=command, at_once=launcher.at_once, with_starter=launcher.forked,
        )  # fmt: skip
        running = _Sweep(hydra, name, master, jobs, told, launcher)
        with _signals(journal, launcher):
            running.run()
        return running.report(root)


def _run_sweeper(hydra: Any, name: str, overrides: Sequence[str], first: Sequence[str], command: str) -> int:
    """Run a sweep whose jobs a sweeper chooses; the first of them is checked. A run that fails raises RunError."""
    with importing():
        from a3c_exp.config.builder import load_experiment

        load_experiment(to_container(compose_node(hydra, first, name)))
    subdir = "hydra.sweep.subdir='${hydra.job.num}_s${seed}'"
    hydra.multirun(name, partial(sweeper_job, command), [subdir, *for_hydra(hydra, overrides)])
    return 0


def _check_jobs(
    hydra: Any, name: str, combinations: Sequence[list[str]], existing: str, launcher: Launcher
) -> list[Job]:
    """Compose and check every job. Raises ConfigError for the first that cannot run, or not in its folder.

    A job whose configuration is that of an earlier one is left out, with a line.
    """
    with importing():
        from a3c_exp.cli.existing import Action, find_action
        from a3c_exp.config.builder import load_experiment
        from a3c_exp.run.run_folder import check_files, check_links, check_writable
    typed = [[text for text in job if not text.startswith(("hydra.", "hydra/"))] for job in combinations]
    names, differences = folder_names(typed), labels(typed)
    jobs: list[Job] = []
    made: dict[str, ActorCritic] = {}
    configs: set[str] = set()
    most_workers = 0
    for number, node in enumerate(compose_jobs(hydra, combinations, name)):
        config, folder = to_container(node), _job_folder(node, names[number])
        if repr(config) in configs:
            say(f"given twice, run once: {' '.join(typed[number])}")
            continue
        configs.add(repr(config))
        if folder in [job.folder for job in jobs]:
            problem = "is the folder of two runs: add ${hydra.job.num} to it"
            raise ConfigError("hydra.sweep.subdir", folder.name, problem)
        if number == 0 and launcher.in_process:
            prestart(config)
        elif number == 0 and launcher.forked:
            forkserver.ensure_running()
        with cores_shared(launcher.at_once), importing():
            experiment = load_experiment(config, made=made)
            most_workers = max(most_workers, experiment.worker_count)
        with named("hydra.sweep.dir"):
            check_links(folder)
            check_files(folder)
            action = find_action(folder, config, existing)
            check_writable(folder)
        place = [f"hydra.sweep.dir={quoted(str(folder.parent))}", f"hydra.sweep.subdir={quoted(folder.name)}"]
        label = differences[number] or f"seed={experiment.seed}"
        jobs.append(Job([*combinations[number], *place], folder, label, action is Action.LEAVE))
    if launcher.at_once > 1 and launcher.at_once * most_workers > usable_cores():
        needed = f"{launcher.at_once} runs at once, of up to {most_workers} workers each"
        say(f"warning: {needed}, share {usable_cores()} cores")
    return jobs


def _job_folder(node: DictConfig, name: str) -> Path:
    """A job's folder, as an absolute path. name: of the folder inside the sweep's, if the user has given none."""
    subdir = setting(node, "hydra.sweep.subdir") or name
    return Path(os.path.abspath(expanded(setting(node, "hydra.sweep.dir")) / subdir))


def make_folder(folder: Path, key: str) -> None:
    """Make the folder that Hydra would make next. Raises ConfigError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(key, str(folder), f"cannot be made: {error.strerror}") from error


class _Sweep:
    """The jobs of a sweep while they run. Jobs are known by their numbers."""

    def __init__(
        self, hydra: Any, name: str, master: DictConfig, jobs: Sequence[Job], told: SweepJobs, launcher: Launcher
    ) -> None:
        self._name, self._master, self._jobs, self._told = name, master, jobs, told
        self._launcher, self._hydra = launcher, hydra
        self._journal = told.journal
        self._batch: int | None = master.hydra.sweeper.get("max_batch_size")
        self._callbacks = Callbacks(master)
        context = HydraContext(config_loader=hydra.config_loader, callbacks=self._callbacks)
        self._hydra_launcher: Any = Plugins.instance().instantiate_launcher(
            hydra_context=context, task_function=partial(sweep_job, told), config=master
        )

    def run(self) -> None:
        """Run every job once, until a signal asks for the end; those that another process had locked at last."""
        self._callbacks.on_multirun_start(config=self._master, config_name=self._name)
        folder = self._master.hydra.launcher.get("submitit_folder")
        if folder is not None:
            say(f"{self._launcher.name}: output of the jobs is in {shown(Path(folder).parent)}")
        for number, job in enumerate(self._jobs):
            if job.left:
                say(f"{self._told.title(number)}: {job.label}: has finished before")
                self._journal.end(number, Outcome("left", "has finished before"))
        self._run_open([number for number, job in enumerate(self._jobs) if not job.left])
        while (locked := self._with_status("locked")) and not self._stopped:
            free = [number for number in locked if not _is_locked(self._jobs[number].folder)]
            if free:
                for number in free:
                    self._journal.forget(number)
                self._run_open(free)
            else:
                time.sleep(LOCK_SECONDS)
        self._callbacks.on_multirun_end(config=self._master, config_name=self._name)

    def _run_open(self, numbers: Sequence[int]) -> None:
        """Run jobs until each has an outcome, or the sweep is stopped.

        A process that is killed, for lack of memory or by its environment's fault, makes joblib end all that run
        beside it. Jobs that had not begun are then launched again, and after them those that had, each alone.
        """
        vain = 0  # launches in a row in which none has begun
        while (rest := self._without_outcome(numbers)) and not self._stopped:
            waiting = [number for number in rest if not self._journal.has_begun(number)]
            if waiting:
                error = self._launch(waiting)
                vain = 0 if any(map(self._journal.has_begun, waiting)) else vain + 1
                if vain == 2 or (vain and not self._launcher.forked):  # a batch system may have taken some of them
                    self._fail(waiting, error)
                continue
            for number in rest:
                if not self._stopped:
                    title = self._told.title(number)
                    say(f"{title}: {self._jobs[number].label}: its process or one beside it was killed; again, alone")
                error = "" if self._stopped else self._launch([number])
                self._fail(self._without_outcome([number]), error)

    def _launch(self, numbers: Sequence[int]) -> str:
        """Hand jobs to the launcher, and wait until it returns. Returns its error, or an empty text."""
        try:
            with forked_jobs() if self._launcher.forked else nullcontext():
                for start in range(0, len(numbers), self._batch or len(numbers)):
                    batch = numbers[start : start + (self._batch or len(numbers))]
                    self._hydra_launcher.launch(
                        [for_hydra(self._hydra, self._jobs[number].overrides) for number in batch], batch[0]
                    )
        except KeyboardInterrupt:
            if not self._stopped:
                raise
        except Exception as error:  # of joblib, submitit or pickle: a process was killed or never began
            return one_line(error)
        return ""

    def _fail(self, numbers: Sequence[int], error: str) -> None:
        """Record jobs that ended without an outcome as failed, unless the sweep has been stopped meanwhile."""
        if not self._stopped:
            for number in numbers:
                self._journal.end(number, Outcome("failed", f"its process died: {error}"))

    @property
    def _stopped(self) -> bool:
        return self._journal.stop_signal() is not None

    def _without_outcome(self, numbers: Sequence[int]) -> list[int]:
        return [number for number in numbers if self._journal.outcome(number) is None]

    def _with_status(self, status: str) -> list[int]:
        outcomes = {number: self._journal.outcome(number) for number in range(len(self._jobs))}
        return [number for number, outcome in outcomes.items() if outcome is not None and outcome.status == status]

    def report(self, root: Path) -> int:
        """Print how the sweep has ended, with the folders of failed runs; return the exit code."""
        from a3c_exp.run.files import bytes_text, size_of

        failed = self._with_status("failed")
        ended = len(self._with_status("ended")) + len(self._with_status("left"))
        count = len(self._jobs)
        say(f"{ended} of {count} runs have finished; {shown(root)} holds {bytes_text(size_of(root))}")
        for number in failed:
            outcome = self._journal.outcome(number)
            assert outcome is not None
            say(f"failed: {shown(self._jobs[number].folder)}: {outcome.text}")
        interrupted = self._with_status("interrupted")
        for number in interrupted if not self._stopped else []:  # by its batch system
            say(f"interrupted: {shown(self._jobs[number].folder)}: the same command continues it")
        signum = self._journal.stop_signal()
        if signum is not None:
            return PREEMPTED if signum == signal.SIGUSR2 else 128 + signum
        return 1 if failed else PREEMPTED if interrupted else 0


def shown(folder: Path) -> str:
    """A folder as a user types it: relative to the current one where that is shorter."""
    return min(str(folder), os.path.relpath(folder), key=len)


def _is_locked(folder: Path) -> bool:
    from a3c_exp.run.files import FolderLockedError, exclusive_folder

    try:
        with exclusive_folder(folder):
            return False
    except FolderLockedError:
        return True
    except ConfigError:  # deleted meanwhile: its job begins anew
        return False


@contextmanager
def _signals(journal: Journal, launcher: Launcher) -> Iterator[None]:
    """Within: the first SIGINT, SIGTERM or SIGUSR2 asks the jobs to end in order, and a second one raises.

    Processes that a launcher starts begin with SIGNALS blocked: until a job handles them, they would end the process.
    So this thread blocks them, and another one receives them for it.
    """

    def note(signum: int, frame: FrameType | None) -> None:
        if journal.stop_signal() is not None:
            raise KeyboardInterrupt(128 + signum)
        journal.stop(signum)
        say("running jobs are saved and end, others do not start; a second signal kills")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with ExitStack() as stack:
        default = [number for number in (signal.SIGUSR2,) if signal.getsignal(number) is signal.SIG_DFL]
        for number in (*SIGNALS, *default):
            stack.callback(_restore, number, signal.signal(number, note))
        if not launcher.in_process:
            done = threading.Event()
            threading.Thread(target=done.wait, daemon=True).start()
            stack.callback(done.set)
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
            stack.callback(signal.pthread_sigmask, signal.SIG_SETMASK, mask)
        yield


def _restore(number: int, handler: Any) -> None:
    with suppress(TypeError):  # None: a handler that was not set from Python
        signal.signal(number, handler)
