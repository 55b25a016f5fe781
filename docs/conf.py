"""The manual as a site: `make docs`. Sphinx reads the files that the repository shows, from its
root."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from evidence.bench import settings  # noqa: E402

project = "a3c_exp"
author = "a3c_exp authors"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "docs/index"
include_patterns = [
    "docs/*.md",
    "evidence/notes/*.md",
    "evidence/results/*.md",
    "evidence/study/sources/README.md",
    "evidence/bench/*.md",
    "RESULTS.md",
    "C*.md",
]
html_theme = "furo"
html_title = "a3c_exp"
html_copy_source = False
myst_heading_anchors = 4
autodoc_typehints = "description"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
smartquotes = False  # --config-dir has two hyphens
# The pages of the contents are its links: it needs no second list of them in the files that the
# repository shows.
NAVIGATION = """
```{toctree}
:hidden:
:caption: %s

%s
```
"""


def read_page(app: Any, name: str, source: list[str]) -> None:
    """What a repository shows and a site cannot: links to code and folders become their text,
    diagrams their source.

    The contents get a list for the navigation, a caption for each of their headings, and options.md
    its tables.
    """
    folder = (ROOT / name).parent

    def link(match: re.Match[str]) -> str:
        text, path = match.groups()
        if "://" in path or path.startswith("#"):
            return match[0]
        if path.partition("#")[0].endswith(".md"):
            # a file's name: the page's title
            return f"[]({path})" if text.endswith(".md") else match[0]
        assert (folder / path.partition("#")[0]).exists(), match[0]
        return f"{{download}}`{text} <{path}>`" if path.endswith(".ipynb") else text

    text = re.sub(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)", link, source[0]).replace(
        "```mermaid", "```text"
    )
    if name == root_doc:
        for part in re.split(r"^## ", source[0], flags=re.MULTILINE)[1:]:
            pages = [path.removesuffix(".md") for path in re.findall(r"\]\(([^)\s]+\.md)\)", part)]
            listed = [page for page in dict.fromkeys(pages) if f"\n{page}\n" not in text]
            text += NAVIGATION % (part.splitlines()[0], "\n".join(listed))
    source[0] = f"{text}\n{settings.document()}" if name == "docs/options" else text


def read_docstring(
    app: Any, what: str, name: str, object_: Any, options: Any, lines: list[str]
) -> None:
    """Docstrings are plain text: `code`, indented lines, and `argument: what it is`, which goes
    into a list."""
    joined: list[str] = []
    for line in lines:
        if line.startswith("    ") and joined and joined[-1] and not joined[-1].startswith("    "):
            joined[-1] += f" {line.strip()}"
        else:
            joined.append(line)
    names = list(inspect.signature(object_).parameters) if callable(object_) else []
    several = re.compile(rf"(?<=\.) (?=(?:{'|'.join(names) or '-'}): )")
    text = []
    arguments = []
    for line in joined:
        named = re.match(r"((?:\w+, )*\w+): ", line)
        if named and named[1].split(", ")[0] in names:
            for part in several.split(line):
                words, _, meaning = part.partition(": ")
                arguments += [f":param {word}: {plain(meaning)}" for word in words.split(", ")]
        elif line.startswith("    "):
            text += [line] if text[-1].startswith("    ") else ["::", "", line]
        else:
            text += (
                ["", plain(line)]
                if named or line.startswith(("Raises ", "Returns "))
                else [plain(line)]
            )
            text += [""] if named else []
    lines[:] = [*text, "", *arguments, ""]


def plain(text: str) -> str:
    """Text whose only markup is `code`, as reStructuredText."""
    return re.sub(r"`+([^`]+)`+", r"``\1``", re.sub(r"([*|\\_])(?![^`]*`)", r"\\\1", text))


def setup(app: Any) -> None:
    app.connect("source-read", read_page)
    app.connect("autodoc-process-docstring", read_docstring)
