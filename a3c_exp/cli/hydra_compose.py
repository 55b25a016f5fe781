"""Composition: from overrides, as a user types them, to what Hydra composes, and to plain data.

Hydra itself runs the program (`cli.launch`). What it would compose is composed here first, so that
an error is one line and nothing has begun. Both ways end in `to_container`. Hydra's global state is
restored: notebooks and programs may use Hydra themselves.

Annotations are not postponed here: Hydra's parser reads those of `loguniform`.
"""

import copy
import functools
import itertools
import math
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import hydra.conf
from hydra import __version__ as hydra_version
from hydra import initialize_config_dir, version
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.default_element import ConfigDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import (
    ChoiceSweep,
    IntervalSweep,
    Override,
    OverrideType,
    Sweep,
)
from hydra.core.plugins import Plugins
from hydra.core.utils import JobRuntime
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from packaging.version import Version
from yaml import MarkedYAMLError, YAMLError

from a3c_exp.cli.startup import conf_folder
from a3c_exp.common.reading import UnreadableError, check_plain, parse_yaml, read_text
from a3c_exp.common.settings import TARGET, flatten
from a3c_exp.common.trust import PACKAGE, import_plugins
from a3c_exp.config.elsewhere import RENAMED, atari_choice, module_advice, unknown
from a3c_exp.errors import ConfigError, did_you_mean, either, require

CONFIG_NAME = "config"
_EXTRA = "it needs the extra sweep: pip install 'a3c-exp[sweep]'"
INSTEAD = {
    "a2c": "it is algorithm=a3c update=sync",
    "adamw": "it is optimizer=adam optimizer.weight_decay=0.01",
    "cluster": "it is backend=ray",
    "cuda": "it is backend=ga3c backend.device=cuda",
    "early_stopping": "it is callbacks=[no_improvement]",
    "gpu": "it is backend=ga3c backend.device=cuda",
    "joblib": _EXTRA,
    "multiprocessing": "it is backend=processes",
    "sac": "it is not here; algorithm=ppo learns continuous actions",
    "submitit_local": _EXTRA,
    "submitit_slurm": _EXTRA,
    "td_lambda": "it is returns=gae",
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
HEADER_LENGTH = 512
"""Characters of a file in which Hydra looks for its package."""
MOST_JOBS = 10_000
"""Runs of a sweep."""
OF_THE_PARSER = re.compile("(no viable|mismatched|extraneous|token recognition|missing) ")
"""How the messages of Hydra's parser begin, which name its tokens."""
KEY_VALUE = "must be key=value, without blanks; --help lists the keys"
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
) -> Iterator["HydraSession"]:
    """Hydra on this project's configuration files, or on those in `config_path`.

    config_dir: a folder of the user's own options, beside them. config_name: the file that is
    composed. searchpath: more places, which come after all others. Raises ConfigError.
    """
    if config_dir is not None:
        _check_config_dir(config_dir)

    folder = conf_folder() if config_path is None else Path(config_path).absolute()
    require(folder.is_dir(), "--config-path", config_path, "a folder that is there")

    with isolated(), initialize_config_dir(str(folder), PACKAGE, **DEFAULTS):
        application: Any = GlobalHydra.instance().hydra
        paths = application.config_loader.get_search_path()
        added = [] if config_dir is None else [f"file://{Path(config_dir).absolute()}"]
        for path in (*added, *searchpath):
            paths.prepend("command-line", path, SearchPathQuery(provider="schema"))

        application.config_loader.repository.initialize_sources(paths)
        session = HydraSession(application, config_name or CONFIG_NAME)
        is_file = config_name is None or session.load(config_name) is not None
        require(is_file, "--config-name", config_name, "a file")

        GlobalHydra.instance().clear()  # an environment that is tried may compose by itself
        yield session


