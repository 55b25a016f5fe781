"""Lines of code are counted without blanks, comments and docstrings."""

from __future__ import annotations

import sys
from pathlib import Path

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
