"""A command line: Hydra's flags, the words of this program, and overrides.

Words say how runs are made and change none of their settings: sweep, jobs, search and existing;
resume, from and replay, the folder of a run whose settings are taken.
"""

from __future__ import annotations

import itertools
import re
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from hydra._internal.utils import get_args_parser  # the flags are those of any program of Hydra's

from a3c_exp.cli.help import EXISTING, NUMBERS, WORDS
from a3c_exp.cli.startup import conf_folder
from a3c_exp.common.reading import UnreadableError, parse_yaml, read_text
from a3c_exp.common.trust import PACKAGE
from a3c_exp.config.elsewhere import as_settings
from a3c_exp.config.saved import is_whole
from a3c_exp.errors import ConfigError, did_you_mean, require
from a3c_exp.run.run_folder import LAST_RUN

OF_SWEEPS = ("hydra.sweep.", "hydra.sweeper", "hydra.launcher", "hydra/sweeper", "hydra/launcher")
"""How the settings of Hydra begin that only sweeps read."""
PROGRAMS = ("evaluate", "export", "measure", "report")
"""Programs of this package that are called with a dot: `python -m a3c_exp.evaluate`."""
OF_SAVED = ("from", "resume", "replay")
"""The words that name a saved run."""
DASHES = "\u2010-\u2015\u2212"
"""What word processors make of a dash, as a class of regular expressions has it."""
RUN_DIR = "hydra.run.dir"
SWEEP_DIR = "hydra.sweep.dir"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """What a command line says; None: not given.

    flags: those of Hydra. sweep: the folder of a sweep. jobs: runs at once. search, objective:
    trials, and what they maximize. existing: one of EXISTING, see a3c_exp.cli.existing. saved:
    `resume`, `from` or `replay`, and the folder of the run.
    """

    overrides: Sequence[str]
    flags: Namespace
    is_sweep: bool
    sweep: str | None
    jobs: int | None
    search: int | None
    objective: str | None
    existing: str | None
    saved: tuple[str, str] | None


def read_arguments(arguments: Sequence[str]) -> CommandLine:
    """What the arguments of a command say; of a word that is repeated, the last one counts. Raises
    ConfigError."""
    flags = _read_flags(arguments)
    _check_lists(flags.overrides)
    words: dict[str, Any] = dict.fromkeys(WORDS)
    overrides = []
    for argument in flags.overrides:
        key, equals, value = argument.lstrip("+").partition("=")
        if equals and key in WORDS:
            words[key] = _word(key, value.strip("'\""))  # a folder needs no quotes around commas
        else:
            overrides.append(argument)

    saved = [(word, folder) for word in OF_SAVED if (folder := words.pop(word))]
    is_sweep = (
        flags.multirun
        or any(words[key] for key in ("sweep", "jobs", "search", "objective"))
        or given(overrides, "hydra.mode") == "MULTIRUN"
    )
    line = CommandLine(
        overrides=overrides,
        flags=flags,
        is_sweep=is_sweep,
        saved=saved[0] if saved else None,
        **words,
    )
    if len(saved) > 1 or (saved and line.existing):
        raise ConfigError(*saved[0], "goes with no other run, and not with existing")

    if is_sweep:
        _check_sweep(line)
    else:
        _check_run(line)

    return line


def given(overrides: Sequence[str], key: str) -> str | None:
    """The value that overrides give a key, as it was typed; None if they do not."""
    value = None
    for override in overrides:
        name, _, text = override.lstrip("+~").partition("=")
        if name == key:
            value = text

    return value


def is_of_hydra(override: str) -> bool:
    """Return whether an override is one of Hydra's own settings or groups."""
    return re.match(r"[+~]*hydra\b", override) is not None


def _read_flags(arguments: Sequence[str]) -> Namespace:
    def refuse(message: str) -> NoReturn:
        raise ConfigError("command line", " ".join(arguments), message)

    parser = get_args_parser()
    flags_of_hydra = parser._option_string_actions
    _check_typing(arguments)
    _check_first(arguments)
    if settings := as_settings(arguments, flags_of_hydra):
        refuse(f"settings have no dashes here: {settings}")

    def refuse_flag(message: str) -> NoReturn:
        flag = message.rpartition(": ")[2].split(" ")[0]
        refuse(f"{message}; {did_you_mean(flag, flags_of_hydra, list_all=False)}".strip("; "))

    parser.error = refuse_flag  # type: ignore[method-assign]
    flags = parser.parse_intermixed_args(arguments)  # -m may stand anywhere
    if flags.experimental_rerun is not None:
        refuse("--experimental-rerun would unpickle a file; resume= and from= run again")

    return flags


def _check_first(arguments: Sequence[str]) -> None:
    """Raise ConfigError for a command that begins with the name of another program, or with the
    word of a saved run without its equals sign."""
    first, after = [*arguments, "", ""][:2]
    is_name = "=" not in after and not after.startswith("-")
    word = first.lstrip("-")
    meant = None
    if first in PROGRAMS:
        meant = f"python -m {PACKAGE}.{first} {' '.join(arguments[1:])}".strip()
    elif word in OF_SAVED:
        meant = f"{word}={after if after and is_name else LAST_RUN}"

    if meant is not None:
        raise ConfigError("command line", " ".join(arguments), f"it is {meant}")


