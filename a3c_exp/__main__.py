"""`python -m a3c_exp key=value ...`: see a3c_exp.cli.main."""

from __future__ import annotations

import gc

from a3c_exp.common import signals

if __name__ == "__main__":
    signals.end_early()  # importing the rest takes a while
    gc.disable()  # until all is imported: see `import_training`

import importlib
import sys
from collections.abc import Sequence

from a3c_exp.cli.help import FLAGS
from a3c_exp.cli.startup import end_with_parent
from a3c_exp.errors import exit_code


def main(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code: see a3c_exp.errors.exit_code."""
    end_with_parent()
    module = "a3c_exp.cli.main" if FLAGS.isdisjoint(arguments) else "a3c_exp.cli.help"
    return exit_code(lambda: int(importlib.import_module(module).command(arguments)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
