"""The one way into training: for a command, `resume=`, `from=`, `a3c_exp.train` and each job of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from a3c_exp.cli.existing import CONTINUE, Action, clear, find_action
from a3c_exp.cli.startup import prestart
from a3c_exp.common.reading import expanded
from a3c_exp.config.saved import read_config
from a3c_exp.errors import FolderError, named
from a3c_exp.run.files import exclusive_folder
from a3c_exp.run.run_folder import CONFIG_FILE, check_files, check_links, check_writable, config_text
from a3c_exp.run.session import Session

if TYPE_CHECKING:  # importing them takes seconds: they import torch
    from a3c_exp.core.experiment import Experiment
    from a3c_exp.networks import ActorCritic
    from a3c_exp.run.trainer import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A run as somebody asks for it.

    config: composed, plain, and not checked yet.
    folder: of the run.
    existing: what becomes of a run that is there already: see `cli.existing`.
    key: the setting that names the folder, for errors.
    trusted: of a configuration from a run's folder, the settings that may act beyond it; None: it is the user's own.
    session: what else its caller decides.
    """

    config: Mapping[str, Any]
    folder: Path
    existing: str = "refuse"
    key: str = "folder"
    trusted: Sequence[str] | None = None
    session: Session = field(default_factory=Session)

    def __post_init__(self) -> None:
        # A program, or an environment, may change the current folder later.
        object.__setattr__(self, "folder", expanded(self.folder).absolute())


class Checked(NamedTuple):
    """What a plan comes to: the final configuration, and the experiment that it describes."""

    config: dict[str, Any]
    experiment: Experiment


def check(plan: Plan, made: dict[str, ActorCritic] | None = None) -> Checked:
    """Raise ConfigError for a plan that cannot be executed. Changes nothing.

    made: see `load_experiment`.
    """
    import a3c_exp.run.trainer  # noqa: F401  # needed next
    from a3c_exp.config.builder import load_experiment, resolve

    config = resolve(plan.config, trusted=plan.trusted)
    # A run that goes on took its first parameters long ago: their run may be gone.
    needed = config | {"init_from": None} if plan.existing == CONTINUE else config
    experiment = load_experiment(needed, made=made, trusted=plan.trusted)
    config_text(config)  # which it is saved as
    with named(plan.key):
        _check_folder(plan)
    return Checked(config, experiment)


def execute(plan: Plan, checked: Checked | None = None) -> Run | None:
    """Train as planned; return the run, or None if the folder holds a finished one, which stays as it is.

    checked: what `check` has returned; None: it is called here. Raises ConfigError, and FolderLockedError if another
    process trains in the folder. Then nothing has been written.
    """
    if checked is None:
        prestart(plan.config)  # the fork server imports torch while this process does
        checked = check(plan)
    config, experiment = checked
    from a3c_exp.config.builder import load_experiment, resolve
    from a3c_exp.run.trainer import run

    with ExitStack() as stack, named(plan.key):
        if plan.existing != CONTINUE:
            make(plan.folder)
        stack.enter_context(exclusive_folder(plan.folder))
        action = _check_folder(plan)  # again: another process may have written there meanwhile
        if action is Action.LEAVE:
            return None
        if action is Action.BEGIN and (plan.folder / CONFIG_FILE).exists():
            clear(plan.folder, keep_log=plan.existing == "resume")
        if action is Action.RESUME and plan.existing == "resume":  # with what its settings stood for when it began
            config = resolve(read_config(plan.folder, config["plugins"]))
            experiment = load_experiment(config, check=False)
        return run(experiment, config, plan.folder, action is Action.RESUME, plan.session)


def _check_folder(plan: Plan) -> Action:
    """What is to be done in the folder. Raises ConfigError if nothing can be."""
    check_links(plan.folder)
    check_files(plan.folder)
    action = find_action(plan.folder, plan.config, plan.existing)
    check_writable(plan.folder)
    return action


def make(folder: Path) -> None:
    """Make a run's folder. Raises FolderError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FolderError(folder, f"cannot be made: {error.strerror}") from error
