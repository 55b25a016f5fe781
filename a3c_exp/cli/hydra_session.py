"""Hydra on this project's configuration files: which groups and options there are, and what choices
of them compose.

Hydra's global state is restored: notebooks and programs may use Hydra themselves.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra.conf
from hydra import __version__ as hydra_version
from hydra import initialize_config_dir, version
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.default_element import ConfigDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import JobRuntime
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from packaging.version import Version

from a3c_exp.cli.hydra_overrides import COMPLAINTS, SEARCH_PATH, first_line
from a3c_exp.cli.startup import conf_folder
from a3c_exp.common.reading import parse_yaml, read_text
from a3c_exp.common.trust import PACKAGE
from a3c_exp.config.elsewhere import RENAMED, atari_choice, module_advice
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
HEADER_LENGTH = 512
"""Characters of a file in which Hydra looks for its package."""
DEFAULTS: dict[str, Any] = (
    {"version_base": "1.3"} if Version(hydra_version) < Version("1.4.0rc0") else {}
)
"""Hydra 1.3 warns where its defaults are not named, 1.4 where they are."""


@contextmanager
def isolated() -> Iterator[None]:
    """Give code a Hydra that nobody has initialized. Afterwards its state is the one before."""
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
) -> Iterator[HydraSession]:
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
    Python, each time that Hydra composes a command."""

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


def _plain(name: str) -> str:
    """The name of an environment without its version, in small letters and digits."""
    return re.sub(r"-v\d+$|[^a-z0-9]", "", name.lower())
