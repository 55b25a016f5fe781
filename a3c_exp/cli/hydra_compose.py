"""Composition: from overrides, as a user types them, to plain configurations, with Hydra and OmegaConf.

Hydra reads the files and merges the values. Keys and types of settings are checked by config.schema alone. Complaints
of Hydra and OmegaConf become one ConfigError with the key, the value and what is allowed. Hydra's global state is
restored afterwards: notebooks and programs may use Hydra themselves.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir, version
from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra._internal.hydra import Hydra
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.default_element import ConfigDefault, GroupDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, OverrideType
from hydra.core.singleton import Singleton
from hydra.core.utils import JobRuntime
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.basecontainer import BaseContainer
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from a3c_exp.cli.hints import option_problem
from a3c_exp.cli.startup import conf_folder
from a3c_exp.common.reading import check_plain
from a3c_exp.config.schema import TARGET, settings_of
from a3c_exp.errors import ConfigError, did_you_mean

CONFIG_NAME = "config"
MOST_JOBS = 10_000
"""Runs of a sweep."""
_COMPLAINTS = (HydraException, OmegaConfBaseException, YAMLError, ValueError, AssertionError)


class Loader(ConfigLoaderImpl):
    """Hydra's loader, with three rules of this project.

    A setting may have any key and any type here: config.schema checks both. (Hydra would refuse unknown keys itself.)
    A component that is written out replaces the one in its place. (Hydra would merge the two.)
    A component that is chosen by name keeps the settings of presets that it knows, and loses those that only the
    component in its place knew: `experiment=pong algorithm=a3c` keeps the entropy's weight and drops PPO's epochs.
    """

    def load_configuration(
        self, config_name: str | None, overrides: list[str], run_mode: RunMode, *further: Any, **named: Any
    ) -> DictConfig:
        typed = parse(overrides)
        replaced = [f"~{o.key_or_group}" for o in typed if _is_component(o) and self._is_group(o)]
        handed = [self._handed(override) for override in typed]
        node = super().load_configuration(config_name, [*replaced, *handed], run_mode, *further, **named)
        own = self._record(node, typed)
        if run_mode is RunMode.RUN:  # a sweep composes each of its jobs again
            self._drop_foreign_settings(node, config_name, [override for override in own if not override.is_delete()])
        return node

    def _handed(self, override: Override) -> str:
        """The override as Hydra takes it: a setting with ++, and no option of a group, which Hydra refuses, with ~."""
        if self._is_setting(override):
            return f"++{override.input_line}"
        chosen = override.type is OverrideType.CHANGE and self._is_group(override)
        return f"~{override.key_or_group}" if chosen and override.value() is None else str(override.input_line)

    def _record(self, node: DictConfig, typed: Iterable[Override]) -> list[Override]:
        """Record in the configuration what was typed; return the overrides that are not Hydra's own."""
        own = [override for override in typed if not override.is_hydra_override()]
        node.hydra.overrides.task = [override.input_line for override in own]
        job = node.hydra.job
        job.override_dirname = get_overrides_dirname(own, **job.config.override_dirname)
        return own

    def choices(self, overrides: Iterable[Override]) -> tuple[object, ...]:
        """What of the overrides decides which files are composed: everything but the values of settings.

        Jobs with equal choices are one composition, apart from what `set_values` sets.
        """
        return tuple(o.key_or_group if self._is_plain_setting(o) else (o.input_line,) for o in overrides)

    def _is_plain_setting(self, override: Override) -> bool:
        return self._is_setting(override) and not isinstance(override.value(), dict)

    def set_values(self, node: DictConfig, overrides: Sequence[Override]) -> None:
        """Turn a job's configuration into that of another job with equal choices: set all of its settings, in order."""
        settings = [f"++{o.input_line}" for o in overrides if self._is_setting(o)]
        self._apply_overrides_to_config(parse(settings), node)
        self._record(node, overrides)

    def _is_group(self, override: Override) -> bool:
        return "." not in override.key_or_group and self.repository.group_exists(override.key_or_group)

    def _is_setting(self, override: Override) -> bool:
        """Return whether the override gives a setting a value: no group's choice, no setting of Hydra's, no + or ~."""
        if override.type is not OverrideType.CHANGE or re.match(r"hydra\b", override.key_or_group):
            return False
        return isinstance(override.value(), dict) or not self._is_group(override)

    def _drop_foreign_settings(self, node: DictConfig, config_name: str | None, overrides: Sequence[Override]) -> None:
        """Delete what presets have set for components that others, chosen on the command line, replace."""
        choices = [o for o in overrides if o.value() in self.get_group_options(o.key_or_group)]
        for override in overrides:
            place, written_out = override.package or override.key_or_group, _is_component(override)
            component = OmegaConf.select(node, place) if written_out or override in choices else None
            if not isinstance(component, DictConfig):
                continue
            foreign = {str(key) for key in component} - _names_set_in(place, overrides) - {TARGET}
            if not written_out:
                foreign -= self._names_in_file(override.key_or_group, str(override.value()))
            if foreign and not written_out:
                others = [str(other.input_line) for other in choices if other is not override]
                foreign &= self._known_to_predecessor_only(component, place, config_name, others, node)
            with open_dict(node):
                for key in foreign:
                    del component[key]

    def _known_to_predecessor_only(
        self, component: DictConfig, place: str, config_name: str | None, others: list[str], node: DictConfig
    ) -> set[str]:
        """The settings that only the replaced component has: the one that is composed without this choice."""
        try:
            before = OmegaConf.select(super().load_configuration(config_name, others, RunMode.RUN), place)
            plugins = list(node.get("plugins") or [])
            return settings_of(before.get(TARGET), plugins) - settings_of(component.get(TARGET), plugins)
        except Exception:  # the check of the whole configuration reports what is wrong, in one line
            return set()

    def _names_in_file(self, group: str, choice: str) -> set[str]:
        """The settings in a component's file, and in those of the group that it builds on. Imports no class."""
        file = self.repository.load_config(f"{group}/{choice}")
        if file is None:
            return set()
        inside = OmegaConf.select(file.config, group)
        names = {str(key) for key in (inside if isinstance(inside, DictConfig) else file.config)}
        parents = [default.path for default in file.defaults_list or [] if isinstance(default, ConfigDefault)]
        return names.union(*(self._names_in_file(group, path) for path in parents if path not in (None, "_self_")))

    def check_choices(self, config_name: str, overrides: Iterable[Override], mode: RunMode) -> None:
        """Raise ConfigError for a main file or an option that does not exist, and for several values in one run."""
        names = [name for name in self.get_group_options("") if not name.startswith("_")]
        if config_name not in names:
            problem = f"is no configuration: {did_you_mean(config_name, names)}"
            raise ConfigError("--config-name", config_name, problem)
        main = self.repository.load_config(config_name)
        defaults = [each for each in (main.defaults_list if main else None) or [] if isinstance(each, GroupDefault)]
        for override in overrides:
            key, value = override.key_or_group, override.value()
            if override.is_sweep_override():
                if mode is RunMode.RUN:
                    problem = "several values need -m (or quotes, if they are one text)"
                    raise ConfigError(key, override.get_value_string(), problem)
                continue
            is_choice = not override.package and key in [each.group for each in defaults]
            if is_choice and override.is_add() and not isinstance(value, dict):
                raise ConfigError(f"+{key}", value, f"is a choice that every run has: {key}={value}, without +")
            options = [] if "." in key or override.is_delete() else self.get_group_options(key)
            if not options or isinstance(value, dict) or value in options:
                continue
            if isinstance(value, str):
                raise ConfigError(key, value, option_problem(key, value, options, partial(self._settings_in_file, key)))
            if value is not None or key not in [each.group for each in defaults if each.value is None]:
                raise ConfigError(key, value, f"must be one of {', '.join(options)}")

    def _settings_in_file(self, group: str, choice: str) -> Mapping[str, Any] | None:
        """The settings in an option's file, without those of the files that it builds on."""
        file = self.repository.load_config(f"{group}/{choice}")
        return None if file is None else OmegaConf.to_container(file.config, resolve=False)  # type: ignore[return-value]


