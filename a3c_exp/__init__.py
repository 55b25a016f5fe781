"""a3c_exp: asynchronous actor-critic experiments, composed from small YAML files.

From Python:

    run = a3c_exp.train(["env=cartpole", "seed=1"])       # the folder, the summary
    run.evaluate(episodes=100, video=True)
    action = run.load_policy().act(observation)

From the command line: `python -m a3c_exp --help`. For readers of the code: docs/design.md says what
each file does.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from a3c_exp.errors import ConfigError, RunError, named, texts
from a3c_exp.exit_codes import ExitCode

if TYPE_CHECKING:
    from a3c_exp.core.run_view import Callback
    from a3c_exp.run.policy import Policy
    from a3c_exp.saved_run import SavedRun

__version__ = "0.1.0"
__all__ = ["ConfigError", "RunError", "__version__", "compose", "load", "open_run", "train"]


_ALGORITHMS = {"A2C": "a3c", "A3C": "a3c", "PPO": "ppo"}
"""Names of classes in other libraries, which are settings here."""


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # which finds such names by itself

    def __getattr__(name: str) -> NoReturn:
        """Raise AttributeError, with the call that is meant by a name of another library's."""
        meant = ""
        if name in _ALGORITHMS:
            meant = f': a3c_exp.train(["algorithm={_ALGORITHMS[name]}", "env=cartpole"]) trains it'
        raise AttributeError(f"a3c_exp has no {name!r}{meant}", name=name)


def _require_packages() -> None:
    """End `python -m a3c_exp` in one line where its packages are missing: they are not in the
    Python of the system if `make` has installed them into .venv."""
    is_command = sys.argv[:1] == ["-m"]  # of Python, while it looks for the module
    if not is_command or importlib.util.find_spec("hydra") is not None:
        return
    python = Path(__file__).resolve().parents[1] / ".venv" / "bin" / "python"
    remedy = "install a3c_exp (docs/install.md)"
    if python.exists():
        activate = os.path.relpath(python.with_name("activate"))
        remedy = f"{os.path.relpath(python)} has them: source {activate}"
    print(f"a3c_exp: {sys.executable} lacks its packages; {remedy}", file=sys.stderr)
    sys.exit(ExitCode.REFUSED)


_require_packages()

# The functions import what they need when they are called: importing torch takes seconds, which
# `--help` and a child process that only steps environments need not wait for.


def compose(overrides: Sequence[str] = (), config_dir: str | None = None) -> dict[str, Any]:
    """The configuration that `python -m a3c_exp <overrides>` would run with, as a plain mapping.

    config_dir: a folder of the user's own YAML files, as --config-dir on the command line.
    Raises ConfigError for unknown keys, wrong types and values that a component refuses. The
    settings of a network's own module have only their types checked here: the module, which refuses
    other values, is built by `train`.
    """
    from a3c_exp.cli.hydra_compose import compose_unchecked
    from a3c_exp.config.builder import build_experiment

    config = compose_unchecked(texts("overrides", overrides), config_dir)
    build_experiment(config)
    return config


def train(
    overrides: Sequence[str] | Mapping[str, Any] = (),
    folder: str | Path | None = None,
    config_dir: str | None = None,
    callbacks: Sequence[Callback] = (),
    **settings: object,
) -> SavedRun:
    """Train as `python -m a3c_exp <overrides>` does, and return the run: its folder, its summary,
    and methods that evaluate, export and resume it.

    overrides: those of a command line, or a whole configuration as `compose` returns it and a run's
        config.yaml has it.
    folder: where the run writes; None: outputs/<environment>_<algorithm>_s<seed>_<date>_<time>.
    config_dir: see `compose`. callbacks: what watches the run, besides those of the configuration;
    it is given copies. Raises ConfigError, before anything is written, if the configuration cannot
    run. After the checkpoint and the summary are written it raises RunError if the run failed or
    could not be written in full, KeyboardInterrupt if Ctrl-C ended it, and SystemExit if SIGTERM
    did.
    Hydra's global state, and that of the generators of Python, numpy and torch, is the same
    afterwards. One run trains in a process at a time: RunError for a second one in another thread.
    """
    from a3c_exp import saved_run
    from a3c_exp.cli.execute import Plan
    from a3c_exp.cli.hydra_compose import compose_unchecked
    from a3c_exp.config.saved import is_whole

    for key, value in settings.items():
        raise ConfigError(key, value, f'is a setting, in a list: train(["{key}={value}"])')

    watching = saved_run.as_callbacks(callbacks)
    if isinstance(overrides, Mapping):
        config = dict(overrides)
        if not is_whole(config):
            problem = (
                "must be complete, as compose returns it; single settings are a list: "
                '["env=lunar", "seed=1"]'
            )
            raise ConfigError("configuration", config, problem)
    else:
        config = compose_unchecked(saved_run.settings_alone(overrides), config_dir)
    run = saved_run.run_plan(Plan(config=config, folder=folder, callbacks=watching))
    assert run is not None
    return run


def open_run(folder: str | Path, plugins: Sequence[str] = ()) -> SavedRun:
    """Return the run in a folder, which can be evaluated, exported and resumed.

    folder: "latest" is the last run in outputs/.
    plugins: the user's packages that the run's configuration names. A folder cannot itself allow
        code, so that its own list is not used. `__main__` is the calling script or notebook.
    Raises ConfigError for a folder without a run.
    """
    from a3c_exp.config.saved import read_config
    from a3c_exp.run.run_folder import locate_run, read_summary
    from a3c_exp.saved_run import SavedRun

    with named("run"):
        run_folder = locate_run(folder)
        read_config(run_folder)
    allowed = tuple(texts("plugins", plugins, '["my_a3c"]'))
    return SavedRun(run_folder, read_summary(run_folder) or {}, plugins=allowed)


def load(folder: str | Path | SavedRun, plugins: Sequence[str] = ()) -> Policy:
    """The policy of a run's best checkpoint, or its latest without evaluations:
    `load(run.folder).act(observation)`.

    folder: see `open_run`. A run, which brings its own plugins, is taken too.
    plugins: see `open_run`. Raises ConfigError.
    """
    from a3c_exp.evaluate import load_run
    from a3c_exp.run.run_folder import locate_run
    from a3c_exp.saved_run import SavedRun

    if isinstance(folder, SavedRun):
        return folder.load_policy()
    with named("run"):
        run_folder = locate_run(folder)
    return load_run(run_folder, plugins=plugins).policy