def _check_config_dir(config_dir: str) -> None:
    """Raise ConfigError for a folder of options that would not be read as its owner means."""
    key = "--config-dir"
    folder = Path(config_dir)
    if not (config_dir and folder.is_dir()):
        raise ConfigError(key, config_dir, "there is no such folder")

    if (folder / f"{CONFIG_NAME}.yaml").exists():
        problem = (
            f"has a {CONFIG_NAME}.yaml, which would not be read: "
            f"from={config_dir} runs that of a run's folder"
        )
        raise ConfigError(key, config_dir, problem)

    for path in folder.glob("*/*.yaml"):
        name = path.relative_to(folder)
        is_new = not (conf_folder() / name).exists()
        require(is_new, key, config_dir, f"without {name}, an option here")


class ConfSource(FileConfigSource):
    """Configuration files, parsed in C and once in a process: Hydra's own source parses a file in
    Python, for each of the three times that Hydra composes a command."""

    @staticmethod
    def scheme() -> str:
        return "a3c-exp"

    def load_config(self, config_path: str) -> ConfigResult:
        path = Path(self.path, self._normalize_file_name(config_path))
        config, header = _parsed(path, path.stat().st_mtime_ns)
        return ConfigResult(
            provider=self.provider,
            path=f"{self.scheme()}://{self.path}",
            config=copy.deepcopy(config),  # Hydra takes the defaults list out of it
            header=self._get_header_dict(header),
        )


@functools.cache
def _parsed(path: Path, modified: int) -> tuple[DictConfig, str]:
    """A file's content, and its beginning. modified: when it was changed."""
    text = read_text(path)
    return OmegaConf.create(parse_yaml(text) or {}), text[:HEADER_LENGTH]


