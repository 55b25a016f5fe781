"""`python -m evidence.bench.size [CHECKOUT]`: tokens of code of a3c_exp, in total and by folder,
and of tests and evidence.

Tokens are those of Python's own tokenizer. Layout, comments and docstrings do not count. A
docstring is any statement that is a string alone.
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import tokenize
from collections.abc import Sequence
from pathlib import Path

from evidence.bench.checkout import HERE, checked

_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0, or 2 for a bad argument."""
    parser = argparse.ArgumentParser(
        prog="python -m evidence.bench.size", description="Tokens of code of a3c_exp."
    )
    parser.add_argument(
        "checkout", nargs="?", default=str(HERE), help="of this repository (default: this one)"
    )

    try:
        checkout = checked(parser.parse_args(arguments).checkout)
    except ValueError as error:
        print(f"evidence.bench.size: {error}", file=sys.stderr)
        return 2

    package = checkout / "a3c_exp"
    for folder in [package, *sorted(path.parent for path in package.glob("*/**/__init__.py"))]:
        print(f"{tokens_in(folder):8,}  {folder.relative_to(checkout)}/")

    for name in ("tests", "evidence", "bench", "study"):  # the last two before there was evidence/
        if (checkout / name).exists():
            print(f"{tokens_in(checkout / name):8,}  {name}/")

    return 0


def tokens_in(folder: Path) -> int:
    """Return the number of tokens in all Python files below a folder."""
    return sum(code_tokens(path.read_text(encoding="utf-8")) for path in folder.rglob("*.py"))


def code_tokens(source: str) -> int:
    """Return the number of tokens of code. Raises SyntaxError."""
    docstrings = {
        (node.lineno, node.col_offset)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return sum(token.type not in _LAYOUT and token.start not in docstrings for token in tokens)


if __name__ == "__main__":
    sys.exit(main())
