"""Names of a sweep's runs, by what differs between them: for folders, for TensorBoard's list of runs and for lines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from a3c_exp.run.run_folder import environment_of

LONGEST_VALUE, LONGEST_NAME = 40, 100


def run_folder(config: Mapping[str, Any]) -> Path:
    """A new run's folder, without one of its own: outputs/cartpole_a3c_s0_2026-11-25_17-15-56."""
    env = re.sub(r"-v\d+$", "", re.split("[/:.]", environment_of(config))[-1])
    algorithm = str((config.get("algorithm") or {}).get("_target_")).rpartition(".")[2]
    words = (env, algorithm, f"s{config.get('seed', 0)}", f"{datetime.now():%Y-%m-%d_%H-%M-%S}")
    return Path("outputs", "_".join(map(_plain, words)).lower())


def labels(jobs: Sequence[Sequence[str]]) -> list[str]:
    """What differs between jobs as it was typed, one text each: "returns=gae seed=2".

    jobs: the overrides of each, in the same order. Empty for a single job.
    """
    return [" ".join(job[place].lstrip("+") for place in _differing(jobs)) for job in jobs]


def folder_names(jobs: Sequence[Sequence[str]]) -> list[str]:
    """Names for the jobs' folders: "returns-gae_seed-2", of letters, digits and `-_.+`, each different, not long.

    Keys are cut to their last part where that is clear. A value of which something is left out or cut has a hash, so
    that another value has another name. Where nothing differs the name is `run`.
    """
    places = _differing(jobs)
    keys = [jobs[0][place].lstrip("+~").partition("=")[0] for place in places]
    last_parts = Counter(_last_part(key) for key in keys)
    shorter = [_last_part(key) if last_parts[_last_part(key)] == 1 else key for key in keys]
    names, taken = [], set[str]()
    for job in jobs:
        values = [job[place].partition("=")[2] for place in places]
        pairs = [f"{_plain(key)}-{_plain(value)}" for key, value in zip(shorter, values, strict=True)]
        whole = _cut("_".join(pairs), LONGEST_NAME, " ".join(values)) or "run"
        name, count = whole, 1
        while name.lower() in taken:  # some file systems do not tell upper case from lower case
            count += 1
            name = f"{whole}_{count}"
        taken.add(name.lower())
        names.append(name)
    return names


def _differing(jobs: Sequence[Sequence[str]]) -> list[int]:
    """The places of overrides that are not the same in all jobs."""
    return [place for place, texts in enumerate(zip(*jobs, strict=True)) if len(set(texts)) > 1]


def _last_part(key: str) -> str:
    return re.split(r"[./@]", key)[-1]


def _plain(text: str) -> str:
    """A value's letters, digits and `-_.+`, with one `-` for what is between them; the class alone of a `_target_`.

    Lists of plain values, and numbers, are as they are but for the sign of an exponent: 1e+38 is 1e38.
    """
    text = re.sub(r"(?<=\d)[eE]\+(?=\d)", "e", text.strip())
    short = re.sub(r"\b_target_ *: *([\w.]+\.)?", "", text)
    plain = re.sub(r"[^A-Za-z0-9._+-]+", "-", short).lstrip("." if re.match(r"-\.?\d", short) else "-.")
    plain = plain.rstrip("-.") or "none"
    whole = plain == text or re.fullmatch(r"\[[\w.+]+( *, *[\w.+]+)+\]", text)
    return _cut(plain if whole else f"{plain}-{_hash(text)}", LONGEST_VALUE, text)


def _cut(name: str, longest: int, text: str) -> str:
    """A name that is not longer; one that is cut ends with the hash of what it stands for."""
    return name if len(name) <= longest else f"{name[: longest - 7]}-{_hash(text)}"


def _hash(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:6]