def _check_typing(arguments: Sequence[str]) -> None:
    """Raise ConfigError for what a word processor has made, for blanks around an equals sign, and
    for a file in the place of settings."""
    befores = ["", *arguments]
    afters = [*arguments[1:], ""]
    for before, argument, after in zip(befores, arguments, afters, strict=False):
        _check_marks(argument)
        _check_blanks(before, argument, after)
        file = re.fullmatch(r"(?:(-.*)=)?([^=]+\.ya?ml)", argument)
        if file is not None and (file[1] or before) not in ("--config-name", "-cn"):
            raise ConfigError("command line", argument, of_file(Path(file[2])))


def _check_marks(argument: str) -> None:
    """Raise ConfigError for typographic quotes, and for dashes of a flag or of numbers."""
    if re.search(r"(^|[=\[,{:])[\u2018-\u201f\u00ab\u00bb]", argument):
        raise ConfigError("command line", argument, "has typographic quotes: type ' or \"")

    number = f"[][0-9.,eE{DASHES}]*"
    if re.fullmatch(f"[{DASHES}].+|.*={number}[{DASHES}]{number}", argument):
        plain = re.sub(f"[{DASHES}]", "-", argument)
        name = plain.lstrip("-")
        if name != plain:
            plain = f"{'-' if len(name) == 1 else '--'}{name}"
        raise ConfigError("command line", argument, f"has a typographic dash: type {plain}")


def _check_blanks(before: str, argument: str, after: str) -> None:
    """Raise ConfigError for a setting whose equals sign has blanks around it. before, after: the
    arguments around this one."""
    pieces = [argument]
    if argument.startswith("=") and before and "=" not in before:
        pieces.insert(0, before)
    if argument.endswith("=") and re.match(r"[\w.\[]", after) and "=" not in after:
        pieces.append(after)
    if len(pieces) > 1:
        problem = f"has blanks around =: write {''.join(pieces)}"
        raise ConfigError("command line", " ".join(pieces), problem)


def of_file(path: Path) -> str:
    """Return what runs a file of settings, or what is wrong with it."""
    if not path.is_file():
        return "there is no such file"
    try:
        config = parse_yaml(read_text(path))
    except UnreadableError as error:
        return str(error)
    if is_whole(config):
        return f"from={path} runs a whole configuration"

    folder = path.parent.parent
    group = path.parent.name
    choice = f"{group}={path.stem}"
    if folder.resolve() == conf_folder():
        return f"{choice} chooses it"
    if group and (conf_folder() / group).is_dir():
        return f"--config-dir {folder} {choice} chooses it"
    return (
        f"--config-dir my_conf experiment={path.stem} runs it, once it is "
        f"my_conf/experiment/{path.name} "
        "and begins with `# @package _global_`"
    )


def _check_lists(overrides: Sequence[str]) -> None:
    """Raise ConfigError for a list that the shell has cut at its spaces."""
    for index, override in enumerate(overrides):
        opened = sum(map(override.count, "[{")) - sum(map(override.count, "]}"))
        if "=" in override and opened > 0:
            pieces = itertools.takewhile(lambda text: "=" not in text, overrides[index + 1 :])
            joined = " ".join([override, *pieces])
            if joined != override:
                problem = f"was cut by the shell: quote it, '{joined}'"
                raise ConfigError("command line", override, problem)


def _word(key: str, value: str) -> object:
    """The value of a word. Raises ConfigError."""
    if key in NUMBERS:
        require(bool(re.fullmatch("[1-9][0-9]{0,4}", value)), key, value, WORDS[key])
        return int(value)

    fits = value in EXISTING if key == "existing" else bool(value)
    require(fits, key, value, WORDS[key])
    return value


def _check_sweep(line: CommandLine) -> None:
    """Raise ConfigError for what does not go with a sweep."""
    run_dir = given(line.overrides, RUN_DIR)
    for key, value in ((RUN_DIR, run_dir), line.saved or (RUN_DIR, None)):
        if value is not None:
            problem = "is of one run: it cannot go with -m, sweep, jobs or search"
            raise ConfigError(key, value, problem)

    if line.sweep is not None and given(line.overrides, SWEEP_DIR) is not None:
        problem = f"must be given without {SWEEP_DIR}, which is the same"
        raise ConfigError("sweep", line.sweep, problem)

    launcher = given(line.overrides, "hydra/launcher")
    for word, number in (("jobs", line.jobs), ("search", line.search)):
        if number and launcher not in (None, "processes"):
            raise ConfigError(word, number, "goes with hydra/launcher=processes alone")

    if line.flags.cfg == "job" and line.search:
        raise ConfigError("--cfg", "job", "must be without search, whose runs are unknown")

    has_sweeper = line.search is not None or given(line.overrides, "hydra/sweeper") is not None
    if line.objective is not None and not has_sweeper:
        raise ConfigError("objective", line.objective, "goes with search=<trials>")

    if line.search is not None and line.sweep is None:
        problem = "needs sweep=<folder>, where the same command goes on"
        raise ConfigError("search", line.search, problem)


def _check_run(line: CommandLine) -> None:
    """Raise ConfigError for what does not go with a single run."""
    # A run of a sweep has a folder, and its sweep's settings. A file may set hydra.mode.
    has_folder = given(line.overrides, RUN_DIR) not in (None, "", "auto")
    if line.saved or has_folder or line.flags.config_name or line.flags.config_path:
        return

    for override in line.overrides:
        key, _, value = override.lstrip("+~").partition("=")
        if key.startswith(OF_SWEEPS):
            raise ConfigError(key, value, "must be given with -m, sweep=<folder> or jobs=N")

    if line.existing not in (None, "refuse"):
        raise ConfigError("existing", line.existing, f"must be given with {RUN_DIR}")
