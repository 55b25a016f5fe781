"""The one way into training: for a command, `resume=`, `from=`, `a3c_exp.train` and each job of a
sweep."""

from __future__ import annotations

import copy
import itertools
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from a3c_exp.backends import forkserver
from a3c_exp.cli.existing import Action, clear, find_action
from a3c_exp.cli.names import plain_words
from a3c_exp.common.log import log
from a3c_exp.common.reading import check_plain, expanded
from a3c_exp.config.saved import read_config
from a3c_exp.errors import ConfigError, FolderError, RunError, named, refused
from a3c_exp.run.files import exclusive_folder
from a3c_exp.run.run_folder import config_text, environment_of

if TYPE_CHECKING:  # importing them takes seconds: they import torch
    from a3c_exp.core.experiment import Built, Experiment
    from a3c_exp.core.run_view import Callback
    from a3c_exp.run.session import Run

FORKSERVER_BACKENDS = ("a3c_exp.backends.processes.Processes", "a3c_exp.backends.ga3c.Ga3c")
"""Backends whose processes are forked from a server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A run as somebody asks for it.

    config: composed, plain, and not checked yet.
    folder: of the run. None: a new one in outputs/, with the first free name of name, name_2 and so
        on.
    existing: what becomes of a run that is there already: see `cli.existing`.
    earlier: the configuration of the run that continues, if it has been read.
    key: the setting that names the folder, for errors.
    callbacks: of a program, besides those of the configuration.
    overrides: those of this run alone. label: see `session`.
    variables: environment variables that Hydra sets for it. changes_folder: it trains in another
        current folder.
    """

    config: Mapping[str, Any]
    folder: str | Path | None
    existing: str = "refuse"
    earlier: Mapping[str, Any] | None = None
    key: str = "folder"
    callbacks: Sequence[Callback] = ()
    overrides: Sequence[str] = ()
    label: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    changes_folder: bool = False


RunBy = Callable[[Path, Callable[[], "Run"]], "Run"]
"""Calls what trains in a folder, which is locked, and returns its run."""


def directly(folder: Path, train: Callable[[], Run]) -> Run:
    """Train without anybody between."""
    return train()


def execute(plan: Plan, run: RunBy = directly) -> Run | None:
    """Train as planned; return the run, or None if the folder holds a finished one, which stays as
    it is.

    run: calls what trains, as Hydra does for a command.
    Raises ConfigError, and FolderLockedError if another process trains in the folder. Then nothing
    has been written.
    """
    prestart(plan)
    from a3c_exp.config.builder import check, check_start, load_final

    # An absolute path: a program, or an environment, may change the current folder later.
    folder = expanded("outputs" if plan.folder is None else plan.folder).absolute()
    config = plan.config
    earlier = plan.earlier
    action: Action = "begin"
    if plan.existing != "refuse":
        with named(plan.key):
            action = find_action(folder, config, plan.existing, earlier)

    if action == "leave":
        with named(plan.key), exclusive_folder(folder):  # no other process trains there
            return None

    if action == "resume" and earlier is None:
        earlier = read_config(folder, config["plugins"])
        config = earlier  # with what its settings stood for when it began

    config, experiment = load_final(config)
    built = check(experiment, draw=True)
    if action == "begin":
        check_start(experiment, config, built.network)

    if plan.callbacks:
        config, experiment = _with_callbacks(plan.callbacks, config, experiment)

    config_text(config)  # which it is saved as
    with _claimed(plan, folder, config) as folder, named(plan.key):
        action = find_action(folder, config, plan.existing, earlier)
        if action == "leave":
            return None

        if action == "begin":
            earlier = None
        elif earlier is None:  # the run was cut in this moment
            earlier = read_config(folder, config["plugins"])

        return run(folder, partial(_train, plan, folder, earlier, config, experiment, built))


def _train(
    plan: Plan,
    folder: Path,
    earlier: Mapping[str, Any] | None,
    config: Mapping[str, Any],
    experiment: Experiment,
    built: Built,
) -> Run:
    """Begin a run in a folder that is locked, or continue the one whose configuration `earlier` is.
    Raises FolderError."""
    from a3c_exp.run.session import session

    make_room = partial(clear, folder, keep_log=plan.existing == "resume")
    with session(
        experiment, built, config, folder, earlier, plan.overrides, plan.label, make_room
    ) as opened:
        if any(type(callback).__module__ == "__main__" for callback in plan.callbacks):
            log.warning(
                "callbacks of a script are not in config.yaml: a resumed run is given them again"
            )
        return opened.run()


