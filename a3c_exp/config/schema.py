"""From a plain mapping, as YAML gives it, to typed components: the only way in which configuration becomes objects.

A component is a frozen dataclass, and its typed fields are the schema. The schema of a network is its module's
constructor (`config.modules`). `build` refuses unknown keys, wrong types and,
by the component's own `require`, values out of range, with a ConfigError that names the key as the user wrote it
(`returns.n`). A mapping names its class by `_target_`. Only dataclasses of this package are built, and those of the
packages that the user lists in `plugins`: a configuration file, or one in a run's folder, runs no other code.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import importlib
import inspect
import math
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NoReturn, Protocol, TypeVar, Union, cast

from a3c_exp.common.reading import LARGEST, check_plain
from a3c_exp.common.trust import PACKAGE, is_allowed_module
from a3c_exp.config.settings import (
    ELSEWHERE,
    ELSEWHERE_VALUES,
    ONLY_WITH,
    OTHER_COMMANDS,
    Setting,
)
from a3c_exp.errors import ConfigError, did_you_mean, either, one_line

TARGET = "_target_"
MISSING = "???"  # OmegaConf's mark for a value that the user has to give

T = TypeVar("T")


def build(node: object, hint: type[T], path: str = "", plugins: Sequence[str] = ()) -> T:
    """The value of type `hint` that `node` describes, inner components built first.

    node: plain scalars, lists and mappings. hint: a dataclass, or the base class or Protocol of a component.
    path: the key of `node` as the user knows it ("" for the whole configuration), for errors.
    plugins: packages, beside this one, whose dataclasses may be built.
    Whole floats such as 1e7 count as whole numbers; True does not. Raises ConfigError, for data
    beyond the limits of `common.reading` too.
    """
    check_plain(node, path)
    return cast(T, _value(node, hint, path, tuple(plugins)))


def settings_of(target: object, plugins: Sequence[str] = ()) -> set[str]:
    """The settings of the component that `_target_` names. Raises ConfigError."""
    return set(_settings(_find(target, TARGET, tuple(plugins)), TARGET))


def _key(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _a(hint: type) -> str:
    return f"{'an' if hint.__name__[0] in 'AEIOU' else 'a'} {hint.__name__}"


def _refuse(value: object, hint: Any, path: str) -> NoReturn:
    too_large = isinstance(value, float) and value.is_integer() and abs(value) > LARGEST
    problem = f"must be {_describe(hint)}{f', at most {LARGEST}' if too_large else ''}"
    raise ConfigError(path or "configuration", value, problem)


_NAMES: dict[Any, str] = {
    int: "a whole number", float: "a number", str: "text", types.NoneType: "null",
    list: "a list", tuple: "a list", dict: "a mapping", Any: "any value",
}  # fmt: skip


def _describe(hint: Any) -> str:
    """The values that a user may write for `hint`, in words: "a whole number or 'auto'"."""
    return either(_alternatives(hint))


def _alternatives(hint: Any) -> list[str]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return [each for argument in arguments for each in _alternatives(argument)]
    if origin is Literal:
        return [repr(argument) for argument in arguments]
    return ["true", "false"] if hint is bool else [_describe_one(hint, origin, arguments)]


def _describe_one(hint: Any, origin: Any, arguments: tuple[Any, ...]) -> str:
    if origin in _LISTS:
        items = [_describe(argument) for argument in arguments if argument is not Ellipsis]
        many = len(arguments) == 1 or arguments[-1] is Ellipsis
        return f"a list, each item {items[0]}" if many else f"a list of {len(items)}: {', '.join(items)}"
    if origin in _MAPPINGS:
        return f"a mapping of names, each to {_describe(arguments[1])}"
    if hint in _NAMES:
        return _NAMES[hint]
    if _is_record(hint):
        return f"a mapping with the keys {', '.join(_settings(hint))}"
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
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        _refuse(value, hint, path)
    if hint is int and (value != int(value) or abs(value) > LARGEST):
        _refuse(value, hint, path)
    return hint(value)


def _union(value: object, hint: Any, path: str, plugins: tuple[str, ...]) -> object:
    """The value as the first member that accepts it, exact types first: 1 stays whole for `float | int`."""
    members = [member for member in typing.get_args(hint) if _may_hold(member, value)]
    members.sort(key=lambda member: type(value) is not member)
    refusals: list[ConfigError] = []
    for member in members:
        try:
            return _value(value, member, path, plugins)
        except ConfigError as refusal:
            refusals.append(refusal)
    if len(refusals) == 1 and isinstance(value, (Mapping, list, tuple)):
        raise refusals[0]  # it names what is wrong inside
    _refuse(value, hint, path)


def _may_hold(hint: Any, value: object) -> bool:
    """Return whether a value of this outer shape can be meant for `hint`. What is inside is checked later."""
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


def _settings(cls: type, key: str = TARGET) -> dict[str, Setting]:
    """The settings of a component by name: the fields of a dataclass, or those of a network of a torch module.

    key: of the class, for errors. Raises ConfigError for a module whose constructor cannot be configured.
    """
    if _is_module(cls):
        from a3c_exp.config.modules import module_settings

        return module_settings(cls, key)
    hints = typing.get_type_hints(cls, include_extras=True)
    return {
        field.name: Setting(
            hints[field.name], field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        )
        for field in dataclasses.fields(cls)
        if field.init
    }


def _is_module(cls: type) -> bool:
    """Return whether a class is a torch module. Without torch imported, no class is."""
    torch = sys.modules.get("torch")
    return torch is not None and issubclass(cls, torch.nn.Module)


def _is_record(hint: type) -> bool:
    """Return whether a mapping needs no `_target_` here: its class is `hint` itself."""
    return dataclasses.is_dataclass(hint) and not inspect.isabstract(hint)


def _component(node: object, hint: Any, path: str, plugins: tuple[str, ...]) -> object:
    if isinstance(node, str) and "." in path and not _is_record(hint):
        group = hint.__name__.lower()
        raise ConfigError(path, node, f"must be {_describe(hint)}; {group}@{path}={node} takes an option of the group")
    if not isinstance(node, Mapping):
        _refuse(node, hint, path)
    cls = _class_of(node, hint, path, plugins)
    values = _arguments({str(name): value for name, value in node.items() if name != TARGET}, cls, path, plugins)
    try:
        component = _construct(cls, values)
    except ConfigError as error:
        raise (error.under(path) if path else error) from None
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ConfigError(path or "configuration", dict(node), f"refused by {cls.__name__}: {error}") from error
    return component


def _construct(cls: type, values: dict[str, Any]) -> object:
    """The component of a class, or a network of a torch module."""
    if not _is_module(cls):
        component: object = cls(**values)
        return component
    from a3c_exp.config.modules import network_of

    return network_of(cls, values)


def _class_of(node: Mapping[Any, object], hint: type, path: str, plugins: tuple[str, ...]) -> type:
    """The class that a component's mapping names, or that is known from its place. Raises ConfigError."""
    key = _key(path, TARGET)
    if TARGET in node:
        cls = _find(node[TARGET], key, plugins, hint)
        misfit = _misfit(cls, hint)
        if misfit is not None:
            raise ConfigError(key, node[TARGET], f"must be the class of {_a(hint)}: {misfit}")
        return cls
    if _is_record(hint):
        return hint
    name = path.rpartition(".")[2]
    inner = node.get(name)  # a group's file that sets other groups too, without its `@package` line
    nested = isinstance(inner, Mapping) and TARGET in inner
    advice = f"; {path}.{name} does: a file that sets {name} itself begins with '# @package _global_'"
    raise ConfigError(key, None, f"must name the class of {_a(hint)}{advice if nested else ''}")


