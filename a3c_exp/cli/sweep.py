"""Sweeps: every run is composed and checked first. Then Hydra runs the sweep: by its sweepers and
launchers, or by the plugins of this program (`hydra_plugins.a3c_exp_sweeps`), which call back here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig, OmegaConf

from a3c_exp.cli import hydra_compose, hydra_overrides
from a3c_exp.cli.arguments import SWEEP_DIR, CommandLine, given, is_of_hydra
from a3c_exp.cli.execute import Plan, execute, make
from a3c_exp.cli.existing import find_action, how_ended, identity, saved_runs
from a3c_exp.cli.hydra_compose import Composed
from a3c_exp.cli.hydra_session import HydraSession, isolated
from a3c_exp.cli.launch import config_flags, run_hydra
from a3c_exp.cli.names import folder_names, labels
from a3c_exp.cli.processes import DOES, Job, Runs, say_comparison
from a3c_exp.cli.search import Jobs, Search, score_of
from a3c_exp.common.reading import expanded
from a3c_exp.common.settings import quoted
from a3c_exp.config.builder import Made, check, check_start, load_final
from a3c_exp.core.cpu import RUNS_AT_ONCE, environment, usable_cores
from a3c_exp.errors import ConfigError, FolderError, RunError, named, printable, require, say
from a3c_exp.exit_codes import ExitCode
from a3c_exp.run.outcome import short
from a3c_exp.run.run_folder import begins_with, check_names

OWN_LAUNCHER = "hydra_plugins.a3c_exp_sweeps.ProcessesLauncher"
OWN_SWEEPER = "hydra_plugins.a3c_exp_sweeps.GridSweeper"
Launch = Callable[[Sequence[Sequence[str]], int], Sequence[JobReturn]]
"""Runs jobs of these overrides, the first of which has this number."""


def run_sweep(session: HydraSession, line: CommandLine) -> int:
    """Run a sweep; return the exit code. Raises ConfigError before anything is started or
    written."""
    overrides = hydra_overrides.parse([*line.overrides, *_meant(line)], session.loader)
    single = [override for override in overrides if not override.is_sweep_override()]
    common = hydra_compose.composed(session, [str(override.input_line) for override in single])
    node = common.node
    root = Path(os.path.abspath(expanded(hydra_compose.setting(node, SWEEP_DIR))))
    params = OmegaConf.select(node, "hydra.sweeper.params") or {}
    texts = [f"{key}={value}" for key, value in params.items()]
    overrides[:0] = hydra_overrides.parse(texts, session.loader)
    variables = hydra_compose.setting(node, "hydra.job.env_set")
    with named(SWEEP_DIR if line.sweep is None else "sweep"), environment(variables):
        task = Sweep(session, line, node, overrides, root)
        if line.flags.cfg is not None:
            for job in task.jobs:
                ending = f"has {how_ended(job.folder)}" if job.action == "leave" else ""
                print(printable(f"{job.folder}: {job.label}: {ending or DOES[job.action]}"))
            return ExitCode.DONE

        check_names(root, "multirun.yaml", ".submitit")
        listed = root / "multirun.yaml"
        if listed.exists() and not begins_with(listed, "hydra:"):
            raise FolderError(root, f"has a file that Hydra would replace: {listed.name}")

        words = [*common.words, *_for_sweepers(session, node), f"{SWEEP_DIR}={quoted(str(root))}"]
        words += [
            hydra_compose.sweep_word(session, node, override)
            for override in overrides
            if override.is_sweep_override() and override.key_or_group not in params
        ]
        with environment({RUNS_AT_ONCE: str(task.at_once)}):
            run_hydra(line.flags, ["--multirun", *words], task)

    if line.search is None:
        # Those that a launcher and a sweeper of Hydra's have made are known by their folders.
        folders = [job.folder for job in task.jobs] or list(saved_runs(root).values())
        if folders:
            say_comparison(folders)

    return task.code


def _meant(line: CommandLine) -> list[str]:
    """What the words of a sweep mean, as overrides."""
    meant = []
    if line.sweep is not None:
        meant.append(f"{SWEEP_DIR}={quoted(str(expanded(line.sweep)))}")
    if line.jobs is not None:
        meant += ["hydra/launcher=processes", f"hydra.launcher.jobs={line.jobs}"]
    return meant


def _for_sweepers(session: HydraSession, node: DictConfig) -> list[str]:
    """What a sweeper of Hydra's needs to be told: to number the folders, and to maximize."""
    if node.hydra.sweeper._target_ == OWN_SWEEPER:
        return []

    written: Any = OmegaConf.to_container(node.hydra, resolve=False)
    words = []
    if not written["sweep"]["subdir"]:
        words.append("hydra.sweep.subdir=${hydra.job.num}")

    is_typed = given(node.hydra.overrides.hydra, "hydra.sweeper.direction") is not None
    if "direction" in written["sweeper"] and not is_typed:
        words.append("hydra.sweeper.direction=maximize")
        say("hydra.sweeper.direction=maximize: a run's value is its return")

    return words


