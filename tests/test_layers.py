"""The order of the package's folders: a module imports from its own or a lower layer only, and never in a circle."""

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
LAYERS = {"errors": 0, "common": 1, "core": 3, "backends": 4, "run": 5, "config": 6} | dict.fromkeys(COMPONENTS, 2)
TOP = 7  # the package itself, and the commands: cli, export, report


def module_name(path: Path) -> str:
    names = ["a3c_exp", *path.relative_to(PACKAGE).with_suffix("").parts]
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


SOURCES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def layer(module: str) -> int:
    _, _, inside = module.partition(".")
    return LAYERS.get(inside.partition(".")[0], TOP)


def imported(module: str) -> Iterator[tuple[str, int]]:
    """The modules of the package that a module imports, wherever it does, with the line; `import a3c_exp` left out."""
    for node in ast.walk(ast.parse(SOURCES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module is not None, f"{module}:{node.lineno} imports relatively"
            submodules = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in SOURCES else node.module for name in submodules]
        else:
            continue
        yield from ((name, node.lineno) for name in names if name in SOURCES and name != "a3c_exp")


GRAPH = {module: dict(imported(module)) for module in SOURCES}


@pytest.mark.parametrize("module", SOURCES)
def test_a_module_imports_from_its_own_or_a_lower_layer_only(module: str) -> None:
    upward = [f"line {line}: {name}" for name, line in GRAPH[module].items() if layer(name) > layer(module)]
    assert upward == []


def test_networks_do_not_import_algorithms_and_errors_import_nothing_of_ours() -> None:
    networks = [module for module in SOURCES if module.startswith("a3c_exp.networks")]
    assert not [module for module in networks if "a3c_exp.algorithms" in GRAPH[module]]
    assert not GRAPH["a3c_exp.errors"]


def test_run_imports_no_backends() -> None:
    run = [module for module in SOURCES if module.startswith("a3c_exp.run")]
    assert not [name for module in run for name in GRAPH[module] if name.startswith("a3c_exp.backends")]


def test_no_modules_import_one_another_in_a_circle() -> None:
    """Imports for type checking and inside functions count too."""
    TopologicalSorter(GRAPH).prepare()  # raises CycleError, with the circle


def test_components_have_no_hooks_by_getattr() -> None:
    """They derive from base classes with all hooks. The exceptions ask objects of libraries, torch modules among them,
    and any dataclass."""
    libraries = {"a3c_exp.envs.gym", "a3c_exp.backends.forkserver", "a3c_exp.run.console", "a3c_exp.core.cpu"}
    libraries |= {"a3c_exp.report.runs", "a3c_exp.common.reading"}
    asking = {
        module
        for module, path in SOURCES.items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr")
        if len(node.args) > 1 and isinstance(node.args[1], ast.Constant)
    }
    modules = {f"a3c_exp.networks.{name}" for name in ("composed", "inputs", "verification")}
    assert asking <= libraries | modules | {"a3c_exp.config.schema"}


@pytest.mark.parametrize("command", ["a3c_exp --help", "a3c_exp.export --help", "a3c_exp.report finished"])
def test_help_and_reports_import_neither_torch_nor_gymnasium(command: str, tmp_path: Path) -> None:
    (tmp_path / "finished" / "run").mkdir(parents=True)
    (tmp_path / "finished" / "run" / "config.yaml").write_text(yaml.safe_dump({"env": {"id": "A-v0"}, "seed": 0}))
    summary = '{"stop_reason": "total_steps", "solved_at_steps": null}'
    (tmp_path / "finished" / "run" / "summary.json").write_text(summary)
    module, argument = command.split()
    program = (
        f"import runpy, sys; sys.argv[1:] = [{argument!r}]\n"
        f"try: runpy.run_module({module!r}, run_name='__main__', alter_sys=True)\n"
        "except SystemExit as end: code = end.code\n"
        "sys.exit(code or str(sorted({'torch', 'gymnasium'} & sys.modules.keys())))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stderr == "[]\n"
    assert "A-v0" in done.stdout or argument == "--help"
