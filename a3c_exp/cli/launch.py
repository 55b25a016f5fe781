"""The way into Hydra: `@hydra.main` runs the program, once what it will run has been checked."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, redirect_stderr
from pathlib import Path
from typing import Any, TextIO, cast

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from a3c_exp.cli.arguments import CommandLine
from a3c_exp.cli.hydra_compose import composed
from a3c_exp.cli.hydra_overrides import first_line
from a3c_exp.cli.hydra_session import CONFIG_NAME, DEFAULTS, HydraSession
from a3c_exp.cli.startup import conf_folder
from a3c_exp.core.cpu import environment
from a3c_exp.errors import ConfigError
from a3c_exp.exit_codes import ExitCode

FULL_ERROR = "HYDRA_FULL_ERROR"
"""Environment variable: 1 lets an error print its traceback."""
USERS_FULL_ERROR = "A3C_EXP_FULL_ERROR"
"""Environment variable: the user's value of FULL_ERROR, which `run_hydra` sets."""
CONFIG_FLAGS = ("config_path", "config_name", "config_dir")
"""Flags of Hydra that say where configuration files are."""
PRINTING = ("info", "hydra_help", "shell_completion", "resolve")
"""Flags of Hydra that print and run nothing."""


HYDRAS_LINE = "Error executing job with overrides"
"""How the line begins that Hydra writes on stderr about a job that has failed."""


def config_flags(flags: Namespace) -> list[str]:
    """The flags of a command that say where configuration files are."""
    words = []
    for name in CONFIG_FLAGS:
        value = getattr(flags, name)
        if value is not None:
            is_name = name == "config_name"
            words += [_flag(name), value if is_name else str(Path(value).absolute())]

    return words


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def prints(flags: Namespace) -> bool:
    """Return whether Hydra prints what a command asks for. `--cfg job` alone is this program's."""
    shows_hydra = flags.cfg in ("hydra", "all")
    return shows_hydra or bool(flags.package) or any(getattr(flags, name) for name in PRINTING)


def print_by_hydra(session: HydraSession, line: CommandLine) -> int:
    """Have Hydra print what a command asks for; return the exit code. Raises ConfigError."""
    flags = line.flags
    words = line.overrides
    if not (flags.hydra_help or flags.shell_completion):
        words = composed(session, words).words

    printing = [_flag(name) for name in PRINTING[1:] if getattr(flags, name)]
    for name in ("cfg", "package", "info"):
        if getattr(flags, name) is not None:
            printing += [_flag(name), getattr(flags, name)]

    try:
        return run_hydra(flags, [*printing, *words], lambda node: None)
    except ValueError as complaint:  # of flags that do not go together
        if isinstance(complaint, ConfigError):
            raise

        raise ConfigError("command line", " ".join(printing), first_line(complaint)) from complaint


def run_hydra(flags: Namespace, arguments: Sequence[str], task: Callable[[Any], Any]) -> int:
    """Run `task` by Hydra, as a program whose arguments these are; return the exit code.

    Exceptions of the task are raised here. Raises ConfigError for what Hydra refuses.
    """
    GlobalHydra.instance().clear()
    program = hydra.main(str(conf_folder()), CONFIG_NAME, **DEFAULTS)(task)
    before = sys.argv
    sys.argv = [before[0], *config_flags(flags), *arguments]
    try:
        users = os.environ.get(FULL_ERROR, "")
        # without it Hydra would print a traceback, and exit
        with environment({FULL_ERROR: "1", USERS_FULL_ERROR: users}):
            program()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except (HydraException, OmegaConfBaseException) as complaint:
        raise ConfigError("command line", " ".join(arguments), first_line(complaint)) from complaint
    finally:
        sys.argv = before
    return ExitCode.DONE


class _WithoutHydrasLine:
    """A stream that drops HYDRAS_LINE. stream: None where the program has no stderr."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text, and return its length."""
        if self._stream is None or text.startswith(HYDRAS_LINE):
            return len(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def without_hydras_line() -> AbstractContextManager[object]:
    """Keep Hydra from saying that a job has failed. The run has said more.

    Hydra calls its callbacks only if the job has failed by an Exception, and writes the line when
    it raises that again. No setting of Hydra's switches it off.
    """
    return redirect_stderr(cast(TextIO, _WithoutHydrasLine(sys.stderr)))
