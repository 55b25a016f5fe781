"""The order of the package's folders: a module imports from its own or a lower layer only, and
never in a circle."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
import yaml

import a3c_exp

PACKAGE = Path(a3c_exp.__file__).parent
COMPONENTS = ("envs", "networks", "returns", "algorithms", "optimizers", "schedules")
LAYERS = {
    "ending": 0,
    "errors": 0,
    "exit_codes": 0,
    "common": 1,
    "engine": 3,
    "core": 4,
    "backends": 5,
    "callbacks": 6,
    "run": 6,
    "config": 7,
} | dict.fromkeys(COMPONENTS, 2)
TOP = 8  # the package itself, and the commands: cli, export, report


def module_name(path: Path) -> str:
    names = ["a3c_exp", *path.relative_to(PACKAGE).with_suffix("").parts]
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


SOURCES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def layer(module: str) -> int:
    _, _, inside = module.partition(".")
    return LAYERS.get(inside.partition(".")[0], TOP)


def imported(module: str) -> Iterator[str]:
    """The modules of the package that a module imports, wherever it does; `import a3c_exp` left
    out."""
    for node in ast.walk(ast.parse(SOURCES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module is not None, (
                f"{module}:{node.lineno} imports relatively"
            )
            submodules = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in SOURCES else node.module for name in submodules]
        else:
            continue
        yield from (name for name in names if name in SOURCES and name != "a3c_exp")


GRAPH = {module: set(imported(module)) for module in SOURCES}


def test_a_module_imports_from_its_own_or_a_lower_layer_only() -> None:
    edges = [(module, name) for module in SOURCES for name in GRAPH[module]]
    assert [f"{module}: {name}" for module, name in edges if layer(name) > layer(module)] == []
    assert not GRAPH["a3c_exp.ending"]


@pytest.mark.parametrize(("one", "other"), [("networks", "algorithms"), ("run", "backends")])
def test_a_folder_does_not_import_from_another(one: str, other: str) -> None:
    modules = [module for module in SOURCES if module.startswith(f"a3c_exp.{one}")]
    assert not [
        name for module in modules for name in GRAPH[module] if name.startswith(f"a3c_exp.{other}")
    ]


def test_no_modules_import_one_another_in_a_circle() -> None:
    """Imports for type checking and inside functions count too."""
    TopologicalSorter(GRAPH).prepare()  # raises CycleError, with the circle


@pytest.mark.parametrize(
    ("command", "code"),
    [("a3c_exp --help", 0), ("a3c_exp.report finished", 0), ("a3c_exp experiment=A-v0", 2)],
)
def test_what_trains_nothing_imports_neither_torch_nor_gymnasium(
    command: str, code: int, tmp_path: Path
) -> None:
    """A command with a mistyped option included: torch is imported last, the garbage collector at
    rest."""
    (tmp_path / "finished" / "run").mkdir(parents=True)
    (tmp_path / "finished" / "run" / "config.yaml").write_text(
        yaml.safe_dump({"env": {"id": "A-v0"}, "seed": 0})
    )
    summary = '{"stop_reason": "total_steps", "solved_at_steps": null}'
    (tmp_path / "finished" / "run" / "summary.json").write_text(summary)
    module, argument = command.split()
    program = (
        f"import runpy, sys; sys.argv[1:] = [{argument!r}]\n"
        f"try: runpy.run_module({module!r}, run_name='__main__', alter_sys=True)\n"
        "except SystemExit as end: code = end.code\n"
        "print(code); sys.exit(str(sorted({'torch', 'gymnasium'} & sys.modules.keys())))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == str(code)
    assert done.stderr.splitlines()[-1] == "[]"
    assert "A-v0" in done.stdout + done.stderr or argument == "--help"


def test_a_command_imports_no_numpy_or_torch_before_its_fork_server_starts() -> None:
    program = "import sys; import a3c_exp.cli.main; print({'numpy', 'torch'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"
