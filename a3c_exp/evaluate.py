"""`python -m a3c_exp.evaluate <run folder>`: see a3c_exp.cli.evaluate."""

from __future__ import annotations

import sys

from a3c_exp.cli.evaluate import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
