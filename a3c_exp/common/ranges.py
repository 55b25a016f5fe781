"""Ranges of settings, as part of their types: `decay: BelowOne`. A component checks its own when it
is made."""

from __future__ import annotations

import functools
import math
import sys
import types
import typing
from typing import Annotated, NamedTuple

from a3c_exp.errors import ConfigError


class Range(NamedTuple):
    """The numbers from `least` to `most` that a setting may have. allowed: in words, for errors."""

    allowed: str
    least: float
    most: float


def within(least: float, most: float) -> Range:
    """The numbers between two bounds, which count."""
    return Range(f"a number from {least:g} to {most:g}", least, most)


def whole(least: int, most: float = math.inf) -> Range:
    """The whole numbers between two bounds, which count. Without the second there is no upper
    bound."""
    allowed = (
        f"a whole number >= {least}"
        if most == math.inf
        else f"a whole number from {least} to {most}"
    )
    return Range(allowed, least, most)


_LARGEST = sys.float_info.max
Finite = Annotated[float, Range("a finite number", -_LARGEST, _LARGEST)]
Positive = Annotated[float, Range("a number > 0", math.ulp(0.0), _LARGEST)]
PositiveFloat32 = Annotated[float, Range("a number > 0, from 1e-38 to 3e38", 1e-38, 3e38)]
NOT_NEGATIVE = Range("a number >= 0", 0, _LARGEST)
NotNegative = Annotated[float, NOT_NEGATIVE]
Share = Annotated[float, within(0, 1)]
BelowOne = Annotated[float, Range("a number from 0 to less than 1", 0, math.nextafter(1, 0))]
Count = Annotated[int, whole(1)]
Whole = Annotated[int, whole(0)]


class Checked:
    """The base class of dataclasses whose fields have ranges in their types.

    Raises ConfigError for a number out of its range. A schedule is checked where a run begins and
    where it ends, since those of `schedules` stay between the two values. Null and words are left
    to the schema. A subclass with a `__post_init__` of its own calls this one.
    """

    def __post_init__(self) -> None:
        cls: type = type(self)
        for name, (allowed, least, most) in _ranges(cls):
            value = getattr(self, name)
            if callable(value):
                for progress, when in ((0.0, "begins"), (1.0, "ends")):
                    number = value(progress)
                    if not least <= number <= most:
                        problem = f"must be {allowed} where the run {when}, too"
                        raise ConfigError(name, number, problem)
            elif isinstance(value, (int, float)) and not least <= value <= most:
                raise ConfigError(name, value, f"must be {allowed}")


@functools.cache
def _ranges(cls: type) -> list[tuple[str, Range]]:
    """Return the fields of a class that have a range, each with it."""
    fields = []
    for name, hint in typing.get_type_hints(cls, include_extras=True).items():
        alternatives = typing.get_args(hint)
        also = ", or null" if types.NoneType in alternatives else ""
        for alternative in (hint, *alternatives):
            marks = getattr(alternative, "__metadata__", ())
            ranges = (mark for mark in marks if isinstance(mark, Range))
            fields += [(name, mark._replace(allowed=mark.allowed + also)) for mark in ranges]
    return fields
