"""Damage to the files of a run, drawn at random: bits, cut ends, and whole files with wrong
contents."""

from __future__ import annotations

import datetime
import io
import json
import math
import random
import re
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import yaml

WHOLE: list[Any] = [0, 1, -1, 2**31, 2**53, 2**63 - 1, 2**63, -(2**70), 10**400]
FRACTIONS: list[Any] = [0.5, 1e308, 5e-324, math.inf, -math.inf, math.nan]
TEXTS = [
    "",
    "x",
    "1",
    "nan",
    "\x1b[31m",
    "\u202e",
    "x" * 1000,
    "${seed}",
    "${",
    "${oc.env:HOME}",
    "../x",
    "os.system",
]
NESTED: list[Any] = [
    [],
    {},
    [1, 2],
    {"a": 1},
    {"_target_": "os.system"},
    {"__array__": "store/parameters.npy"},
]
VALUES = [None, True, False, *WHOLE, *FRACTIONS, *TEXTS, *NESTED]
ODD: list[Any] = [{1, 2}, datetime.date(2024, 1, 1), (1, 2), b"bytes", {1: 2}, {None: 1}]
"""Values that YAML has and JSON has not."""
KEYS = ["x", "\x1b[2J", "_target_", "__array__", "a.b"]

CODE = "!!python/object/apply:os.system ['touch canary']"
ALIASES = "\n".join(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9) if n else 1}]" for n in range(12))
YAML_LINES = [
    "a: &a [1, 2]\nb: *a",
    "a: &a {b: *a}",
    f"a: {CODE}",
    "a: 2024-01-01",
    "a: !!binary aGk=",
    ALIASES,
]
YAML_LINES += [
    "<<: {a: 1}",
    "1: 2",
    "? [1, 2]\n: 3",
    f"a: {'9' * 5000}",
    f"a: {'[' * 900}{']' * 900}",
    "seed: 1",
]
YAML_LINES += ["---\na: 1", "a: 'b"]

CELLS = [
    b"",
    b"x",
    b"nan",
    b"inf",
    b"-1",
    b"1e400",
    b"9" * 5000,
    b'"',
    b"1,2",
    b"\x00",
    b"\xff",
    b"\n",
    b"x" * 200_000,
]
SIZES = (0, -1, 3, 2**40, 2**64)
HEADERS = ["{'descr': ((((", "__import__('os')", "{", "'"]
HEADERS += [f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({size},), }}" for size in SIZES]
HEADERS += [f"{{'descr': '|O', 'fortran_order': False, 'shape': ({size},), }}" for size in SIZES]


def any_bytes(rng: random.Random, data: bytes) -> bytes:
    """Flip bits, cut the end off, or repeat or take away a piece."""
    start, end = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    pieces = [data[:start], data[:start] + data[end:], data[:end] + data[start:]]
    return rng.choice([*pieces, flip_bits(rng, data, rng.randint(1, 8))])


def flip_bits(rng: random.Random, data: bytes, count: int = 1) -> bytes:
    """Change so many bits."""
    changed = bytearray(data)
    for _ in range(count):
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the places of all values in nested data: a list or a mapping, and the index or key."""
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in list(items):
        yield value, key
        yield from _places(inner)


def _change(rng: random.Random, value: Any, odd: list[Any]) -> None:
    """Replace, take away or rename one of the values."""
    holder, key = rng.choice(list(_places(value)))
    match rng.randrange(4):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[rng.choice(KEYS)] = holder.pop(key)
        case _:
            deep: Any = 1
            for _ in range(rng.choice((20, 100))):
                deep = [deep]
            holder[key] = rng.choice([deep, *VALUES, *odd])


def yaml_file(rng: random.Random, data: bytes) -> bytes:
    """Damage a YAML file: its bytes, a line more, or a value."""
    match rng.randrange(3):
        case 0:
            return any_bytes(rng, data)
        case 1:
            return data + rng.choice(YAML_LINES).encode() + b"\n"

    config = yaml.safe_load(data)
    _change(rng, config, ODD)
    text: str = yaml.dump(config)
    return text.encode()


def json_file(rng: random.Random, data: bytes) -> bytes:
    """Damage a JSON file: its bytes, or a value."""
    if rng.random() < 0.3:
        return any_bytes(rng, data)
    value = json.loads(data)
    _change(rng, value, [])
    return json.dumps(value).encode()


def table(rng: random.Random, data: bytes) -> bytes:
    """Damage a table as CSV: its bytes, or one cell."""
    if rng.random() < 0.4:
        return any_bytes(rng, data)
    cells = list(re.finditer(rb"[^,\n]+", data))
    cell = rng.choice([*cells, *cells[:5]])
    return data[: cell.start()] + rng.choice(CELLS) + data[cell.end() :]


def checkpoint(rng: random.Random, data: bytes) -> bytes:
    """Damage a checkpoint: its bytes, or a value or an array in a whole archive."""
    if rng.random() < 0.2:
        return any_bytes(rng, data)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}

    if rng.random() < 0.5:
        entries["state.json"] = json_file(rng, entries["state.json"])
    else:
        name = rng.choice([name for name in entries if name.endswith(".npy")])
        entries[name] = _npy(rng, entries[name])

    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)

    return file.getvalue()


def _npy(rng: random.Random, data: bytes) -> bytes:
    """Return an array's file with an array of another type, shape or content in it, or with a wrong
    header."""
    if rng.random() < 0.3:
        header = rng.choice(HEADERS).encode()
        return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data[-8:]

    array = np.load(io.BytesIO(data), allow_pickle=False)
    wrong = [
        np.zeros(
            array.shape, rng.choice(["f2", "f8", "i1", "i8", "u8", "?", "c8", "U3", "S3", "M8[s]"])
        ),
        np.zeros(rng.choice([(), (0,), (1,), (3, 3), (2, 1, 5), (1, 1, 1, 1)]), array.dtype),
        array.reshape(-1)[: rng.randrange(array.size + 1)],
    ]
    if array.dtype.kind == "f":
        wrong.append(np.full_like(array, rng.choice([math.nan, math.inf, -math.inf, 3e38, -1e-38])))

    if array.dtype.kind in "iu":
        limits = np.iinfo(array.dtype)
        wrong.append(np.full_like(array, rng.choice([0, 1, limits.max, limits.min])))

    file = io.BytesIO()
    np.save(file, wrong[rng.randrange(len(wrong))])
    return file.getvalue()
