"""Names of a sweep's runs, by what differs between them: for folders, for TensorBoard's list of runs and for lines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

LONGEST_VALUE, LONGEST_NAME = 40, 100


def labels(jobs: Sequence[Sequence[str]]) -> list[str]:
    """What differs between jobs as it was typed, one text each: "returns=gae seed=2".

    jobs: the overrides of each, in the same order. Empty for a single job.
    """
    return [" ".join(job[place].lstrip("+") for place in _differing(jobs)) for job in jobs]


def folder_names(jobs: Sequence[Sequence[str]]) -> list[str]:
    """Names for the jobs' folders: "returns-gae_seed-2", of letters, digits and `-_.`, each different, not long.

    Keys are cut to their last part where that is clear. Where nothing differs the name is `run`.
    """
    places = _differing(jobs)
    keys = [jobs[0][place].lstrip("+~").partition("=")[0] for place in places]
    last_parts = Counter(_last_part(key) for key in keys)
    shorter = [_last_part(key) if last_parts[_last_part(key)] == 1 else key for key in keys]
    names, taken = [], set[str]()
    for job in jobs:
        values = [job[place].partition("=")[2] for place in places]
        pairs = [f"{_plain(key)}-{_plain(value)}" for key, value in zip(shorter, values, strict=True)]
        whole = "_".join(pairs)[:LONGEST_NAME] or "run"
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
    """The text's letters, digits and `-_.`, with one `-` for what is between them; the class alone of a `_target_`.

    Numbers keep their signs: 1e+38 is 1e38, and -1 has its minus.
    """
    text = re.sub(r"\b_target_ *: *([\w.]+\.)?", "", text)
    text = re.sub(r"(?<=\d)[eE]\+(?=\d)", "e", text).strip()
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", text).lstrip("." if re.match(r"-\.?\d", text) else "-.")
    return plain[:LONGEST_VALUE].rstrip("-.") or "none"
