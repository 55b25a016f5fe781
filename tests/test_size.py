"""Lines of code are counted without blanks, comments and docstrings."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))  # bench is not installed: it belongs to the checkout

from bench import size

SOURCE = '''"""Of a module.

Two paragraphs.
"""

# a comment
LIMIT = 3  # with a comment behind it
"""Of a constant."""

TEXT = """no docstring

but data"""


class Box:
    def area(
        self,
        # a comment
    ) -> int:
        """Of a function.
        """
        return LIMIT
'''


def test_lines_are_those_with_code() -> None:
    # LIMIT, the three lines of TEXT, class, the three of def, return
    assert len(size.code_lines(SOURCE)) == 1 + 3 + 1 + 3 + 1


def test_folders_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {"a3c_exp/__init__.py": "", "a3c_exp/one.py": SOURCE, "a3c_exp/envs/two.py": "X = 1\n"}
    for name, text in files.items() | {"conf/config.yaml": "", "bench/x.py": "Y = 1\n"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert size.main([str(tmp_path)]) == 0
    assert [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()] == [
        ["10", "in all, 3 files"],
        ["9", "a3c_exp/ alone, 2 files"],
        ["1", "a3c_exp/envs/ alone, 1 files"],
        ["0", "tests/ in all, 0 files"],
        ["1", "bench/ in all, 1 files"],
        ["0", "study/ in all, 0 files"],
    ]
