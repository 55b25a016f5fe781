"""`python -m a3c_exp key=value ...`: see a3c_exp.command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from a3c_exp.errors import exit_code
from a3c_exp.startup import abandon, importing, start_early


def main(arguments: Sequence[str]) -> int:
    """Run a command; its exit code, as `exit_code` gives it."""
    return exit_code(lambda: _command(arguments))


def _command(arguments: Sequence[str]) -> int:
    start_early(arguments)
    with importing():
        from a3c_exp.command import command

    return command(arguments)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    if code == 2:
        abandon()
    sys.exit(code)