class Sweep:
    """A sweep, as its program knows it: Hydra calls it for each job, and the plugins for all.

    node: what its runs have in common. overrides: with several values. root: the sweep's folder.
    jobs: the runs that are known. code: the exit code so far.
    """

    def __init__(
        self,
        session: HydraSession,
        line: CommandLine,
        node: DictConfig,
        overrides: Sequence[Override],
        root: Path,
    ) -> None:
        self.existing = line.existing or "resume"
        self.objective = line.objective or "best"
        self.root = root
        self.jobs: list[Job] = []
        self.code: int = ExitCode.DONE
        self.at_once = 1
        self._session = session
        self._line = line
        self._of_hydra = [text for text in line.overrides if is_of_hydra(text)]
        self._launches = node.hydra.launcher._target_ == OWN_LAUNCHER
        self._launcher = node.hydra.launcher._target_.rpartition(".")[2]
        is_grid = node.hydra.sweeper._target_ == OWN_SWEEPER
        if line.search and not (self._launches and is_grid):
            problem = "goes with hydra/launcher=processes and hydra/sweeper=grid alone"
            raise ConfigError("search", line.search, problem)

        self._common = None if is_grid else _common_texts(node)
        combinations = hydra_overrides.sweep(overrides) if is_grid and not line.search else []
        if self._launches:
            distinct = len(set(map(tuple, combinations)))
            self.at_once = min(node.hydra.launcher.jobs, distinct or hydra_overrides.MOST_JOBS)

        self._search: Search | None = None
        with environment({RUNS_AT_ONCE: str(self.at_once)}):
            if line.search is not None:
                self._search = Search(session, overrides, line.search, self.at_once, self.objective)
            self._check(combinations)

    def __getstate__(self) -> dict[str, Any]:
        """What a job in another process needs."""
        return {"existing": self.existing, "objective": self.objective}

    def _check(self, combinations: Jobs, *, are_trials: bool = False) -> list[Job]:
        """Compose and check jobs, which are known from now on. Raises ConfigError for the first
        that cannot run, or not in its folder.

        A job whose configuration is that of an earlier one is left out, with a line, but no trial
        is. A run of the same configuration in the sweep's folder is the job's, whatever its name:
        that of an earlier command, in which other settings differed.
        """
        typed = [[text for text in job if not is_of_hydra(text)] for job in combinations]
        names = folder_names(typed, self._common)
        differences = labels(typed, self._common)
        jobs: dict[tuple[str, int], Job] = {}
        made: Made = []
        saved = saved_runs(self.root)
        workers: list[tuple[object, int, int]] = []
        for number, run in enumerate(hydra_compose.compose_jobs(self._session, combinations)):
            config = hydra_compose.to_container(run.node)
            key = f"{identity(config)} {config.get('plugins')}", number if are_trials else 0
            if key in jobs:
                say(f"given twice, run once: {' '.join(typed[number])}")
                continue

            subdir = hydra_compose.setting(run.node, "hydra.sweep.subdir")
            same = None if subdir else saved.get(identity(config))
            folder = same or Path(os.path.abspath(self.root / (subdir or names[number])))
            _check_folder(folder, self.root, subdir, [job.folder for job in jobs.values()])
            final, experiment = load_final(config, made=made)
            built = check(experiment, made=made)
            action = find_action(folder, final, self.existing)
            if action == "begin":
                check_start(experiment, final, built.network)

            count = experiment.worker_count
            cores = 1 if experiment.backend.deterministic else count  # they take turns
            workers.append((config.get("workers"), count, cores))
            jobs[key] = Job(
                number=number,
                overrides=_of_process(combinations[number], number, folder),
                folder=folder,
                label=differences[number] or f"seed={experiment.seed}",
                action=action,
                is_forked=_may_be_forked(run.node),
                words=_of_job(run, folder),
            )

        _say_workers(workers, self.at_once)
        self.jobs += jobs.values()
        return list(jobs.values())

    def __call__(self, node: DictConfig) -> float:
        """Train as one job, in this process; return its score.

        Raises RunError for a run that failed, and KeyboardInterrupt for one that was interrupted.
        """
        job = HydraConfig.get()
        folder = Path(job.runtime.output_dir)
        plan = Plan(
            config=hydra_compose.job_config(),
            folder=folder,
            existing=self.existing,
            overrides=[text.removeprefix("++") for text in job.overrides.task],
            label="",
            changes_folder=bool(job.job.chdir),
        )
        with isolated():  # an environment may compose by itself
            finished = execute(plan)

        if finished is not None and finished.summary["signal"] is not None:
            raise KeyboardInterrupt(finished.exit_code)  # ends the sweep too
        if finished is not None and finished.exit_code:
            raise RunError(f"{plan.folder}: {finished.summary['stop_reason']}")
        if finished is None and how_ended(folder) == "failed":
            raise RunError(f"{plan.folder}: has failed before")
        return score_of(folder, self.objective)

    def _say_beginning(self) -> None:
        """Print how many runs there are, and where. Those of a search are not known yet."""
        if self.jobs:
            by = f"{self.at_once} at once" if self._launches else f"by Hydra's {self._launcher}"
            say(f"{len(self.jobs)} runs, {by}, in {short(self.root)}")

    def _say_end(self) -> None:
        """Print how many runs a launcher of Hydra's has finished. That of this program says it."""
        if self.jobs and not self._launches:
            count = sum(how_ended(job.folder) == "finished" for job in self.jobs)
            say(f"{count} of {len(self.jobs)} runs have finished, in {short(self.root)}")

    def sweep(self, launch: Launch, node: DictConfig, most: int | None) -> list[JobReturn]:
        """Run all jobs, or a search. most: jobs that are launched together; None: all of them."""
        make(self.root)
        if node.hydra.output_subdir is not None:
            OmegaConf.save(node, self.root / "multirun.yaml")
        if self._search is not None:
            self.code = self._search.run(partial(self._run_trials, launch))
            return []

        self._say_beginning()
        returns: list[JobReturn] = []
        try:
            while jobs := self.jobs[len(returns) :][:most]:
                done = launch([job.words for job in jobs], len(returns))
                if not self._launches:
                    for job_return in done:
                        _ = job_return.return_value  # raises what the job has raised
                returns += done
        finally:
            self._say_end()

        return returns

    def _run_trials(self, launch: Launch, combinations: Jobs) -> tuple[list[Job], int]:
        jobs = self._check(combinations, are_trials=True)
        for job in jobs:
            # Another score would lead to other trials.
            if self.existing != "restart" and how_ended(job.folder) == "failed":
                job.action = "leave"
        launch([job.words for job in jobs], 0)
        return jobs, self.code

    def launch(self, overrides: Sequence[Sequence[str]], first: int) -> list[JobReturn]:
        """Run jobs, each in a process of its own. Raises KeyboardInterrupt after a signal."""
        planned = {tuple(job.words): job for job in self.jobs}
        distinct = dict.fromkeys(map(tuple, overrides))  # a sweeper may choose one of them twice
        if not distinct.keys() <= planned.keys():  # the sweeper has chosen them itself
            combinations = [[*self._of_hydra, *words] for words in distinct]
            trials = self._check(combinations, are_trials=True)
            planned = dict(zip(distinct, trials, strict=True))

        jobs = [planned[words] for words in distinct]
        code = Runs(jobs, config_flags(self._line.flags), self.existing, self.at_once).run()
        if code not in (ExitCode.DONE, ExitCode.FAILED):
            raise KeyboardInterrupt(code)

        self.code = max(self.code, code)
        return [self._returned(planned[tuple(words)]) for words in overrides]

    def _returned(self, job: Job) -> JobReturn:
        """How a job has ended, for Hydra's sweepers."""
        if job.status == "failed":
            error = RunError(f"{job.folder}: {job.text}")
            return JobReturn(job.words, status=JobStatus.FAILED, _return_value=error)

        score = score_of(job.folder, self.objective)
        return JobReturn(job.words, status=JobStatus.COMPLETED, _return_value=score)


