"""`python -m a3c_exp.report <folders>`: see a3c_exp.cli.report."""

from __future__ import annotations

import sys

from a3c_exp.cli.report import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
