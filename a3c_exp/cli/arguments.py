"""A command line: its flags, its words, and its overrides of settings.

Words say how runs are made and change none of their settings: sweep, jobs, search and existing; resume and from, the
folder of a run whose settings are taken.
"""

from __future__ import annotations

import re
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from a3c_exp.errors import ConfigError, require

EXISTING = ("refuse", "resume", "restart")
MULTIRUN = "hydra.mode=MULTIRUN"
OF_HYDRA = ("hydra.run.dir", "hydra.sweep.", "hydra.launcher", "hydra/launcher")
"""How the settings of Hydra begin that have an effect here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """What a command line says; None: not given.

    config_dir: a folder of the user's own YAML files. cfg: what is printed in place of a run. sweep: the folder of a
    sweep. jobs: runs at once. search, objective: trials, and what they maximize. existing: one of EXISTING, see
    a3c_exp.cli.existing. resume, source: the folder of a run that goes on, or whose settings a new one takes (`from`).
    """

    overrides: Sequence[str]
    cfg: str | None
    is_sweep: bool
    config_dir: str | None
    sweep: str | None
    jobs: int | None
    search: int | None
    objective: str | None
    existing: str | None
    resume: str | None
    source: str | None


def read_arguments(arguments: Sequence[str]) -> CommandLine:
    """What the arguments of a command say; of a word that is repeated, the last one counts. Raises ConfigError."""

    def refuse(message: str) -> NoReturn:
        raise ConfigError("command line", " ".join(arguments), message)

    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.error = refuse  # type: ignore[method-assign]
    parser.add_argument("--cfg", "-c", choices=["job"])
    parser.add_argument("--multirun", "-m", action="store_true")
    parser.add_argument("--config-dir", "-cd")
    parser.add_argument("--config-name", "-cn")
    parser.add_argument("words", nargs="*")
    flags = parser.parse_intermixed_args(arguments)  # -m may stand anywhere

    if flags.config_name is not None:
        problem = "is from=<run> here, for the configuration of a run, or from=<file.yaml>"
        raise ConfigError("--config-name", flags.config_name, problem)

    words: dict[str, Any] = dict.fromkeys(("sweep", "jobs", "search", "objective", "existing", "resume", "from"))
    overrides = []
    for argument in flags.words:
        key, equals, value = argument.lstrip("+").partition("=")
        if re.match(r"~?hydra\b", key) and not key.startswith((*OF_HYDRA, "hydra.job.num", "hydra.mode")):
            raise ConfigError(key, value, f"has no effect here; of Hydra's settings these have: {', '.join(OF_HYDRA)}")
        if not equals or key not in words:
            overrides.append(argument)
        elif key in ("jobs", "search"):
            fits = re.fullmatch("[1-9][0-9]{0,4}", value) is not None
            meaning = "runs at once" if key == "jobs" else "trials"
            require(fits, key, value, f"a whole number from 1 to 99999: {meaning}")
            words[key] = int(value)
        elif key == "objective":
            words[key] = value
        elif key == "existing":
            require(value in EXISTING, key, value, f"one of {', '.join(EXISTING)}")
            words[key] = value
        else:
            words[key] = value.strip("'\"")  # a folder needs no quotes around commas and equal signs
            require(bool(words[key]), key, value, "the folder of a sweep" if key == "sweep" else "one run's folder")

    is_sweep = (
        flags.multirun or MULTIRUN in overrides or any(words[key] for key in ("sweep", "jobs", "search", "objective"))
    )
    if flags.cfg and is_sweep:
        raise ConfigError("--cfg", flags.cfg, "shows one run: give single values, without a sweep")
    source = words.pop("from")
    for word, folder, other in (("from", source, words["resume"]), ("resume", words["resume"], None)):
        if folder is not None and (is_sweep or words["existing"] or other):
            raise ConfigError(word, folder, "is one run: it cannot go with -m, sweep, jobs, existing or another run")
    return CommandLine(
        overrides=[text for text in overrides if text != MULTIRUN],
        cfg=flags.cfg,
        is_sweep=is_sweep,
        config_dir=flags.config_dir,
        source=source,
        **words,
    )


def quoted(text: str) -> str:
    """A text as Hydra's grammar reads it back, whatever characters it has.

    A backslash is one itself where it stands before a quote or at the end, and is doubled only there.
    """
    return "'" + re.sub(r"(\\*)('|\Z)", lambda found: found[1] * 2 + found[2].replace("'", "\\'"), text) + "'"