def _arguments(node: dict[str, object], cls: type, path: str, plugins: tuple[str, ...]) -> dict[str, object]:
    """The values of the fields of `cls`, converted. Raises ConfigError for unknown and for missing keys."""
    settings = _settings(cls, _key(path, TARGET))
    for name, value in node.items():
        if name not in settings:
            raise ConfigError(_key(path, name), value, _unknown_key(name, value, cls, path))
    for name, setting in settings.items():
        if node.get(name) == MISSING or (setting.required and name not in node):
            raise ConfigError(_key(path, name), None, f"must be given: {_describe(setting.hint)}")
    return {name: _value(value, settings[name].hint, _key(path, name), plugins) for name, value in node.items()}


def _unknown_key(name: str, value: object, cls: type, path: str) -> str:
    """The problem with a key that is no field of `cls`, and the setting that is meant, or the nearest names."""
    settings = _settings(cls)
    if _is_module(cls):
        from a3c_exp.networks.inputs import injected_names

        if name in injected_names(cls):
            return f"is no setting: {cls.__name__} is given it by the environment's spaces"
    hint = _elsewhere(name, value, path, settings) or did_you_mean(name, settings)
    return f"is no setting of {cls.__name__}: {hint}"


def _elsewhere(name: str, value: object, path: str, settings: Mapping[str, Setting]) -> str | None:
    """The setting or the command that has a name of another library; None for other names, and for other commands."""
    here = ELSEWHERE_VALUES.get(name, {}).get(value) if isinstance(value, str) and not path else None
    if here is not None:
        return f"it is {here} here"
    if name in OTHER_COMMANDS:
        return f"training shows nothing. Afterwards: {OTHER_COMMANDS[name]}"
    full = ELSEWHERE.get(name, "")
    if not full or (not path and full.partition(".")[0] not in settings):
        return None
    return f"it is {full} here" + (f", with {ONLY_WITH[full]}" if full in ONLY_WITH else "")


