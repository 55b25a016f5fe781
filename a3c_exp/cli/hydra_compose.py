"""Composition: from overrides, as a user types them, to what Hydra composes, and to plain data.

Hydra itself runs the program (`cli.launch`). What it would compose is composed here first, so that
an error is one line and nothing has begun. Both ways end in `to_container`. Hydra's global state is
restored: notebooks and programs may use Hydra themselves.
"""

from __future__ import annotations

import copy
import itertools
import math
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from hydra import __version__ as hydra_version
from hydra import initialize_config_dir, version
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.default_element import ConfigDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, OverrideType
from hydra.core.utils import JobRuntime
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from packaging.version import Version
from yaml import MarkedYAMLError, YAMLError

from a3c_exp.cli.draws import loguniform
from a3c_exp.cli.startup import conf_folder
from a3c_exp.common.reading import UnreadableError, check_plain, parse_yaml
from a3c_exp.common.settings import TARGET, flatten
from a3c_exp.common.trust import PACKAGE, import_plugins
from a3c_exp.config.elsewhere import atari_choice, unknown
from a3c_exp.errors import ConfigError, did_you_mean, either, require

CONFIG_NAME = "config"
_EXTRA = "it needs the extra sweep: pip install 'a3c-exp[sweep]'"
INSTEAD = {
    "a2c": "it is algorithm=a3c update=sync",
    "joblib": _EXTRA,
    "submitit_local": _EXTRA,
    "submitit_slurm": _EXTRA,
}
"""What is meant by options that are not there."""
RETURNS = {
    "n_step": ("n_step_max", "n_step_max_terms", "max_terms", "maximum", "max"),
    "n_step_zero": ("n_step_missing", "missing", "missing_as_zero", "zero"),
}
"""The words of notebooks that compare missing terms as zero with the maximum of terms."""
RECORDS = ("stop", "eval", "checkpoint", "log")
"""Mappings of settings in conf/config.yaml that are no components. Each has a class of its name."""
SEARCH_PATH = "hydra.searchpath"
MOST_JOBS = 10_000
"""Runs of a sweep."""
OF_THE_PARSER = re.compile("(no viable|mismatched|extraneous|token recognition|missing) ")
"""How the messages of Hydra's parser begin, which name its tokens."""
OF_ENVIRONMENT = re.compile(r"\$\{oc\.env:[^{}]*\}")
"""The value of an environment variable, which is a text for OmegaConf unless its key has a type."""
DEFAULTS: dict[str, Any] = (
    {"version_base": "1.3"} if Version(hydra_version) < Version("1.4.0rc0") else {}
)
"""Hydra 1.3 warns where its defaults are not named, 1.4 where they are."""
COMPLAINTS = (HydraException, OmegaConfBaseException, YAMLError, ValueError, AssertionError)


@contextmanager
def isolated() -> Iterator[None]:
    """Within, nobody has initialized Hydra. Afterwards its state is the one before."""
    outer = GlobalHydra.instance().hydra
    base = version.getbase()
    job = JobRuntime().conf.get("name")
    config = HydraConfig.instance().cfg
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        GlobalHydra.instance().clear()
        if outer is not None:
            GlobalHydra.instance().initialize(outer)
        if isinstance(base, (Version, str)):  # else no program has set it
            version.VersionBase.instance().setbase(base)
        JobRuntime().set("name", job)
        HydraConfig.instance().cfg = config


