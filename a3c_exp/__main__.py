"""`python -m a3c_exp key=value ...`, and the script a3c-exp: see a3c_exp.cli.main."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

from a3c_exp.common import signals
from a3c_exp.exit_codes import exit_code, leave


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, that of this process without one, and return its exit code: see
    a3c_exp.exit_codes.exit_code."""
    code = exit_code(lambda: _command(arguments))
    return leave(code) if arguments is None else code


def _command(arguments: Sequence[str] | None) -> int:
    if arguments is None:
        signals.end_early()
        gc.disable()  # until all is imported: see `import_training`
        arguments = sys.argv[1:]
    from a3c_exp.cli.help import FLAGS, print_help  # here, where a signal has an exit code
    from a3c_exp.cli.startup import end_with_parent

    end_with_parent()
    if not FLAGS.isdisjoint(arguments):
        return print_help(arguments)
    from a3c_exp.cli.main import run_command

    return run_command(arguments)


if __name__ == "__main__":
    sys.exit(main())
