"""From a plain mapping, as YAML gives it, to typed components: the only way in which configuration becomes objects.

A component is a frozen dataclass. Its typed fields are the schema: `build` refuses an unknown key, a wrong type and,
through the component's own `require`, a value out of range, with one ConfigError that names the key as the user wrote
it (`returns.n`). A mapping names its class by `_target_`. Only dataclasses of this package are built, and those of the
packages that the user listed in `plugins`: a configuration file, or one found in a run's folder, runs no other code.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import importlib
import inspect
import math
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NoReturn, TypeVar, Union, cast

from a3c_exp.common.plugins import PACKAGE, is_allowed_module
from a3c_exp.errors import ConfigError, did_you_mean, either, one_line

TARGET = "_target_"
MISSING = "???"  # OmegaConf's mark for a value that the user has to give

T = TypeVar("T")


def build(node: object, hint: type[T], path: str = "", plugins: Sequence[str] = ()) -> T:
    """The value of type `hint` that `node` describes, components inside it built before those that hold them.

    node: plain scalars, lists and mappings. hint: a dataclass, or the Protocol of a component.
    path: the key of `node` as the user knows it ("" for the whole configuration); errors are named below it.
    plugins: packages, beside this one, whose dataclasses may be built.
    Whole floats such as 1e7 count as whole numbers; True does not. Raises ConfigError.
    """
    return cast(T, _value(node, hint, path, tuple(plugins)))


def settings_of(target: object, plugins: Sequence[str] = ()) -> set[str]:
    """The settings of the component that `_target_` names. Raises ConfigError."""
    return set(_fields(_find(target, TARGET, tuple(plugins))))


def parse_key_values(arguments: Sequence[str]) -> dict[str, Any]:
    """key=value arguments, the values read as YAML. Raises ConfigError."""
    import yaml

    found = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals:
            raise ConfigError("command line", argument, "must be key=value")
        try:
            # YAML 1.1 wants a point in it, a command line of Hydra does not.
            found[key] = float(value) if re.fullmatch(r"[-+]?\d+[eE][-+]?\d+", value) else yaml.safe_load(value)
        except yaml.YAMLError:
            raise ConfigError(key, value, "must be a plain value") from None
    return found


def _key(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _a(hint: Any) -> str:
    name = str(getattr(hint, "__name__", hint))
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def _refuse(value: object, hint: Any, path: str) -> NoReturn:
    raise ConfigError(path or "configuration", value, f"must be {_describe(hint)}")


_NAMES: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    types.NoneType: "null",
    list: "a list",
    tuple: "a list",
    dict: "a mapping",
}


def _describe(hint: Any) -> str:
    """What a user may write for `hint`, in words: "a whole number or 'auto'"."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return either(map(repr, arguments))
    if origin in (Union, types.UnionType):
        return either(_describe(argument) for argument in arguments)
    if origin in _LISTS:
        items = [_describe(argument) for argument in arguments if argument is not Ellipsis]
        many = len(arguments) == 1 or arguments[-1] is Ellipsis
        return f"a list, each item {items[0]}" if many else f"a list of {len(items)}: {', '.join(items)}"
    if origin in _MAPPINGS:
        return f"a mapping of names, each to {_describe(arguments[1])}"
    if hint in _NAMES:
        return _NAMES[hint]
    if dataclasses.is_dataclass(hint):
        return f"a mapping with the keys {', '.join(_fields(cast(type, hint)))}"
    return f"a mapping that names {_a(hint)} by {TARGET}"


_LISTS = (list, tuple, collections.abc.Sequence)
_MAPPINGS = (dict, collections.abc.Mapping)


def _value(value: object, hint: Any, path: str, plugins: tuple[str, ...]) -> object:
    origin = typing.get_origin(hint)
    if hint is Any or hint is object:
        return value
    if origin is typing.Annotated:
        return _value(value, typing.get_args(hint)[0], path, plugins)
    if origin in (Union, types.UnionType):
        return _union(value, hint, path, plugins)
    if origin is Literal:
        if not any(type(choice) is type(value) and choice == value for choice in typing.get_args(hint)):
            _refuse(value, hint, path)
        return value
    if hint in (int, float):
        return _number(value, hint, path)
    if hint in (bool, str, None, types.NoneType):
        if type(value) is not (types.NoneType if hint is None else hint):
            _refuse(value, hint, path)
        return value
    if (origin or hint) in _LISTS:
        return _list(value, hint, path, plugins)
    if (origin or hint) in _MAPPINGS:
        return _mapping(value, hint, path, plugins)
    return _component(value, hint, path, plugins)


