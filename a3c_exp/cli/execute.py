"""The one way into training: for a command, `resume=`, `from=`, `a3c_exp.train` and each job of a
sweep."""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from a3c_exp.backends import forkserver
from a3c_exp.cli.existing import begins, clear, find_action
from a3c_exp.cli.names import run_name
from a3c_exp.common.reading import check_plain, expanded
from a3c_exp.config.saved import read_config
from a3c_exp.errors import ConfigError, FolderError, RunError, named, refused
from a3c_exp.run.files import exclusive_folder, log
from a3c_exp.run.run_folder import config_text

if TYPE_CHECKING:  # importing them takes seconds: they import torch
    from a3c_exp.core.callback import Callback
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
    key: the setting that names the folder, for errors.
    trusted: of a configuration from a run's folder, the settings that may act beyond it; None: it
        is the user's own.
    callbacks: of a program, besides those of the configuration.
    overrides: those of this run alone. label: see `session`.
    """

    config: Mapping[str, Any]
    folder: str | Path | None
    existing: str = "refuse"
    key: str = "folder"
    trusted: Sequence[str] | None = None
    callbacks: Sequence[Callback] = ()
    overrides: Sequence[str] = ()
    label: str | None = None


def execute(plan: Plan) -> Run | None:
    """Train as planned; return the run, or None if the folder holds a finished one, which stays as
    it is.

    Raises ConfigError, and FolderLockedError if another process trains in the folder. Then nothing
    has been written.
    """
    prestart(plan.config.get("backend"))
    from a3c_exp.config.builder import load_final
    from a3c_exp.run.session import session

    # An absolute path: a program, or an environment, may change the current folder later.
    place = expanded("outputs" if plan.folder is None else plan.folder).absolute()
    new = plan.folder is None or begins(place, plan.existing)
    config, experiment = load_final(plan.config, begins=new, trusted=plan.trusted)
    known: list[dict[str, Any]] = []
    if plan.callbacks:
        with refused(
            "callbacks",
            ", ".join(type(each).__name__ for each in plan.callbacks),
            "a run copies them",
        ):
            copies = copy.deepcopy(tuple(plan.callbacks))  # together: they may share an object
        experiment = replace(experiment, callbacks=(*experiment.callbacks, *copies))
        # not of a script
        known = [recorded(each) for each in copies if type(each).__module__ != "__main__"]
        config["callbacks"] = [*config.get("callbacks", ()), *known]
    config_text(config)  # which it is saved as
    with ExitStack() as stack, named(plan.key):
        folder = make_new(place / run_name(config)) if plan.folder is None else place
        make(folder)
        stack.enter_context(exclusive_folder(folder))
        action = find_action(folder, config, plan.existing)
        if action == "leave":
            return None
        resumes = action == "resume"
        make_room = partial(clear, folder, keep_log=plan.existing == "resume")
        if resumes and plan.existing == "resume":  # with what its settings stood for when it began
            config, experiment = load_final(read_config(folder, config["plugins"]), check=False)
        try:
            with session(
                experiment, config, folder, resumes, plan.overrides, plan.label, make_room
            ) as opened:
                if len(known) < len(plan.callbacks):
                    log.warning(
                        "callbacks of a script are not in config.yaml: "
                        "a resumed run is given them again"
                    )
                return opened.run()
        finally:
            with suppress(OSError):  # it has been made for a run that has written nothing
                folder.rmdir()


_training = threading.Lock()


@contextmanager
def alone() -> Iterator[None]:
    """Within: no other run of a program's own trains in this process. Raises RunError if one does
    already."""
    if not _training.acquire(blocking=False):
        raise RunError("a run trains in this process already: each needs a process of its own")
    try:
        yield
    finally:
        _training.release()


def prestart(backend: object) -> None:
    """Start the fork server if a backend's settings are those of one that uses it: it imports torch
    while this process does. Errors are left to the checks."""
    if isinstance(backend, Mapping) and backend.get("_target_") in FORKSERVER_BACKENDS:
        with suppress(ConfigError):
            forkserver.ensure_running()


def recorded(callback: Callback) -> dict[str, Any]:
    """A callback as config.yaml has it: its class, and its settings if all of them are plain."""
    settings = {each.name: getattr(callback, each.name) for each in fields(callback) if each.init}
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
        place = folder if number == 1 else folder.with_name(f"{folder.name}_{number}")
        with suppress(FileExistsError):
            make(place, exist_ok=False)
            break
    return place


def make(folder: Path, *, exist_ok: bool = True) -> None:
    """Make a folder. Raises FolderError, and FileExistsError without `exist_ok`."""
    try:
        folder.mkdir(parents=True, exist_ok=exist_ok)
    except OSError as error:
        if isinstance(error, FileExistsError) and not exist_ok:
            raise
        raise FolderError(folder, f"cannot be made: {error.strerror}") from error