@contextmanager
def hydra_session(
    config_dir: str | None = None,
    config_path: str | None = None,
    config_name: str | None = None,
    searchpath: Sequence[str] = (),
) -> Iterator[Session]:
    """Hydra on this project's configuration files, or on those in `config_path`.

    config_dir: a folder of the user's own options, beside them. config_name: the file that is
    composed. searchpath: more places, which come after all others. Raises ConfigError.
    """
    if config_dir is not None:
        _check_config_dir(config_dir)
    folder = conf_folder() if config_path is None else Path(config_path).absolute()
    require(folder.is_dir(), "--config-path", config_path, "a folder that is there")
    with isolated(), initialize_config_dir(str(folder), PACKAGE, **DEFAULTS):
        hydra: Any = GlobalHydra.instance().hydra
        search_path = hydra.config_loader.get_search_path()
        schema = SearchPathQuery(provider="schema")
        if config_dir is not None:
            place = f"file://{Path(config_dir).absolute()}"
            search_path.prepend("command-line", place, schema)
        for place in searchpath:
            search_path.prepend(f"{SEARCH_PATH} in command-line", place, schema)
        hydra.config_loader.repository.initialize_sources(search_path)
        session = Session(hydra, config_name or CONFIG_NAME)
        if config_name is not None:
            require(session.load(config_name) is not None, "--config-name", config_name, "a file")
        GlobalHydra.instance().clear()  # an environment that is tried may compose by itself
        yield session


def _check_config_dir(config_dir: str) -> None:
    """Raise ConfigError for a folder of options that would not be read as its owner means."""
    key = "--config-dir"
    folder = Path(config_dir)
    if not (config_dir and folder.is_dir()):
        raise ConfigError(key, config_dir, "there is no such folder")
    if folder.resolve() == conf_folder().resolve():
        problem = "is this package's own: your files need a folder of their own"
        raise ConfigError(key, config_dir, problem)
    if (folder / f"{CONFIG_NAME}.yaml").exists():
        problem = (
            f"has a {CONFIG_NAME}.yaml, which would not be read: "
            f"from={config_dir} runs that of a run's folder"
        )
        raise ConfigError(key, config_dir, problem)
    for path in folder.glob("*/*.yaml"):
        name = path.relative_to(folder)
        require(
            not (conf_folder() / name).exists(), key, config_dir, f"without {name}, an option here"
        )


_composing = threading.RLock()  # Hydra has one state for a whole process


def compose(overrides: Sequence[str] = (), config_dir: str | None = None) -> dict[str, Any]:
    """The configuration that the overrides compose, its keys and types not checked yet. Raises
    ConfigError.

    config_dir: see `hydra_session`.
    """
    with _composing, hydra_session(config_dir) as session:
        return to_container(composed(session, overrides).node)


class Composed(NamedTuple):
    """What overrides compose, Hydra's own settings under `hydra` included, and these overrides as
    Hydra takes them: with `++` for a setting that its file does not have."""

    node: DictConfig
    words: list[str]


