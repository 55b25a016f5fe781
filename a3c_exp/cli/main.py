"""The command line: runs, sweeps, resumed runs, and Hydra's own flags.

Every job of a command is composed and checked before Hydra runs the first one and makes its folder. A command that
cannot run in full writes nothing, and its error is one line.
"""

from __future__ import annotations

import io
import os
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any, NoReturn

from hydra._internal.callbacks import Callbacks
from hydra._internal.utils import get_args_parser
from hydra.core.utils import JobStatus, run_job
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from a3c_exp import __version__
from a3c_exp.cli.execute import Plan, check, execute, make
from a3c_exp.cli.existing import CONTINUE
from a3c_exp.cli.hydra_compose import CONFIG_NAME, compose_node, for_hydra, hydra_session, setting, to_container
from a3c_exp.cli.processes import say
from a3c_exp.cli.resume import saved_config
from a3c_exp.cli.startup import LABEL, conf_folder, prestart
from a3c_exp.cli.sweep import run_sweep
from a3c_exp.cli.words import Words, split_words
from a3c_exp.common.reading import expanded
from a3c_exp.errors import ConfigError, named, printable
from a3c_exp.run import provenance
from a3c_exp.run.run_folder import read_summary
from a3c_exp.run.session import Session

if TYPE_CHECKING:  # importing it takes seconds: it imports torch
    from a3c_exp.run.trainer import Run


