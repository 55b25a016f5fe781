"""Sweeps: every run is composed and checked first; then each one is a process of this program
(`cli.processes`).

With a launcher other than Hydra's own basic one, Hydra runs the sweep as it does for any program.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from a3c_exp.cli import hydra_compose
from a3c_exp.cli.arguments import CommandLine, quoted
from a3c_exp.cli.execute import Plan, execute, make
from a3c_exp.cli.existing import begins, find_action, how_ended, identity, saved_runs
from a3c_exp.cli.names import folder_names, labels
from a3c_exp.cli.processes import DOES, Job, Runs, say_comparison
from a3c_exp.cli.search import Jobs, search
from a3c_exp.common.reading import expanded
from a3c_exp.config.builder import Made, load_final
from a3c_exp.core.cpu import RUNS_AT_ONCE, environment, usable_cores
from a3c_exp.errors import ConfigError, FolderError, RunError, named, printable, require, say
from a3c_exp.run.run_folder import begins_with, check_places

SWEEP_DIR = "hydra.sweep.dir"


def run_sweep(hydra: Any, line: CommandLine) -> int:
    """Run a sweep; return the exit code. Raises ConfigError before anything is started or
    written."""
    given = [] if line.sweep is None else [f"{SWEEP_DIR}={quoted(str(expanded(line.sweep)))}"]
    overrides = hydra_compose.parse([*line.overrides, *given], hydra)
    common = hydra_compose.compose_node(
        hydra, [str(o.input_line) for o in overrides if not o.is_sweep_override()]
    )
    existing = line.existing or "resume"
    if line.objective is not None and line.search is None:
        raise ConfigError("objective", line.objective, "goes with search=<trials>")
    if line.search is not None and line.sweep is None:
        raise ConfigError(
            "search", line.search, "needs sweep=<folder>, where the same command goes on"
        )
    root = Path(os.path.abspath(expanded(hydra_compose.setting(common, SWEEP_DIR))))
    combinations = [] if line.search else hydra_compose.sweep(overrides)
    with named(SWEEP_DIR if line.sweep is None else "sweep"):
        if line.cfg is not None:
            for job in _check_jobs(hydra, combinations, root, existing, 1):
                ending = f"has {how_ended(job.folder)}" if job.action == "leave" else ""
                print(printable(f"{job.folder}: {job.label}: {ending or DOES[job.action]}"))
            return 0
        if not str(OmegaConf.select(common, "hydra.launcher._target_")).endswith(".BasicLauncher"):
            if line.jobs or line.search:
                word = "jobs" if line.jobs else "search"
                raise ConfigError(
                    word, line.jobs or line.search, "goes with Hydra's basic launcher alone"
                )
            jobs = _check_jobs(hydra, combinations, root, existing, 1)
            return _run_with_hydra(hydra, overrides, jobs, root, existing)
        at_once = min(line.jobs or 1, len(set(map(tuple, combinations))) or hydra_compose.MOST_JOBS)
        files = [] if line.config_dir is None else ["--config-dir", line.config_dir]

        def run(combinations: Jobs) -> tuple[list[Job], int]:
            jobs = _check_jobs(
                hydra, combinations, root, existing, at_once, are_trials=line.search is not None
            )
            for job in jobs:
                # Another score would lead to other trials.
                if line.search and existing != "restart" and how_ended(job.folder) == "failed":
                    job.action = "leave"
            make(root)
            return jobs, Runs(
                jobs, [sys.executable, "-m", "a3c_exp", *files], existing, at_once
            ).run()

        with environment({RUNS_AT_ONCE: str(at_once)}):
            if line.search is None:
                jobs, code = run(combinations)
                say_comparison(jobs)
                return code
            return search(hydra, overrides, line.search, at_once, line.objective or "best", run)


def _check_jobs(
    hydra: Any,
    combinations: Jobs,
    root: Path,
    existing: str,
    at_once: int,
    are_trials: bool = False,
) -> list[Job]:
    """Compose and check every job. Raises ConfigError for the first that cannot run, or not in its
    folder.

    A job whose configuration is that of an earlier one is left out, with a line, but no trial of a
    search is. A run of the same configuration in the sweep's folder is the job's, whatever its
    name: that of an earlier command, in which other settings differed.
    """
    typed = [
        [text for text in job if not text.startswith(("hydra.", "hydra/"))] for job in combinations
    ]
    names = folder_names(typed)
    differences = labels(typed)
    jobs: dict[tuple[str, str], Job] = {}
    made: Made = []
    saved = saved_runs(root)
    most_workers = 0
    alone = False
    for number, node in enumerate(hydra_compose.compose_jobs(hydra, combinations)):
        config = hydra_compose.to_container(node)
        subdir = hydra_compose.setting(node, "hydra.sweep.subdir")
        what = f"{identity(config)} {config.get('plugins')}", subdir if are_trials else ""
        if what in jobs:
            say(f"given twice, run once: {' '.join(typed[number])}")
            continue
        found = None if subdir else saved.get(identity(config))
        folder = found or Path(os.path.abspath(root / (subdir or names[number])))
        if folder in [job.folder for job in jobs.values()]:
            problem = "is the folder of two runs: add ${hydra.job.num} to it"
            raise ConfigError("hydra.sweep.subdir", folder.name, problem)
        require(
            folder.parent == root,
            "hydra.sweep.subdir",
            subdir,
            "the name of one folder, in the sweep's",
        )
        if not Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(root)):
            raise FolderError(folder, "is a link that leads out of the sweep's folder")
        final, experiment = load_final(config, made=made, begins=begins(folder, existing))
        action = find_action(folder, final, existing)
        most_workers = max(most_workers, experiment.worker_count)
        alone = alone or (config.get("workers") == "auto" and experiment.worker_count == 1)
        overrides = [
            *combinations[number],
            f"hydra.job.num={number}",
            f"hydra.run.dir={quoted(str(folder))}",
        ]
        label = differences[number] or f"seed={experiment.seed}"
        jobs[what] = Job(number, overrides, folder, label, action)
    if at_once > 1 and at_once * most_workers > usable_cores():
        say(
            f"warning: {at_once} runs at once, of up to {most_workers} workers each, "
            f"share {usable_cores()} cores"
        )
    elif at_once > 1 and alone:
        say(
            f"warning: {at_once} runs at once on {usable_cores()} cores leave each run one "
            "worker; jobs=1 does not"
        )
    return list(jobs.values())


def _run_with_hydra(
    hydra: Any, overrides: Sequence[Override], jobs: Sequence[Job], root: Path, existing: str
) -> int:
    """Have Hydra run a sweep with its launcher, whose lines and exit codes are its own."""
    check_places(root, "multirun.yaml", ".submitit")
    listed = root / "multirun.yaml"
    if listed.exists() and not begins_with(listed, "hydra:"):
        raise FolderError(root, f"has a file that Hydra would replace: {listed.name}")
    # Hydra's numbers of jobs change with the values that are added to a sweep, so it is not to name
    # their folders.
    words = [
        *hydra_compose.for_hydra(hydra, overrides),
        f"{SWEEP_DIR}={quoted(str(root))}",
        "hydra.sweep.subdir=.",
    ]
    folders = {job.number: job.folder for job in jobs}
    hydra.multirun(hydra_compose.CONFIG_NAME, partial(hydra_job, existing, folders), words)
    return 0


def hydra_job(existing: str, folders: Mapping[int, Path], node: DictConfig) -> None:
    """A job as Hydra's launchers call it.

    folders: of the jobs, by their numbers; one that is not among them has the configuration of an
    earlier one.
    Raises RunError for a run that failed, and KeyboardInterrupt for one that was interrupted.
    """
    hydra = HydraConfig.get()
    if hydra.job.num not in folders:
        return
    overrides = [text.removeprefix("++") for text in hydra.overrides.task]
    config = hydra_compose.job_config()
    folder = folders[hydra.job.num]
    plan = Plan(config=config, folder=folder, existing=existing, overrides=overrides, label="")
    finished = execute(plan)
    if finished is not None and finished.summary["signal"] is not None:
        raise KeyboardInterrupt(finished.exit_code)  # ends the sweep too
    if finished is not None and finished.exit_code:
        raise RunError(f"{plan.folder}: {finished.summary['stop_reason']}")
    if finished is None and how_ended(folder) == "failed":
        raise RunError(f"{plan.folder}: has failed before")
