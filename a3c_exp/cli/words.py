"""Words of the command line that say how runs are made and change none of their settings: sweep, jobs, existing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec

from a3c_exp.cli.existing import EXISTING
from a3c_exp.common.reading import expanded
from a3c_exp.errors import ConfigError, require

LAUNCHERS = {"joblib": "joblib", "submitit_local": "submitit", "submitit_slurm": "submitit"}
"""Launchers of the extra `sweep`, and the package that each of them needs."""


@dataclass(frozen=True, slots=True)
class Words:
    """sweep: the folder of a sweep. jobs: runs at once. existing: see a3c_exp.cli.existing. None: not given."""

    sweep: str | None = None
    jobs: int | None = None
    existing: str | None = None

    @property
    def of_a_sweep(self) -> bool:
        """Whether they make a sweep of a command without -m."""
        return self.sweep is not None or self.jobs is not None

    @property
    def overrides(self) -> list[str]:
        """Hydra's own settings that they stand for."""
        return [] if self.sweep is None else [f"hydra.sweep.dir={quoted(self.sweep)}"]


def split_words(arguments: Sequence[str]) -> tuple[Words, list[str]]:
    """The words of a command line, and the rest of it. A folder needs no quotes. Raises ConfigError."""
    words, rest = Words(), []
    for argument in arguments:
        key, _, value = argument.partition("=")
        value = value.strip("'\"") if key == "sweep" else value
        if key == "sweep":
            require(bool(value), "sweep", value, "the folder of a sweep")
            words = replace(words, sweep=str(expanded(value)))
        elif key == "jobs":
            fits = re.fullmatch("[1-9][0-9]{0,4}", value) is not None
            require(fits, "jobs", value, "a whole number from 1 to 99999: runs at once")
            words = replace(words, jobs=int(value))
        elif key == "existing":
            require(value in EXISTING, "existing", value, f"one of {', '.join(EXISTING)}")
            words = replace(words, existing=value)
        else:
            rest.append(argument)
    _check_launcher(rest)
    return words, rest


def _check_launcher(overrides: Sequence[str]) -> None:
    """Raise ConfigError for a launcher that is not installed."""
    for launcher in [text.partition("=")[2] for text in overrides if text.startswith("hydra/launcher=")]:
        package = LAUNCHERS.get(launcher)
        plugin = f"hydra_plugins.hydra_{package}_launcher"
        if package is not None and not (find_spec("hydra_plugins") and find_spec(plugin) and find_spec(package)):
            raise ConfigError("hydra/launcher", launcher, "needs the extra sweep: pip install 'a3c-exp[sweep]'")


def quoted(text: str) -> str:
    """A text as Hydra's grammar reads it back, whatever characters it has.

    A backslash is one itself where it stands before a quote or at the end, and is doubled only there.
    """
    return "'" + re.sub(r"(\\*)('|\Z)", lambda found: found[1] * 2 + found[2].replace("'", "\\'"), text) + "'"