class Session:
    """The configuration files: which groups and options there are, and what Hydra composes."""

    def __init__(self, hydra: Any, config_name: str) -> None:
        self._hydra = hydra
        self._repository = hydra.config_loader.repository
        self._composed: dict[tuple[str | None, ...], DictConfig] = {}
        self._is_group: dict[str, bool] = {}
        self.loader = hydra.config_loader
        self.config_name = config_name

    def load(self, path: str) -> Any:
        """A file, as Hydra reads it; None if there is none."""
        return self._repository.load_config(path)

    def options(self, group: str) -> list[str]:
        return list(self._repository.get_group_options(group))

    def is_group(self, key: str) -> bool:
        if key not in self._is_group:
            exists = "." not in key and key != "callback" and self._repository.group_exists(key)
            self._is_group[key] = exists
        return self._is_group[key]

    def is_choice(self, override: Override) -> bool:
        """Return whether an override chooses what is composed, and sets no value in it."""
        key = override.key_or_group
        is_value = isinstance(override.value(), dict)
        return key == SEARCH_PATH or (self.is_group(key) and not is_value)

    def compose(self, choices: Sequence[Override]) -> DictConfig:
        """What choices compose. Raises ConfigError."""
        key = tuple(choice.input_line for choice in choices)
        if key not in self._composed:
            for choice in choices:
                self._check(choice)
            try:
                self._composed[key] = self._hydra.compose_config(
                    self.config_name,
                    [self.word(choice) for choice in choices],
                    RunMode.RUN,
                    with_log_configuration=False,
                )
            except COMPLAINTS as complaint:
                raise self._refusal(choices, complaint) from complaint
        return copy.deepcopy(self._composed[key])

    def word(self, choice: Override) -> str:
        """A choice as Hydra takes it, which refuses `group=null` and has `~group` for it."""
        is_nothing = choice.value() is None and not choice.is_delete()
        key = choice.key_or_group
        return f"~{key}" if is_nothing and self.is_group(key) else str(choice.input_line)

    def _refusal(self, choices: Sequence[Override], complaint: BaseException) -> ConfigError:
        """A complaint of Hydra's as an error about the choice that it speaks of."""
        problem = first_line(complaint)
        for choice in reversed(choices):
            names = (choice.key_or_group, f"{choice.key_or_group}/{choice.value()}")
            if any(re.search(rf"\b{re.escape(name)}\b", problem) for name in names):
                key = choice.get_key_element()
                return ConfigError(key, choice.value(), f"cannot be composed: {problem}")
        typed = " ".join(str(choice.input_line) for choice in choices)
        return ConfigError("command line", typed, problem)

    def _check(self, choice: Override) -> None:
        """Raise ConfigError for an option that does not exist."""
        key = choice.key_or_group
        value = choice.value()
        if choice.is_delete() or key == SEARCH_PATH or (value is None and "/" not in key):
            return
        names = value if isinstance(value, list) else [value]
        options = self.options(key)
        for name in names:
            try:
                is_there = name in options or self.load(f"{key}/{name}") is not None
            except COMPLAINTS as complaint:
                raise self._refusal([choice], complaint) from complaint
            if not is_there:
                raise ConfigError(
                    key, name, f"is no option: {self._advice(key, str(name), options)}"
                )

    def _advice(self, group: str, value: str, options: Sequence[str]) -> str:
        """What is probably meant by an option that does not exist."""
        if value in INSTEAD:
            return INSTEAD[value]
        if group in ("returns", "critic_returns"):
            for option, names in RETURNS.items():
                if value in names:
                    return f"it is {group}={option}"
        if group != "env" or not re.search(r"[:/]|-v\d+$", value):
            return f"{did_you_mean(value, options)}; --config-dir adds a folder of your own"
        files = {option: self.load(f"env/{option}").config for option in options}
        same = [
            f"env={option}"
            for option, file in files.items()
            if OmegaConf.select(file, "env.id") == value
        ]
        game = atari_choice(value)
        return f"it is {game or either(same or [f'env=gym env.id={value}'])}"

    def callbacks(self, entries: Sequence[Any]) -> list[Any]:
        """Callbacks, with the files of those that are given by name. Raises ConfigError."""
        options = self.options("callback")
        for name in entries:
            if isinstance(name, str) and name not in options:
                raise ConfigError(
                    "callbacks", name, f"is no callback: {did_you_mean(name, options)}"
                )
        return [
            self.load(f"callback/{entry}").config if isinstance(entry, str) else entry
            for entry in entries
        ]

    def names_in_file(self, group: str, choice: str) -> set[str]:
        """The settings in a component's file, and in those of the group that it builds on. Imports
        no class."""
        file = self.load(f"{group}/{choice}")
        if file is None:
            return set()
        inside = OmegaConf.select(file.config, group)
        names = {str(key) for key in (inside if isinstance(inside, DictConfig) else file.config)}
        defaults = file.defaults_list or []
        names |= {default.package for default in defaults if default.package}  # network@encoder
        parents = [default.path for default in defaults if isinstance(default, ConfigDefault)]
        return names.union(
            *(self.names_in_file(group, path) for path in parents if path not in (None, "_self_"))
        )

    def names_in_group(self, group: str) -> set[str]:
        """The settings in the files of all options of a group."""
        return set[str]().union(
            *(self.names_in_file(group, option) for option in self.options(group))
        )


