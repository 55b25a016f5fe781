"""The errors that a user meets: a configuration that cannot run, and a run that failed."""

from __future__ import annotations

import difflib
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from a3c_exp.ending import StopReason


class ConfigError(ValueError):
    """A value in the configuration that cannot be used, found before anything is started or
    written.

    Its text is one line with the key, the value and what is allowed:
    `returns.n = 0: must be a whole number >= 1`.
    """

    def __init__(self, key: str, value: object, problem: str) -> None:
        # No call of Exception's own: `args`, from which an error is unpickled, are those that were
        # given.
        self.key = key
        self.value = value
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.key} = {shown(self.value)}: {self.problem}"


UNREGISTERED = "no such environment is registered."
ONLY_THERE = (
    "What was registered only in the program that trained needs a file of its own, "
    "whose module is named: plugins=[<module>]"
)
"""Parts of the text of errors about what another program does not know."""


class FolderError(ConfigError):
    """A folder or a file that cannot be used. Who knows the setting that names it says so: see
    `named`."""

    UNNAMED = "folder"

    def __init__(self, path: object, problem: str, key: str = UNNAMED) -> None:
        super().__init__(key, str(path), problem)


@contextmanager
def named(key: str) -> Iterator[None]:
    """Name the setting `key` in errors about a folder. The innermost name counts."""
    try:
        yield
    except FolderError as error:
        if error.key == FolderError.UNNAMED:
            error.key = key
        raise


@contextmanager
def under(path: str) -> Iterator[None]:
    """Put the key of a ConfigError below `path`: 'n' under 'returns' is 'returns.n'. "" changes
    nothing."""
    try:
        yield
    except ConfigError as error:
        if not path:
            raise
        raise ConfigError(f"{path}.{error.key}", error.value, error.problem) from error


LONGEST_VALUE = 300
LONGEST_TEXT = 2000
"""Characters of a value, and of another error's text, that an error shows."""


def shown(value: object, longest: int = LONGEST_VALUE) -> str:
    """A value as Python writes it, cut where it has more than `longest` characters."""
    try:
        text = repr(value)
    except (
        Exception
    ):  # a number of more digits than Python writes, a list that is nested too deeply
        return f"<{type(value).__name__} that is too large to show>"
    return text if len(text) <= longest else f"{text[:longest]}... ({len(text):,} characters)"


def printable(text: str) -> str:
    """A text whose control characters are escaped, lines apart: names in files and on command lines
    may hold any.

    A terminal would obey them: it would change its title, hide what follows or show it from right
    to left.
    """
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )


def say(text: str) -> None:
    """Print a line on stderr, in one piece: several processes do. A stream that has gone is no
    error."""
    with suppress(AttributeError, OSError, ValueError):
        sys.stderr.write(f"{printable(text)}\n")


def require(condition: bool, key: str, value: object, allowed: str) -> None:
    """Raise ConfigError("key = value: must be allowed") unless `condition` holds."""
    if not condition:
        raise ConfigError(key, value, f"must be {allowed}")


def texts(key: str, values: Sequence[str], form: str = '["env=lunar", "seed=1"]') -> Sequence[str]:
    """Return a list of texts as it was given. Raises ConfigError for anything else."""
    is_list = isinstance(values, Sequence) and not isinstance(values, str)
    if not is_list or not all(isinstance(value, str) for value in values):
        raise ConfigError(key, values, f"must be a list of texts: {form}")
    return values


def require_package(key: str, value: object, extra: str, *packages: str) -> None:
    """Raise ConfigError for a setting whose packages are not installed: those of an extra, or the
    one of its name."""
    specs = {name: importlib.util.find_spec(name) for name in packages or (extra,)}
    # Without an origin it is a folder of that name, such as W&B itself makes, and no package.
    missing = ", ".join(name for name, spec in specs.items() if spec is None or spec.origin is None)
    if missing:
        raise ConfigError(key, value, f"needs {missing}: pip install 'a3c-exp[{extra}]'")


class RunError(RuntimeError):
    """A run that failed: a worker raised or was killed, training diverged, or a cluster was lost.

    reason: the run's `stop_reason`, one of `ending.FAILED`.
    """

    def __init__(self, text: str, reason: StopReason = StopReason.FAILED) -> None:
        super().__init__(text)
        self.reason = reason


FAILURES = (Exception, SystemExit)
"""Ways in which code of a user's own may fail: not only errors, an environment may also call
sys.exit."""


def leaves_debugger(error: BaseException) -> bool:
    """Return whether a user has left Python's debugger by `quit`: it raises BdbQuit, and SystemExit
    from Python 3.14 on."""
    pdb = sys.modules.get("pdb")
    if pdb is None:
        return False
    if isinstance(error, pdb.bdb.BdbQuit):
        return True
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, SystemExit) and frames[-1].filename == pdb.__file__


@contextmanager
def refused(key: str, value: object, what: str) -> Iterator[None]:
    """Turn what code of a user's own raises into a ConfigError, "key = value: what: error", in one
    line."""
    try:
        yield
    except ConfigError:
        raise
    except FAILURES as error:
        raise ConfigError(key, value, f"{what}: {one_line(error)}{place_of(error)}") from error


def place_of(error: BaseException) -> str:
    """Where code of a user's own raised an error: " (badenv.py:5)"; the last line of any code if
    none is the user's."""
    import sysconfig  # these take as long as the rest of this package's first import
    import traceback

    # gymnasium wraps errors of constructors
    chain = (error, error.__cause__) if error.__cause__ else (error,)
    frames = [frame for link in chain for frame in traceback.extract_tb(link.__traceback__)]
    not_the_users = (
        str(Path(__file__).parent),
        *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
        "<",
    )
    of_user = [frame for frame in frames if not frame.filename.startswith(not_the_users)]
    last = (of_user or frames)[-1:]
    return "".join(f" ({frame.filename}:{frame.lineno})" for frame in last)


def did_you_mean(name: str, known: Iterable[str], *, list_all: bool = True) -> str:
    """A sentence with the names nearest to `name`: "did you mean 'seed'? Allowed: gamma, seed".

    list_all: False leaves out the list of all names, for long ones; the sentence is then empty if
    no name is near.
    """
    names = sorted(known)
    same = [candidate for candidate in names if candidate.lower() == name.lower()]
    nearest = same or difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    guess = f"did you mean {either(map(repr, nearest))}?" if nearest else ""
    allowed = f"Allowed: {', '.join(names) or 'none'}" if list_all else ""
    return f"{guess} {allowed}".strip()


def either(words: Iterable[str]) -> str:
    """Words as alternatives: "a, b or c"."""
    words = list(words)
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def one_line(error: BaseException) -> str:
    """An exception as one line: its type and its text, cut where it is long."""
    try:
        text = " ".join(str(error).split())
        text = (
            text
            if len(text) <= LONGEST_TEXT
            else f"{text[:LONGEST_TEXT]}... ({len(text):,} characters)"
        )
    except Exception:  # its own __str__ may fail
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
