"""Plain data of files and command lines, which may hold anything: read within limits, and checked
before it is used.

Plain data are text, numbers, true, false, null, and lists and mappings of them.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from a3c_exp.errors import ConfigError, require

LARGEST = 2**63 - 1
"""Settings and counters that are whole numbers lie between -LARGEST and LARGEST."""
MOST_BYTES = 2**24
"""Of a file that is read as a whole. A configuration has 3 kB."""


class UnreadableError(Exception):
    """The reason why a file or a text cannot be read, in plain words."""


def expanded(path: str | Path) -> Path:
    """A path with the user's home folder in place of `~`. Of a user who does not exist, `~name` is
    a name like any."""
    return Path(os.path.expanduser(path))


def read_text(path: Path) -> str:
    """Return the text of a file in UTF-8 that has at most MOST_BYTES.

    Raises UnreadableError, and OSError.
    """
    with open(path, "rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise UnreadableError(f"has more than {MOST_BYTES:,} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise UnreadableError("is no text in UTF-8") from None


def parse_yaml(text: str) -> Any:
    """YAML as plain data, without aliases. Raises UnreadableError."""
    import yaml

    loader = _yaml_loader()
    try:
        # An alias may stand for any number of values, so it is refused before anything is built.
        for event in yaml.parse(text, Loader=loader):
            if isinstance(event, yaml.AliasEvent):
                line = event.start_mark.line + 1
                raise UnreadableError(f"has an alias in line {line}: write the value out")

        value = yaml.load(text, Loader=loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None)
        line = f"line {mark.line + 1}: " if mark else ""
        raise UnreadableError(
            f"is no YAML: {line}{problem or ' '.join(str(error).split())}"
        ) from None
    except (ValueError, TypeError):  # Python's limit on digits; a list as a key
        raise UnreadableError("has a number that is too long, or a key that is no text") from None
    except RecursionError:
        raise UnreadableError("is nested too deeply") from None

    try:
        check_plain(value)
    except ConfigError as error:
        raise UnreadableError(f"{error.key or 'it'} {error.problem}") from None

    return value


def parse_key_values(arguments: Sequence[str]) -> dict[str, Any]:
    """key=value arguments, the values read as YAML. Raises ConfigError."""
    values = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        require(bool(key and equals), "command line", argument, "key=value")
        try:
            # YAML 1.1 requires a point in 1e6, Hydra's command line does not.
            values[key] = parse_yaml(value)
        except UnreadableError as error:
            raise ConfigError(
                key, value, f"must be a plain value: it {str(error).removeprefix('it ')}"
            ) from None

    return values


@functools.cache
def _yaml_loader() -> Any:
    """A safe loader, in C where libyaml is there. It reads numbers as OmegaConf does."""
    import yaml

    loader: Any = type("Loader", (getattr(yaml, "CSafeLoader", yaml.SafeLoader),), {})
    # YAML 1.1 requires a point and a sign in 1e6, OmegaConf and the command line do not.
    exponent = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$")
    loader.add_implicit_resolver("tag:yaml.org,2002:float", exponent, list("-+0123456789"))
    return loader


MOST_LEVELS = 50
"""Levels of mappings and lists in one another."""


def check_plain(value: object, key: str = "") -> None:
    """Raise ConfigError for the first value that is not plain, and for data that contain
    themselves.

    Keys are text or whole numbers.
    key: of `value` as the user knows it.
    """
    try:
        _check_plain(value, key)
    except RecursionError:
        raise ConfigError(key, value, "contains itself, or is nested too deeply") from None


def _check_plain(value: object, key: str, level: int = 0) -> None:
    if level > MOST_LEVELS:  # more of them are too many for OmegaConf
        raise RecursionError

    if isinstance(value, Mapping):
        for name, item in value.items():
            if isinstance(name, bool) or not isinstance(name, (str, int)):
                raise ConfigError(key, value, f"has the key {name!r}: keys must be text")
            _check_plain(item, f"{key}.{name}" if key else str(name), level + 1)
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            _check_plain(item, f"{key}[{number}]", level + 1)
    # np.float64 is a float
    elif value is not None and type(value) not in (bool, int, float, str):
        plain = "text, a number, true, false, null, a list or a mapping"
        raise ConfigError(key, value, f"must be plain ({plain}), not {type(value).__name__}")
