"""Words of the command line that say how runs are made and change none of their settings: sweep, jobs, existing; and
`resume` and `from`, the folder of a run whose settings are taken."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from a3c_exp.cli.existing import EXISTING
from a3c_exp.errors import ConfigError, require

WITHOUT_EFFECT = {
    "hydra.verbose": "would do nothing: all that this program logs is shown and is in train.log",
    "hydra.searchpath": "would do nothing here: --config-dir=<folder> adds a folder of files",
}
"""Settings of Hydra that this program has no use for."""


@dataclass(frozen=True, slots=True)
class Words:
    """sweep: the folder of a sweep. jobs: runs at once. existing: see a3c_exp.cli.existing. resume, source: the folder
    of a run that goes on, or whose settings a new one takes (`from`). None: not given."""

    sweep: str | None = None
    jobs: int | None = None
    existing: str | None = None
    resume: str | None = None
    source: str | None = None

    @property
    def of_a_sweep(self) -> bool:
        """Whether they make a sweep of a command without -m."""
        return self.sweep is not None or self.jobs is not None


def split_words(arguments: Sequence[str]) -> tuple[Words, list[str]]:
    """The words of a command line, the last of each kind, and the rest of it. Raises ConfigError."""
    given: dict[str, Any] = {}
    rest = []
    for argument in arguments:
        key, equals, value = argument.lstrip("+").partition("=")
        if equals and key in ("sweep", "resume", "from"):
            value = value.strip("'\"")  # a folder needs no quotes around commas and equal signs
            require(bool(value), key, value, "the folder of a sweep" if key == "sweep" else "one run's folder")
            given["source" if key == "from" else key] = value
        elif key == "jobs":
            fits = re.fullmatch("[1-9][0-9]{0,4}", value) is not None
            require(fits, "jobs", value, "a whole number from 1 to 99999: runs at once")
            given["jobs"] = int(value)
        elif key == "existing":
            require(value in EXISTING, "existing", value, f"one of {', '.join(EXISTING)}")
            given["existing"] = value
        elif key in WITHOUT_EFFECT:
            raise ConfigError(key, value, WITHOUT_EFFECT[key])
        else:
            rest.append(argument)
    return Words(**given), rest


def quoted(text: str) -> str:
    """A text as Hydra's grammar reads it back, whatever characters it has.

    A backslash is one itself where it stands before a quote or at the end, and is doubled only there.
    """
    return "'" + re.sub(r"(\\*)('|\Z)", lambda found: found[1] * 2 + found[2].replace("'", "\\'"), text) + "'"
