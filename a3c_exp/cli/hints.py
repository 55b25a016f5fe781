"""Hints for choices that do not exist: what a newcomer from another library probably means."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from a3c_exp.common.settings import flatten
from a3c_exp.errors import did_you_mean, either

OTHER_NAMES = {("algorithm", "a2c"): "algorithm=a3c update=sync"}
"""What other names of options, in lower case, are here."""

BY_ID = {"env": ("id", "gym")}
"""Groups whose options stand for a registered name: the setting that holds it, and the option that takes any name."""

ReadOption = Callable[[str], Mapping[str, Any] | None]


def option_problem(group: str, value: str, options: Sequence[str], read: ReadOption) -> str:
    """The problem with an option that does not exist, and the one that is meant.

    read: the settings in an option's file.
    """
    here = OTHER_NAMES.get((group, value.lower()))
    if here is not None:
        return f"is no option: it is {here} here"
    if group not in BY_ID or not re.search(r"[:/]|-v\d+$", value):
        return f"is no option: {did_you_mean(value, options)}"
    setting, any_name = BY_ID[group]
    holders = [option for option in options if f"{group}.{setting}={value}" in _texts(read(option))]
    if holders:
        return f"is no option: it is {either(f'{group}={option}' for option in holders)}"
    others = f"Allowed: {', '.join(sorted(options))}"
    return f"is no option: {group}={any_name} {group}.{setting}={value} takes any environment of gymnasium. {others}"


def _texts(settings: Mapping[str, Any] | None) -> set[str]:
    return {f"{key}={value}" for key, value in flatten(settings or {})}