def composed(session: Session, overrides: Sequence[str]) -> Composed:
    """What the overrides of one run compose. Raises ConfigError."""
    typed = parse(overrides)
    for override in typed:
        if override.is_sweep_override():
            problem = "several values need -m (or quotes, if they are one text)"
            raise ConfigError(override.key_or_group, override.get_value_string(), problem)
        if override.key_or_group == "plugins":  # they may register options and resolvers
            import_plugins(_texts(override.value()))
    node = session.compose([override for override in typed if session.is_choice(override)])
    words: list[str] = []
    written_out: set[str] = set()
    with open_dict(node):
        for override in typed:
            if session.is_choice(override):
                words.append(session.word(override))
                continue
            key = override.key_or_group
            text = str(override.input_line)
            game = atari_choice(str(override.value())) if key == "env.id" else None
            if game and not any(each.key_or_group == "env.wrappers" for each in typed):
                problem = f"has raw frames: {game} prepares them, or env.wrappers of your own"
                raise ConfigError(key, override.value(), problem)
            is_inside = any(key.startswith(f"{place}.") for place in written_out)
            is_change = override.type is OverrideType.CHANGE
            if replaces(override.value()):
                written_out.add(key)
            if is_change and not is_inside and _lacks(node, key):
                _check_key(session, node, override)
            if not override.is_delete() and (
                is_inside or (is_change and _lacks(node, key, override.value()))
            ):
                text = f"++{text.lstrip('+')}"
            words.append(text)
            _apply(node, override, is_forced=text.startswith("++"))
        tasks = [str(each.input_line) for each in typed if not each.is_hydra_override()]
        node.hydra.overrides.task = tasks
        node.hydra.job.override_dirname = ",".join(sorted(tasks))
        node.hydra.job.config_name = session.config_name
        settle(session, node, typed, node.hydra.runtime.choices)
    if node.hydra.output_subdir in (".", "./"):  # a run has a config.yaml of its own
        raise ConfigError("hydra.output_subdir", ".", "must be another folder than the run's")
    return Composed(node, words)


def compose_jobs(session: Session, jobs: Iterable[Sequence[str]]) -> Iterator[Composed]:
    """What each job of a sweep composes, with its number. Raises ConfigError."""
    first: DictConfig | None = None
    for number, job in enumerate(jobs):
        whole = composed(session, job)
        first = whole.node if first is None else first
        OmegaConf.copy_cache(first, whole.node)  # all jobs have the same ${now:}
        with open_dict(whole.node):
            whole.node.hydra.job.num = number
            whole.node.hydra.job.id = str(number)
        yield whole


def _lacks(node: DictConfig, key: str, value: Any = None) -> bool:
    """Return whether a configuration has no such key; of a mapping, not all of its keys."""
    if isinstance(value, dict) and value:
        return any(_lacks(node, f"{key}.{name}", inner) for name, inner in value.items())
    place, _, name = key.rpartition(".")
    parent: Any = OmegaConf.select(node, place, throw_on_missing=False) if place else node
    return not OmegaConf.is_list(parent) and not (
        isinstance(parent, DictConfig) and name in parent.keys()  # noqa: SIM118
    )


def _check_key(session: Session, node: DictConfig, override: Override) -> None:
    """Raise ConfigError for a key that no setting of a run has. Files say which there are, so that
    the error needs no torch."""
    key = override.key_or_group
    group, _, name = key.rpartition(".")
    if override.is_hydra_override():
        parent: Any = OmegaConf.select(node, group, throw_on_missing=False)
        if OmegaConf.is_dict(parent) and OmegaConf.get_type(parent) is not dict:
            problem = f"is no setting of Hydra: {did_you_mean(name, map(str, parent))}"
            raise ConfigError(key, override.value(), problem)
        return
    if session.config_name != CONFIG_NAME or "." in group:
        return
    if not group:
        known = [str(each) for each in node if each != "hydra"]
        raise ConfigError(key, override.value(), unknown(name, "Experiment", known, ""))
    component = node.get(group)
    if not isinstance(component, DictConfig):
        return
    target = str(component.get(TARGET, ""))
    option = node.hydra.runtime.choices.get(group)
    is_shipped = (conf_folder() / group / f"{option}.yaml").exists()
    is_known = is_shipped and target.startswith(f"{PACKAGE}.") and group != "network"
    if not is_known and group not in RECORDS:
        return
    owner = target.rpartition(".")[2] or group.title()
    known = [str(each) for each in component if each != TARGET]
    raise ConfigError(key, override.value(), unknown(name, owner, known, group))