class ConfSearchPath(SearchPathPlugin):
    """Has Hydra read this package's files, and its own ones, by `ConfSource`."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        folders = {"pkg://hydra.conf": Path(hydra.conf.__file__).parent}
        folders[str(conf_folder())] = conf_folder()
        for element in search_path.get_path():
            if element.path in folders:
                element.path = f"{ConfSource.scheme()}://{folders[element.path]}"


for plugin in (ConfSource, ConfSearchPath):
    Plugins.instance().register(plugin)

_composing = threading.RLock()  # Hydra has one state for a whole process


def compose_unchecked(
    overrides: Sequence[str] = (), config_dir: str | None = None
) -> dict[str, Any]:
    """Return the configuration that the overrides compose, its keys and types not checked yet.
    Raises ConfigError.

    config_dir: see `hydra_session`.
    """
    with _composing, hydra_session(config_dir) as session:
        return to_container(composed(session, overrides).node)


class Composed(NamedTuple):
    """What overrides compose, Hydra's own settings under `hydra` included, and these overrides as
    Hydra takes them: with `++` for a setting that its file does not have."""

    node: DictConfig
    words: list[str]


class HydraSession:
    """The configuration files: which groups and options there are, and what Hydra composes."""

    def __init__(self, application: Any, config_name: str) -> None:
        self._application = application
        self._repository = application.config_loader.repository
        self._composed: dict[tuple[str | None, ...], DictConfig] = {}
        self.loader = application.config_loader
        self.config_name = config_name

    def load(self, path: str) -> Any:
        """A file, as Hydra reads it; None if there is none."""
        return self._repository.load_config(path)

    def options(self, group: str) -> list[str]:
        return list(self._repository.get_group_options(group))

    def is_group(self, key: str) -> bool:
        return "." not in key and key != "callback" and bool(self._repository.group_exists(key))

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
                node = self._application.compose_config(
                    self.config_name,
                    [self.word(choice) for choice in choices],
                    RunMode.RUN,
                    with_log_configuration=False,
                )
            except COMPLAINTS as complaint:
                raise self._refusal(choices, complaint) from complaint

            for choice in choices:
                group = choice.key_or_group
                if choice.value() is None and choice.package is None and group in node:
                    node[group] = None  # a preset has set values of it
            self._composed[key] = node

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
                if key.startswith("+"):
                    problem = f"+ is for new keys: {choice.key_or_group}={choice.value()}"
                return ConfigError(key, choice.value(), f"cannot be composed: {problem}")

        typed = " ".join(str(choice.input_line) for choice in choices)
        return ConfigError("command line", typed, problem)

    def _check(self, choice: Override) -> None:
        """Raise ConfigError for an option that does not exist."""
        key = choice.key_or_group
        value = choice.value()
        if choice.is_delete() or key == SEARCH_PATH or (value is None and "/" not in key):
            return

        options = self.options(key)
        for name in value if isinstance(value, list) else [value]:
            try:
                is_option = name in options or self.load(f"{key}/{name}") is not None
            except COMPLAINTS as complaint:
                raise self._refusal([choice], complaint) from complaint

            if not is_option:
                advice = self._advice(key, str(name), options)
                raise ConfigError(key, name, f"is no option: {advice}")

    def _advice(self, group: str, value: str, options: Sequence[str]) -> str:
        """What is probably meant by an option that does not exist."""
        if value in INSTEAD:
            return INSTEAD[value]
        if group == "experiment" and value in RENAMED:
            return f"it is experiment={RENAMED[value]} now"
        if group == "experiment" and f"{value}_solved" in options:
            return f"did you mean experiment={value}_solved?"
        if group in ("returns", "critic_returns"):
            for option, names in RETURNS.items():
                if value in names:
                    return f"it is {group}={option}"

        if group == "env" and (advice := module_advice(value)):
            return advice

        ending = Path(value).suffix
        if ending in (".yaml", ".yml"):
            return f"it is named without {ending}; --config-dir names the folder of {group}/"

        if group == "env" and (advice := self._env_advice(value, options)):
            return advice

        return f"{did_you_mean(value, options)}; --config-dir adds a folder of your own"

    def _env_advice(self, value: str, options: Sequence[str]) -> str:
        """What is meant by the registered name of an environment, or by most of it; "" if it is
        none."""
        files = {f"env={option}": self.load(f"env/{option}").config for option in options}
        ids = {choice: OmegaConf.select(file, "env.id") for choice, file in files.items()}
        names = {choice: str(name) for choice, name in ids.items() if name is not None}
        same = [choice for choice, name in names.items() if name == value]
        alike = [choice for choice, name in names.items() if _plain(name) == _plain(value)]
        if re.search(r"[:/]|-v\d+$", value):
            game = atari_choice(value)
            other = f"; {alike[0]} is {names[alike[0]]}" if alike and not (same or game) else ""
            return f"it is {game or either(same or [f'env=gym env.id={value}'])}{other}"

        return f"it is {either(alike)}" if alike and value.lower() not in options else ""

    def callbacks(self, entries: Sequence[Any]) -> list[Any]:
        """Callbacks, with the files of those that are given by name. Raises ConfigError."""
        options = self.options("callback")
        for name in entries:
            if isinstance(name, str) and name not in options:
                meant = INSTEAD.get(name) or did_you_mean(name, options)
                raise ConfigError("callbacks", name, f"is no callback: {meant}")

        return [
            self.load(f"callback/{entry}").config if isinstance(entry, str) else entry
            for entry in entries
        ]

    def is_shipped(self, group: str, option: str) -> bool:
        return (conf_folder() / group / f"{option}.yaml").exists()

    def names_in_file(self, group: str, choice: str) -> set[str]:
        """The settings in a component's file, and in those of the group that it builds on. Imports
        no class."""
        file = self.load(f"{group}/{choice}")
        if file is None:
            return set()

        inside = OmegaConf.select(file.config, group)
        names = {str(key) for key in (inside if isinstance(inside, DictConfig) else file.config)}
        for default in file.defaults_list or []:
            if default.package:
                names.add(default.package)  # network@encoder
            if isinstance(default, ConfigDefault) and default.path not in (None, "_self_"):
                names |= self.names_in_file(group, default.path)

        return names

    def names_in_group(self, group: str) -> set[str]:
        """The settings in the files of all options of a group."""
        options = self.options(group)
        return {name for option in options for name in self.names_in_file(group, option)}


def composed(session: HydraSession, overrides: Sequence[str]) -> Composed:
    """What the overrides of one run compose. Raises ConfigError.

    A component that is written out replaces the one of the files, where Hydra merges the two.
    Callbacks that are named are those of their files.
    """
    typed = parse(overrides)
    for override in typed:
        if override.is_sweep_override():
            text = override.get_value_string()
            problem = f"several values need -m; a list is [{text}], and a number has no comma"
            raise ConfigError(override.key_or_group, text, problem)

        if override.key_or_group == "plugins":  # they may register options and resolvers
            import_plugins(_texts(override.value()))

    _check_frames(typed)
    node = session.compose([override for override in typed if session.is_choice(override)])
    words: list[str] = []
    replaced: set[str] = set()
    with open_dict(node):
        for override in typed:
            is_choice = session.is_choice(override)
            words.append(
                session.word(override) if is_choice else _apply(session, node, override, replaced)
            )

        tasks = [str(override.input_line) for override in typed if not override.is_hydra_override()]
        node.hydra.overrides.task = tasks
        node.hydra.job.override_dirname = ",".join(sorted(tasks))
        node.hydra.job.config_name = session.config_name

        choices = node.hydra.runtime.choices
        chosen = {override.key_or_group for override in typed}
        for group, option in choices.items():
            may_be_foreign = group in chosen or choices.get("experiment")
            if may_be_foreign and group not in replaced:
                _leave_out_foreign(session, node, typed, group, str(option))

        callbacks = node.get("callbacks")
        if isinstance(callbacks, str) or OmegaConf.is_list(callbacks):
            entries = [callbacks] if isinstance(callbacks, str) else list(callbacks)
            node.callbacks = session.callbacks(entries)

    _check_composed(session, node)
    _check_env(session, typed, choices)
    return Composed(node, words)


def _check_composed(session: HydraSession, node: DictConfig) -> None:
    """Raise ConfigError for a main file that has only some settings, for an option that a file has
    as a value, for a preset that is no package of the whole configuration, and for files of Hydra's
    in the run's own folder."""
    if session.config_name != CONFIG_NAME and "optimizer" not in node:
        name = session.config_name
        problem = (
            f"replaces the whole main file: one of settings is experiment={name} in --config-dir"
        )
        raise ConfigError("--config-name", name, problem)

    for group in map(str, node):
        is_other = OmegaConf.is_interpolation(node, group) or OmegaConf.is_missing(node, group)
        if OmegaConf.get_type(node, group) is str and not is_other and session.is_group(group):
            problem = f"in a file it is `defaults: [override /{group}: {node[group]}]`"
            raise ConfigError(group, node[group], problem)

    if isinstance(misplaced := node.get("experiment"), DictConfig):
        problem = f"its file must begin with `# @package _global_`: it sets {', '.join(misplaced)}"
        raise ConfigError("experiment", node.hydra.runtime.choices.experiment, problem)

    if node.hydra.output_subdir in (".", "./"):  # a run has a config.yaml of its own
        raise ConfigError("hydra.output_subdir", ".", "must be another folder than the run's")


