"""Settings of a run's folder that may act beyond it. A folder may come from anyone, so they count only if trusted."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from a3c_exp.common.settings import flatten

CHECKED_ELSEWHERE = ("env.id", "env.wrappers", "init_from", "plugins")
"""Settings whose texts are judged where their meaning is known, or which name what is only read."""

_WORD = re.compile(r"[\w +-]*")
_DOTTED_KEY = re.compile(r"[\w +.-]*")


def is_plain(value: object) -> bool:
    """Return whether a value names no file and no address: numbers, and texts of words."""
    if isinstance(value, str):
        return _WORD.fullmatch(value) is not None
    if isinstance(value, Mapping):
        return all(_DOTTED_KEY.fullmatch(str(key)) and is_plain(item) for key, item in value.items())
    if isinstance(value, Sequence):
        return all(map(is_plain, value))
    return True


def texts_to_trust(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The settings of a configuration, by dotted keys, whose text or name may be that of a file or an address."""
    for key, value in flatten(config):
        checked = key in CHECKED_ELSEWHERE or key.rpartition(".")[2] == "_target_"
        if not checked and not is_plain({key: value}):
            yield key, value


def is_trusted(key: str, trusted: Sequence[str]) -> bool:
    """Return whether a key, or one above it, is among the trusted ones."""
    return any(key == each or key.startswith(f"{each}.") for each in trusted)
