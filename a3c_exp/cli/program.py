"""The program `a3c-exp`: every command of this package under one name.

  a3c-exp train env=lunar workers=16        as python -m a3c_exp
  a3c-exp evaluate outputs/<run>            as python -m a3c_exp.evaluate
  a3c-exp report outputs/<sweep>            as python -m a3c_exp.report
  a3c-exp export outputs/<run>              as python -m a3c_exp.export

Each command has its own --help.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from a3c_exp.common import signals
from a3c_exp.errors import ConfigError, did_you_mean, exit_code

COMMANDS = {
    "train": "a3c_exp.__main__",
    "evaluate": "a3c_exp.evaluate",
    "report": "a3c_exp.report.__main__",
    "export": "a3c_exp.export.__main__",
}
"""The module of each command."""


def main() -> int:
    """Run the program's command line and return its exit code."""
    return exit_code(_program)


def _program() -> int:
    signals.end_early()
    return command(sys.argv[1:])


def command(arguments: Sequence[str]) -> int:
    """Run a command line. Raises ConfigError."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print((__doc__ or "").strip())
        return 0 if arguments else 2
    name, *rest = arguments
    if name not in COMMANDS:
        raise ConfigError("command", name, f"is no command: {did_you_mean(name, COMMANDS)}")
    code: int = importlib.import_module(COMMANDS[name]).main(rest)
    return code
