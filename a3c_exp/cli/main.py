"""The command line: runs, sweeps, resumed runs, and Hydra's own flags.

Every job of a command is composed and checked before Hydra runs the first one and makes its folder. A command that
cannot run in full writes nothing, and its error is one line.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any, NoReturn

from hydra._internal.callbacks import Callbacks
from hydra._internal.hydra import Hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobStatus, run_job
from hydra.types import HydraContext, RunMode
from hydra.utils import to_absolute_path
from omegaconf import DictConfig, OmegaConf, open_dict

from a3c_exp import __version__
from a3c_exp.cli.hydra_compose import CONFIG_NAME, compose_node, hydra_session, setting, sweep, to_container
from a3c_exp.cli.resume import copied_config, is_from, is_resume, resume_folder, resumed_config
from a3c_exp.cli.startup import conf_folder, importing, prestart
from a3c_exp.errors import ConfigError, RunError

if TYPE_CHECKING:  # importing it takes seconds: it imports torch
    from a3c_exp.core.experiment import Experiment


def command(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code. Raises ConfigError, and RunError for a sweep with a failed run."""

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
    if any(map(is_resume, flags.overrides)) and not flags.help:
        return _resume(flags)
    if any(map(is_from, flags.overrides)) and not flags.help:
        return _run_again(flags)
    name = flags.config_name or CONFIG_NAME
    with hydra_session(flags.config_dir, flags.config_path) as hydra:
        if flags.help:
            print(help_text(hydra))
        elif flags.hydra_help or flags.cfg or flags.info:
            show_config(hydra, name, flags, parser)
        elif flags.multirun or "hydra.mode=MULTIRUN" in flags.overrides:
            _run_sweep(hydra, name, flags.overrides)
        else:
            _run_one(hydra, name, flags.overrides)
    return 0


def _run_one(hydra: Hydra, name: str, overrides: list[str]) -> None:
    node = compose_node(hydra, overrides, name)
    folder = setting(node, "hydra.run.dir")
    if not folder:
        raise ConfigError("hydra.run.dir", folder, "must be the name of a folder; . for this one")
    _check(to_container(node), folder, "hydra.run.dir")
    with open_dict(node):
        node.hydra.mode = RunMode.RUN
    context = HydraContext(config_loader=hydra.config_loader, callbacks=Callbacks(node))
    context.callbacks.on_run_start(config=node, config_name=name)
    _make_folder(folder, "hydra.run.dir")
    job = run_job(_job, node, "hydra.run.dir", None, context)
    context.callbacks.on_run_end(config=node, config_name=name, job_return=job)
    if job.status != JobStatus.COMPLETED:
        raise job._return_value


