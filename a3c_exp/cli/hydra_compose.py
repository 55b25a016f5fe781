"""Composition: from what a user writes on the command line to plain configurations, with Hydra and OmegaConf.

Every complaint of theirs comes out as one ConfigError that names the key, the value and what is allowed. Nothing is
left of Hydra's global state, and nothing that is there is disturbed: notebooks and programs may use Hydra themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.default_element import ConfigDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, OverrideType
from hydra.core.singleton import Singleton
from hydra.core.utils import JobRuntime
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.basecontainer import BaseContainer
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from a3c_exp.cli.startup import conf_folder
from a3c_exp.config.schema import TARGET, settings_of
from a3c_exp.errors import ConfigError, did_you_mean

CONFIG_NAME = "config"
_COMPLAINTS = (HydraException, OmegaConfBaseException, YAMLError, ValueError, AssertionError)


class Loader(ConfigLoaderImpl):
    """Hydra's, with two rules of this project for a component that takes the place of another."""

    def load_configuration(
        self, config_name: str | None, overrides: list[str], run_mode: RunMode, *further: Any, **named: Any
    ) -> DictConfig:
        if run_mode is RunMode.MULTIRUN:  # of Hydra's own settings; each job is composed again
            return super().load_configuration(config_name, overrides, run_mode, *further, **named)
        put = _replacing(overrides)
        node = super().load_configuration(config_name, put, run_mode, *further, **named)
        self._leave_out(node, config_name, [override for override in parse(put) if not override.is_delete()])
        return node

    def _leave_out(self, node: DictConfig, config_name: str | None, overrides: Sequence[Override]) -> None:
        """Of components that the command line chooses, what presets have set for others in their place.

        One that is written out stays as it is written. One that is chosen by name keeps the settings that it knows:
        `experiment=pong algorithm=a3c` keeps the entropy's weight and has no use for PPO's epochs.
        """
        choices = [o for o in overrides if o.value() in self.get_group_options(o.key_or_group)]
        for override in overrides:
            place, value = override.package or override.key_or_group, override.value()
            written = isinstance(value, dict) and TARGET in value and self.get_group_options(place)
            component = OmegaConf.select(node, place) if written or override in choices else None
            if not isinstance(component, DictConfig):
                continue
            unknown = {str(key) for key in component} - _set_in(place, overrides) - {TARGET}
            if not written:
                unknown -= self._in_file(override.key_or_group, str(value))
                rest = [str(other.input_line) for other in choices if other is not override]
                unknown &= self._only_others_know(component, place, config_name, rest, node) if unknown else set()
            with open_dict(node):
                for key in unknown:
                    del component[key]

    def _only_others_know(
        self, component: DictConfig, place: str, config_name: str | None, rest: list[str], node: DictConfig
    ) -> set[str]:
        """The settings of the component that would stand in that place otherwise, and that this one does not know."""
        try:
            before = OmegaConf.select(super().load_configuration(config_name, rest, RunMode.RUN), place)
            plugins = list(node.get("plugins") or [])
            return settings_of(before.get(TARGET), plugins) - settings_of(component.get(TARGET), plugins)
        except Exception:  # whatever is wrong there, the check of the whole says it in one line
            return set()

    def _in_file(self, group: str, choice: str) -> set[str]:
        """The settings that a component's file writes out, and those of the group that it builds on: found without
        importing its class."""
        file = self.repository.load_config(f"{group}/{choice}")
        if file is None:
            return set()
        inside = OmegaConf.select(file.config, group)
        names = {str(key) for key in (inside if isinstance(inside, DictConfig) else file.config)}
        parents = [default.path for default in file.defaults_list or [] if isinstance(default, ConfigDefault)]
        return names.union(*(self._in_file(group, path) for path in parents if path not in (None, "_self_")))


def _set_in(place: str, overrides: Sequence[Override]) -> set[str]:
    """The settings of the component in that place that the command line gives."""
    dotted = {o.key_or_group.removeprefix(f"{place}.") for o in overrides if o.key_or_group.startswith(f"{place}.")}
    written = [o.value() for o in overrides if o.key_or_group == place]
    inside = {str(name) for mapping in written if isinstance(mapping, dict) for name in mapping}
    return {name.partition(".")[0] for name in dotted} | inside


