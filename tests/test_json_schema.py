"""The JSON schema for editors: it takes what the program takes, and refuses what is mistyped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from a3c_exp.json_schema import schema

jsonschema: Any = pytest.importorskip("jsonschema", reason="reads schemas: pip install jsonschema")

CONF = Path(__file__).parents[1] / "conf"


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    made = schema()
    jsonschema.Draft202012Validator.check_schema(made)
    return made


def problems(whole: dict[str, Any], text: str, group: str | None = None) -> list[str]:
    """What an editor marks in a file: of an experiment, or of an option of a group."""
    chosen = whole if group is None else {"$defs": whole["$defs"], "$ref": f"#/$defs/{group}"}
    validator = jsonschema.Draft202012Validator(chosen)
    return [error.json_path for error in validator.iter_errors(yaml.safe_load(text))]


def test_every_file_of_conf_fits(whole: dict[str, Any]) -> None:
    for path in CONF.rglob("*.yaml"):
        text = path.read_text()
        is_whole = "@package _global_" in text or path.parent == CONF
        assert problems(whole, text, None if is_whole else path.parent.name) == [], path


@pytest.mark.parametrize(
    "text",
    [
        "total_steps: ${vars.steps}",
        "update: ${vars.update}",
        "plugins: ${vars.plugins}",
        "stop: ${vars.stop}",
        "network: {_target_: a3c_exp.networks.Mlp, hidden_sizes: '???'}",
    ],
)
def test_a_reference_stands_for_any_setting(text: str, whole: dict[str, Any]) -> None:
    assert problems(whole, text) == []


@pytest.mark.parametrize(
    ("text", "group", "path"),
    [
        ("gama: 0.9", None, "$"),
        ("gamma: high", None, "$.gamma"),
        ("total_steps: 1.5", None, "$.total_steps"),
        ("update: later", None, "$.update"),
        ("{_target_: a3c_exp.optimizers.Adam, learning_rat: 0.1}", "optimizer", "$"),
        ("optimizer: {_target_: a3c_exp.optimizers.Adam, epsilon: x}", None, "$.optimizer.epsilon"),
    ],
)
def test_what_is_mistyped_is_marked(
    text: str, group: str | None, path: str, whole: dict[str, Any]
) -> None:
    assert problems(whole, text, group) == [path]
