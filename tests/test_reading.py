"""Plain data of files and command lines: what is read, what is refused in plain words, and nothing
that waits."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from a3c_exp.common import reading
from a3c_exp.common.reading import (
    UnreadableError,
    check_plain,
    expanded,
    parse_key_values,
    parse_yaml,
    read_text,
)
from a3c_exp.errors import ConfigError
from a3c_exp.run.run_folder import read_summary

# YAML and JSON.

PLAIN = {
    "a": 1,
    "b": [1.5, None, True, "x"],
    "c": {"d": {}, "e": "${seed}"},
    "large": 2**64,
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (
            "{a: 1, b: [1.5, null, true, x], c: '2024-01-01'}",
            {"a": 1, "b": [1.5, None, True, "x"], "c": "2024-01-01"},
        ),
        ("a: 1e6", {"a": 1e6}),
        ("1: 2", {1: 2}),
    ],
)
def test_yaml_is_read_as_plain_data(text: str, value: object) -> None:
    assert parse_yaml(text) == value


ALIAS_BOMB = "\n".join(
    f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9) if n else 1}]" for n in range(30)
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (ALIAS_BOMB, "has an alias in line 2: write the value"),
        ("b: 1\na: !!set {x, y}", "a must be plain"),
        (
            "a: !!python/object/apply:os.system [x]",
            "is no YAML: line 1: could not determine a constructor",
        ),
        ("a: 2024-01-01", "a must be plain"),
        (f"a: {'[' * 3000}{']' * 3000}", ""),
        (f"a: {'9' * 5000}", "has a number that is too long, or a key that is no text"),
        ("? [1, 2]\n: 3", "is no YAML: line 1: found"),
        ("a: {true: 1}", "a has the key True: keys must be"),
    ],
)
def test_what_is_no_plain_yaml_is_refused_in_one_line(text: str, reason: str) -> None:
    start = time.perf_counter()
    with pytest.raises(UnreadableError) as refusal:
        parse_yaml(text)
    assert str(refusal.value).startswith(reason)
    assert "\n" not in str(refusal.value)
    assert time.perf_counter() - start < 10


@pytest.mark.parametrize("steps", ["}", "[" * 100_000, "9" * 5000])
def test_a_summary_that_is_no_json_counts_as_none(steps: object, tmp_path: Path) -> None:
    for value, summary in (("1", {"steps": 1}), (steps, None)):
        (tmp_path / "summary.json").write_text(f'{{"steps": {value}}}')
        assert read_summary(tmp_path) == summary


def cycle() -> list[Any]:
    inside: list[Any] = []
    inside.append({"again": inside})
    return inside


@pytest.mark.parametrize(
    ("value", "refusal"),
    [
        ({1, 2}, "a.b = {1, 2}: must be plain"),
        ([0, 1j], "a.b[1] = 1j: must be plain"),
        ({"c": {None: 1}}, "a.b.c = {None: 1}: has the key None: keys must be text"),
        (cycle(), "a = {'b': [{'again': [...]}]}: contains itself"),
    ],
)
def test_values_that_are_not_plain_are_refused_by_their_keys(value: object, refusal: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_plain({"b": value}, "a")
    assert str(error.value).startswith(refusal)
    check_plain(PLAIN)


# Options of commands.


def test_an_option_that_is_not_plain_is_refused_by_its_key() -> None:
    with pytest.raises(ConfigError, match=r"^episodes = .*: must be a plain value: it "):
        parse_key_values(["episodes=2024-01-01"])


# Files.


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"x" * 101, "has more than 100 bytes"), (b"\xff", "is no text in UTF-8")],
)
def test_a_text_has_its_limits(
    content: bytes, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MOST_BYTES", 100)
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(UnreadableError, match=f"^{reason}$"):
        read_text(tmp_path / "file")


def test_the_home_of_a_user_who_does_not_exist_is_a_name_like_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    assert expanded("~/run") == Path("/somewhere/run")
    assert expanded("~nobody_of_that_name/run") == Path("~nobody_of_that_name/run")
