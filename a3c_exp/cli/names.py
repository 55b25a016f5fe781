"""Names of a sweep's runs, by what differs between them: for folders, for TensorBoard's list of
runs and for lines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any

from a3c_exp.run.run_folder import environment_of

LONGEST_NAME = 100


def run_name(config: Mapping[str, Any]) -> str:
    """The name of a new run's folder: cartpole_a3c_s0_2026-11-25_17-15-56. config: checked."""
    env = re.sub(r"-v\d+$", "", re.split("[/:.]", environment_of(config))[-1])
    algorithm = config["algorithm"]["_target_"].rpartition(".")[2]
    words = (env, algorithm, f"s{config.get('seed', 0)}", f"{datetime.now():%Y-%m-%d_%H-%M-%S}")
    return "_".join(map(_plain, words)).lower()


def labels(jobs: Sequence[Sequence[str]], common: Collection[str] | None = None) -> list[str]:
    """What differs between jobs, and their seed, as it was typed, one text each: "returns=gae
    seed=2".

    jobs: the overrides of each, in the same order. common: overrides that all jobs have, also those
    that are not known yet. Empty for a single job without a seed, where nobody says what is common.
    """
    places = _differing(jobs, common)
    return [" ".join(job[place].lstrip("+") for place in places) for job in jobs]


def folder_names(jobs: Sequence[Sequence[str]], common: Collection[str] | None = None) -> list[str]:
    """Names for the jobs' folders: "returns-gae_seed-2", of letters, digits and `-_.+`, each
    different, not long.

    A seed that is given is part of them, since other commands on the same sweep may have other
    seeds. Keys are cut to their last part where that is clear. A name that is cut, or that an
    earlier job has, ends with a hash of the job's values. Where nothing differs the name is `run`.
    common: see `labels`.
    """
    places = _differing(jobs, common)
    keys = [jobs[0][place].lstrip("+~").partition("=")[0] for place in places]
    last_parts = Counter(map(_last_part, keys))
    shorter = [_last_part(key) if last_parts[_last_part(key)] == 1 else key for key in keys]
    names: list[str] = []
    for job in jobs:
        values = [job[place].partition("=")[2] for place in places]
        name = (
            "_".join(
                f"{_plain(key)}-{_plain(value)}" for key, value in zip(shorter, values, strict=True)
            )
            or "run"
        )
        # some file systems do not tell upper case from lower case
        taken = {each.lower() for each in names}
        if len(name) > LONGEST_NAME or name.lower() in taken:
            name = f"{name[:LONGEST_NAME]}-{sha256(' '.join(values).encode()).hexdigest()[:6]}"
        names.append(name)
    return names


def _differing(jobs: Sequence[Sequence[str]], common: Collection[str] | None) -> list[int]:
    """The places of overrides that are not the same in all jobs, and of seeds."""
    differing = []
    for place, texts in enumerate(zip(*jobs, strict=True)):
        is_other = common is not None and texts[0] not in common
        if len(set(texts)) > 1 or texts[0].startswith("seed=") or is_other:
            differing.append(place)
    return differing


def _last_part(key: str) -> str:
    return re.split(r"[./@]", key)[-1]


def _plain(text: str) -> str:
    """The words of a value, of letters, digits and `-_.+`, joined by `-`; of a `_target_` the class
    alone."""
    short = re.sub(r"\b_target_ *: *([\w.]+\.)?", "", text)
    return "-".join(
        word for word in re.findall(r"[A-Za-z0-9._+-]+", short) if re.search(r"\w", word)
    )
