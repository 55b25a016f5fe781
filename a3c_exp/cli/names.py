"""Names of a sweep's runs, by what differs between them: for folders, for TensorBoard's list of
runs and for lines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from hashlib import sha256

LONGEST_NAME = 100


def labels(jobs: Sequence[Sequence[str]], common: Collection[str] | None = None) -> list[str]:
    """What differs between jobs, and their seed, as it was typed, one text each: "returns=gae
    seed=2".

    jobs: the overrides of each, in the same order. common: overrides that all jobs have, also those
    that are not known yet. Empty for a single job without a seed, where nobody says what is common.
    """
    indices = _differing(jobs, common)
    return [" ".join(job[index].lstrip("+") for index in indices) for job in jobs]


def folder_names(jobs: Sequence[Sequence[str]], common: Collection[str] | None = None) -> list[str]:
    """Names for the jobs' folders: "returns-gae_seed-2", of letters, digits and `-_.+`, each
    different, not long.

    A seed that is given is part of them, since other commands on the same sweep may have other
    seeds. Keys are cut to their last part where that is clear. A name that is cut, or that an
    earlier job has, ends with a hash of the job's values. Where nothing differs the name is `run`.
    common: see `labels`.
    """
    indices = _differing(jobs, common)
    keys = [jobs[0][index].lstrip("+~").partition("=")[0] for index in indices]
    last_parts = Counter(map(_last_part, keys))
    shorter = [_last_part(key) if last_parts[_last_part(key)] == 1 else key for key in keys]
    names: list[str] = []
    taken: set[str] = set()
    for job in jobs:
        values = [job[index].partition("=")[2] for index in indices]
        parts = [
            f"{plain_words(key)}-{plain_words(value)}"
            for key, value in zip(shorter, values, strict=True)
        ]
        name = "_".join(parts) or "run"
        if len(name) > LONGEST_NAME or name.lower() in taken:
            name = f"{name[:LONGEST_NAME]}-{sha256(' '.join(values).encode()).hexdigest()[:6]}"

        names.append(name)
        taken.add(name.lower())  # some file systems do not tell upper case from lower case

    return names


def _differing(jobs: Sequence[Sequence[str]], common: Collection[str] | None) -> list[int]:
    """The indices of overrides that are not the same in all jobs, and of seeds."""
    indices = []
    for index, texts in enumerate(zip(*jobs, strict=True)):
        is_other = common is not None and texts[0] not in common
        if len(set(texts)) > 1 or texts[0].startswith("seed=") or is_other:
            indices.append(index)

    return indices


def _last_part(key: str) -> str:
    return re.split(r"[./@]", key)[-1]


def plain_words(text: str) -> str:
    """The words of a value, of letters, digits and `-_.+`, joined by `-`; of a `_target_` the class
    alone."""
    short = re.sub(r"\b_target_ *: *([\w.]+\.)?", "", text)
    return "-".join(
        word for word in re.findall(r"[A-Za-z0-9._+-]+", short) if re.search(r"\w", word)
    )