def _leave_out_foreign(
    session: HydraSession, node: DictConfig, typed: Sequence[Override], group: str, option: str
) -> None:
    """Leave out what files set for other options of a group than the one that is chosen.

    `experiment=ppo_pong_solved algorithm=a3c` keeps the entropy's weight, without PPO's epochs. A
    setting that is typed stays, and so does a mistyped one, which no option has: both are refused.
    """
    component = node.get(group)
    if not (isinstance(component, DictConfig) and TARGET in component):
        return

    allowed = session.names_in_file(group, option) | {TARGET}
    for override in typed:
        owner, *names = override.key_or_group.split(".")
        if owner == group:
            value = override.value()
            allowed.update(names[:1] or (value if isinstance(value, dict) else ()))

    foreign = {str(name) for name in component if str(name).removeprefix("critic_") not in allowed}
    if not foreign:  # to read the files of all options takes a tenth of a second
        return

    foreign &= session.names_in_group(group) - allowed
    is_of_user = not session.is_shipped(group, option)
    if foreign and is_of_user and not str(component[TARGET]).startswith("torch."):
        from a3c_exp.config.schema import settings_of  # such a file may lack some settings

        foreign -= settings_of(component[TARGET], list(node.get("plugins") or [])).keys()

    for name in foreign:
        del component[name]


