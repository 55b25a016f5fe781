"""Checks of a command's configuration before anything is started or written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from a3c_exp.cli.startup import importing, prestart

if TYPE_CHECKING:  # importing it takes seconds: it imports torch
    from a3c_exp.core.experiment import Experiment


def check(config: dict[str, Any], trusted: Sequence[str] | None = None) -> Experiment:
    """The experiment. trusted: see `load_experiment`. Raises ConfigError if it cannot be run.

    Starts the fork server first if the backend uses one: it imports torch while this process does.
    """
    prestart(config)
    with importing():
        import a3c_exp.run.trainer  # noqa: F401  # needed next
        from a3c_exp.config.builder import load_experiment

        return load_experiment(
            config, trusted=trusted
        )  # which imports environments, where a Ctrl-C could be swallowed too