@contextmanager
def session(config_dir: str | None = None, config_path: str | None = None) -> Iterator[Hydra]:
    """Hydra on this project's configuration files, and on those in `config_dir`, which go before them.

    config_path: another folder in place of the project's own.
    """
    path = create_config_search_path(str(Path(config_path or conf_folder()).absolute()))
    if config_dir is not None:
        if not Path(config_dir).is_dir():
            raise ConfigError("--config-dir", config_dir, "there is no such folder")
        path.prepend("command-line", f"file://{Path(config_dir).absolute()}", SearchPathQuery(provider="schema"))
    kept, resolvers = dict(Singleton._instances), dict(BaseContainer._resolvers)
    # These hold the state of somebody's run; the other singletons only list what is installed.
    states = (GlobalHydra, HydraConfig, JobRuntime, version.VersionBase)
    Singleton._instances = {cls: made for cls, made in kept.items() if cls not in states}
    try:
        version.setbase("1.3")
        hydra = Hydra("a3c_exp", Loader(path))
        GlobalHydra.instance().initialize(hydra)
        yield hydra
    finally:
        Singleton._instances = kept
        BaseContainer._resolvers = resolvers


def compose(overrides: Sequence[str] = (), config_dir: str | None = None) -> dict[str, Any]:
    """The configuration that `python -m a3c_exp <overrides>` would run with. Raises ConfigError.

    config_dir: see `session`.
    """
    with session(config_dir) as hydra:
        return plain(compose_node(hydra, overrides))


def compose_node(hydra: Hydra, overrides: Sequence[str], config_name: str = CONFIG_NAME) -> DictConfig:
    """One job's composed configuration, Hydra's own settings under `hydra` included. Raises ConfigError."""
    try:
        return hydra.compose_config(config_name, list(overrides), RunMode.RUN, with_log_configuration=False)
    except _COMPLAINTS as complaint:
        raise _explain(hydra, overrides, config_name, complaint) from complaint


def _replacing(overrides: Sequence[str]) -> list[str]:
    """The overrides, so put that a component given as a whole takes the place of the one that is there.

    Hydra would merge the two: a schedule in place of another would keep the settings of both.
    """
    put = []
    for override in parse(overrides):
        text, value = str(override.input_line), override.value() if not override.is_delete() else None
        given = value.list if isinstance(value, ChoiceSweep) else [value]
        whole = any(isinstance(each, dict) and "_target_" in each for each in given)
        set_already = override.type is OverrideType.CHANGE
        put += [f"~{override.key_or_group}", f"+{text}"] if whole and set_already else [text]
    return put


def setting(node: DictConfig, key: str) -> Any:
    """The value at a dotted key of a composed configuration. Raises ConfigError where it refers to what is not."""
    try:
        return OmegaConf.select(node, key)
    except OmegaConfBaseException as complaint:
        raise ConfigError(key, _raw(node, key), f"cannot be resolved: {_line(complaint)}") from complaint


def plain(node: DictConfig) -> dict[str, Any]:
    """A composed configuration as plain scalars, lists and mappings, without Hydra's own settings."""
    with open_dict(node):
        task = OmegaConf.masked_copy(node, [str(key) for key in node if key != "hydra"])
    try:
        return OmegaConf.to_container(task, resolve=True)  # type: ignore[return-value]
    except OmegaConfBaseException as complaint:
        key = complaint.full_key or "configuration"
        raise ConfigError(key, _raw(task, key), f"cannot be resolved: {_line(complaint)}") from complaint


def _raw(node: DictConfig, key: str) -> object:
    """The text at `key` as it was written, interpolations and all; None where it cannot be told."""
    value: Any = OmegaConf.to_container(node, resolve=False)
    for name in key.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def sweep(hydra: Hydra, overrides: Sequence[str], config_name: str = CONFIG_NAME) -> list[list[str]]:
    """The overrides of every job of a sweep (-m), in order. Raises ConfigError.

    A sweeper other than Hydra's own decides as it goes: then it is one job, with the first value of each choice.
    """
    parsed = parse(overrides, hydra)
    try:
        node = hydra.compose_config(config_name, list(overrides), RunMode.MULTIRUN, with_log_configuration=False)
        sweeper = node.hydra.sweeper
        parameters = parse([f"{key}={value}" for key, value in (sweeper.get("params") or {}).items()], hydra)
        if not str(sweeper.get("_target_")).endswith(".BasicSweeper"):
            return [[_first(override) for override in [*parameters, *parsed]]]
        return [job for batch in BasicSweeper.split_arguments([*parameters, *parsed], None) for job in batch]
    except _COMPLAINTS as complaint:
        raise _explain(hydra, [_first(override) for override in parsed], config_name, complaint) from complaint


def _first(override: Override) -> str:
    """The override with the first value of its choice; without a choice, as it is."""
    if not override.is_sweep_override():
        return str(override.input_line)
    key, value = override.get_key_element(), override.value()
    if isinstance(value, IntervalSweep):
        return f"{key}={value.start}"
    return f"{key}={next(override.sweep_string_iterator(), '')}"


