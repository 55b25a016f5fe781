"""Configuration keys whose names have changed, or will: overrides with new names, in those that a checkout knows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True)
class Rename:
    """A key `group.new` that was `group.old` (group "": of the whole run). values: old ones by new, where they differ
    too."""

    group: str
    new: str
    old: str
    values: Mapping[str, str] = field(default_factory=dict)


RENAMES = (
    Rename("", "reward_threshold", "goal"),
    Rename("", "optimizer_state", "moments", {"per_worker": "worker"}),
    Rename("", "accumulate_rollouts", "accumulate"),
    Rename("algorithm", "entropy_coefficient", "entropy"),
    Rename("optimizer", "param_groups", "parts"),
    Rename("network", "hidden_sizes", "sizes"),
    Rename("network", "critic_hidden_sizes", "critic_sizes"),
    Rename("network", "features_dim", "features"),
    Rename("network", "hidden_size", "cells"),
    Rename("network", "sections", "channels"),
    Rename("env", "terminal_on_life_loss", "life_loss"),
    Rename("env", "full_action_space", "all_actions"),
    Rename("env", "repeat_action_probability", "sticky_actions"),
    Rename("env", "frame_stack", "stack"),
    Rename("backend", "wire_dtype", "wire"),
)


def translated(override: str, known: frozenset[str]) -> str:
    """`key=value` with the new names, in the names of a checkout that has the keys `known` in its conf/.

    The new name counts where both are there. Raises ValueError where the key has another name, and neither is there.
    """
    key, equals, value = override.partition("=")
    names = key.split(".")
    for rename in RENAMES:
        place = _place(rename, names)
        if place is None or _dotted(rename.group, rename.new) in known:
            continue
        if _dotted(rename.group, rename.old) not in known:
            raise ValueError(f"{key}: conf/ has neither {rename.new} nor {rename.old}")
        names[place] = names[place].replace(rename.new, rename.old)
        value = rename.values.get(value, value)
    return ".".join(names) + equals + value


def _place(rename: Rename, names: list[str]) -> int | None:
    """Index of the new name among a key's names. A network inside another (network.encoder) has the same keys."""
    bare = [name.lstrip("+~") for name in names]
    place = 0 if not rename.group else 2 if bare[:2] == ["network", "encoder"] else 1
    fits = len(bare) > place and bare[place] == rename.new and (not rename.group or bare[0] == rename.group)
    return place if fits else None


def known_keys(checkout: Path) -> frozenset[str]:
    """The keys in the YAML files of a checkout's conf/: those of the whole run, and `group.key` of its components."""
    conf = checkout / "conf"
    return frozenset(key for path in sorted(conf.rglob("*.yaml")) for key in _keys_of(path, conf))


def _keys_of(path: Path, conf: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    content: Any = yaml.safe_load(text) or {}
    group = ".".join(path.parent.relative_to(conf).parts)
    if group and not text.startswith("# @package _global_"):
        yield from (f"{group}.{key}" for key in content)
        return
    for key, inside in content.items():
        yield key
        if isinstance(inside, dict):
            yield from (f"{key}.{name}" for name in inside)


def _dotted(group: str, name: str) -> str:
    return f"{group}.{name}" if group else name
