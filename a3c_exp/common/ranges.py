"""Ranges of settings, as part of their types: `decay: BelowOne`. A component checks its own when it is made."""

from __future__ import annotations

import functools
import math
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from a3c_exp.errors import require


@dataclass(frozen=True)
class Range:
    """The numbers that a setting may have. allowed: in words, for errors."""

    allowed: str
    holds: Callable[[float], bool]


def within(least: float, most: float) -> Range:
    """The numbers between two bounds, which count."""
    return Range(f"a number from {least:g} to {most:g}", lambda x: least <= x <= most)


def whole(least: int, most: float = math.inf) -> Range:
    """The whole numbers between two bounds, which count. Without the second there is no upper bound."""
    allowed = f"a whole number >= {least}" if most == math.inf else f"a whole number from {least} to {most}"
    return Range(allowed, lambda x: least <= x <= most)


Finite = Annotated[float, Range("a finite number", math.isfinite)]
Positive = Annotated[float, Range("a number > 0", lambda x: 0 < x < math.inf)]
NOT_NEGATIVE = Range("a number >= 0", lambda x: 0 <= x < math.inf)
NotNegative = Annotated[float, NOT_NEGATIVE]
Share = Annotated[float, within(0, 1)]
BelowOne = Annotated[float, Range("a number from 0 to less than 1", lambda x: 0 <= x < 1)]
Count = Annotated[int, whole(1)]
Whole = Annotated[int, whole(0)]


class Checked:
    """The base class of dataclasses whose fields have ranges in their types.

    Raises ConfigError for a number out of its range. A schedule is checked where a run begins and where it ends, since
    those of `schedules` stay between the two values. Null and words are left to the schema. A subclass with a
    `__post_init__` of its own calls this one.
    """

    def __post_init__(self) -> None:
        cls: type = type(self)
        for name, allowed, holds in _ranges(cls):
            value = getattr(self, name)
            if callable(value):
                for progress, when in ((0.0, "begins"), (1.0, "ends")):
                    require(holds(value(progress)), name, value(progress), f"{allowed} where the run {when}, too")
            elif isinstance(value, (int, float)):
                require(holds(value), name, value, allowed)


@functools.cache
def _ranges(cls: type) -> list[tuple[str, str, Callable[[float], bool]]]:
    """The fields of a class that have a range, each with it."""
    found = []
    for name, hint in typing.get_type_hints(cls, include_extras=True).items():
        alternatives = typing.get_args(hint)
        also = ", or null" if types.NoneType in alternatives else ""
        for each in (hint, *alternatives):
            ranges = (mark for mark in getattr(each, "__metadata__", ()) if isinstance(mark, Range))
            found += [(name, mark.allowed + also, mark.holds) for mark in ranges]
    return found
