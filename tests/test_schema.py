"""From plain mappings to components: what is accepted, and what is refused about which key."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
from refusals import refused

from a3c_exp.common.trust import import_plugins, is_allowed_module
from a3c_exp.config.schema import build
from a3c_exp.errors import require
from a3c_exp.optimizers import Optimizer

# what a user would list in `plugins` to have this file's classes built
HERE = __name__.partition(".")[0]


class Shape(ABC):
    @abstractmethod
    def area(self) -> float: ...


@dataclass(frozen=True, kw_only=True)
class Square(Shape):
    side: float

    def __post_init__(self) -> None:
        require(self.side > 0, "side", self.side, "a number > 0")

    def area(self) -> float:
        return self.side**2


@dataclass(frozen=True, kw_only=True)
class Fussy(Shape):
    value: int

    def __post_init__(self) -> None:
        raise ValueError("not today")

    def area(self) -> float:
        return 0.0


@dataclass(frozen=True, kw_only=True)
class Frame:
    """A mapping without a class of its own: its type is known from where it stands."""

    width: int = 1


@dataclass(frozen=True, kw_only=True)
class Picture:
    count: int
    scale: float = 1.0
    title: str = ""
    shown: bool = False
    mode: Literal["fill", "fit"] = "fill"
    limit: int | None = None
    workers: int | Literal["auto"] = "auto"
    size: float | Shape = 1.0
    sizes: tuple[int, ...] = ()
    pair: tuple[int, str] = (0, "")
    names: list[str] = field(default_factory=list)
    parts: dict[str, Shape] = field(default_factory=dict)
    wrappers: tuple[str | dict[str, dict[str, Any]], ...] = ()
    shape: Shape | None = None
    weights: tuple[float, ...] | None = None
    frame: Frame = field(default_factory=Frame)
    anything: Any = None


def picture(**values: object) -> Picture:
    return build({"count": 1, **values}, Picture, "picture", plugins=[HERE])


def named(cls: str, **settings: object) -> dict[str, object]:
    return {"_target_": f"{__name__}.{cls}", **settings}


def square(side: object) -> dict[str, object]:
    return named("Square", side=side)


# Values.


def test_a_value_of_the_declared_type_arrives_unchanged() -> None:
    values: dict[str, Any] = {
        "scale": 0.5,
        "shown": True,
        "mode": "fit",
        "workers": "auto",
        "pair": (1, "a"),
    }
    values |= {"wrappers": ("a", {"b": {"c": 1}}), "anything": {"of": ["any", 1]}, "limit": None}
    made = picture(**values, sizes=[64, 32])
    assert {name: getattr(made, name) for name in values} == values
    assert made.sizes == (64, 32), "the field is a tuple"


def test_a_whole_float_counts_as_a_whole_number() -> None:
    made = picture(count=1e7, limit=1e7, workers=1e7)
    assert (made.count, made.limit, made.workers) == (10_000_000,) * 3
    assert type(made.count) is type(made.limit) is type(made.workers) is int


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("count", 1.5, "a whole number"),
        ("count", True, "a whole number"),
        ("count", None, "a whole number"),
        ("count", 1e30, "a whole number"),
        ("count", 10**400, "a whole number"),
        ("count", "???", "must be given: a whole number"),  # OmegaConf's mark for a missing value
        ("scale", float("nan"), "a number"),
        ("shown", 1, "true or false"),
        ("mode", "crop", "'fill' or 'fit'"),
        ("limit", "x", "a whole number or null"),
        ("workers", "many", "a whole number or 'auto'"),
        ("sizes", 64, "a list in brackets, each item a whole number"),
        ("pair", [1], "a list of 2: a whole number, text"),
        ("frame", 5, "a mapping with the keys width"),
        ("shape", 5, "null or a mapping that names a Shape by _target_"),
        ("weights", 5, "null or a list in brackets, each item a number"),
        ("scales", 1, "'scale'"),  # no such setting
    ],
)
def test_another_type_is_refused_with_key_value_and_what_is_allowed(
    field: str, value: object, allowed: str
) -> None:
    expected = None if value == "???" else ... if value != value else value
    assert allowed in refused(lambda: picture(**{field: value}), f"picture.{field}", expected)


def test_items_and_missing_values_are_named() -> None:
    refused(lambda: picture(sizes=[64, "x"]), "picture.sizes[1]", "x")
    refused(lambda: build({}, Picture, "picture"), "picture.count", None)


def test_inner_components_are_built_first() -> None:
    made = picture(shape=square(2), size=square(2), parts={"a": square(1)}, frame={"width": 3})
    assert made.shape == made.size == Square(side=2.0)
    assert made.parts == {"a": Square(side=1.0)}
    assert made.frame == Frame(width=3)
    refused(lambda: picture(parts={"a": square(-1)}), "picture.parts.a.side", -1.0)
    assert "not today" in refused(lambda: picture(shape=named("Fussy", value=1)), "picture.shape")


# What a class must have.


class Plain(Shape):
    """A class that is no dataclass."""


@dataclass(frozen=True, kw_only=True)
class Flat(Shape):
    size: int = 1


@pytest.mark.parametrize(
    ("cls", "missing"),
    [
        ("Plain", "must be a dataclass"),
        ("Frame", f"does not derive from {__name__}.Shape"),
        ("Flat", "it has no area"),
    ],
)
def test_what_a_class_lacks_is_named(cls: str, missing: str) -> None:
    assert missing in refused(
        lambda: picture(shape=named(cls)), "picture.shape._target_", f"{__name__}.{cls}"
    )


def test_a_base_is_no_component_itself() -> None:
    bare = {"learning_rate": 1.0}
    refused(lambda: build(bare, Optimizer, "optimizer"), "optimizer._target_", None)  # type: ignore[type-abstract]
    typo = {"_target_": "a3c_exp.optimizers.Adm"}
    problem = refused(lambda: build(typo, Optimizer, "optimizer"), "optimizer._target_")  # type: ignore[type-abstract]
    assert "did you mean 'Adam'" in problem


# Configuration runs no other code.


@pytest.mark.parametrize(
    "target",
    [
        f"{__name__}.Square",  # a dataclass, but of a package that nobody listed
        "a3c_exp_evil.Square",
        7,
        "a3c_exp.config.schema.importlib",  # what a module of ours imports
        "a3c_exp.config.schema.Imported",  # a dataclass, but not ours
        "a3c_exp.config.schema.ConfigError",  # ours, but no component
        "a3c_exp.config.schema.build",
    ],
)
def test_only_components_of_this_package_and_of_plugins_are_built(
    target: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("a3c_exp.config.schema.Imported", Square, raising=False)
    node = {"_target_": target, "side": 1}
    refused(lambda: build(node, Shape, "shape"), "shape._target_", target)  # type: ignore[type-abstract]


def test_a_plugin_covers_its_modules_and_no_namesakes() -> None:
    assert build(square(1), Shape, "shape", plugins=[__name__]) == Square(side=1.0)  # type: ignore[type-abstract]
    refused(lambda: build(square(1), Shape, "shape", plugins=[__name__[:-1]]), "shape._target_")  # type: ignore[type-abstract]


def test_a_plugin_may_be_a_function_that_registers_which_is_called_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It covers its module as well."""
    text = "calls = []\nclass X: pass\ndef register(): calls.append(1)\ndef fail(): 1 / 0\n"
    (tmp_path / "registering_plugin.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for _ in range(2):
        import_plugins(["registering_plugin:register"])
    assert sys.modules["registering_plugin"].calls == [1]
    assert is_allowed_module("registering_plugin.inner", ["registering_plugin:register"])
    assert not is_allowed_module("registering", ["registering_plugin:register"])
    for plugin in ("registering_plugin:absent", "registering_plugin:fail", "no_plugin:register"):
        refused(partial(import_plugins, [plugin]), "plugins", plugin)


def test_a_plugin_that_cannot_be_imported_for_whatever_reason_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_plugin.py").write_text("undefined\n")
    monkeypatch.syspath_prepend(tmp_path)
    refused(partial(import_plugins, ["../broken_plugin"]), "plugins", "../broken_plugin")
    for plugin in ("no_such_plugin", "", ".relative", "a\0b", "broken_plugin"):
        problem = refused(partial(import_plugins, [plugin]), "plugins", plugin)
        assert "Error: " in problem
    (tmp_path / "leaving_plugin.py").write_text("raise SystemExit(2)\n")
    assert "SystemExit" in refused(partial(import_plugins, ["leaving_plugin"]), "plugins")
    node = {"_target_": "broken_plugin.X"}
    make = lambda: build(node, Shape, "it", plugins=["broken_plugin"])  # type: ignore[type-abstract]  # noqa: E731
    problem = refused(make, "it._target_", "broken_plugin.X")
    assert "NameError" in problem
