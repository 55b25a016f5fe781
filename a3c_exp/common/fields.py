"""Fields of a checkpoint: each of its owners declares its own once, with the check of each value.

An owner's `state()` is `read_state(self, self.FIELDS)`. Its `restore` sets the fields that stand
alone by `write_state`, and the others itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, TypeVar

import numpy as np

from a3c_exp.common.reading import LARGEST

Owner = TypeVar("Owner")
Check = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class StateField(Generic[Owner]):
    """A value of an owner's state.

    Args:
        fits: whether a value in a checkpoint is one that `read` may have returned.
        read: returns the value, as plain data or an array that is not changed later.
        write: sets the value in a resumed run; None: the owner's `restore` does.
        may_be_missing: whether checkpoints of earlier versions lack the value.
    """

    fits: Check
    read: Callable[[Owner], Any]
    write: Callable[[Owner, Any], object] | None = None
    may_be_missing: bool = False


Fields = Mapping[str, StateField[Owner]]


def attribute(name: str, fits: Check) -> StateField[Any]:
    """Return a field that is an attribute of its owner."""
    return StateField(fits, attrgetter(name), lambda owner, value: setattr(owner, name, value))


def read_state(owner: Owner, fields: Fields[Owner]) -> dict[str, Any]:
    """Return the values of all fields by name, in their order."""
    return {name: field.read(owner) for name, field in fields.items()}


def write_state(owner: Owner, fields: Fields[Owner], state: Mapping[str, Any]) -> None:
    """Set the values that stand alone. Raises KeyError for one that the state lacks, unless it
    may be missing."""
    for name, field in fields.items():
        if field.write is not None and not (field.may_be_missing and name not in state):
            field.write(owner, state[name])


# Checks of values.


def is_count(value: Any) -> bool:
    """Return whether a value is a number of things, from which counters of 64 bits go on."""
    return type(value) is int and 0 <= value <= LARGEST // 2


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number."""
    return type(value) in (int, float) and abs(value) < math.inf


def is_list(value: Any, fits: Check, length: int | None = None) -> bool:
    """Return whether a value is a list of values that fit. length: how many; None: any number."""
    is_long_enough = isinstance(value, list) and length in (None, len(value))
    return is_long_enough and all(map(fits, value))


def or_none(fits: Check) -> Check:
    """Return a check of values that may be None."""
    return lambda value: value is None or fits(value)


def is_array(form: str, *, finite: bool = False) -> Check:
    """Return a check of arrays.

    Args:
        form: numpy's letter of the numbers, and how many dimensions there are: "f1".
        finite: whether all numbers must be finite.
    """

    def fits(value: Any) -> bool:
        if not isinstance(value, np.ndarray) or f"{value.dtype.kind}{value.ndim}" != form:
            return False
        return not finite or bool(np.isfinite(value).all())

    return fits
