"""Tables of every setting, as Markdown: defaults and meanings from the files of conf/, allowed
values from the schema.

`python -m evidence.bench.settings` prints them, and `make docs` puts them on the page
docs/options.md of the site.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

from a3c_exp.common.settings import TARGET
from a3c_exp.config.schema import describe, settings_of
from a3c_exp.run.markdown import table

CONF = Path(__file__).parents[2] / "conf"
RECORDS = "a3c_exp.core.experiment"
WHOLE_RUN = f"{RECORDS}.Experiment"
PARTS = {"stop": "Stop", "eval": "Eval", "checkpoint": "Checkpoint", "log": "Log"}
LINE = re.compile(r"( *)(\w+):(?: +([^#]*?))?(?: *# *(.*))?")
HEADER = ("setting", "values", "default", "meaning")


class Setting(NamedTuple):
    """A setting in a file of conf/. key: as on the command line. default: as the file writes it."""

    key: str
    default: str
    meaning: str


def read(path: Path) -> tuple[str, list[Setting]]:
    """Return the comment at the head of a file of conf/, and its settings with the comments beside
    and below them."""
    text = path.read_text(encoding="utf-8").partition("\nhydra:")[0]
    of_group = path.parent != CONF and "# @package _global_" not in text
    parents = [(-1, path.parent.name)] if of_group else []

    head: list[str] = []
    settings: list[Setting] = []
    for line in text.replace("# @package _global_\n", "").splitlines():
        comment = line.strip().removeprefix("#").strip()
        match = LINE.fullmatch(line.rstrip())

        if line.lstrip().startswith("#") and settings:
            settings[-1] = settings[-1]._replace(meaning=f"{settings[-1].meaning} {comment}")
        elif line.lstrip().startswith("#"):
            head.append(comment)
        elif match is not None:
            indent, name, value, comment = (part or "" for part in match.groups())
            parents = [parent for parent in parents if parent[0] < len(indent)]
            key = ".".join([*(parent for _, parent in parents), name])
            if not value:
                parents.append((len(indent), name))
            if name == TARGET:
                head.append(comment)
            elif name != "defaults" and (value or comment):
                settings.append(Setting(key, value, comment))

    return " ".join(head).strip(), settings


def allowed_values(paths: Sequence[Path] = ()) -> dict[str, str]:
    """Return the values that the schema allows, by key: of the settings of a run, and of the
    components that `paths` name."""
    targets = [("", WHOLE_RUN), *((f"{key}.", f"{RECORDS}.{name}") for key, name in PARTS.items())]
    for path in paths:
        node = yaml.safe_load(path.read_text(encoding="utf-8"))
        component = node.get(path.parent.name, node)
        if TARGET in component:
            targets.append((f"{path.parent.name}.", component[TARGET]))

    return {
        prefix + name: describe(setting.hint)
        for prefix, target in targets
        for name, setting in settings_of(target).items()
    }


def section(title: str, path: Path, values: dict[str, str]) -> str:
    """Return a heading, the comment at the head of a file, and the table of its settings."""
    head, settings = read(path)
    rows = [
        (f"`{key}`", plain(values.get(key, "")), f"`{default}`" if default else "", plain(meaning))
        for key, default, meaning in settings
    ]
    return "\n\n".join([title, plain(head), *([table(HEADER, rows)] if rows else [])])


def plain(text: str) -> str:
    """Return text whose only markup is `code`."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"([\\|<>*_\[\]{}$#])", r"\\\1", part)
        for part in parts
    )


def document() -> str:
    """Return all tables: those of a run, then those of each group."""
    parts = [section("## Settings of a run", CONF / "config.yaml", allowed_values())]
    for folder in sorted(path for path in CONF.iterdir() if path.is_dir()):
        paths = sorted(folder.glob("*.yaml"))
        values = allowed_values(paths)
        parts.append(f"## Options of `{folder.name}`")
        parts.extend(section(f"### `{folder.name}={path.stem}`", path, values) for path in paths)

    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables. Returns 0."""
    argparse.ArgumentParser(
        prog="python -m evidence.bench.settings", description=__doc__
    ).parse_args(arguments)
    print(document(), end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