def _check_frames(typed: Sequence[Override]) -> None:
    """Raise ConfigError for a game by gymnasium's name whose frames nothing prepares."""
    values = {override.key_or_group: override.value() for override in typed}
    game = atari_choice(str(values.get("env.id")))
    if game is not None and "env.wrappers" not in values:
        problem = f"has raw frames: {game} prepares them, or env.wrappers of your own"
        raise ConfigError("env.id", values["env.id"], problem)


def _check_env(session: HydraSession, typed: Sequence[Override], choices: DictConfig) -> None:
    """Raise ConfigError for an environment that would train with the settings of another one, since
    no file of environments is chosen."""
    values = {override.key_or_group: override.value() for override in typed}
    name = values.get("env.id")
    if name is None or "env" in values:
        return

    option = choices.get("env")
    file = session.load(f"env/{option}")
    default_name = None if file is None else OmegaConf.select(file.config, "env.id")
    if default_name not in (None, name):
        problem = f"needs env=gym, because env={option} has the settings of {default_name}"
        raise ConfigError("env.id", name, problem)


def compose_jobs(session: HydraSession, jobs: Iterable[Sequence[str]]) -> Iterator[Composed]:
    """What each job of a sweep composes, with its number. Raises ConfigError."""
    first: DictConfig | None = None
    for number, job in enumerate(jobs):
        run = composed(session, job)
        first = run.node if first is None else first
        OmegaConf.copy_cache(first, run.node)  # all jobs have the same ${now:}
        with open_dict(run.node):
            run.node.hydra.job.num = number
            run.node.hydra.job.id = str(number)
        yield run


def _lacks(node: DictConfig, key: str, value: Any = None) -> bool:
    """Return whether a configuration has no such key; of a mapping, not all of its keys."""
    if isinstance(value, dict) and value:
        return any(_lacks(node, f"{key}.{name}", inner) for name, inner in value.items())

    outer, _, name = key.rpartition(".")
    parent: Any = OmegaConf.select(node, outer, throw_on_missing=False) if outer else node
    if isinstance(parent, DictConfig):
        return name not in parent.keys()  # noqa: SIM118  # one that is ??? is a key

    return not OmegaConf.is_list(parent)


def _check_key(session: HydraSession, node: DictConfig, override: Override) -> None:
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
        settings = [str(setting) for setting in node if setting != "hydra"]
        raise ConfigError(key, override.value(), unknown(name, "Experiment", settings, ""))

    component = node.get(group)
    if not isinstance(component, DictConfig):
        return

    target = str(component.get(TARGET, ""))
    option = node.hydra.runtime.choices.get(group)
    is_of_package = session.is_shipped(group, option) and target.startswith(f"{PACKAGE}.")
    if group not in RECORDS and (group == "network" or not is_of_package):
        return

    owner = target.rpartition(".")[2] or group.title()
    options = session.options(group)
    having = [f"{group}={o}" for o in options if name in session.names_in_file(group, o)]
    if having:
        raise ConfigError(key, override.value(), f"is a setting of {either(having)}, not {owner}")

    settings = [str(setting) for setting in component if setting != TARGET]
    raise ConfigError(key, override.value(), unknown(name, owner, settings, group))