def _make_folder(folder: str, key: str) -> None:
    """Make the folder that Hydra would make next. Raises ConfigError."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(key, folder, f"cannot be made: {error.strerror}") from error


def _run_sweep(hydra: Hydra, name: str, overrides: list[str]) -> None:
    nodes = [compose_node(hydra, job, name) for job in sweep(hydra, overrides, name)]
    if not nodes:
        raise ConfigError("command line", " ".join(overrides), "is a sweep without a run: one of its choices is empty")
    folders: set[str] = set()
    for number, node in enumerate(nodes):
        OmegaConf.copy_cache(nodes[0], node)  # all jobs have the same ${now:}
        with open_dict(node):
            node.hydra.job.num, node.hydra.job.id = number, str(number)
        subdir = setting(node, "hydra.sweep.subdir")
        folder = f"{setting(node, 'hydra.sweep.dir')}/{subdir}"
        if folder in folders:
            raise ConfigError("hydra.sweep.subdir", subdir, "is the folder of two runs: add ${hydra.job.num} to it")
        folders.add(folder)
        _check(to_container(node), folder, "hydra.sweep.dir")
    _make_folder(setting(nodes[0], "hydra.sweep.dir"), "hydra.sweep.dir")
    hydra.multirun(name, _job, [*overrides, "hydra.mode=MULTIRUN"])


def _job(node: DictConfig) -> float | None:
    """Train in the folder that Hydra has made for this job. Returns the score that a sweeper may maximise."""
    from a3c_exp.config.builder import load_experiment
    from a3c_exp.run.run_folder import check_folder
    from a3c_exp.run.trainer import run

    hydra, config = HydraConfig.get(), to_container(node)
    folder = check_folder(Path(hydra.runtime.output_dir), "hydra.run.dir")
    start = config.get("init_from")
    if hydra.job.chdir and start is not None:  # it was checked in the folder where the command was given
        config["init_from"] = to_absolute_path(str(Path(start).expanduser()))
    finished = run(load_experiment(config, check=False), config, folder)
    if finished.summary["signal"] is not None:
        raise KeyboardInterrupt(finished.exit_code)  # ends a sweep too
    if finished.exit_code:
        raise RunError(f"{folder}: {finished.summary['stop_reason']}")
    best: float | None = finished.summary["best_eval_return"]
    return best if best is not None else finished.summary["mean_return_100"]


def _resume(flags: Namespace) -> int:
    if flags.multirun:
        raise ConfigError("resume", resume_folder(flags.overrides), "cannot go with -m: it resumes one run")
    if flags.hydra_help or flags.info:
        problem = "goes with --cfg job or nothing: the run is not composed again"
        raise ConfigError("resume", resume_folder(flags.overrides), problem)
    config, folder = resumed_config(flags.overrides, flags.config_dir)
    if flags.cfg:
        _check_settings(config)
        print(OmegaConf.to_yaml(OmegaConf.create(config)), end="")
        return 0
    experiment = _check(config | {"init_from": None})  # its parameters were taken long ago: that run may be gone
    from a3c_exp.run.trainer import run

    return run(experiment, config, folder, resume=True).exit_code


def _run_again(flags: Namespace) -> int:
    """A new run with the configuration of another."""
    if flags.multirun or flags.hydra_help or flags.info:
        problem = "goes with --cfg job or nothing: it runs one saved configuration"
        raise ConfigError("from", resume_folder(flags.overrides, "from"), problem)
    config, folder = copied_config(flags.overrides, flags.config_dir)
    if flags.cfg:
        _check_settings(config)
        print(OmegaConf.to_yaml(OmegaConf.create(config)), end="")
        return 0
    experiment = _check(config, str(folder), "hydra.run.dir")
    from a3c_exp.run.trainer import run

    return run(experiment, config, folder.expanduser().absolute()).exit_code


def _check(config: dict[str, Any], folder: str | None = None, key: str = "folder") -> Experiment:
    """The experiment. Raises ConfigError if it cannot be run, or not in that folder.

    Starts the fork server first if the backend uses one: it imports torch while this process does.
    """
    prestart(config)
    with importing():
        import a3c_exp.run.trainer  # noqa: F401  # needed next
        from a3c_exp.config.builder import load_experiment
        from a3c_exp.run.run_folder import check_folder

        experiment = load_experiment(config)  # which imports environments, where a Ctrl-C could be swallowed too
    if folder is not None:
        check_folder(Path(folder), key)
    return experiment


def _check_settings(config: dict[str, Any]) -> None:
    """Raise ConfigError for unknown keys and wrong values."""
    with importing():
        from a3c_exp.config.builder import build_experiment

    build_experiment(config)


def show_config(hydra: Hydra, name: str, flags: Namespace, parser: ArgumentParser) -> None:
    """Print what Hydra's own flags ask for: the composed configuration, how it was found, Hydra's help."""
    _check_settings(to_container(compose_node(hydra, flags.overrides, name)))  # Hydra's errors have many lines
    if flags.hydra_help:
        hydra.hydra_help(config_name=name, args_parser=parser, args=flags)
    elif flags.cfg:
        hydra.show_cfg(name, flags.overrides, flags.cfg, flags.package, flags.resolve)
    else:
        hydra.show_info(flags.info, config_name=name, overrides=flags.overrides)


HELP = """\
a3c_exp: asynchronous actor-critic experiments

  python -m a3c_exp env=lunar workers=16                          train; the run's folder is made in outputs/
  python -m a3c_exp -m returns=n_step,n_step_zero seed=0,1,2      a run for each combination
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
  hydra.run.dir=<folder>   write the run there
"""


def help_text(hydra: Hydra) -> str:
    """The text of --help: the options of each group, as found on disk, and the settings of conf/config.yaml."""
    loader = hydra.config_loader
    groups = [group for group in loader.list_groups("") if group != "hydra"]
    options = "\n".join(f"  {group:15} {', '.join(loader.get_group_options(group))}" for group in sorted(groups))
    text = (conf_folder() / f"{CONFIG_NAME}.yaml").read_text()
    settings = text[text.index("\n\n") : text.index("\nhydra:")].strip()
    return HELP.format(conf=conf_folder(), groups=options, settings=indent(settings, "  "))
