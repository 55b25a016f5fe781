"""A command line: its flags, its words, and its overrides of settings.

Words say how runs are made and change none of their settings: sweep, jobs, search and existing;
resume and from, the folder of a run whose settings are taken.
"""

from __future__ import annotations

import re
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from a3c_exp.errors import ConfigError, require

EXISTING = ("refuse", "resume", "restart")
WORDS = {
    "sweep": (
        "the folder of a sweep: finished runs in it stay, runs that were cut go on, "
        "the others begin"
    ),
    "jobs": "a whole number from 1 to 99999: runs of a sweep at once",
    "search": (
        "a whole number from 1 to 99999: trials, whose settings are chosen by the "
        "scores of earlier ones"
    ),
    "objective": "best, last or a curve: the score in a search",
    "existing": f"one of {', '.join(EXISTING)}: what becomes of runs that are there already",
    "resume": "one run's folder: it goes on",
    "from": "one run's folder: a new run takes its settings",
}
"""The words, what each may be, and what it does."""
OF_HYDRA = ("hydra.run.dir", "hydra.sweep.", "hydra.launcher.", "hydra/launcher")
"""How the settings of Hydra begin that have an effect here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """What a command line says; None: not given.

    config_dir: a folder of the user's own YAML files. cfg: what is printed in place of running.
    sweep: the folder of a sweep. jobs: runs at once. search, objective: trials, and what they
    maximize. existing: one of EXISTING, see a3c_exp.cli.existing. saved: `resume` or `from`, and
    the folder of the run.
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
    saved: tuple[str, str] | None


def read_arguments(arguments: Sequence[str]) -> CommandLine:
    """What the arguments of a command say; of a word that is repeated, the last one counts. Raises
    ConfigError."""

    def refuse(message: str) -> NoReturn:
        raise ConfigError("command line", " ".join(arguments), message)

    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.error = refuse  # type: ignore[method-assign]
    parser.add_argument("--cfg", "-c", choices=["job"])
    parser.add_argument("--multirun", "-m", action="store_true")
    parser.add_argument("--config-dir", "-cd")
    parser.add_argument("words", nargs="*")
    flags = parser.parse_intermixed_args(arguments)  # -m may stand anywhere

    words: dict[str, Any] = dict.fromkeys(WORDS)
    overrides = []
    run_dir = None
    for argument in flags.words:
        key, equals, value = argument.lstrip("+").partition("=")
        if key == "hydra.run.dir":
            run_dir = value
        if re.match(r"~?hydra\b", key) and not key.startswith((*OF_HYDRA, "hydra.job.num")):
            raise ConfigError(
                key,
                value,
                f"has no effect here; of Hydra's settings these have: {', '.join(OF_HYDRA)}",
            )
        if not equals or key not in WORDS:
            overrides.append(argument)
            continue
        value = value.strip("'\"")  # a folder needs no quotes around commas and equal signs
        is_number = key in ("jobs", "search")
        fits = (
            re.fullmatch("[1-9][0-9]{0,4}", value)
            if is_number
            else value in EXISTING or key != "existing"
        )
        require(bool(value and fits), key, value, WORDS[key])
        words[key] = int(value) if is_number else value

    is_sweep = flags.multirun or any(words[key] for key in ("sweep", "jobs", "search", "objective"))
    saved = [(word, folder) for word in ("from", "resume") if (folder := words.pop(word))]
    for word, value in (("hydra.run.dir", run_dir), *saved):
        if value is not None and is_sweep:
            raise ConfigError(
                word, value, "is of one run: it cannot go with -m, sweep, jobs or search"
            )
    if not is_sweep and not saved and run_dir in (None, "", "auto"):
        for argument in overrides:
            key, _, value = argument.lstrip("+").partition("=")
            require(
                not key.startswith(OF_HYDRA[1:]),
                key,
                value,
                "given with -m, sweep=<folder> or jobs=N",
            )
        require(
            words["existing"] in (None, "refuse"),
            "existing",
            words["existing"],
            "given with hydra.run.dir",
        )
    fits = not words["sweep"] or not any(text.startswith("hydra.sweep.dir=") for text in overrides)
    require(fits, "sweep", words["sweep"], "given without hydra.sweep.dir, which is the same")
    require(
        not (flags.cfg and words["search"]),
        "--cfg",
        flags.cfg,
        "without search, whose runs are unknown",
    )
    if len(saved) > 1 or (saved and words["existing"]):
        raise ConfigError(*saved[0], "goes with no other run, and not with existing")
    return CommandLine(
        overrides=overrides,
        cfg=flags.cfg,
        is_sweep=is_sweep,
        config_dir=flags.config_dir,
        saved=saved[0] if saved else None,
        **words,
    )


def quoted(text: str) -> str:
    """A text as Hydra's grammar reads it back, whatever characters it has.

    A backslash is one itself where it stands before a quote or at the end, and is doubled only
    there.
    """
    return (
        "'"
        + re.sub(r"(\\*)('|\Z)", lambda found: found[1] * 2 + found[2].replace("'", "\\'"), text)
        + "'"
    )
