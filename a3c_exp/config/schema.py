"""From a plain mapping, as YAML gives it, to typed components: the only way in which configuration
becomes objects.

A component is a frozen dataclass, and its typed fields are the schema. The schema of a network is
its module's constructor (`config.modules`). `build` refuses unknown keys, wrong types and,
by the component's own check, values out of range, with a ConfigError that names the key as the user
wrote it (`returns.n`). A mapping names its class by `_target_`. Only dataclasses of this package
are built, and those of the packages that the user lists in `plugins`: a configuration file, or one
in a run's folder, runs no other code.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NoReturn, TypeVar, Union, cast

from a3c_exp.common.reading import LARGEST, check_plain
from a3c_exp.common.settings import MISSING, TARGET, Setting, hints_of
from a3c_exp.common.trust import PACKAGE, is_allowed_module
from a3c_exp.config.elsewhere import EXAMPLES, number_meant, unknown
from a3c_exp.errors import (
    FAILURES,
    ONLY_THERE,
    ConfigError,
    did_you_mean,
    either,
    one_line,
    require,
    under,
)
from a3c_exp.optimizers import TorchOptimizer

T = TypeVar("T")


def build(node: object, hint: type[T], path: str = "", plugins: Sequence[str] = ()) -> T:
    """The value of type `hint` that `node` describes, inner components built first.

    node: plain scalars, lists and mappings. hint: a dataclass, or the base class of a component.
    path: the key of `node` as the user knows it ("" for the whole configuration), for errors.
    plugins: packages, beside this one, whose dataclasses may be built.
    Whole floats such as 1e7 count as whole numbers; True does not. Raises ConfigError.
    """
    check_plain(node, path)
    return cast(T, _value(node, hint, path, tuple(plugins)))


def settings_of(target: object, plugins: Sequence[str] = ()) -> dict[str, Setting]:
    """The settings of the component that `_target_` names. Raises ConfigError."""
    return _settings(_find(target, TARGET, tuple(plugins)), TARGET)


def _key(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _a(hint: type) -> str:
    return f"{'an' if hint.__name__[0] in 'AEIOU' else 'a'} {hint.__name__}"


def _refuse(value: object, hint: Any, path: str) -> NoReturn:
    meant = ""
    if isinstance(value, str):
        meant = number_meant(path, value)
    elif isinstance(value, list) and len(value) > 1 and _is_scalar(hint):
        meant = f": write -m {path}={','.join(map(str, value))} for a run with each"
    problem = f"must be {describe(hint)}{meant}{_example(path)}"
    raise ConfigError(path or "configuration", value, problem)


def _example(path: str) -> str:
    return f", for example {EXAMPLES[path]}" if path in EXAMPLES else ""


_NAMES: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    types.NoneType: "null",
    list: "a list",
    tuple: "a list",
    dict: "a mapping",
    Any: "any value",
}


def describe(hint: Any) -> str:
    """The values that a user may write for `hint`, in words: "a whole number or 'auto'"."""
    return either(_alternatives(hint))


def _alternatives(hint: Any) -> list[str]:
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin in (Union, types.UnionType):
        # Behind "each item a number", "or null" would be one of the items.
        in_order = sorted(arguments, key=lambda argument: not _is_scalar(argument))
        return [text for argument in in_order for text in _alternatives(argument)]

    if origin is Literal:
        return [repr(argument) for argument in arguments]

    if hint is bool:
        return ["true", "false"]

    if origin in _LISTS:
        items = [describe(argument) for argument in arguments if argument is not Ellipsis]
        if len(arguments) == 1 or arguments[-1] is Ellipsis:
            return [f"a list in brackets, each item {items[0]}"]

        return [f"a list of {len(items)}: {', '.join(items)}"]

    if origin in _MAPPINGS:
        return [f"a mapping of names, each to {describe(arguments[1])}"]

    if hint in _NAMES:
        return [_NAMES[hint]]

    if _is_record(hint):
        return [f"a mapping with the keys {', '.join(_settings(hint))}"]

    return [f"a mapping that names {_a(hint)} by {TARGET}"]


_LISTS = (list, tuple, Sequence)
_MAPPINGS = (dict, Mapping)


def _value(value: object, hint: Any, path: str, plugins: tuple[str, ...]) -> object:
    origin = typing.get_origin(hint)
    if hint is Any or hint is object:
        return value
    if origin in (Union, types.UnionType):
        return _union(value, hint, path, plugins)
    if _is_scalar(hint):
        return _scalar(value, hint, path)
    if (origin or hint) in _LISTS:
        return _list(value, hint, path, plugins)
    if (origin or hint) in _MAPPINGS:
        return _mapping(value, hint, path, plugins)
    return _component(value, hint, path, plugins)


def _scalar(value: object, hint: Any, path: str) -> object:
    if not _fits(value, hint):
        _refuse(value, hint, path)

    return hint(value) if hint in (int, float) else value


def _fits(value: object, hint: Any) -> bool:
    """Return whether a value is one of a scalar type."""
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        return any(type(choice) is type(value) and choice == value for choice in choices)

    if hint not in (int, float):
        return type(value) is (types.NoneType if hint is None else hint)

    if type(value) is bool or not isinstance(value, (int, float)):
        return False

    if hint is float:
        return abs(value) <= sys.float_info.max

    return abs(value) <= LARGEST and value == int(value)


def _union(value: object, hint: Any, path: str, plugins: tuple[str, ...]) -> object:
    """The value as the first member that accepts it, exact types first: 1 stays whole for
    `float | int`."""
    members = typing.get_args(hint)
    scalars = [member for member in members if _is_scalar(member)]
    structures = [member for member in members if member not in scalars]
    if not isinstance(value, (Mapping, list, tuple)):
        for member in sorted(scalars, key=lambda member: type(value) is not member):
            if _fits(value, member):
                return _scalar(value, member, path)

        if Any in members or object in members:
            return value

        _refuse(value, hint, path)

    refusals: list[ConfigError] = []
    for member in structures:
        try:
            return _value(value, member, path, plugins)
        except ConfigError as refusal:
            refusals.append(refusal)

    if len(refusals) == 1:
        [inner] = refusals
        if isinstance(value, Mapping) or inner.key != path:
            raise inner  # it names what is wrong inside

    _refuse(value, hint, path)


def _is_scalar(hint: Any) -> bool:
    return typing.get_origin(hint) is Literal or hint in (
        int,
        float,
        bool,
        str,
        None,
        types.NoneType,
    )


def _list(value: object, hint: Any, path: str, plugins: tuple[str, ...]) -> object:
    if not isinstance(value, (list, tuple)):
        _refuse(value, hint, path)

    kind = typing.get_origin(hint) or hint
    arguments = typing.get_args(hint) or (Any, ...)
    of_any_length = kind is not tuple or arguments[-1] is Ellipsis
    item_hints = [arguments[0]] * len(value) if of_any_length else list(arguments)
    if len(item_hints) != len(value):
        _refuse(value, hint, path)

    items = [
        _value(value[i], item_hint, f"{path}[{i}]", plugins)
        for i, item_hint in enumerate(item_hints)
    ]
    return items if kind is list else tuple(items)


def _mapping(value: object, hint: Any, path: str, plugins: tuple[str, ...]) -> dict[str, object]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        _refuse(value, hint, path)

    item_hint = typing.get_args(hint)[1] if typing.get_args(hint) else Any
    return {
        name: _value(item, item_hint, _key(path, name), plugins) for name, item in value.items()
    }


def _settings(cls: type, key: str = TARGET) -> dict[str, Setting]:
    """The settings of a component by name: the fields of a dataclass, or those of a network of a
    torch module.

    key: of the class, for errors. Raises ConfigError for a module whose constructor cannot be
    configured.
    """
    if _is_module(cls):
        from a3c_exp.config.modules import module_settings

        return module_settings(cls, key)

    hints = hints_of(cls, cls, key)
    return {
        # both are MISSING
        field.name: Setting(hints[field.name], field.default is field.default_factory)
        for field in dataclasses.fields(cls)
        if field.init
    }


def _is_module(cls: type) -> bool:
    """Return whether a class is a torch module. Without torch imported, no class is."""
    torch = sys.modules.get("torch")
    return torch is not None and issubclass(cls, torch.nn.Module)


def _is_record(hint: type) -> bool:
    """Return whether a mapping needs no `_target_` here: its class is `hint` itself, and there is
    no other."""
    return (
        dataclasses.is_dataclass(hint)
        and not inspect.isabstract(hint)
        and not hint.__subclasses__()
    )


def _component(node: object, hint: Any, path: str, plugins: tuple[str, ...]) -> object:
    if isinstance(node, str) and "." in path and not _is_record(hint):
        group = hint.__name__.lower()
        problem = f"must be {describe(hint)}; {group}@{path}={node} takes an option of the group"
        raise ConfigError(path, node, problem)

    if not isinstance(node, Mapping):
        _refuse(node, hint, path)

    typed = dict(node)
    if str(node.get(TARGET)).startswith("torch.optim."):
        with under(path):
            node = TorchOptimizer.settings_of(node) | {
                TARGET: f"{TorchOptimizer.__module__}.{TorchOptimizer.__name__}"
            }
    cls = _class_of(node.get(TARGET), hint, path, plugins)
    settings = _settings(cls, _key(path, TARGET))
    items = {str(name): value for name, value in node.items() if name != TARGET}
    for name, value in items.items():
        if name not in settings:
            raise ConfigError(_key(path, name), value, _unknown_key(name, cls, path))

    for name, setting in settings.items():
        if items.get(name) == MISSING or (setting.required and name not in items):
            setting_key = _key(path, name)
            problem = f"must be given: {describe(setting.hint)}{_example(setting_key)}"
            raise ConfigError(setting_key, None, problem)

    values = {
        name: _value(value, settings[name].hint, _key(path, name), plugins)
        for name, value in items.items()
    }
    try:
        with under(path):
            if not _is_module(cls):
                return cls(**values)
            from a3c_exp.config.modules import network_of

            return network_of(cls, values)
    except ConfigError:
        raise
    except FAILURES as error:
        problem = f"refused by {cls.__name__}: {str(error) or one_line(error)}"
        raise ConfigError(path or "configuration", typed, problem) from error


def _class_of(target: object, hint: type, path: str, plugins: tuple[str, ...]) -> type:
    """The class that a component's mapping names, or that is known from its place. Raises
    ConfigError."""
    key = _key(path, TARGET)
    if target is not None:
        cls = _find(target, key, plugins, hint)
        misfit = _misfit(cls, hint)
        require(misfit is None, key, target, f"the class of {_a(hint)}: {misfit}")
        return cls

    if _is_record(hint):
        return hint

    raise ConfigError(key, None, f"must name the class of {_a(hint)}")


def _unknown_key(name: str, cls: type, path: str) -> str:
    """The problem with a key that is no field of `cls`, and the setting that is meant, or the
    nearest names."""
    settings = _settings(cls)
    if _is_module(cls):
        from a3c_exp.networks.inputs import injected_names

        if name in injected_names(cls):
            return f"is no setting: {cls.__name__} is given it by the environment's spaces"

    if path or "env" in settings:
        return unknown(name, cls.__name__, settings, path)
    return f"is no setting of {cls.__name__}: {did_you_mean(name, settings)}"  # of another command


def _misfit(cls: type, hint: type) -> str | None:
    """The reason why objects of `cls` cannot stand for `hint`, which they derive from with all
    methods; None if they can."""
    if _is_module(cls):
        from a3c_exp.config.modules import module_misfit

        return module_misfit(cls, hint)

    if not issubclass(cls, hint):
        return f"{cls.__name__} does not derive from {hint.__module__}.{hint.__qualname__}"

    lacking = getattr(cls, "__abstractmethods__", ())
    return f"it has no {', '.join(sorted(lacking))}" if lacking else None


def _find(target: object, key: str, plugins: tuple[str, ...], hint: type = object) -> type:
    """The dataclass of that dotted name. Raises ConfigError, with the names of the classes that fit
    `hint`, if there is none or configuration may not name it."""
    module_name, _, name = str(target).rpartition(".")
    if module_name == "__main__" and not hasattr(sys.modules[module_name], name):
        raise ConfigError(key, target, f"is no class of this program. {ONLY_THERE}")
    allowed = isinstance(target, str) and is_allowed_module(module_name, plugins)
    package = module_name.partition(".")[0] or "<package>"
    owners = f'a class of {PACKAGE}, or of a package that you allow: plugins=["{package}"]'
    require(allowed, key, target, owners)
    try:
        module = importlib.import_module(module_name)
    except FAILURES as error:  # a user's module may raise anything
        raise ConfigError(key, target, f"cannot be imported: {one_line(error)}") from error

    classes = {
        name: cls
        for name, cls in vars(module).items()
        # Its own module too: a class that an allowed module merely imports is not allowed.
        if isinstance(cls, type)
        and _is_component(cls)
        and is_allowed_module(cls.__module__, plugins)
    }
    if name in classes:
        return classes[name]

    other = vars(module).get(name)
    if isinstance(other, type) and other.__module__ == module_name:
        raise ConfigError(key, target, "must be a dataclass: its fields are its settings")

    fitting = [
        name
        for name, cls in classes.items()
        if not name.startswith("_") and _misfit(cls, hint) is None
    ]
    raise ConfigError(
        key, target, f"is no component class of {module_name}: {did_you_mean(name, fitting)}"
    )


def _is_component(cls: type) -> bool:
    """Return whether configuration may name a class: a dataclass that it can fill, or a torch
    module."""
    return _is_module(cls) or (dataclasses.is_dataclass(cls) and getattr(cls, "nameable", True))