@contextmanager
def _claimed(plan: Plan, folder: Path, config: Mapping[str, Any]) -> Iterator[Path]:
    """Make the folder of a run, and lock it. Afterwards it is gone if nothing is in it. Raises
    FolderError."""
    with named(plan.key):
        if plan.folder is None:
            folder = make_new(folder / run_name(config))
        make(folder)

    with exclusive_folder(folder):
        try:
            yield folder
        finally:
            with suppress(OSError):  # it has been made for a run that has written nothing
                folder.rmdir()


def run_name(config: Mapping[str, Any]) -> str:
    """The name of a new run's folder: cartpole_a3c_s0_2026-11-25_17-15-56. config: checked."""
    env = re.sub(r"-v\d+$", "", re.split("[/:.]", environment_of(config))[-1])
    algorithm = config["algorithm"]["_target_"].rpartition(".")[2]
    words = (env, algorithm, f"s{config.get('seed', 0)}", f"{datetime.now():%Y-%m-%d_%H-%M-%S}")
    return "_".join(map(plain_words, words)).lower()


def _with_callbacks(
    callbacks: Sequence[Callback], config: dict[str, Any], experiment: Experiment
) -> tuple[dict[str, Any], Experiment]:
    """The configuration and the experiment with a program's own callbacks, of which they have
    copies."""
    names = ", ".join(type(callback).__name__ for callback in callbacks)
    with refused("callbacks", names, "a run copies them"):
        copies = copy.deepcopy(tuple(callbacks))  # together: they may share an object

    experiment = replace(experiment, callbacks=(*experiment.callbacks, *copies))
    entries = [recorded(callback) for callback in copies if type(callback).__module__ != "__main__"]
    return {**config, "callbacks": [*config.get("callbacks", ()), *entries]}, experiment


_training = threading.Lock()


@contextmanager
def alone() -> Iterator[None]:
    """Let no other run of a program's own train in this process. Raises RunError if one does
    already."""
    if not _training.acquire(blocking=False):
        raise RunError("a run trains in this process already: each needs a process of its own")

    try:
        yield
    finally:
        _training.release()


def prestart(plan: Plan) -> None:
    """Start the fork server if a run's backend is one that uses it: it imports torch while this
    process does. Errors are left to the checks.

    The server would not see that the run changes its current folder.
    """
    backend = plan.config.get("backend")
    is_forked = isinstance(backend, Mapping) and backend.get("_target_") in FORKSERVER_BACKENDS
    if is_forked and not plan.changes_folder:
        with suppress(ConfigError):
            forkserver.ensure_running()


def recorded(callback: Callback) -> dict[str, Any]:
    """A callback as config.yaml has it: its class, and its settings if all of them are plain."""
    settings = {
        setting.name: getattr(callback, setting.name)
        for setting in fields(callback)
        if setting.init
    }
    try:
        check_plain(settings)
    except ConfigError as error:
        log.warning(
            "config.yaml has no settings of callback %s: %s", type(callback).__name__, error
        )
        settings = {}

    return {"_target_": f"{type(callback).__module__}.{type(callback).__qualname__}", **settings}


def make_new(folder: Path) -> Path:
    """Make a folder that was not there, `folder` or else the first free of folder_2, folder_3 and
    so on; return it.

    However many processes do so at once, each has its own. Raises FolderError.
    """
    make(folder.parent)
    for number in itertools.count(1):
        new = folder if number == 1 else folder.with_name(f"{folder.name}_{number}")
        with suppress(FileExistsError):
            make(new, exist_ok=False)
            break

    return new


def make(folder: Path, *, exist_ok: bool = True) -> None:
    """Make a folder. Raises FolderError, and FileExistsError without `exist_ok`."""
    try:
        folder.mkdir(parents=True, exist_ok=exist_ok)
    except OSError as error:
        if isinstance(error, FileExistsError) and not exist_ok:
            raise

        raise FolderError(folder, f"cannot be made: {error.strerror}") from error
