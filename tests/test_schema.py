"""From plain mappings to components: what is accepted, and what is refused with which message."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import pytest

from a3c_exp.algorithms import Algorithm, MinibatchAlgorithm
from a3c_exp.common.trust import import_plugins
from a3c_exp.config.schema import build
from a3c_exp.errors import ConfigError, did_you_mean, require
from a3c_exp.optimizers import Optimizer
from a3c_exp.returns import Returns

HERE = __name__.partition(".")[0]  # what a user would list in `plugins` to have this file's classes built


@runtime_checkable
class Shape(Protocol):
    def area(self) -> float: ...


@dataclass(frozen=True, kw_only=True)
class Square:
    side: float

    def __post_init__(self) -> None:
        require(self.side > 0, "side", self.side, "a number > 0")

    def area(self) -> float:
        return self.side**2


@dataclass(frozen=True, kw_only=True)
class Colour:
    name: str


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
    frame: Frame = field(default_factory=Frame)
    anything: Any = None


def picture(**values: object) -> Picture:
    return build({"count": 1, **values}, Picture, "picture", plugins=[HERE])


def square(side: object) -> dict[str, object]:
    return {"_target_": f"{__name__}.Square", "side": side}


def refusal(**values: object) -> str:
    with pytest.raises(ConfigError) as refused:
        picture(**values)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_value_of_the_declared_type_arrives_unchanged() -> None:
    values: dict[str, Any] = {
        "count": 5,
        "scale": 0.5,
        "title": "x",
        "shown": True,
        "mode": "fit",
        "limit": 3,
        "workers": "auto",
        "sizes": (64, 64),
        "pair": (1, "a"),
        "names": ["a", "b"],
        "wrappers": ("a", {"b": {"c": 1}}),
        "anything": {"of": ["any", 1]},
    }
    made = picture(**values)
    assert {name: getattr(made, name) for name in values} == values
    made = picture(limit=None, workers=4, sizes=[64, 32])
    assert (made.limit, made.workers, made.sizes) == (None, 4, (64, 32)), (
        "a list becomes a tuple where the field is one"
    )


@pytest.mark.parametrize(("given", "kept"), [(1e7, 10_000_000), (3.0, 3)])
def test_a_whole_float_counts_as_a_whole_number(given: float, kept: int) -> None:
    made = picture(count=given, limit=given, workers=given)
    assert (made.count, made.limit, made.workers) == (kept, kept, kept)
    assert type(made.count) is type(made.limit) is type(made.workers) is int


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"count": 1.5}, "picture.count = 1.5: must be a whole number"),
        ({"count": True}, "picture.count = True: must be a whole number"),
        ({"count": None}, "picture.count = None: must be a whole number"),
        ({"scale": float("nan")}, "picture.scale = nan: must be a number"),
        ({"count": 1e30}, "picture.count = 1e+30: must be a whole number, at most 9223372036854775807"),
        ({"count": 10**400}, f"picture.count = 1{'0' * 299}... (401 characters): is a whole number beyond"),
        ({"shown": 1}, "picture.shown = 1: must be true or false"),
        ({"mode": "crop"}, "picture.mode = 'crop': must be 'fill' or 'fit'"),
        ({"limit": "x"}, "picture.limit = 'x': must be a whole number or null"),
        ({"workers": "many"}, "picture.workers = 'many': must be a whole number or 'auto'"),
        ({"sizes": 64}, "picture.sizes = 64: must be a list, each item a whole number"),
        ({"sizes": [64, "x"]}, "picture.sizes[1] = 'x': must be a whole number"),
        ({"pair": [1]}, "picture.pair = [1]: must be a list of 2: a whole number, text"),
        ({"frame": 5}, "picture.frame = 5: must be a mapping with the keys width"),
        ({"shape": 5}, "picture.shape = 5: must be a mapping that names a Shape by _target_ or null"),
    ],
)
def test_another_type_is_refused_with_key_value_and_what_is_allowed(values: dict[str, object], words: str) -> None:
    assert refusal(**values).startswith(words)


def test_an_unknown_key_is_refused_with_the_nearest_name() -> None:
    words = refusal(scales=1)
    assert words.startswith("picture.scales = 1: is no setting of Picture: did you mean 'scale'?")
    assert "workers" in words  # and all the others


def test_a_component_that_has_all_of_its_base_is_taken() -> None:
    taken = build({"_target_": f"{__name__}.Whole", "size": 2}, Base, "it", plugins=[HERE])  # type: ignore[type-abstract]
    assert taken == Whole(size=2)


def test_a_base_is_no_component_itself() -> None:
    with pytest.raises(ConfigError, match=r"optimizer._target_ = None: must name the class of an Optimizer"):
        build({"learning_rate": 1.0}, Optimizer, "optimizer")  # type: ignore[type-abstract]
    with pytest.raises(ConfigError, match=r"is no component class of a3c_exp.optimizers: .*: Adam, RMSProp, SGD$"):
        build({"_target_": "a3c_exp.optimizers.Adm"}, Optimizer, "optimizer")  # type: ignore[type-abstract]


def test_a_missing_value_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^picture.count = None: must be given: a whole number$"):
        build({}, Picture, "picture")
    assert refusal(count="???") == "picture.count = None: must be given: a whole number"  # OmegaConf's mark for it


def test_inner_components_are_built_first() -> None:
    assert picture(shape=square(2)).shape == Square(side=2.0)
    assert refusal(parts={"a": square(-1)}) == "picture.parts.a.side = -1.0: must be a number > 0"
    assert picture(size=square(2)).size == Square(side=2.0)
    assert picture(parts={"a": square(1)}).parts == {"a": Square(side=1.0)}
    assert picture(frame={"width": 3}).frame == Frame(width=3)


@runtime_checkable
class Question(Protocol):
    def __call__(self, one: int, two: int) -> int: ...


@dataclass(frozen=True, kw_only=True)
class Answer:
    def __call__(self, one: int, two: int, three: int = 3) -> int:
        return one + two + three


@runtime_checkable
class Clerk(Protocol):
    def ask(self, question: str) -> str: ...

    @property
    def name(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class Nameless:
    def ask(self, question: str) -> str:
        return question


class Plain:
    name = "a class that is no dataclass"


class Base(ABC):
    limit: ClassVar[int | None] = None

    @property
    @abstractmethod
    def size(self) -> int: ...

    @abstractmethod
    def ask(self, question: str, *, loudly: bool = False) -> str: ...


@dataclass(frozen=True, kw_only=True)
class Whole(Base):
    size: int = 1

    def ask(self, question: str, *, loudly: bool = False) -> str:
        return question


@dataclass(frozen=True, kw_only=True)
class Silent(Base):
    size: int = 1


@dataclass(frozen=True, kw_only=True)
class Sizeless(Base):
    def ask(self, question: str, *, loudly: bool = False) -> str:
        return question


@dataclass(frozen=True, kw_only=True)
class OneStep:
    def __call__(self, trajectory: object, gamma: float) -> object:
        return trajectory


@dataclass(frozen=True, kw_only=True)
class OnePass(MinibatchAlgorithm):
    def loss(self, policy: Any, batch: Any, progress: float) -> Any: ...

    def check_rollout(self, count: int, length: int) -> None: ...


@pytest.mark.parametrize(
    ("wanted", "cls", "missing"),
    [
        (Question, "Nameless", "it has no __call__"),
        (Clerk, "Answer", "it has no ask"),
        (Clerk, "Nameless", "it has no name"),
        (Shape, "Colour", "it has no area"),
        (Clerk, "Plain", "must be a dataclass: its fields are its settings"),
        (Base, "Nameless", f"Nameless does not derive from {__name__}.Base"),
        (Base, "Silent", "it has no ask"),
        (Base, "Sizeless", "it has no size"),
        (Returns, "OneStep", "OneStep does not derive from a3c_exp.returns.Returns"),
        (Algorithm, "OnePass", "it has no minibatches"),
    ],
)
def test_what_a_class_lacks_is_named(wanted: Any, cls: str, missing: str) -> None:
    with pytest.raises(ConfigError, match=missing):
        build({"_target_": f"{__name__}.{cls}"}, wanted, "it", plugins=[HERE])


def test_a_module_that_cannot_be_imported_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_module.py").write_text("x = nowhere")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as refused:
        build({"_target_": "broken_module.X"}, Clerk, "it", plugins=["broken_module"])  # type: ignore[type-abstract]
    expected = "it._target_ = 'broken_module.X': cannot be imported: NameError: name 'nowhere' is not defined"
    assert str(refused.value) == expected


@dataclass(frozen=True, kw_only=True)
class Fussy:
    value: int

    def __post_init__(self) -> None:
        raise ValueError("not today")

    def area(self) -> float:
        return 0.0


def test_a_plain_error_of_a_users_component_is_quoted() -> None:
    words = refusal(anything=None, shape={"_target_": f"{__name__}.Fussy", "value": 1})
    assert "picture.shape" in words
    assert words.endswith("refused by Fussy: not today")


# Configuration runs no other code.


@pytest.mark.parametrize(
    "target",
    [
        "builtins.eval",
        "os.system",
        f"{__name__}.Square",  # a dataclass, but of a package that nobody listed
        "a3c_exp_evil.Square",
        "Square",
        "",
        7,
    ],
)
def test_only_classes_of_this_package_and_of_plugins_are_built(target: object) -> None:
    with pytest.raises(ConfigError, match=r"shape._target_ = .*: must be a component class of a3c_exp or of a package"):
        build({"_target_": target, "side": 1}, Shape, "shape")  # type: ignore[type-abstract]


@pytest.mark.parametrize(
    "target",
    [
        "a3c_exp.config.schema.importlib",  # what a module of ours imports
        "a3c_exp.config.schema.ConfigError",  # ours, but no component
        "a3c_exp.config.schema.build",
        "a3c_exp.train",
        "a3c_exp.config.schema.nothing",
    ],
)
def test_what_is_no_component_is_not_built(target: str) -> None:
    with pytest.raises(ConfigError, match=r"is no component class of a3c_exp"):
        build({"_target_": target}, Shape, "shape")  # type: ignore[type-abstract]


def test_a_dataclass_that_our_module_imported_from_elsewhere_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    from a3c_exp.config import schema

    monkeypatch.setattr(schema, "Square", Square, raising=False)
    with pytest.raises(ConfigError, match="is no component class"):
        build({"_target_": "a3c_exp.config.schema.Square", "side": 1}, Shape, "shape")  # type: ignore[type-abstract]


def test_a_refused_module_is_not_even_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "intruder.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError):
        build({"_target_": "intruder.Square", "side": 1}, Shape, "shape")  # type: ignore[type-abstract]
    assert "intruder" not in sys.modules


def test_a_plugin_covers_its_modules_and_no_namesakes() -> None:
    assert build(square(1), Shape, "shape", plugins=[__name__]) == Square(side=1.0)  # type: ignore[type-abstract]
    with pytest.raises(ConfigError):
        build(square(1), Shape, "shape", plugins=[__name__[:-1]])  # type: ignore[type-abstract]


def test_plugins_are_imported_so_that_what_they_register_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_plugin_for_schema.py").write_text("registered = True")
    monkeypatch.syspath_prepend(tmp_path)
    import_plugins(["my_plugin_for_schema"])
    assert sys.modules["my_plugin_for_schema"].registered


@pytest.mark.parametrize("plugin", ["no_such_plugin", "", ".relative", "broken_plugin_for_schema"])
def test_a_plugin_that_cannot_be_imported_for_whatever_reason_is_one_line(
    plugin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_plugin_for_schema.py").write_text("undefined\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as refused:
        import_plugins([plugin])
    assert str(refused.value).startswith(f"plugins = {plugin!r}: cannot be imported: ")
    assert "Error: " in str(refused.value) and "\n" not in str(refused.value)


def test_nearest_names_come_before_the_rest() -> None:
    assert did_you_mean("sed", ["gamma", "seed"]) == "did you mean 'seed'? Allowed: gamma, seed"
    assert did_you_mean("xyz", ["gamma", "seed"]) == "Allowed: gamma, seed"