def _apply(session: HydraSession, node: DictConfig, override: Override, replaced: set[str]) -> str:
    """Set, add or delete a value; return the override as Hydra takes it. Raises ConfigError.

    replaced: the keys of components that are written out, to which this one is added.
    """
    key = override.key_or_group
    value = override.value()
    element = override.get_key_element()
    text = str(override.input_line)
    if override.package is not None:
        raise ConfigError(element, value, f"is for groups alone, and there is no group {key}")

    if key in ("hydra.launcher", "hydra.sweeper") and not isinstance(value, dict):
        group = key.replace(".", "/")
        raise ConfigError(key, value, f"must be a mapping: {group}={value} chooses one")

    is_new = _lacks(node, key)
    if override.is_delete():
        require(not is_new, element, value, "a setting that is there")
        outer, _, name = key.rpartition(".")
        parent: Any = OmegaConf.select(node, outer) if outer else node
        try:
            del parent[name]
        except OmegaConfBaseException as complaint:  # a setting of Hydra's own
            raise ConfigError(element, value, "cannot be deleted") from complaint
        return text

    is_forced = any(key.startswith(f"{component}.") for component in replaced)
    if override.type is OverrideType.CHANGE and not is_forced:
        if is_new:
            _check_key(session, node, override)
        is_forced = _lacks(node, key, value)

    is_added = override.is_add() and not is_forced and not isinstance(value, dict | list)
    if is_added and OmegaConf.select(node, key, throw_on_missing=False) is not None:
        raise ConfigError(element, value, f"is there already: {key}={value} changes it")

    is_replaced = replaces(value) and not override.is_hydra_override()
    if is_replaced:
        replaced.add(key)

    set_value(node, key, value, replace=is_replaced)
    return f"++{text.lstrip('+')}" if is_forced else text


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


def job_config() -> dict[str, Any]:
    """The plain configuration of the job that Hydra runs, wherever a launcher has started it."""
    job: Any = HydraConfig.instance().cfg
    session = HydraSession(GlobalHydra.instance().hydra, job.hydra.job.config_name or CONFIG_NAME)
    typed = job.hydra.overrides
    node = composed(session, [*typed.hydra, *typed.task]).node
    with open_dict(node):
        node.hydra = job.hydra
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

            config = {}
            for key in written:
                value = "???" if OmegaConf.is_missing(node, key) else node[key]
                is_plain = not OmegaConf.is_config(value)
                config[key] = value if is_plain else OmegaConf.to_container(value, resolve=True)

            return config
    except OmegaConfBaseException as complaint:
        raise _unresolved(node, complaint.full_key or "configuration", complaint) from complaint


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
    return [value for value in values if isinstance(value, str)] if is_list else []


def _unresolved(node: DictConfig, key: str, complaint: OmegaConfBaseException) -> ConfigError:
    """The error about the value at a key, as it is written."""
    written: Any = OmegaConf.to_container(node, resolve=False)
    return ConfigError(
        key, dict(flatten(written)).get(key), f"cannot be resolved: {first_line(complaint)}"
    )


def sweep(overrides: Sequence[Override]) -> list[list[str]]:
    """The overrides of every job of a sweep (-m), in order. Raises ConfigError."""
    for override in overrides:
        key = override.key_or_group
        if override.is_sweep_override() and key.startswith("hydra"):
            problem = "must be one value, for the whole sweep"
            raise ConfigError(key, override.get_value_string(), problem)

        if isinstance(override.value(), IntervalSweep):
            problem = "is a range, for search=<trials>: loguniform(1e-4,1e-2,20) has 20 values"
            raise ConfigError(key, override.get_value_string(), problem)

    command = " ".join(str(override.input_line) for override in overrides)
    try:
        choices = [choices_of(override) for override in overrides]
    except COMPLAINTS as complaint:
        raise ConfigError("command line", command, first_line(complaint)) from complaint

    count = math.prod(map(len, choices))
    if count == 0:
        problem = "is a sweep without a run: one of its choices is empty"
        raise ConfigError("command line", command, problem)

    if count > MOST_JOBS:
        raise ConfigError("command line", command, f"is a sweep of more than {MOST_JOBS:,} runs")

    return [list(job) for job in itertools.product(*choices)]


def choices_of(override: Override) -> list[str]:
    """The override with each of its values. Without a choice, as it was typed."""
    if not override.is_sweep_override():
        return [str(override.input_line)]

    # range() may have no end.
    values = itertools.islice(override.sweep_string_iterator(), MOST_JOBS + 1)
    return [f"{override.get_key_element()}={value}" for value in values]


def sweep_word(session: HydraSession, base: DictConfig, override: Override) -> str:
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


