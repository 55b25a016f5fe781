"""A JSON schema of the YAML files that a user writes, for editors that check while one types.

    python -m a3c_exp.json_schema > schema.json

It is made from the types that `build` checks. `schema.json#/$defs/network` is the schema of a file
in conf/network, and so on.
"""

from __future__ import annotations

import inspect
import json
import types
import typing
from pathlib import Path
from typing import Any, Literal, Union

from a3c_exp.cli.startup import conf_folder
from a3c_exp.common.reading import parse_yaml
from a3c_exp.common.settings import TARGET, Setting
from a3c_exp.config.schema import settings_of
from a3c_exp.core import experiment

SCALARS = {int: "integer", float: "number", bool: "boolean", str: "string", types.NoneType: "null"}
STAND_IN = {"type": "string", "pattern": r"^(\$\{.*\}|\?\?\?)$"}
"""In the place of any setting: a reference of OmegaConf's, or its mark of a missing value."""


def schema() -> dict[str, Any]:
    """Return the schema of an experiment's file; $defs has one for each group of conf/."""
    folders = {path.name: path for path in sorted(conf_folder().iterdir()) if path.is_dir()}
    properties: dict[str, Any] = {"defaults": {}, "hydra": {}, "vars": {}}
    settings = settings_of(f"{experiment.__name__}.Experiment")
    properties |= _properties(settings)
    properties |= {name: {"$ref": f"#/$defs/{name}"} for name in folders if name in settings}
    return {
        "$defs": {name: _group_schema(folder) for name, folder in folders.items()},
        "properties": properties,
        "additionalProperties": False,
    }


def _group_schema(folder: Path) -> dict[str, Any]:
    """Return the schema of a component: its class decides which settings it has."""
    targets = set()
    for path in folder.glob("*.yaml"):
        options = parse_yaml(path.read_text())
        target = options.get(folder.name, options).get(TARGET)
        if target is not None:
            targets.add(target)

    cases = []
    for target in sorted(targets):
        has_target = {"properties": {TARGET: {"const": target}}, "required": [TARGET]}
        properties = {TARGET: {}, "defaults": {}} | _properties(settings_of(target))
        then = {"properties": properties, "additionalProperties": False}
        cases.append({"if": has_target, "then": then})
    return {"type": ["object", "null"], "allOf": cases or [{}]}


def _properties(settings: dict[str, Setting]) -> dict[str, Any]:
    return {
        name: {"anyOf": [_schema_of(setting.hint), STAND_IN]} for name, setting in settings.items()
    }


def _schema_of(hint: Any) -> dict[str, Any]:
    """Return the schema of a value. A component inside another may have any settings."""
    origin = typing.get_origin(hint)
    if origin is Literal:
        return {"enum": list(typing.get_args(hint))}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema_of(member) for member in typing.get_args(hint)]}
    if hint in SCALARS:
        return {"type": SCALARS[hint]}
    if hint is Any or not inspect.isclass(origin or hint):
        return {}
    if issubclass(origin or hint, list | tuple):
        return {"type": "array"}
    return {"type": "object"}


if __name__ == "__main__":
    print(json.dumps(schema(), indent=1))