def _number(value: object, hint: type[int] | type[float], path: str) -> int | float:
    try:
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
            _refuse(value, hint, path)
    except OverflowError:  # a whole number beyond all floats
        _refuse(value, hint, path)
    if hint is int and value != int(value):
        _refuse(value, hint, path)
    return hint(value)


def _union(value: object, hint: Any, path: str, plugins: tuple[str, ...]) -> object:
    """The first member that takes the value, exact types first: 1 stays whole where `float | int` is allowed."""
    members = [member for member in typing.get_args(hint) if _may_hold(member, value)]
    members.sort(key=lambda member: type(value) is not member)
    refusals: list[ConfigError] = []
    for member in members:
        try:
            return _value(value, member, path, plugins)
        except ConfigError as refusal:
            refusals.append(refusal)
    if len(refusals) == 1 and isinstance(value, (Mapping, list, tuple)):
        raise refusals[0]  # it says what is wrong inside
    _refuse(value, hint, path)


def _may_hold(hint: Any, value: object) -> bool:
    """Whether a value of this outer shape can be meant for `hint`; what is inside is judged later."""
    kind = typing.get_origin(hint) or hint
    if kind in (int, float):
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind in (bool, str, None, types.NoneType, Literal):
        return not isinstance(value, (Mapping, list, tuple))
    if kind in (Any, object):
        return True
    if kind in _LISTS:
        return isinstance(value, (list, tuple))
    return isinstance(value, Mapping)


def _list(value: object, hint: Any, path: str, plugins: tuple[str, ...]) -> object:
    if not isinstance(value, (list, tuple)):
        _refuse(value, hint, path)
    kind, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if not arguments:
        item_hints: list[Any] = [Any] * len(value)
    elif kind is not tuple or arguments[-1] is Ellipsis:
        item_hints = [arguments[0]] * len(value)
    else:
        item_hints = list(arguments)
    if len(item_hints) != len(value):
        _refuse(value, hint, path)
    items = [_value(value[i], item_hint, f"{path}[{i}]", plugins) for i, item_hint in enumerate(item_hints)]
    return items if kind is list else tuple(items)


def _mapping(value: object, hint: Any, path: str, plugins: tuple[str, ...]) -> dict[str, object]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        _refuse(value, hint, path)
    item_hint = typing.get_args(hint)[1] if typing.get_args(hint) else Any
    return {name: _value(item, item_hint, _key(path, name), plugins) for name, item in value.items()}


def _fields(cls: type) -> dict[str, dataclasses.Field[Any]]:
    return {field.name: field for field in dataclasses.fields(cls) if field.init}


def _component(node: object, hint: Any, path: str, plugins: tuple[str, ...]) -> object:
    if isinstance(node, str) and "." in path and not dataclasses.is_dataclass(hint):
        group = hint.__name__.lower()
        raise ConfigError(path, node, f"must be {_describe(hint)}; {group}@{path}={node} takes what a file has")
    if not isinstance(node, Mapping):
        _refuse(node, hint, path)
    if TARGET not in node and not dataclasses.is_dataclass(hint):
        name = path.rpartition(".")[2]
        inside = node.get(name)  # as it is where a group's file sets what is outside of the group
        twice = isinstance(inside, Mapping) and TARGET in inside
        hint_at = f"; {path}.{name} does: a file that sets {name} itself begins with '# @package _global_'"
        raise ConfigError(_key(path, TARGET), None, f"must name the class of {_a(hint)}{hint_at if twice else ''}")
    cls = _find(node[TARGET], _key(path, TARGET), plugins, hint) if TARGET in node else cast(type, hint)
    values = _arguments({str(name): value for name, value in node.items() if name != TARGET}, cls, path, plugins)
    try:
        component: object = cls(**values)
    except ConfigError as error:
        raise (error.under(path) if path else error) from None
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ConfigError(path or "configuration", dict(node), f"refused by {cls.__name__}: {error}") from error
    misfit = _misfit(component, hint)
    if misfit is not None:
        raise ConfigError(_key(path, TARGET), node.get(TARGET), f"must be the class of {_a(hint)}: {misfit}")
    return component