def _apply(node: DictConfig, override: Override, *, is_forced: bool) -> None:
    """Set, add or delete a value, as Hydra does. is_forced: with `++`. Raises ConfigError."""
    key = override.key_or_group
    value = override.value()
    element = override.get_key_element()
    if override.package is not None:
        raise ConfigError(element, value, f"is for groups alone, and there is no group {key}")
    if key in ("hydra.launcher", "hydra.sweeper") and not isinstance(value, dict):
        group = key.replace(".", "/")
        raise ConfigError(key, value, f"must be a mapping: {group}={value} chooses one")
    place, _, name = key.rpartition(".")
    is_there = not _lacks(node, key)
    if override.is_delete():
        require(is_there, element, value, "a setting that is there")
        parent: Any = OmegaConf.select(node, place) if place else node
        del parent[name]
        return
    current = OmegaConf.select(node, key, throw_on_missing=False) if is_there else None
    is_add = override.is_add() and not is_forced
    if is_add and current is not None and not isinstance(value, dict | list):
        raise ConfigError(element, value, f"is there already: {key}={value} changes it")
    set_value(node, key, value, replace=False)


def replaces(value: object) -> bool:
    """Return whether a mapping replaces what is there: one that is empty, or a component."""
    return isinstance(value, dict) and (not value or TARGET in value)


def set_value(node: DictConfig, key: str, value: Any, replace: bool | None = None) -> None:
    """Set the value at a dotted key. A mapping is merged with what is there unless it `replaces`
    that. Raises ConfigError."""
    merge = not (replaces(value) if replace is None else replace)
    try:
        OmegaConf.update(node, key, value, merge=merge, force_add=True)
    except (OmegaConfBaseException, ValueError, TypeError, AttributeError) as complaint:
        raise ConfigError(
            key, value, f"does not fit what it would replace: {first_line(complaint)}"
        ) from complaint


def settle(
    session: Session, node: DictConfig, typed: Sequence[Override], choices: Mapping[str, Any]
) -> None:
    """Make a composed node what its overrides mean here, where Hydra merges mappings alone.

    A component that is written out replaces the one of the files. A component that is chosen by
    name loses the settings that presets have for others. Callbacks that are named are those of
    their files. Raises ConfigError.
    """
    written_out: list[str] = []
    for override in typed:
        key = override.key_or_group
        inside = any(key.startswith(f"{place}.") for place in written_out)
        if override.is_hydra_override() or override.is_delete() or session.is_choice(override):
            continue
        if replaces(override.value()) or inside:
            set_value(node, key, override.value())
            written_out.append(key)
    for group in choices:
        if group not in written_out and re.fullmatch(r"\w+", group):
            _drop_foreign_settings(session, node, typed, group, choices)
    callbacks = node.get("callbacks")
    if isinstance(callbacks, str) or OmegaConf.is_list(callbacks):
        entries = [callbacks] if isinstance(callbacks, str) else list(callbacks)
        node.callbacks = session.callbacks(entries)
    if isinstance(misplaced := node.get("experiment"), DictConfig):
        problem = f"its file must begin with `# @package _global_`: it sets {', '.join(misplaced)}"
        raise ConfigError("experiment", choices.get("experiment"), problem)