def _is_component(override: Override) -> bool:
    """Return whether the override's value is a component that is written out: a mapping with `_target_`."""
    value = None if override.is_delete() or override.is_hydra_override() else override.value()
    return isinstance(value, dict) and TARGET in value


def _names_set_in(place: str, overrides: Sequence[Override]) -> set[str]:
    """The settings of the component at `place` that the overrides give."""
    dotted = {o.key_or_group.removeprefix(f"{place}.") for o in overrides if o.key_or_group.startswith(f"{place}.")}
    mappings = [o.value() for o in overrides if o.key_or_group == place]
    inside = {str(name) for mapping in mappings if isinstance(mapping, dict) for name in mapping}
    return {name.partition(".")[0] for name in dotted} | inside


@contextmanager
def hydra_session(config_dir: str | None = None, config_path: str | None = None) -> Iterator[Hydra]:
    """Hydra on this project's configuration files and on those in `config_dir`, which are searched first.

    config_path: another folder in place of the project's own. Raises ConfigError.
    """
    for flag, folder in (("--config-dir", config_dir), ("--config-path", config_path)):
        if folder is not None and not Path(folder).is_dir():
            raise ConfigError(flag, folder, "there is no such folder")
    singletons, resolvers = dict(Singleton._instances), dict(BaseContainer._resolvers)
    # These hold the state of a program that uses Hydra itself; the other singletons only list installed plugins.
    states = (GlobalHydra, HydraConfig, JobRuntime, version.VersionBase)
    Singleton._instances = {cls: instance for cls, instance in singletons.items() if cls not in states}
    try:
        main_folder = Path(config_path or conf_folder()).absolute()
        initialize_config_dir(str(main_folder), job_name="a3c_exp", version_base="1.3")
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        search_path = hydra.config_loader.get_search_path()
        if config_dir is not None:
            folder = f"file://{Path(config_dir).absolute()}"
            search_path.prepend("command-line", folder, SearchPathQuery(provider="schema"))
        hydra.config_loader = Loader(search_path)
        yield hydra
    finally:
        Singleton._instances = singletons
        BaseContainer._resolvers = resolvers


