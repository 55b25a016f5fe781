"""`python -m a3c_exp key=value ...`: see a3c_exp.command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from a3c_exp.errors import ConfigError, RunError
from a3c_exp.startup import abandon, importing, start_early

INTERRUPTED = 130


def main(arguments: Sequence[str]) -> int:
    """Run a command. Its exit code: 0, done; 1, a run failed; 2, the configuration cannot be used; 130, Ctrl-C (128 and
    the number of the signal)."""
    try:
        start_early(arguments)
        with importing():
            from a3c_exp.command import command

        return command(arguments)
    except ConfigError as error:
        print("a3c_exp:", " ".join(str(error).split("\n")), file=sys.stderr)
        return 2
    except RunError:  # told in full when it happened
        return 1
    except KeyboardInterrupt as interruption:  # a run that was interrupted says by which signal
        return int(interruption.args[0]) if interruption.args else INTERRUPTED


if __name__ == "__main__":
    code = main(sys.argv[1:])
    if code == 2:
        abandon()
    sys.exit(code)
