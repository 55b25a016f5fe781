"""Completion of the `a3c-exp` command in bash and zsh, from the files in conf/. Imports neither Hydra nor torch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from a3c_exp.cli.startup import conf_folder
from a3c_exp.common.settings import flatten

COMMANDS = {
    "train": "a3c_exp.__main__",
    "evaluate": "a3c_exp.cli.evaluate",
    "report": "a3c_exp.report.__main__",
    "export": "a3c_exp.export.__main__",
}
"""The module of each command."""
FLAGS = ("-m", "--help", "--cfg", "--config-dir")
RUN_SETTINGS = ("from", "init_from", "resume")
"""Settings whose value is the folder of a run."""

# Both shells ask `a3c-exp complete <line>`. bash breaks words at = and :, and replaces only what follows them.
SCRIPTS = {
    "bash": """\
_a3c_exp() {
    local line="${COMP_LINE:0:COMP_POINT}" IFS=$'\\n'
    local word="${line##*[[:space:]]}"
    local kept="${word%"${word##*[=:]}"}"
    COMPREPLY=($(a3c-exp complete "$line" 2>/dev/null))
    COMPREPLY=("${COMPREPLY[@]#"$kept"}")
}
complete -o nospace -F _a3c_exp a3c-exp
""",
    "zsh": """\
#compdef a3c-exp
_a3c_exp() {
    local -a words
    words=("${(@f)$(a3c-exp complete "$LBUFFER" 2>/dev/null)}")
    compadd -Q -S '' -- $words
}
compdef _a3c_exp a3c-exp
""",
}


def candidates(line: str) -> list[str]:
    """Completions of the last word of a command line that begins with the name of the program."""
    *words, current = line.split(" ")
    words = [word for word in words[1:] if word]
    if not words:
        return [command for command in (*COMMANDS, "completion") if command.startswith(current)]
    command, typed = words[0], words[1:]
    if command == "train":
        possible = _training(current, typed)
    elif command == "completion":
        possible = iter(SCRIPTS)
    else:
        possible = _of_command(command, current) if command in COMMANDS else iter(())
    return sorted({each for each in possible if each.startswith(current)})


def _training(current: str, typed: Sequence[str]) -> Iterator[str]:
    key, equals, value = current.partition("=")
    settings, choices = _settings(), _choices()
    chosen = choices | dict(word.split("=", 1) for word in typed if word.partition("=")[0] in choices and "=" in word)
    if not equals:
        yield from FLAGS
        yield from (f"{name}=" for name in (*choices, *settings, *RUN_SETTINGS))
        group = current.partition(".")[0]
        if "." in current and chosen.get(group):
            yield from (f"{group}.{name}=" for name in _names_in_file(group, str(chosen[group])))
    elif key in choices:
        yield from (f"{key}={path.stem}" for path in (conf_folder() / key).glob("*.yaml"))
    elif key in RUN_SETTINGS:
        yield from (f"{key}={folder}" for folder in _folders(value))
    elif isinstance(settings.get(key), bool):
        yield from (f"{key}=true", f"{key}=false")


def _of_command(command: str, current: str) -> Iterator[str]:
    """The options of another command, as its class `Options` has them in the source, and folders."""
    source = (Path(__file__).parents[2] / f"{COMMANDS[command].replace('.', '/')}.py").read_text(encoding="utf-8")
    options = source.partition("class Options")[2].partition("    def ")[0]
    yield from (f"{name}=" for name in re.findall(r"^    (\w+): .+ = ", options, re.MULTILINE))
    yield from _folders(current)


def _folders(start: str) -> Iterator[str]:
    """Folders whose path begins so, with a slash. Names that a shell would not read as they are, are left out: it puts
    completions into the command as they come, and a folder may be named by anyone."""
    parent = Path(start if start.endswith("/") or not start else Path(start).parent)
    try:
        folders = [path for path in parent.iterdir() if path.is_dir() and not path.name.startswith(".")]
    except OSError:
        return
    yield from (f"{path}/" for path in folders if re.fullmatch(r"[\w@%+=:,./-]+", str(path)))


def _choices() -> dict[str, Any]:
    """Each group with the option that is chosen by default."""
    entries = [entry for entry in _read(conf_folder() / "config.yaml")["defaults"] if isinstance(entry, dict)]
    chosen = {name: option for entry in entries for name, option in entry.items()}
    return {name: option for name, option in chosen.items() if (conf_folder() / name).is_dir()}


def _settings() -> dict[str, Any]:
    """The settings of conf/config.yaml by their dotted keys."""
    content = _read(conf_folder() / "config.yaml")
    return dict(flatten({name: value for name, value in content.items() if name not in ("defaults", "hydra")}))


def _names_in_file(group: str, option: str) -> set[str]:
    """The settings in an option's file, and in those of the group that it builds on."""
    content = _read(conf_folder() / group / f"{option}.yaml")
    inside = content.get(group)
    names = set(inside if isinstance(inside, Mapping) else content) - {"defaults", "_target_"}
    parents = [entry for entry in content.get("defaults") or [] if isinstance(entry, str) and entry != "_self_"]
    return names.union(*(_names_in_file(group, parent) for parent in parents))


def _read(path: Path) -> dict[str, Any]:
    import yaml

    try:
        return dict(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
    except OSError:
        return {}
