"""`python -m a3c_exp.export <run folder>`: see a3c_exp.cli.export."""

from __future__ import annotations

import sys

from a3c_exp.cli.export import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