def run_folder(config: dict[str, Any]) -> Path:
    """A new folder's name for a run started from Python, as the command line names them too."""
    return Path("outputs") / f"{datetime.now():%Y-%m-%d_%H-%M-%S-%f}_s{config.get('seed', 0)}"


def parse(overrides: Sequence[str], hydra: Hydra | None = None) -> list[Override]:
    """Overrides as Hydra's grammar reads them; with `hydra`, choices such as glob(*) too. Raises ConfigError."""
    parser, parsed = OverridesParser.create(hydra.config_loader if hydra else None), []
    for text in overrides:
        try:
            override = parser.parse_override(text)
            override.config_loader = parser.config_loader  # which glob(*) asks for the options
            parsed.append(override)
        except HydraException as complaint:
            key, equals, value = text.partition("=")
            problem = f"cannot be read: {_line(complaint)}" if equals else "must be key=value"
            raise ConfigError(key if equals else "command line", value if equals else text, problem) from complaint
    return parsed


def _line(error: BaseException) -> str:
    """The first line of a complaint of many; with its place, where a file cannot be read."""
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        return f"{mark.name}, line {mark.line + 1}: {getattr(error, 'problem', None) or 'cannot be read'}"
    cause = error if str(error) or error.__cause__ is None else error.__cause__
    return (str(cause).strip() or type(cause).__name__).splitlines()[0].strip()


def _explain(hydra: Hydra, overrides: Sequence[str], config_name: str, complaint: BaseException) -> ConfigError:
    """Which override a complaint is about, found by asking Hydra again rather than by reading its texts."""
    loader = hydra.config_loader
    names = [name for name in loader.get_group_options("") if not name.startswith("_")]
    if config_name not in names:
        return ConfigError("--config-name", config_name, f"is no configuration: {did_you_mean(config_name, names)}")
    choices: list[str] = []
    settings: list[Override] = []
    for override in parse(overrides):
        key, value = override.key_or_group, None if override.is_sweep_override() else override.value()
        options = [] if "." in key else loader.get_group_options(key)
        if override.is_sweep_override():
            given = str(override.input_line).partition("=")[2]
            return ConfigError(key, given, "several values need -m (or quotes, if they are one text)")
        if options and isinstance(value, str) and value not in options:
            return ConfigError(key, value, f"is no option: {did_you_mean(value, options)}")
        if options and value is None and not override.is_delete():
            needed = plain(hydra.compose_config(config_name, [], RunMode.RUN, with_log_configuration=False)).get(key)
            problem = "" if needed else f"; ~{key} takes away what was chosen"
            return ConfigError(key, value, f"must be one of {', '.join(options)}{problem}")
        if options:
            choices.append(str(override.input_line))
        elif not override.is_add() and not override.is_force_add():
            settings.append(override)
    try:
        base = plain(hydra.compose_config(config_name, choices, RunMode.RUN, with_log_configuration=False))
    except (*_COMPLAINTS, ConfigError):
        settings, base = [], {}
    nowhere = re.search(r"Could not override '(\w+)@\1\.(\w+)'", str(complaint))
    chosen = [override for override in parse(overrides) if nowhere and override.key_or_group == nowhere[1]]
    if nowhere and chosen:
        problem = f"there is no {nowhere[1]}.{nowhere[2]} to choose one for: network=lstm has an encoder"
        return ConfigError(chosen[-1].get_key_element(), chosen[-1].value(), problem)
    problems = (unknown_key(override, base) for override in settings if not override.is_hydra_override())
    return next(filter(None, problems), ConfigError("command line", " ".join(overrides), _line(complaint)))


def unknown_key(override: Override, config: dict[str, Any]) -> ConfigError | None:
    """The error about a key that the composed configuration has not, if that is so."""
    node: Any = config
    names = override.key_or_group.split(".")
    for depth, name in enumerate(names):
        if not isinstance(node, dict) or name not in node:
            value = None if override.is_delete() else override.value()
            place = ".".join(names[:depth])
            if not isinstance(node, dict):
                return ConfigError(override.key_or_group, value, f"{place} has no settings of its own")
            hint = f"; +{override.input_line} adds one" if depth > 1 else ""
            known = [key for key in node if key != "_target_"]
            return ConfigError(override.key_or_group, value, f"is no setting: {did_you_mean(name, known)}{hint}")
        node = node[name]
    given = None if override.is_delete() else override.value()
    if isinstance(node, dict) and isinstance(given, dict) and "_target_" not in given:
        for name in map(str, given):
            if name not in node:
                key = f"{override.key_or_group}.{name}"
                problem = f"is no setting: {did_you_mean(name, node)}; +{key}=<value> adds one"
                return ConfigError(key, given[name], problem)
    return None
