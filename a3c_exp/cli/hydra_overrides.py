"""Overrides, as a user types them: what Hydra's grammar reads in them, and the runs of a sweep.

Annotations are not postponed here: Hydra's parser reads those of `loguniform`.
"""

import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, Sweep
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from a3c_exp.common.reading import check_plain
from a3c_exp.errors import ConfigError, require

SEARCH_PATH = "hydra.searchpath"
MOST_JOBS = 10_000
"""Runs of a sweep."""
OF_THE_PARSER = re.compile("(no viable|mismatched|extraneous|token recognition|missing) ")
"""How the messages of Hydra's parser begin, which name its tokens."""
KEY_VALUE = "must be key=value, without blanks; --help lists the keys"
COMPLAINTS = (HydraException, OmegaConfBaseException, YAMLError, ValueError, AssertionError)


def parse(overrides: Sequence[str], loader: ConfigLoader | None = None) -> list[Override]:
    """Overrides as Hydra's grammar reads them; with a session's loader, choices such as glob(*)
    too. Raises ConfigError."""
    parser = OverridesParser.create(loader)
    parser.functions.register("loguniform", loguniform)
    return [_parse_one(parser, text) for text in overrides]


def _parse_one(parser: OverridesParser, text: str) -> Override:
    key, equals, value = text.partition("=")
    try:
        override = parser.parse_override(text)
        override.config_loader = parser.config_loader  # glob(*) looks up the options in it
        if not (override.is_sweep_override() or override.is_delete()):
            check_plain(override.value(), override.key_or_group)
    except ConfigError:
        raise
    except (ValueError, RecursionError) as complaint:  # of Python's limits
        problem = "has a number that is too long, or is nested too deeply"
        raise ConfigError(key, value, problem) from complaint
    except HydraException as complaint:
        meant = re.fullmatch(r"\s*([\w.@/]+)\s*(?:==|:|=)\s*([^\s=]+)", text)
        if meant is not None and f"{meant[1]}={meant[2]}" != text:
            problem = f"must be {meant[1]}={meant[2]}"
            raise ConfigError("command line", text, problem) from complaint
        if not (key and equals):
            raise ConfigError("command line", text, KEY_VALUE) from complaint

        problem = first_line(complaint)
        if re.search(r"\s[\w.]+=", value):
            problem = "quotes are around each setting, not around several"
        elif value.endswith(","):
            problem = "it ends with a comma"
        elif OF_THE_PARSER.match(problem):
            problem = (
                "a bracket, a comma or a quote is missing, or the text needs quotes: "
                f"\"{key}='{value}'\""
            )
        raise ConfigError(key, value, f"cannot be read: {problem}") from complaint

    if not override.key_or_group:
        raise ConfigError("command line", text, KEY_VALUE)

    return override


def loguniform(low: Any, high: Any, count: Any = None, seed: Any = 0) -> Sweep:
    """`count` numbers between `low` and `high` whose logarithms are uniform, as in figure 2 of Mnih
    et al. 2016.

    They have five digits, and depend on this `seed` alone, not on that of the runs. A larger count
    begins with the numbers of a smaller one. Without a count it is the range itself, for a search.
    Raises ValueError.
    """
    are_numbers = all(type(bound) in (int, float) for bound in (low, high))
    is_count = type(count) is type(seed) is int and 0 < count <= MOST_JOBS
    if not (are_numbers and 0 < low < high < math.inf and (is_count or count is None)):
        raise ValueError(
            f"it is loguniform(low,high,count) with 0 < low < high and at most {MOST_JOBS:,} draws"
        )

    if count is None:
        return IntervalSweep(start=float(low), end=float(high), tags={"log"})

    import numpy as np  # here: the fork server starts before this command imports it

    logarithms = np.random.default_rng(abs(seed)).uniform(math.log(low), math.log(high), count)
    return ChoiceSweep(list=[float(f"{number:.5g}") for number in np.exp(logarithms)])


def sweep(overrides: Sequence[Override]) -> list[list[str]]:
    """The overrides of every job of a sweep (-m), in order. Raises ConfigError."""
    for override in overrides:
        key = override.key_or_group
        if override.is_sweep_override() and key.startswith("hydra"):
            problem = "must be one value, for the whole sweep"
            raise ConfigError(key, override.get_value_string(), problem)

        if isinstance(override.value(), IntervalSweep):
            problem = "is a range, for search=<trials>: loguniform(1e-4,1e-2,20) has 20 values"
            raise ConfigError(key, override.get_value_string(), problem)

    command = " ".join(str(override.input_line) for override in overrides)
    try:
        choices = [choices_of(override) for override in overrides]
    except COMPLAINTS as complaint:
        raise ConfigError("command line", command, first_line(complaint)) from complaint

    count = math.prod(map(len, choices))
    if count == 0:
        problem = "is a sweep without a run: one of its choices is empty"
        raise ConfigError("command line", command, problem)

    if count > MOST_JOBS:
        raise ConfigError("command line", command, f"is a sweep of more than {MOST_JOBS:,} runs")

    return [list(job) for job in itertools.product(*choices)]


def choices_of(override: Override) -> list[str]:
    """The override with each of its values. Without a choice, as it was typed."""
    if not override.is_sweep_override():
        return [str(override.input_line)]

    # range() may have no end.
    values = itertools.islice(override.sweep_string_iterator(), MOST_JOBS + 1)
    return [f"{override.get_key_element()}={value}" for value in values]


def search_path(overrides: Sequence[str]) -> list[str]:
    """The places that `hydra.searchpath` names. Raises ConfigError."""
    paths: list[str] = []
    for override in parse([text for text in overrides if SEARCH_PATH in text]):
        if override.key_or_group == SEARCH_PATH:
            value = override.value()
            paths = texts_in(value)
            is_list = isinstance(value, list) and len(paths) == len(value)
            require(is_list, SEARCH_PATH, value, "a list of texts")

    return paths


def texts_in(values: Any) -> list[str]:
    """The texts in a list. What is none is refused by the schema."""
    is_list = isinstance(values, list) or OmegaConf.is_list(values)
    return [value for value in values if isinstance(value, str)] if is_list else []


def first_line(error: BaseException) -> str:
    """The first line of an error's text; the place in the file, where a file cannot be read."""
    if isinstance(error, MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"{mark.name}, line {mark.line + 1}: {error.problem or 'cannot be read'}"

    cause = error.__cause__ if error.__cause__ is not None and not str(error) else error
    return (str(cause).strip() or type(cause).__name__).splitlines()[0].strip()
