"""Damage to the files of a run, drawn at random: bits, cut ends, and whole files with wrong contents."""

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

Place = tuple[Any, Any]
"""A list or a mapping, and the index or key of a value in it."""


def any_bytes(rng: random.Random, data: bytes) -> bytes:
    """Flip bits, cut the end off, or repeat or take away a piece."""
    start, end = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    match rng.randrange(4):
        case 0:
            return data[:start]
        case 1:
            return data[:start] + data[end:]
        case 2:
            return data[:end] + data[start:]
    changed = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _places(value: Any) -> Iterator[Place]:
    """The places of all values in nested data."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield value, key
        yield from _places(inner)


def _deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def _wrong_values() -> list[Any]:
    """Values of every type that plain data have."""
    return [
        None, True, False, 0, 1, -1, 2**31, 2**53, 2**63, 2**63 - 1, -(2**70), 10**400, 0.5, math.inf, -math.inf,
        math.nan,
        1e308, 5e-324, "", "x", "1", "nan", "\x1b[31m", "\u202e", "x" * 1000, "${seed}", "${", "${oc.env:HOME}", "../x",
        "a3c_exp.returns.GAE", "os.system", [], {}, [1, 2], {"a": 1}, {"_target_": "os.system"}, _deep(20), _deep(100),
        {"__array__": "store/parameters.npy"}, {"__array__": 3},
    ]  # fmt: skip


def _change(rng: random.Random, value: Any, wrong: list[Any]) -> None:
    """Replace, take away or rename one of the values."""
    holder, key = rng.choice(list(_places(value)))
    match rng.randrange(4):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[rng.choice(["x", "\x1b[2J", "_target_", "__array__", "a.b"])] = holder.pop(key)
        case _:
            holder[key] = rng.choice(wrong)


YAML_LINES = (
    "a: &a [1, 2]\nb: *a", "a: &a {b: *a}", "a: !!python/object/apply:os.system ['touch canary']", "a: !!set {b, c}",
    "a: 2024-01-01", "a: !!binary aGk=", "a: !!timestamp 2024-01-01", "<<: {a: 1}", "1: 2", "? [1, 2]\n: 3",
    "? {a: 1}\n: 3",
    f"a: {'9' * 5000}", f"a: {'[' * 900}{']' * 900}", "seed: 1", "---\na: 1", "%YAML 1.1", "a: 'b", "\ta: 1", "a: 1:30",
    "\n".join(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9) if n else 1}]" for n in range(12)),
)  # fmt: skip


def yaml_file(rng: random.Random, data: bytes) -> bytes:
    match rng.randrange(3):
        case 0:
            return any_bytes(rng, data)
        case 1:
            return data + rng.choice(YAML_LINES).encode() + b"\n"
    config = yaml.safe_load(data)
    _change(rng, config, [*_wrong_values(), {1, 2}, datetime.date(2024, 1, 1), (1, 2), b"bytes", {1: 2}, {None: 1}])
    text: str = yaml.dump(config)
    return text.encode()


def json_file(rng: random.Random, data: bytes) -> bytes:
    if rng.random() < 0.3:
        return any_bytes(rng, data)
    value = json.loads(data)
    _change(rng, value, _wrong_values())
    return json.dumps(value).encode()


CELLS = (
    b"", b"x", b"nan", b"inf", b"-1", b"1e308", b"1e400", b"9" * 5000, b'"', b"1,2", b"\x00", b"\xff", b"\n", b"\r",
    b"x" * 200_000,
)  # fmt: skip


def table(rng: random.Random, data: bytes) -> bytes:
    """A table as CSV: bytes, or one cell."""
    if rng.random() < 0.4:
        return any_bytes(rng, data)
    cells = list(re.finditer(rb"[^,\n]+", data))
    cell = rng.choice([*cells, *cells[:5]])
    return data[: cell.start()] + rng.choice(CELLS) + data[cell.end() :]


def _wrong_array(rng: random.Random, array: np.ndarray) -> np.ndarray:
    """An array of another type, shape or content."""
    match rng.randrange(5):
        case 0:
            return np.zeros(array.shape, rng.choice(["f2", "f8", "i1", "i8", "u8", "?", "c8", "U3", "S3", "M8[s]"]))
        case 1:
            return np.zeros(rng.choice([(), (0,), (1,), (3, 3), (2, 1, 5), (1, 1, 1, 1)]), array.dtype)
        case 2 if array.dtype.kind == "f":
            return np.full_like(array, rng.choice([math.nan, math.inf, -math.inf, 3e38, -1e-38]))
        case 3 if array.dtype.kind in "iu":
            return np.full_like(array, rng.choice([0, 1, np.iinfo(array.dtype).max, np.iinfo(array.dtype).min]))
    return array.reshape(-1)[: rng.randrange(array.size + 1)]


HEADERS = (
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (",
    b"{'descr': ((((",
    b"__import__('os')",
    b"{",
    b"1L",
    b"'",
)


def _npy(rng: random.Random, data: bytes) -> bytes:
    """An array's file with another array in it, or with a header that is none."""
    if rng.random() < 0.3:
        header = rng.choice(HEADERS)
        if rng.random() < 0.5:
            sizes = ", ".join(str(rng.choice([0, -1, 3, 2**40, 2**64])) for _ in range(rng.randrange(3)))
            kind = rng.choice(["<f4", "|O", "<U9", "<c8", "x"])
            header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': ({sizes},), }}".encode()
        return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data[-8:]
    array = np.load(io.BytesIO(data), allow_pickle=False)
    file = io.BytesIO()
    np.save(file, _wrong_array(rng, array))
    return file.getvalue()


def checkpoint(rng: random.Random, data: bytes) -> bytes:
    """A checkpoint: bytes, or a whole archive in which a value or an array is wrong."""
    if rng.random() < 0.2:
        return any_bytes(rng, data)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    if rng.random() < 0.5:
        state = json.loads(entries["state.json"])
        _change(rng, state, _wrong_values())
        entries["state.json"] = json.dumps(state).encode()
    else:
        name = rng.choice([name for name in entries if name.endswith(".npy")])
        entries[name] = _npy(rng, entries[name])
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return file.getvalue()