def _common_texts(node: DictConfig) -> set[str]:
    """The overrides that all jobs of a sweep have, as they were typed and as Hydra writes them."""
    texts = set(node.hydra.overrides.task)
    for override in hydra_overrides.parse(list(texts)):
        texts.add(f"{override.get_key_element()}={override.get_value_element_as_str()}")
    return texts | {f"++{text.lstrip('+')}" for text in texts}


def _may_be_forked(node: DictConfig) -> bool:
    """Return whether a job's process may be forked from one that has imported everything. One with
    environment variables, a current folder or plugins of its own may not."""
    keys = ("hydra.job.env_set", "hydra.job.chdir", "plugins")
    return not any(hydra_compose.setting(node, key) for key in keys)


def _say_workers(workers: Sequence[tuple[object, int, int]], at_once: int) -> None:
    """Warn if runs at once share cores, or are left with one each. workers: of each run as it was
    typed, as a number, and how many cores they use."""
    if at_once == 1:
        return

    most = max((cores for *_, cores in workers), default=0)
    if at_once * most > usable_cores():
        say(
            f"warning: {at_once} runs at once, each on up to {most} cores, share "
            f"{usable_cores()} cores"
        )
    elif any(text == "auto" and count == 1 for text, count, _ in workers):
        say(
            f"warning: {at_once} runs at once on {usable_cores()} cores leave each run one "
            "worker; jobs=1 does not"
        )


def _check_folder(folder: Path, root: Path, subdir: str, others: Sequence[Path]) -> None:
    """Raise ConfigError for a folder that a job cannot have."""
    key = "hydra.sweep.subdir"
    if folder in others:
        problem = "is the folder of two runs: add ${hydra.job.num} to it"
        raise ConfigError(key, folder.name, problem)

    require(folder.parent == root, key, subdir, "the name of one folder, in the sweep's")
    if not Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(root)):
        raise FolderError(folder, "is a link that leads out of the sweep's folder")


def _of_process(typed: Sequence[str], number: int, folder: Path) -> list[str]:
    """The overrides of a job that is a single run, in a process of its own."""
    job = ["hydra.mode=RUN", f"hydra.job.num={number}", f"hydra.job.id='{number}'"]
    settings = [text for text in typed if not text.startswith("hydra.mode=")]
    return [*settings, *job, f"hydra.run.dir={quoted(str(folder))}"]


def _of_job(run: Composed, folder: Path) -> list[str]:
    """The overrides of a job as Hydra's launchers take them, which know Hydra's own already."""
    return [
        *(word for word in run.words if not is_of_hydra(word)),
        f"hydra.sweep.subdir={quoted(folder.name)}",
    ]