def compose(overrides: Sequence[str] = (), config_dir: str | None = None) -> dict[str, Any]:
    """The configuration that the overrides compose, its keys and types not checked yet. Raises ConfigError.

    config_dir: see `hydra_session`.
    """
    with hydra_session(config_dir) as hydra:
        return to_container(compose_node(hydra, overrides))


def compose_node(
    hydra: Hydra, overrides: Sequence[str], config_name: str = CONFIG_NAME, mode: RunMode = RunMode.RUN
) -> DictConfig:
    """One job's composed configuration, Hydra's own settings under `hydra` included. Raises ConfigError."""
    parsed = parse(overrides)
    assert isinstance(hydra.config_loader, Loader)
    hydra.config_loader.check_choices(config_name, parsed, mode)
    try:
        return hydra.compose_config(config_name, list(overrides), mode, with_log_configuration=False)
    except _COMPLAINTS as complaint:
        raise to_config_error(parsed, complaint) from complaint


def compose_jobs(hydra: Hydra, jobs: Iterable[Sequence[str]], config_name: str) -> Iterator[DictConfig]:
    """The configuration of each job of a sweep: that of `compose_node`, with its number. Raises ConfigError.

    Files are composed once for all jobs that differ in values of settings alone, so an item may be changed by the next.
    """
    loader, composed = hydra.config_loader, dict[object, DictConfig]()
    assert isinstance(loader, Loader)
    first: DictConfig | None = None
    for number, job in enumerate(jobs):
        parsed = parse(job)
        choices = loader.choices(parsed)
        if choices not in composed:
            composed[choices] = compose_node(hydra, job, config_name)
        else:
            try:
                loader.set_values(composed[choices], parsed)
            except _COMPLAINTS as complaint:
                raise to_config_error(parsed, complaint) from complaint
        node = composed[choices]
        first = node if first is None else first
        OmegaConf.copy_cache(first, node)  # all jobs have the same ${now:}
        with open_dict(node):
            node.hydra.job.num, node.hydra.job.id = number, str(number)
        yield node


def setting(node: DictConfig, key: str) -> Any:
    """The value at a dotted key of a composed configuration. Raises ConfigError if an interpolation in it fails."""
    try:
        return OmegaConf.select(node, key)
    except OmegaConfBaseException as complaint:
        raise ConfigError(key, _as_written(node, key), f"cannot be resolved: {first_line(complaint)}") from complaint


def to_container(node: DictConfig) -> dict[str, Any]:
    """A composed configuration as plain scalars, lists and mappings, without Hydra's own settings."""
    with open_dict(node):
        task = OmegaConf.masked_copy(node, [str(key) for key in node if key != "hydra"])
    try:
        return OmegaConf.to_container(task, resolve=True)  # type: ignore[return-value]
    except OmegaConfBaseException as complaint:
        key = complaint.full_key or "configuration"
        raise ConfigError(key, _as_written(task, key), f"cannot be resolved: {first_line(complaint)}") from complaint


