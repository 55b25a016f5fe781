"""`python -m bench.size [CHECKOUT]`: lines of code of a3c_exp, in total and by folder, and of tests, bench and study.

A line counts where code is on it. Blank lines, comments and docstrings do not count; a docstring is any statement that
is a string alone. `--longest N` lists the longest functions by the same measure, decorators left out.
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.checkout import HERE, checked

_LINE_ENDS = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE}
_NO_CODE = _LINE_ENDS | {tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0, or 2 for a bad argument."""
    parser = argparse.ArgumentParser(prog="python -m bench.size", description="Lines of code of a3c_exp.")
    parser.add_argument("checkout", nargs="?", default=str(HERE), help="of this repository (default: this one)")
    parser.add_argument("--longest", type=int, default=0, metavar="N", help="list the N longest functions too")
    flags = parser.parse_args(arguments)
    try:
        checkout = checked(flags.checkout)
    except ValueError as error:
        print(f"bench.size: {error}", file=sys.stderr)
        return 2
    sources = sources_in(checkout, "a3c_exp")
    sizes = {path: len(code_lines(source)) for path, source in sources.items()}
    print(f"{sum(sizes.values()):6,}  in all, {len(sizes)} files")
    for folder in sorted({path.parent for path in sizes}):
        own = [size for path, size in sizes.items() if path.parent == folder]
        print(f"{sum(own):6,}  {folder}/ alone, {len(own)} files")
    for folder in (Path("tests"), Path("bench"), Path("study")):
        others = [len(code_lines(source)) for source in sources_in(checkout, str(folder)).values()]
        print(f"{sum(others):6,}  {folder}/ in all, {len(others)} files")
    found = [(size, f"{path}:{line}", name) for path in sources for size, line, name in functions(sources[path])]
    for size, place, name in sorted(found, key=lambda one: (-one[0], one[1]))[: flags.longest]:
        print(f"{size:6,}  {place} {name}")
    return 0


def sources_in(checkout: Path, folder: str) -> dict[Path, str]:
    """The text of every Python file below a folder, by its place in the checkout."""
    return {path.relative_to(checkout): path.read_text("utf-8") for path in checkout.glob(f"{folder}/**/*.py")}


def code_lines(source: str) -> set[int]:
    """The numbers of the lines, from 1, with code on them. Raises SyntaxError."""
    docstrings = list(_docstrings(ast.parse(source)))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        inside = any(start <= token.start[0] and token.end[0] <= end for start, end in docstrings)
        if token.type not in _NO_CODE and not (inside and token.type == tokenize.STRING):
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines


def functions(source: str) -> Iterator[tuple[int, int, str]]:
    """Each function's lines of code, its first line, and its name with those of the classes and functions around it."""
    code = code_lines(source)

    def walk(node: ast.AST, around: str) -> Iterator[tuple[int, int, str]]:
        for child in ast.iter_child_nodes(node):
            inner = around
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{around}{child.name}."
                if not isinstance(child, ast.ClassDef):
                    last = child.end_lineno or child.lineno
                    yield len(code.intersection(range(child.lineno, last + 1))), child.lineno, inner[:-1]
            yield from walk(child, inner)

    return walk(ast.parse(source), "")


def _docstrings(tree: ast.AST) -> Iterator[tuple[int, int]]:
    """The first and the last line of each statement that is a string alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.end_lineno or node.lineno


if __name__ == "__main__":
    sys.exit(main())
