"""The command line: runs, sweeps, resumed runs, and flags that print.

A command that cannot run in full writes nothing, and its error is one line.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.types import RunMode
from omegaconf import DictConfig

from a3c_exp import __version__
from a3c_exp.cli import forked
from a3c_exp.cli.arguments import RUN_DIR, CommandLine, given, is_of_hydra, read_arguments
from a3c_exp.cli.execute import Plan, RunBy, directly, execute, prestart
from a3c_exp.cli.existing import CONTINUE, how_ended
from a3c_exp.cli.hydra_compose import composed, setting, to_container
from a3c_exp.cli.hydra_overrides import parse, search_path, sweep
from a3c_exp.cli.hydra_session import HydraSession, hydra_session, isolated
from a3c_exp.cli.launch import print_by_hydra, prints, run_hydra, without_hydras_line
from a3c_exp.cli.resume import saved_plan
from a3c_exp.cli.startup import LABEL, import_training
from a3c_exp.common.reading import expanded
from a3c_exp.common.settings import quoted
from a3c_exp.config.saved import of_saved_run
from a3c_exp.core.cpu import environment
from a3c_exp.errors import ConfigError, RunError, printable, require, say
from a3c_exp.exit_codes import ExitCode
from a3c_exp.run.run_folder import config_text

if TYPE_CHECKING:  # importing it takes seconds: it imports torch
    from a3c_exp.run.session import Run


MANY_RUNS = 20
"""From so many runs on, the checks of a sweep take seconds, and a line says that they are made."""


class FailedRunError(RunError):
    """A run has failed or was interrupted, and has said so: Hydra counts its job as failed."""


def run_command(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code. Raises ConfigError, and RunError if a run of a
    launcher failed."""
    if "--version" in arguments:
        print(f"a3c_exp {__version__}")
        return ExitCode.DONE

    line = read_arguments(arguments)
    if line.saved is not None:
        has_its_env = given(line.overrides, "env") is given(line.overrides, "env.id") is None
        with of_saved_run() if has_its_env else nullcontext():
            return _run(saved_plan(*line.saved, line), line)

    flags = line.flags
    with hydra_session(
        flags.config_dir, flags.config_path, flags.config_name, search_path(line.overrides)
    ) as session:
        if prints(flags):
            return print_by_hydra(session, line)

        if line.is_sweep:
            return _sweep(session, line)

        run = composed(session, line.overrides)
        if run.node.hydra.mode == RunMode.MULTIRUN:  # by a file
            return _sweep(session, line)

        plan = _plan(run.node, line)
        with environment(plan.variables):
            return _run(plan, line, partial(_by_hydra, line, run.words))


def _sweep(session: HydraSession, line: CommandLine) -> int:
    with suppress(ConfigError):  # which the sweep raises, unless a sweeper of Hydra's allows it
        count = len(sweep(parse(line.overrides, session.loader)))
        if count >= MANY_RUNS:
            say(f"{count} runs are composed and checked first")
    if line.flags.cfg is None and given(line.overrides, "hydra/launcher") in (None, "processes"):
        forked.start_server()
    import_training()  # every run of it is checked here
    from a3c_exp.cli.sweep import run_sweep

    return run_sweep(session, line)


def _plan(node: DictConfig, line: CommandLine) -> Plan:
    """The run that a command describes. Raises ConfigError."""
    folder = setting(node, RUN_DIR)
    require(bool(folder), RUN_DIR, folder, "the name of a folder; . for this one")
    return Plan(
        config=to_container(node),
        folder=None if folder == "auto" else folder,
        existing=line.existing or "refuse",
        key=RUN_DIR,
        overrides=[text for text in line.overrides if not is_of_hydra(text)],
        label=os.environ.pop(LABEL, None),  # only a sweep gives one
        variables=setting(node, "hydra.job.env_set"),
        changes_folder=bool(setting(node, "hydra.job.chdir")),
    )


def _run(plan: Plan, line: CommandLine, run: RunBy = directly) -> int:
    """Train as planned, or print the configuration; return the exit code. Raises ConfigError."""
    if line.flags.cfg is not None:
        from a3c_exp.config.builder import build_experiment

        build_experiment(plan.config)
        print(printable(config_text(plan.config)), end="")
        return ExitCode.DONE

    prestart(plan)  # the fork server imports torch while this process does
    import_training()
    finished = execute(plan, run)
    if finished is not None:
        return finished.exit_code

    assert plan.folder is not None
    ending = how_ended(expanded(plan.folder))
    hint = ": a larger total_steps, or null for its stop rule, goes on"
    say(f"{plan.folder}: has {ending}{hint if plan.existing == CONTINUE else ' before'}")
    return ExitCode.FAILED if ending == "failed" else ExitCode.DONE


def _by_hydra(
    line: CommandLine, words: Sequence[str], folder: Path, train: Callable[[], Run]
) -> Run:
    """Have Hydra call `train`, in a folder that has its final name."""
    runs: list[Run] = []

    def task(node: object) -> None:
        try:
            with isolated():  # an environment may compose by itself
                runs.append(train())
        finally:
            stderr.enter_context(without_hydras_line())
        if runs[0].exit_code:
            raise FailedRunError(str(folder))

    settings = [word for word in words if not word.lstrip("+").startswith(f"{RUN_DIR}=")]
    with ExitStack() as stderr, suppress(FailedRunError):
        run_hydra(line.flags, [*settings, f"{RUN_DIR}={quoted(str(folder))}"], task)

    if not runs:
        raise RunError(f"{folder}: Hydra has ended before its job has begun")

    return runs[0]
