"""`python -m a3c_exp key=value ...`: see a3c_exp.cli.main."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from a3c_exp.cli.startup import end_with_parent, prestart_default
from a3c_exp.errors import exit_code


def main(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code: see a3c_exp.errors.exit_code."""
    return exit_code(lambda: _command(arguments))


def _command(arguments: Sequence[str]) -> int:
    end_with_parent()
    prestart_default(arguments)
    from a3c_exp.cli.main import command

    return command(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