def _as_written(node: DictConfig, key: str) -> object:
    """The value at `key` with its interpolations unresolved; None if there is no such key."""
    value: Any = OmegaConf.to_container(node, resolve=False)
    for name in key.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def sweep(hydra: Hydra, overrides: Sequence[str], config_name: str = CONFIG_NAME) -> list[list[str]]:
    """The overrides of every job of a sweep (-m), in order. Raises ConfigError.

    A sweeper other than Hydra's own chooses its jobs while they run: then one job, with the first value of each choice.
    """
    sweeper = compose_node(hydra, overrides, config_name, RunMode.MULTIRUN).hydra.sweeper
    if sweeper is None:
        raise ConfigError("hydra.sweeper", None, "must be a sweeper")
    parsed = parse(overrides, hydra)
    parameters = parse([f"{key}={value}" for key, value in (sweeper.get("params") or {}).items()], hydra)
    enumerates = str(sweeper.get("_target_")).endswith(".BasicSweeper")
    try:
        choices = [_choices(override, enumerates) for override in [*parameters, *parsed]]
    except _COMPLAINTS as complaint:
        raise to_config_error(parsed, complaint) from complaint
    count = math.prod(map(len, choices))
    if count > MOST_JOBS:
        raise ConfigError("command line", " ".join(overrides), f"is a sweep of more than {MOST_JOBS:,} runs")
    return [list(job) for job in itertools.product(*choices)]


def _choices(override: Override, enumerates: bool) -> list[str]:
    """The override with each of its values, or with the first alone. Without a choice, as it was typed."""
    if not override.is_sweep_override():
        return [str(override.input_line)]
    key, value = override.get_key_element(), override.value()
    if isinstance(value, IntervalSweep) and not enumerates:
        return [f"{key}={value.start}"]
    values = list(itertools.islice(override.sweep_string_iterator(), MOST_JOBS + 1))  # range() may have no end
    return [f"{key}={each}" for each in (values if enumerates else values[:1] or [""])]


def run_folder(config: dict[str, Any]) -> Path:
    """The name of a new folder for a run started from Python, as hydra.run.dir names those of the command line."""
    return Path("outputs") / f"{datetime.now():%Y-%m-%d_%H-%M-%S-%f}_s{config.get('seed', 0)}"


def parse(overrides: Sequence[str], hydra: Hydra | None = None) -> list[Override]:
    """Overrides as Hydra's grammar reads them; with `hydra`, choices such as glob(*) too. Raises ConfigError."""
    parser, parsed = OverridesParser.create(hydra.config_loader if hydra else None), []
    for text in overrides:
        try:
            override = parser.parse_override(text)
            if not override.key_or_group:
                raise HydraException("there is no key")
            override.config_loader = parser.config_loader  # glob(*) looks up the options in it
            if not (override.is_sweep_override() or override.is_delete()):
                check_plain(override.value(), override.key_or_group)
            parsed.append(override)
        except ConfigError:
            raise
        except (ValueError, RecursionError) as complaint:  # of Python's limits, on digits and on nesting
            key, _, value = text.partition("=")
            raise ConfigError(key, value, "has a number that is too long, or is nested too deeply") from complaint
        except HydraException as complaint:
            key, equals, value = text.partition("=")
            if not (key and equals):
                raise ConfigError("command line", text, "must be key=value") from complaint
            raise ConfigError(key, value, f"cannot be read: {first_line(complaint)}") from complaint
    return parsed


def to_config_error(overrides: Sequence[Override], complaint: BaseException) -> ConfigError:
    """A complaint as a ConfigError about the override that it names, or about the whole command."""
    text = first_line(complaint)
    named = re.search(r"Could not (?:override|delete)(?: from config\.)? '([^'@=]+)(?:@([^'=]+))?", text)
    for override in reversed(overrides):
        if named is not None and override.key_or_group == named[1]:
            value = None if override.is_delete() else override.value()
            key = override.get_key_element().lstrip("~")
            if named[2]:
                hint = ": network=lstm has an encoder" if named[1] == "network" else ""
                return ConfigError(key, value, f"there is no {named[2]} to choose one for{hint}")
            if override.is_delete() and override.value() is not None:
                return ConfigError(f"~{key}", override.value(), "is not what has been chosen")
            problem = "is no setting that ~ could take away" if override.is_delete() else "is no setting of Hydra"
            return ConfigError(key, value, problem)
    merged = re.match(r"Error merging override \+*([^=]+)=(.*)", str(complaint))
    if merged is not None:
        return ConfigError(merged[1], merged[2], f"does not fit what it would replace: {text}")
    return ConfigError("command line", " ".join(str(override.input_line) for override in overrides), text)


def first_line(error: BaseException) -> str:
    """The first line of an error's text; the place in the file, where a file cannot be read."""
    if isinstance(error, MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"{mark.name}, line {mark.line + 1}: {error.problem or 'cannot be read'}"
    wrapped = error.__cause__ is not None and (not str(error) or str(error).startswith("Error merging override"))
    cause = error.__cause__ if wrapped else error
    return (str(cause).strip() or type(cause).__name__).splitlines()[0].strip()
