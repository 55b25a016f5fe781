"""`python -m evidence.bench.licenses`: the license of every package that this one needs, with all
its extras.

The packages are those that are installed; each says its license in its metadata. The exit code is 1
if one of them is in none of the two lists of pyproject.toml, [tool.licenses]: `allowed`, of
licenses, and `packages`, of single packages that may have another one.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from a3c_exp.run import markdown

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
UNKNOWN = "unknown"
_CLASSIFIER = "License ::"


def main() -> int:
    """Print the table; 0, or 1 if a license is in no list."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))
    lists = project["tool"]["licenses"]

    rows = []
    refused = []
    for name in sorted(
        dependencies(project["project"]["name"], project["project"]["optional-dependencies"])
    ):
        license_name = license_of(name)
        fits = (
            is_allowed(license_name, lists["allowed"])
            or lists["packages"].get(name) == license_name
        )
        rows.append((name, distribution(name).version, license_name, "yes" if fits else "NO"))
        refused += [] if fits else [f"{name} ({license_name})"]

    print(markdown.table(("package", "version", "license", "allowed"), rows))
    if refused:
        print(
            f"Licenses in neither list of {PROJECT.name}, [tool.licenses]: {', '.join(refused)}",
            file=sys.stderr,
        )

    return int(bool(refused))


def dependencies(root: str, extras: Mapping[str, object]) -> set[str]:
    """Return the installed packages that `root` needs with these extras, and that those need in
    turn."""
    waiting = [(root, extra) for extra in ("", *extras)]

    done = set[tuple[str, str]]()
    while waiting:
        package = waiting.pop()
        if package not in done:
            done.add(package)
            waiting += _requirements(*package)

    return {name for name, _ in done if name != root and _is_installed(name)}


def _requirements(name: str, extra: str) -> Iterator[tuple[str, str]]:
    """Yield the packages that a package needs with an extra, each with every extra of its own that
    is asked for."""
    if not _is_installed(name):  # of another system, or of an extra that is not installed
        return
    for text in distribution(name).requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            for inner in ("", *requirement.extras):
                yield canonicalize_name(requirement.name), inner


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def license_of(name: str) -> str:
    """Return the license of an installed package: an SPDX expression, or the words of its
    metadata."""
    metadata = distribution(name).metadata
    if "License-Expression" in metadata:
        return metadata["License-Expression"]
    classifiers = [
        classifier.rpartition(" :: ")[2]
        for classifier in metadata.get_all("Classifier") or ()
        if _CLASSIFIER in classifier
    ]
    if classifiers:
        return " AND ".join(classifiers)
    words = (metadata.get_all("License") or [""])[0].strip().splitlines()

    return words[0] if words and words[0] != "UNKNOWN" else UNKNOWN


def is_allowed(license_name: str, allowed: Sequence[str]) -> bool:
    """Return whether a license is allowed: of several with AND all of them, of several with OR one.

    An expression with both, in parentheses, is not.
    """
    names = {name.lower() for name in allowed}
    expression = license_name[1:-1] if re.fullmatch(r"\([^()]*\)", license_name) else license_name
    choices = re.split(r"\s+OR\s+", expression.lower(), flags=re.IGNORECASE)
    return any(names.issuperset(re.split(r"\s+and\s+", name)) for name in choices)


if __name__ == "__main__":
    sys.exit(main())
