"""`python -m evidence.bench.size [CHECKOUT]`: lines of code of a3c_exp, in total and by folder, and
of tests and evidence.

A line counts where code is on it. Blank lines, comments and docstrings do not count; a docstring is
any statement that is a string alone.
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

from evidence.bench.checkout import HERE, checked

_LINE_ENDS = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE}
_NO_CODE = _LINE_ENDS | {tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0, or 2 for a bad argument."""
    parser = argparse.ArgumentParser(
        prog="python -m evidence.bench.size", description="Lines of code of a3c_exp."
    )
    parser.add_argument(
        "checkout", nargs="?", default=str(HERE), help="of this repository (default: this one)"
    )
    try:
        checkout = checked(parser.parse_args(arguments).checkout)
    except ValueError as error:
        print(f"evidence.bench.size: {error}", file=sys.stderr)
        return 2
    sizes = sizes_in(checkout, "a3c_exp")
    print(f"{sum(sizes.values()):6,}  in all, {len(sizes)} files")
    for folder in sorted({path.parent for path in sizes}):
        own = [size for path, size in sizes.items() if path.parent == folder]
        print(f"{sum(own):6,}  {folder}/ alone, {len(own)} files")
    for name in ("tests", "evidence", "bench", "study"):  # the last two: before evidence/
        if others := sizes_in(checkout, name):
            print(f"{sum(others.values()):6,}  {name}/ in all, {len(others)} files")
    return 0


def sizes_in(checkout: Path, folder: str) -> dict[Path, int]:
    """The lines of code of every Python file below a folder, by its place in the checkout."""
    paths = checkout.glob(f"{folder}/**/*.py")
    return {path.relative_to(checkout): len(code_lines(path.read_text("utf-8"))) for path in paths}


def code_lines(source: str) -> set[int]:
    """The numbers of the lines, from 1, with code on them. Raises SyntaxError."""
    docstrings = list(_docstrings(ast.parse(source)))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        inside = any(start <= token.start[0] and token.end[0] <= end for start, end in docstrings)
        if token.type not in _NO_CODE and not (inside and token.type == tokenize.STRING):
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines


def _docstrings(tree: ast.AST) -> Iterator[tuple[int, int]]:
    """The first and the last line of each statement that is a string alone."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.lineno, node.end_lineno or node.lineno


if __name__ == "__main__":
    sys.exit(main())
