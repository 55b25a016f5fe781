"""a3c_exp: asynchronous actor-critic experiments, composed from small YAML files.

From Python:

    run = a3c_exp.train(["env=cartpole", "seed=1"])       # the folder, the summary
    policy = a3c_exp.load(run.folder)
    action = policy.act(observation)

From the command line: `python -m a3c_exp --help`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from signal import SIGINT
from typing import TYPE_CHECKING, Any

from a3c_exp.errors import ConfigError, RunError

if TYPE_CHECKING:
    from a3c_exp.run.policy import Policy
    from a3c_exp.run.trainer import Run

__version__ = "0.1.0"
__all__ = ["ConfigError", "RunError", "__version__", "compose", "load", "train"]

# The functions below import what they need when they are called: importing torch takes seconds, and neither
# `--help` nor a child process that only steps environments should wait for it.


def compose(overrides: Sequence[str] = (), config_dir: str | None = None) -> dict[str, Any]:
    """The configuration that `python -m a3c_exp <overrides>` would run with, as a plain mapping. Raises ConfigError.

    config_dir: a folder of YAML files of one's own, as --config-dir on the command line.
    """
    from a3c_exp.cli.hydra_compose import compose

    return compose(overrides, config_dir)


def train(
    overrides: Sequence[str] | Mapping[str, Any] = (), folder: str | Path | None = None, config_dir: str | None = None
) -> Run:
    """Train as `python -m a3c_exp <overrides>` does, and return the run: its folder and its summary.

    overrides: what one would write on the command line, or a whole configuration as `compose` returns it and as a
        run's config.yaml holds it.
    folder: where the run writes; outputs/<date>_<time>_s<seed> where none is given.
    config_dir: see `compose`.
    Raises ConfigError, before anything is written, where the configuration cannot run; and, once its checkpoint and
    its summary are written, RunError where the run failed or could not be written in full, and KeyboardInterrupt where
    Ctrl-C ended it (SystemExit: SIGTERM).
    No state of Hydra is left behind, and none that is there is disturbed.
    """
    from a3c_exp.cli.hydra_compose import compose, run_folder
    from a3c_exp.cli.startup import prestart

    if isinstance(overrides, Mapping):
        config = dict(overrides)
        if not isinstance(config.get("env"), Mapping):
            problem = 'must be a whole one, as compose returns it; single settings are a list: ["env=lunar", "seed=1"]'
            raise ConfigError("configuration", config, problem)
    elif isinstance(overrides, str):
        raise ConfigError("overrides", overrides, f'must be a list: ["{overrides}"]')
    else:
        for override in overrides:
            key, _, value = override.lstrip("+~").partition("=")
            if key == "resume" or key.partition(".")[0] == "hydra":
                raise ConfigError(key, value, "is for the command line: `folder` says where a run from Python writes")
        config = compose(overrides, config_dir)
    prestart(config)
    from a3c_exp.config.builder import load_experiment
    from a3c_exp.run.run_folder import check_folder

    experiment = load_experiment(config)
    place = check_folder(Path(folder) if folder is not None else run_folder(config))
    from a3c_exp.run.trainer import run

    done = run(experiment, config, place)
    if done.summary["signal"] is not None:
        # What the signal would have ended without the run: a loop over seeds does not go on with the next.
        raise (KeyboardInterrupt if done.summary["signal"] == SIGINT else SystemExit)(done.exit_code)
    if done.exit_code:
        why = done.summary["error"] or f"cannot be written: {', '.join(done.summary['unwritten'])}"
        raise RunError(f"{place}: {why}")
    return done


def load(folder: str | Path, plugins: Sequence[str] = ()) -> Policy:
    """The policy of a run, from its best checkpoint (or latest): `load(run.folder).act(observation)`.

    plugins: the packages of one's own that the run's configuration names; the folder's own word is not taken for it.
    """
    from a3c_exp.cli.evaluate import load

    return load(Path(folder), plugins=plugins)