def command(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code. Raises ConfigError, and RunError if a sweeper's run failed."""

    def refuse(message: str) -> NoReturn:
        raise ConfigError("command line", " ".join(arguments), message)

    parser = get_args_parser()
    parser.error = refuse  # type: ignore[method-assign]
    if "--version" in arguments:
        print(f"a3c_exp {__version__}")
        return 0
    flags = parser.parse_intermixed_args(arguments)  # -m may stand anywhere
    if flags.experimental_rerun is not None:
        raise ConfigError("--experimental-rerun", flags.experimental_rerun, "is refused: it runs what a file holds")
    if flags.shell_completion:
        raise ConfigError("--shell-completion", True, "is refused: it would be installed for every `python` command")
    words, flags.overrides = split_words(flags.overrides)
    if (words.resume is not None or words.source is not None) and not flags.help:
        return _run_saved(flags, words)
    name = flags.config_name or CONFIG_NAME
    if flags.config_dir is not None and name == CONFIG_NAME and Path(flags.config_dir, f"{name}.yaml").exists():
        problem = f"has a {name}.yaml, which would not be read: from={flags.config_dir} runs that of a run's folder"
        raise ConfigError("--config-dir", flags.config_dir, problem)
    with hydra_session(flags.config_dir, flags.config_path) as hydra:
        if flags.help:
            print(help_text(hydra))
        elif flags.hydra_help or flags.cfg or flags.info:
            if flags.multirun:
                raise ConfigError("-m", True, "cannot go with flags that show one run: give single values")
            show_config(hydra, name, flags, parser)
        elif flags.multirun or words.of_a_sweep or "hydra.mode=MULTIRUN" in flags.overrides:
            return run_sweep(hydra, name, flags, words)
        else:
            return _run_one(hydra, name, flags.overrides, words.existing or "refuse", provenance.command())
    return 0


def _run_one(hydra: Any, name: str, overrides: list[str], existing: str, typed: str) -> int:
    """A run of a composed configuration, in Hydra's job: its log, its callbacks, its current folder."""
    node = compose_node(hydra, overrides, name)
    if node.hydra.mode == RunMode.MULTIRUN:
        raise ConfigError("hydra.mode", "MULTIRUN", "does nothing in a file: -m makes a sweep")
    folder = setting(node.hydra.run, "hydra.run.dir")
    if not folder:
        raise ConfigError("hydra.run.dir", folder, "must be the name of a folder; . for this one")
    label = os.environ.pop(LABEL, None)
    own = [text for text in overrides if not re.match(r"\+*hydra\b", text)]
    config, place = to_container(node), expanded(folder).absolute()
    sweep = None if label is None else place.parent.name
    session = Session(command=typed, label=label or "", overrides=own, sweep=sweep)
    plan = Plan(config=config, folder=place, existing=existing, key="hydra.run.dir", session=session)
    prestart(plan.config.get("backend"))  # it imports torch while this process does
    checked = check(plan)
    with open_dict(node):
        node.hydra.mode = RunMode.RUN
    context = HydraContext(config_loader=hydra.config_loader, callbacks=Callbacks(node))
    context.callbacks.on_run_start(config=node, config_name=name)
    with named(plan.key):
        make(plan.folder)
    job = run_job(lambda node: execute(plan, checked), node, "hydra.run.dir", None, context)
    context.callbacks.on_run_end(config=node, config_name=name, job_return=job)
    if job.status != JobStatus.COMPLETED:
        raise job._return_value
    finished: Run | None = job.return_value
    if finished is None:
        say(f"{folder}: has finished before")
        return 0
    return finished.exit_code


def _run_saved(flags: Namespace, words: Words) -> int:
    """A run with the configuration in a run's folder: the same run (`resume`), or a new one (`from`)."""
    resume = words.resume is not None
    word, folder = ("resume", words.resume) if resume else ("from", words.source)
    assert folder is not None
    if resume and words.source is not None:
        raise ConfigError("from", words.source, "cannot go with resume: a run is one or the other")
    if words.of_a_sweep or words.existing is not None:
        raise ConfigError(word, folder, "cannot go with sweep, jobs or existing")
    if flags.multirun:
        raise ConfigError(word, folder, "cannot go with -m: it is one run")
    if flags.hydra_help or flags.info:
        raise ConfigError(word, folder, "goes with --cfg job or nothing: the run is not composed again")
    saved = saved_config(folder, flags.overrides, resume=resume, config_dir=flags.config_dir)
    if flags.cfg:
        _check_settings(saved.config)
        print(printable(OmegaConf.to_yaml(OmegaConf.create(saved.config))), end="")
        return 0
    place = expanded(folder if resume else saved.folder).absolute()
    plan = Plan(
        config=saved.config,
        folder=place,
        existing=CONTINUE if resume else "refuse",
        key="resume" if resume else "hydra.run.dir",
        trusted=saved.trusted,
        session=Session(overrides=flags.overrides),
    )
    finished = execute(plan)
    if finished is None:
        reason = (read_summary(place) or {})["stop_reason"]
        way = "a larger total_steps goes on" if reason == "total_steps" else f"stop.{reason}=null goes on past it"
        say(f"{place}: has finished: {way}")
        return 0
    return finished.exit_code


def _check_settings(config: dict[str, Any]) -> None:
    """Raise ConfigError for unknown keys and wrong values."""
    from a3c_exp.config.builder import build_experiment

    build_experiment(config)


def show_config(hydra: Any, name: str, flags: Namespace, parser: ArgumentParser) -> None:
    """Print what Hydra's own flags ask for: the composed configuration, how it was found, Hydra's help."""
    node = compose_node(hydra, flags.overrides, name)
    _check_settings(to_container(node))  # Hydra's errors have many lines
    with redirect_stdout(io.StringIO()) as text:
        if flags.hydra_help:
            hydra.hydra_help(config_name=name, args_parser=parser, args=flags)
        elif flags.cfg:
            _show_composed(hydra.get_sanitized_cfg(node, flags.cfg), flags.package, flags.resolve)
        else:
            hydra.show_info(flags.info, config_name=name, overrides=for_hydra(hydra, flags.overrides))
    print(printable(text.getvalue()), end="")


def _show_composed(node: DictConfig, package: str | None, resolve: bool) -> None:
    whole = package in (None, "_global_")
    shown = node if whole else OmegaConf.select(node, str(package))
    if shown is None:
        raise ConfigError("--package", package, "is not in the configuration")
    if not OmegaConf.is_config(shown):
        print(shown)
        return
    if resolve:
        OmegaConf.resolve(shown)
    print("" if whole else f"# @package {package}\n", OmegaConf.to_yaml(shown), sep="", end="")


HELP = """\
a3c_exp: asynchronous actor-critic experiments

  python -m a3c_exp env=lunar workers=16                          train; the run's folder is made in outputs/
  python -m a3c_exp -m returns=n_step,n_step_zero seed=0,1,2      a run for each combination
  python -m a3c_exp sweep=outputs/<sweep> jobs=4 seed=0,1,2       4 runs at once; the same command again goes on
  python -m a3c_exp resume=outputs/<run> total_steps=2e6          continue from the last checkpoint
  python -m a3c_exp from=outputs/<run> seed=1                     a new run with the settings of another
  python -m a3c_exp.evaluate outputs/<run> video=true             play with the trained policy
  python -m a3c_exp.report outputs/<sweep>                        tables and learning curves of many runs
  python -m a3c_exp.export outputs/<run>                          write the policy as an ONNX file
  tensorboard --logdir outputs                                    curves

Choices (group=option; the files are in {conf}):
{groups}

Settings inside a choice are set with a dot: returns.n=5 optimizer.learning_rate=1e-3 network.hidden_sizes=[32]

Settings of the whole run, with their defaults (some environments set their own):
{settings}

  --cfg job   print what a command is composed to, and run nothing
  -m          run each combination of values that are given with commas
  sweep=<folder>   the same, in this folder: finished runs stay, runs that were cut go on, the others begin
  jobs=<n>    so many runs of a sweep at once
  existing=refuse|resume|restart   what becomes of runs that are there already
  hydra.run.dir=<folder>   write the run there
"""


def help_text(hydra: Any) -> str:
    """The text of --help: the options of each group, as found on disk, and the settings of conf/config.yaml."""
    loader = hydra.config_loader
    groups = [group for group in loader.list_groups("") if group != "hydra"]
    options = "\n".join(f"  {group:15} {', '.join(loader.get_group_options(group))}" for group in sorted(groups))
    text = (conf_folder() / f"{CONFIG_NAME}.yaml").read_text()
    settings = text[text.index("\n\n") : text.index("\nhydra:")].strip()
    return HELP.format(conf=conf_folder(), groups=options, settings=indent(settings, "  "))
