"""What is refused is held by the key and the value that the error names."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from a3c_exp.errors import ConfigError

Refuses = Callable[..., str]
"""The fixture `refuses`, for commands: (words, key, value=..., main=...) -> the line that is
printed."""


def refused(call: Callable[[], object], key: str, value: object = ...) -> str:
    """Check that a call raises a ConfigError in one line, about a key and, if it is given, a value.

    Returns the problem, for a keyword of it.
    """
    with pytest.raises(ConfigError) as caught:
        call()
    error = caught.value
    assert "\n" not in str(error)
    assert error.key == key, error
    assert value is ... or error.value == value, error
    return error.problem
