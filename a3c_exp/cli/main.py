"""The command line: runs, sweeps, resumed runs, and flags that print.

A command that cannot run in full writes nothing, and its error is one line.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from textwrap import indent
from typing import Any

from omegaconf import OmegaConf

from a3c_exp import __version__
from a3c_exp.cli.arguments import CommandLine, read_arguments
from a3c_exp.cli.execute import Plan, execute
from a3c_exp.cli.existing import CONTINUE
from a3c_exp.cli.hydra_compose import CONFIG_NAME, compose_node, hydra_session, setting, to_container
from a3c_exp.cli.processes import say
from a3c_exp.cli.resume import saved_plan
from a3c_exp.cli.startup import LABEL, conf_folder
from a3c_exp.cli.sweep import run_sweep
from a3c_exp.common.reading import expanded
from a3c_exp.errors import ConfigError, printable
from a3c_exp.run.run_folder import read_summary
from a3c_exp.run.session import Session


def command(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code. Raises ConfigError, and RunError if a sweeper's run failed."""
    if "--version" in arguments:
        print(f"a3c_exp {__version__}")
        return 0
    line = read_arguments(arguments)
    if line.help or (line.resume is None and line.source is None):
        with hydra_session(line.config_dir) as hydra:
            if line.help:
                print(help_text(hydra))
                return 0
            if line.is_sweep:
                return run_sweep(hydra, line)
            plan = _composed_plan(hydra, line)
    else:
        plan = saved_plan(line)
    if line.cfg is not None:
        from a3c_exp.config.builder import build_experiment

        build_experiment(plan.config)
        print(printable(OmegaConf.to_yaml(OmegaConf.create(dict(plan.config)))), end="")
        return 0
    finished = execute(plan)
    if finished is not None:
        return finished.exit_code
    say(f"{plan.folder}: has finished{_way_on(plan)}")
    return 0


def _composed_plan(hydra: Any, line: CommandLine) -> Plan:
    """A run of a composed configuration."""
    node = compose_node(hydra, line.overrides)
    folder = setting(node.hydra.run, "hydra.run.dir")
    if not folder:
        raise ConfigError("hydra.run.dir", folder, "must be the name of a folder; . for this one")
    place, label = expanded(folder).absolute(), os.environ.pop(LABEL, None)
    own = [text for text in line.overrides if not text.lstrip("+").startswith(("hydra.", "hydra/"))]
    return Plan(
        config=to_container(node),
        folder=place,
        existing=line.existing or "refuse",
        key="hydra.run.dir",
        session=Session(label=label or "", overrides=own, sweep=None if label is None else place.parent.name),
    )


def _way_on(plan: Plan) -> str:
    """What lets a finished run go on, for one that was asked to: "; a larger total_steps goes on"."""
    if plan.existing != CONTINUE:
        return " before"
    reason = (read_summary(plan.folder) or {})["stop_reason"]
    return f": {'a larger total_steps goes on' if reason == 'total_steps' else f'stop.{reason}=null goes on past it'}"


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
  search=<n>  so many trials, whose settings are chosen by the scores of earlier ones; objective=best|last|<curve>
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