def _drop_foreign_settings(
    session: Session,
    node: DictConfig,
    typed: Sequence[Override],
    group: str,
    choices: Mapping[str, Any],
) -> None:
    """Delete what presets have set for the component of a group that another one, chosen on the
    command line or by an experiment, replaces.

    `experiment=pong algorithm=a3c` keeps the entropy's weight and drops PPO's epochs. A mistyped
    setting, which no option's file has, stays and is refused.
    """
    component = node.get(group)
    is_chosen = any(each.key_or_group == group for each in typed) or choices.get("experiment")
    if not (is_chosen and isinstance(component, DictConfig) and TARGET in component):
        return
    option = str(choices[group])
    own = session.names_in_file(group, option) | {TARGET}
    keys = [each.key_or_group.split(".") for each in typed]
    own |= {key[1] for key in keys if key[0] == group and len(key) > 1}
    for override in typed:
        value = override.value()
        if override.key_or_group == group and isinstance(value, dict):
            own |= value.keys()
    foreign = {str(name) for name in component if str(name).removeprefix("critic_") not in own}
    if not foreign:  # to read the files of all options takes a tenth of a second
        return
    foreign &= session.names_in_group(group) - own
    is_shipped = (conf_folder() / group / f"{option}.yaml").exists()
    if foreign and not is_shipped and not str(component[TARGET]).startswith("torch."):
        from a3c_exp.config.schema import settings_of  # a file of the user's own may be shorter

        foreign -= settings_of(component[TARGET], list(node.get("plugins") or [])).keys()
    for name in foreign:
        del component[name]


def job_config(task: DictConfig) -> dict[str, Any]:
    """The plain configuration of the job that Hydra runs, wherever a launcher has started it."""
    job = HydraConfig.get()
    session = Session(GlobalHydra.instance().hydra, job.job.config_name or CONFIG_NAME)
    node = copy.deepcopy(task)
    with open_dict(node):
        settle(session, node, parse(list(job.overrides.task)), job.runtime.choices)
    return to_container(node)


def setting(node: DictConfig, key: str) -> Any:
    """The value at a dotted key, as plain data. Raises ConfigError if an interpolation fails."""
    try:
        with hydra_config(node):
            value = OmegaConf.select(node, key)
            is_plain = not OmegaConf.is_config(value)
            return value if is_plain else OmegaConf.to_container(value, resolve=True)
    except OmegaConfBaseException as complaint:
        raise _unresolved(node, key, complaint) from complaint


@contextmanager
def hydra_config(node: DictConfig) -> Iterator[None]:
    """Within, `${hydra:...}` is of this node, if it has Hydra's settings."""
    before = HydraConfig.instance().cfg
    if "hydra" in node:
        HydraConfig.instance().cfg = node  # type: ignore[assignment]  # `set_config` copies it
    try:
        yield
    finally:
        HydraConfig.instance().cfg = before


def to_container(node: DictConfig) -> dict[str, Any]:
    """A composed configuration as plain scalars, lists and mappings, without Hydra's own
    settings."""
    import_plugins(_texts(node.get("plugins")))  # a file may name them: they register resolvers
    written: Any = OmegaConf.to_container(node, resolve=False)
    written.pop("hydra", None)
    try:
        with hydra_config(node):
            for key, text in flatten(written):
                if isinstance(text, str) and OF_ENVIRONMENT.fullmatch(text):
                    OmegaConf.update(node, key, _decoded(OmegaConf.select(node, key)))
            return {key: _resolved(node, key) for key in written}
    except OmegaConfBaseException as complaint:
        raise _unresolved(node, complaint.full_key or "configuration", complaint) from complaint


def _resolved(node: DictConfig, key: str) -> Any:
    """The plain value of a key. One that nobody has given stays ???."""
    value = "???" if OmegaConf.is_missing(node, key) else node[key]
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _decoded(text: Any) -> Any:
    """The number, true, false or null that a text is; else the text."""
    try:
        value = parse_yaml(str(text))
    except UnreadableError:
        return text
    return text if isinstance(value, dict | list) else value


def _texts(values: Any) -> list[str]:
    """The texts in a list. What is none is refused by the schema."""
    is_list = isinstance(values, list) or OmegaConf.is_list(values)
    return [each for each in values if isinstance(each, str)] if is_list else []


def _unresolved(node: DictConfig, key: str, complaint: OmegaConfBaseException) -> ConfigError:
    """The error about the value at a key, as it is written."""
    written: Any = OmegaConf.to_container(node, resolve=False)
    return ConfigError(
        key, dict(flatten(written)).get(key), f"cannot be resolved: {first_line(complaint)}"
    )