def _misfit(cls: type, hint: type) -> str | None:
    """The reason why objects of `cls` cannot stand for `hint`; None if they can.

    They need the base class, unless `hint` is a Protocol, and its methods and attributes with its arguments.
    """
    if _is_module(cls):
        from a3c_exp.config.modules import module_misfit

        return module_misfit(cls, hint)
    protocol, abstract = Protocol in hint.__bases__, vars(cls).get("__abstractmethods__", ())
    bases = [hint] if protocol else [base for base in cls.__mro__ if issubclass(base, hint)]
    if not bases:
        return f"{cls.__name__} does not derive from {_public_name(hint)}"
    for name, wanted in {name: member for base in bases for name, member in _interface(base).items()}.items():
        own = _member(cls, name)
        parameters = list(inspect.signature(wanted).parameters)[1:] if inspect.isfunction(wanted) else None
        arguments = "" if parameters is None else f"({', '.join(parameters)})"
        if name in abstract or (protocol and own is None and name not in _settings(cls)):
            return f"it has no {'method ' if arguments else ''}{name}{arguments}"
        if arguments and inspect.isfunction(own) and not _takes(own, wanted):
            return f"its {name} must take {arguments}"
    return None


def _interface(base: type) -> dict[str, Any]:
    """The public members of a base class or Protocol, and its `__call__`; None for those that are only annotated."""
    members = dict.fromkeys(vars(base).get("__annotations__", ())) | dict(vars(base))
    return {name: member for name, member in members.items() if not name.startswith("_") or name == "__call__"}


def _public_name(cls: type) -> str:
    """The dotted name of a class, in the package that exports it if one does."""
    package = cls.__module__.rpartition(".")[0]
    exported = vars(sys.modules[package]).get(cls.__name__) is cls if package in sys.modules else False
    return f"{package if exported else cls.__module__}.{cls.__name__}"


def _member(cls: type, name: str) -> Any:
    """The definition of that name in the class or one that it inherits from; None if there is none.

    Not by getattr, which gives type's own `__call__` for a class without one.
    """
    return next((vars(each)[name] for each in cls.__mro__ if name in vars(each)), None)


def _takes(method: Any, wanted: Any) -> bool:
    """Return whether `method` can be called with the arguments that `wanted` requires."""
    required = [p for p in inspect.signature(wanted).parameters.values() if p.default is p.empty]
    try:
        inspect.signature(method).bind(*required)
    except TypeError:
        return False
    return True


def _find(target: object, key: str, plugins: tuple[str, ...], hint: type = object) -> type:
    """The dataclass of that dotted name. Raises ConfigError, with the names of the classes that fit `hint`, if there is
    none or configuration may not name it."""
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
        # Its own module too: a class that an allowed module merely imports is not allowed.
        if isinstance(cls, type) and _is_component(cls) and is_allowed_module(cls.__module__, plugins)
    }
    if name in classes:
        return classes[name]
    found = vars(module).get(name)
    if isinstance(found, type) and found.__module__ == module_name:
        raise ConfigError(key, target, "must be a dataclass: its fields are its settings")
    fitting = [name for name, cls in classes.items() if not name.startswith("_") and _misfit(cls, hint) is None]
    raise ConfigError(key, target, f"is no component class of {module_name}: {did_you_mean(name, fitting)}")


def _is_component(cls: type) -> bool:
    """Return whether configuration may name a class: a dataclass that it can fill, or a torch module."""
    return _is_module(cls) or (dataclasses.is_dataclass(cls) and getattr(cls, "nameable", True))