def _arguments(node: dict[str, object], cls: type, path: str, plugins: tuple[str, ...]) -> dict[str, object]:
    """The values of the fields of `cls`, converted; refuses keys that it has not and misses those that it needs."""
    fields, hints = _fields(cls), typing.get_type_hints(cls, include_extras=True)
    for name, value in node.items():
        if name not in fields:
            raise ConfigError(_key(path, name), value, f"is no setting of {cls.__name__}: {did_you_mean(name, fields)}")
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if node.get(name) == MISSING or (required and name not in node):
            raise ConfigError(_key(path, name), None, f"must be given: {_describe(hints[name])}")
    return {name: _value(value, hints[name], _key(path, name), plugins) for name, value in node.items()}


def _misfit(component: object, hint: Any) -> str | None:
    """What keeps the component from being what is asked for: a Protocol's attribute that it has not, or a method that
    does not take what the Protocol's takes; None where nothing does."""
    if not getattr(hint, "_is_protocol", False):
        return None if isinstance(component, hint) else f"{type(component).__name__} is none"
    for name, method in _methods(hint).items():
        own = _member(type(component), name)
        if own is None:
            return f"it has no method {name}"
        if not _takes(own, method):
            return f"its {name} must take ({', '.join(list(inspect.signature(method).parameters)[1:])})"
    attributes = {name for cls in hint.__mro__ for name in (*vars(cls), *vars(cls).get("__annotations__", ()))}
    missing = sorted(name for name in attributes if not name.startswith("_") and not hasattr(component, name))
    return f"it has no {missing[0]}" if missing else None


def _methods(hint: Any) -> dict[str, Any]:
    """The methods that a Protocol asks for, by name."""
    methods = {name: method for name, method in vars(hint).items() if inspect.isfunction(method)}
    return {name: method for name, method in methods.items() if not name.startswith("_") or name == "__call__"}


def _member(cls: type, name: str) -> Any:
    """What the class or one that it inherits from defines under that name; None: nothing. (To ask the class for
    `__call__` gives type's own.)"""
    return next((vars(each)[name] for each in cls.__mro__ if name in vars(each)), None)


def _takes(method: Any, wanted: Any) -> bool:
    """Whether `method` can be called with as many arguments as `wanted` must be."""
    required = [p for p in inspect.signature(wanted).parameters.values() if p.default is p.empty]
    try:
        inspect.signature(method).bind(*required)
    except TypeError:
        return False
    return True


def _find(target: object, key: str, plugins: tuple[str, ...], hint: Any = object) -> type:
    """The dataclass of that dotted name, if configuration may name it; where there is none, the error names those that
    have what `hint` asks for."""
    refusal = ConfigError(key, target, f"must be a component class of {PACKAGE} or of a package listed in plugins")
    if not isinstance(target, str):
        raise refusal
    module_name, _, name = target.rpartition(".")
    if not is_allowed_module(module_name, plugins):
        raise refusal
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a user's module may raise anything
        raise ConfigError(key, target, f"cannot be imported: {one_line(error)}") from error
    classes = {
        name: cls
        for name, cls in vars(module).items()
        # Its own module too: what a module of ours merely imports is not ours to build.
        if isinstance(cls, type) and dataclasses.is_dataclass(cls) and is_allowed_module(cls.__module__, plugins)
    }
    if name not in classes:
        wanted = _methods(hint)
        if isinstance(vars(module).get(name), type) and vars(module)[name].__module__ == module_name:
            raise ConfigError(key, target, "must be a dataclass: its fields are its settings")
        components = [
            name for name, cls in classes.items() if not name.startswith("_") and all(_member(cls, m) for m in wanted)
        ]
        raise ConfigError(key, target, f"is no component class of {module_name}: {did_you_mean(name, components)}")
    return classes[name]


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """The settings of a configuration, by their dotted keys; an empty group is a setting too."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