def sweep(overrides: Sequence[Override]) -> list[list[str]]:
    """The overrides of every job of a sweep (-m), in order. Raises ConfigError."""
    typed = " ".join(str(each.input_line) for each in overrides)
    for each in overrides:
        if each.is_sweep_override() and each.key_or_group.startswith("hydra"):
            raise ConfigError(
                each.key_or_group, each.get_value_string(), "must be one value, for the whole sweep"
            )
        if isinstance(each.value(), IntervalSweep):
            problem = "is a range, for search=<trials>: loguniform(1e-4,1e-2,20) has 20 values"
            raise ConfigError(each.key_or_group, each.get_value_string(), problem)
    try:
        choices = [choices_of(override) for override in overrides]
    except COMPLAINTS as complaint:
        raise ConfigError("command line", typed, first_line(complaint)) from complaint
    count = math.prod(map(len, choices))
    if not 0 < count <= MOST_JOBS:
        problem = (
            f"of more than {MOST_JOBS:,} runs"
            if count
            else "without a run: one of its choices is empty"
        )
        raise ConfigError("command line", typed, f"is a sweep {problem}")
    return [list(job) for job in itertools.product(*choices)]


def choices_of(override: Override) -> list[str]:
    """The override with each of its values. Without a choice, as it was typed."""
    if not override.is_sweep_override():
        return [str(override.input_line)]
    key = override.get_key_element()
    # range() may have no end.
    return [
        f"{key}={each}"
        for each in itertools.islice(override.sweep_string_iterator(), MOST_JOBS + 1)
    ]


def search_path(overrides: Sequence[str]) -> list[str]:
    """The places that `hydra.searchpath` names. Raises ConfigError."""
    places: list[str] = []
    for override in parse([text for text in overrides if SEARCH_PATH in text]):
        if override.key_or_group == SEARCH_PATH:
            value = override.value()
            places = _texts(value)
            fits = isinstance(value, list) and len(places) == len(value)
            require(fits, SEARCH_PATH, value, "a list of texts")
    return places


def sweep_word(session: Session, base: DictConfig, override: Override) -> str:
    """An override with several values as Hydra's own sweepers take it: `loguniform` is not one of
    its functions."""
    text = str(override.input_line)
    value = override.value()
    key = override.get_key_element()
    if "loguniform" in text and isinstance(value, ChoiceSweep):
        text = f"{key}={','.join(override.sweep_string_iterator())}"
    elif "loguniform" in text and isinstance(value, IntervalSweep):
        text = f"{key}=tag(log,interval({value.start},{value.end}))"
    is_setting = key == override.key_or_group and not session.is_group(key)
    return f"++{text}" if is_setting and _lacks(base, key) else text


def parse(overrides: Sequence[str], session: Session | None = None) -> list[Override]:
    """Overrides as Hydra's grammar reads them; with a session, choices such as glob(*) too. Raises
    ConfigError."""
    parser = OverridesParser.create(session.loader if session else None)
    parsed = []
    parser.functions.register("loguniform", loguniform)
    for text in overrides:
        key, equals, value = text.partition("=")
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
        except (
            ValueError,
            RecursionError,
        ) as complaint:  # of Python's limits, on digits and on nesting
            raise ConfigError(
                key, value, "has a number that is too long, or is nested too deeply"
            ) from complaint
        except HydraException as complaint:
            if not (key and equals):
                raise ConfigError("command line", text, "must be key=value") from complaint
            text = first_line(complaint)
            if OF_THE_PARSER.match(text):
                text = (
                    "a bracket, a comma or a quote is missing, or the text needs quotes: "
                    f"\"{key}='{value}'\""
                )
            raise ConfigError(key, value, f"cannot be read: {text}") from complaint
    return parsed


def first_line(error: BaseException) -> str:
    """The first line of an error's text; the place in the file, where a file cannot be read."""
    if isinstance(error, MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"{mark.name}, line {mark.line + 1}: {error.problem or 'cannot be read'}"
    cause = error.__cause__ if error.__cause__ is not None and not str(error) else error
    return (str(cause).strip() or type(cause).__name__).splitlines()[0].strip()