def loguniform(low: Any, high: Any, count: Any = None, seed: Any = 0) -> Sweep:
    """`count` numbers between `low` and `high` whose logarithms are uniform, as in figure 2 of Mnih
    et al. 2016.

    They have five digits, and depend on this `seed` alone, not on that of the runs. A larger count
    begins with the numbers of a smaller one. Without a count it is the range itself, for a search.
    Raises ValueError.
    """
    are_numbers = all(type(bound) in (int, float) for bound in (low, high))
    is_count = type(count) is type(seed) is int and 0 < count <= MOST_JOBS
    if not (are_numbers and 0 < low < high < math.inf and (is_count or count is None)):
        raise ValueError(
            f"it is loguniform(low,high,count) with 0 < low < high and at most {MOST_JOBS:,} draws"
        )

    if count is None:
        return IntervalSweep(start=float(low), end=float(high), tags={"log"})

    import numpy as np  # here: the fork server starts before this command imports it

    logarithms = np.random.default_rng(abs(seed)).uniform(math.log(low), math.log(high), count)
    return ChoiceSweep(list=[float(f"{number:.5g}") for number in np.exp(logarithms)])


def search_path(overrides: Sequence[str]) -> list[str]:
    """The places that `hydra.searchpath` names. Raises ConfigError."""
    paths: list[str] = []
    for override in parse([text for text in overrides if SEARCH_PATH in text]):
        if override.key_or_group == SEARCH_PATH:
            value = override.value()
            paths = _texts(value)
            is_list = isinstance(value, list) and len(paths) == len(value)
            require(is_list, SEARCH_PATH, value, "a list of texts")

    return paths


def parse(overrides: Sequence[str], session: HydraSession | None = None) -> list[Override]:
    """Overrides as Hydra's grammar reads them; with a session, choices such as glob(*) too. Raises
    ConfigError."""
    parser = OverridesParser.create(session.loader if session else None)
    parser.functions.register("loguniform", loguniform)
    return [_parse_one(parser, text) for text in overrides]


def _parse_one(parser: OverridesParser, text: str) -> Override:
    key, equals, value = text.partition("=")
    try:
        override = parser.parse_override(text)
        override.config_loader = parser.config_loader  # glob(*) looks up the options in it
        if not (override.is_sweep_override() or override.is_delete()):
            check_plain(override.value(), override.key_or_group)
    except ConfigError:
        raise
    except (ValueError, RecursionError) as complaint:  # of Python's limits
        problem = "has a number that is too long, or is nested too deeply"
        raise ConfigError(key, value, problem) from complaint
    except HydraException as complaint:
        meant = re.fullmatch(r"\s*([\w.@/]+)\s*(?:==|:|=)\s*([^\s=]+)", text)
        if meant is not None and f"{meant[1]}={meant[2]}" != text:
            problem = f"must be {meant[1]}={meant[2]}"
            raise ConfigError("command line", text, problem) from complaint
        if not (key and equals):
            raise ConfigError("command line", text, KEY_VALUE) from complaint

        problem = first_line(complaint)
        if re.search(r"\s[\w.]+=", value):
            problem = "quotes are around each setting, not around several"
        elif value.endswith(","):
            problem = "it ends with a comma"
        elif OF_THE_PARSER.match(problem):
            problem = (
                "a bracket, a comma or a quote is missing, or the text needs quotes: "
                f"\"{key}='{value}'\""
            )
        raise ConfigError(key, value, f"cannot be read: {problem}") from complaint

    if not override.key_or_group:
        raise ConfigError("command line", text, KEY_VALUE)

    return override


def _plain(name: str) -> str:
    """The name of an environment without its version, in small letters and digits."""
    return re.sub(r"-v\d+$|[^a-z0-9]", "", name.lower())


def first_line(error: BaseException) -> str:
    """The first line of an error's text; the place in the file, where a file cannot be read."""
    if isinstance(error, MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"{mark.name}, line {mark.line + 1}: {error.problem or 'cannot be read'}"

    cause = error.__cause__ if error.__cause__ is not None and not str(error) else error
    return (str(cause).strip() or type(cause).__name__).splitlines()[0].strip()
