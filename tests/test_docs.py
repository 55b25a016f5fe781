"""The documents are true: every command and every piece of code in them runs, in a small form; every table is complete.

The recipes of docs/extending.md are followed as a user follows them: written into an empty folder as a package and YAML
files of one's own, and called from the command line, with no change to this package.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import reduce
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import yaml

import a3c_exp
from a3c_exp import ConfigError
from a3c_exp.__main__ import main
from a3c_exp.algorithms import BatchArrays
from a3c_exp.algorithms.algorithm import differentiate, has_closed_form
from a3c_exp.backends.ray import Ray
from a3c_exp.cli import evaluate
from a3c_exp.cli.completion import SCRIPTS as COMPLETION
from a3c_exp.cli.program import command as program_command
from a3c_exp.common.arrays import Floats
from a3c_exp.config.builder import load_experiment
from a3c_exp.errors import FAILED
from a3c_exp.export import __main__ as export
from a3c_exp.networks import NetworkOutputs
from a3c_exp.report import __main__ as report

ROOT = Path(__file__).parents[1]
CONF = ROOT / "conf"
DOCUMENTS = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md"))]
}
README, CONTRIBUTING, RESULTS = (DOCUMENTS[f"{name}.md"] for name in ("README", "CONTRIBUTING", "RESULTS"))
BENCHMARKS = (ROOT / "bench/RESULTS.md").read_text(encoding="utf-8")
BACKENDS, CLUSTER, DESIGN, EXTENDING, GUIDE, SETTINGS, TUNING = (
    DOCUMENTS[f"docs/{name}.md"]
    for name in ("backends", "cluster", "design", "extending", "guide", "settings", "tuning")
)
# The README first, whose commands are the first that a reader tries. Commands in CLUSTER need a cluster, those in
# RESULTS and TUNING take hours: they have tests of their own.
MANUAL = [README, *(text for name, text in DOCUMENTS.items() if text not in (README, RESULTS, TUNING, CLUSTER))]
USER_MANUAL = [text for text in MANUAL if text not in (CONTRIBUTING, EXTENDING)]
MOST_WORDS = 900
"""Of the README: it is a front page, and docs/ is the manual."""

# With these a command of the documents runs for a moment. Workers are two if a command leaves that to the machine.
SMALL = ["total_steps=200", "envs_per_worker=2", "rollout_length=8", "eval.every=100", "eval.episodes=1"]
# Pictures take milliseconds each, and a game's emulator most of a second to start.
SMALL_PICTURES = ["total_steps=64", "envs_per_worker=2", "eval.every=null"]
ATARI = {"env=atari", "env=pong", "experiment=pong"}
PICTURES = ATARI | {"network=cnn", "network=pixels"}
DEFAULTS = {"backend": "serial", "workers": "2"}


def blocks(document: str, language: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", document, re.MULTILINE | re.DOTALL)


def commands(document: str) -> list[list[str]]:
    """Every command that is shown, as the shell splits it."""
    lines = [line for block in blocks(document, "sh") for line in block.splitlines()]
    return [words for words in (shlex.split(line, comments=True) for line in lines) if words]


def starting(*documents: str, start: str) -> list[list[str]]:
    """The arguments after `start` of all commands that begin so, each once and in order."""
    prefix = shlex.split(start)
    found = [words for document in documents for words in commands(document) if words[: len(prefix)] == prefix]
    return [list(rest) for rest in dict.fromkeys(tuple(words[len(prefix) :]) for words in found)]


def small(arguments: list[str]) -> list[str]:
    """A training command in its small form."""
    keys = {argument.partition("=")[0] for argument in arguments}
    extra = [f"{key}={value}" for key, value in DEFAULTS.items() if key not in keys]
    settings = SMALL_PICTURES if PICTURES & set(arguments) else SMALL
    return arguments + extra + (settings[:1] if "resume" in keys else settings)


def rows(document: str, heading: str) -> list[list[str]]:
    """The rows of the table under the heading that contains `heading`, without its head."""
    section = re.split(r"^## ", document, flags=re.MULTILINE)
    body = next(part for part in section if heading in part.splitlines()[0])
    lines = [line for line in body.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def code(cell: str) -> list[str]:
    """The texts between single backticks."""
    return re.findall(r"(?<!`)`([^`\n]+)`", cell)


def summary(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return content


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small run with evaluations."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    assert main(small([f"hydra.run.dir={folder}"])) == 0
    return folder


@pytest.fixture
def here(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with one run in outputs/."""
    shutil.copytree(finished, tmp_path / "outputs" / "run")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def placed(arguments: list[str]) -> list[str]:
    """The command with the run of `here` in the place of the reader's."""
    folders = {"outputs/<run>": "outputs/run", "outputs/<sweep>": "outputs"}
    return [reduce(lambda text, name: text.replace(name, folders[name]), folders, argument) for argument in arguments]


def test_the_readme_is_a_front_page() -> None:
    assert len(README.split()) <= MOST_WORDS
    assert all(f"({name})" in README for name in DOCUMENTS if name != "README.md"), "it leads to every document"


def test_every_command_shown_is_of_a_kind_that_is_tested_here() -> None:
    kinds = [
        "python -m a3c_exp",
        "python -m a3c_exp.evaluate",
        "python -m a3c_exp.export",
        "python -m a3c_exp.report",
        "a3c-exp",
        "source <(a3c-exp",
        "python -m bench.backgrounds",
        "python -m bench.path",
        "python -m bench.report",
        "python -m bench.same",
        "python -m bench.size",
        "python -m bench.versus",
        "python -m study.stable_baselines3",
        "make",
        "pip install",
        "tensorboard",
    ]
    set_up = [["python", "-m", "venv", ".venv"], ["source", ".venv/bin/activate"]]
    documents = [text for text in DOCUMENTS.values() if text != CLUSTER]
    tested = [shlex.split(kind) + words for kind in kinds for words in starting(*documents, start=kind)]
    assert [words for text in documents for words in commands(text) if words not in tested + set_up] == []
    assert "VENV := .venv\n" in (ROOT / "Makefile").read_text()


# Training commands.

TRAINING = starting(*USER_MANUAL, start="python -m a3c_exp")
SWEEPS = [words for words in TRAINING if "".join(words[:1]).startswith(("-m", "sweep="))]
TRAIN = [words for words in TRAINING if words not in SWEEPS]
INFORM = [words for words in TRAIN if "--help" in words or "--cfg" in words]
RUNS = [words for words in TRAIN if words not in INFORM]


@pytest.mark.parametrize("arguments", RUNS, ids=" ".join)
def test_training_commands_train(arguments: list[str], here: Path) -> None:
    if ATARI & set(arguments):
        pytest.importorskip("ale_py", reason="Atari games: pip install 'a3c-exp[atari]'")
    assert main(small(placed(arguments))) == 0
    folders = sorted((here / "outputs").iterdir())
    new = [folder for folder in folders if folder.name != "run"]
    resumes = any(argument.startswith("resume=") for argument in arguments)
    assert len(new) == (0 if resumes else 1)
    if new and not any(argument.startswith(("hydra.run.dir=", "from=")) for argument in arguments):
        assert re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d-\d{6}_s0", new[0].name)
    assert summary((new or folders)[0])["stop_reason"] == "total_steps"


def test_a_sweep_leaves_a_folder_for_each_combination(here: Path) -> None:
    """Runs at once have tests of their own."""
    assert len(SWEEPS) >= 3
    for flag, *words in SWEEPS:
        choice, *others = [word for word in words if not word.startswith("jobs=")]
        first_values = [other.partition(",")[0] for other in others]  # composing a job takes longer than running it
        assert main(small([flag, choice, *first_values])) == 0
        folder = "*_sweep" if flag == "-m" else Path(flag.partition("=")[2]).name
        assert len(list((here / "outputs").glob(f"{folder}/*/summary.json"))) == len(choice.split(","))


def test_informing_commands_inform_and_run_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert INFORM
    for arguments in INFORM:
        assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "LunarLander-v3" in shown  # --cfg job
    assert all(option in shown for option in options("env"))  # --help
    assert [folder.name for folder in (here / "outputs").iterdir()] == ["run"]


# The other commands.


@pytest.mark.parametrize("arguments", starting(*USER_MANUAL, start="python -m a3c_exp.evaluate"), ids=" ".join)
def test_evaluations_report_and_film(arguments: list[str], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if "video=true" in arguments:
        pytest.importorskip("moviepy")
    assert evaluate.main([*placed(arguments), "episodes=2"]) == 0
    row = r"\| run \| best.ckpt \| [\d,]+ \| 2 \| [\d.]+ \+- [\d.]+ \|"
    report = r"2 episodes: .*return [\d.]+ \+- [\d.]+ .*interval"
    assert re.search(row if "outputs/<sweep>" in arguments else report, capsys.readouterr().out)
    assert len(list((here / "outputs/run/videos").glob("*.mp4"))) == ("video=true" in arguments)


@pytest.mark.parametrize("arguments", starting(*USER_MANUAL, start="python -m a3c_exp.export"), ids=" ".join)
def test_exports_leave_a_file_that_acts(arguments: list[str], here: Path) -> None:
    pytest.importorskip("onnx")
    assert export.main([*placed(arguments), "steps=40"]) == 0
    assert len(list(here.rglob("policy.onnx"))) == 1
    if "greedy=false" not in arguments:
        exec(EXPORTED_SCRIPT, {})


def test_the_report_has_a_row_for_the_runs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [[folder]] = starting(*USER_MANUAL, start="python -m a3c_exp.report")
    assert report.main([folder.replace("<sweep>", "run")]) == 0
    assert "CartPole-v1" in capsys.readouterr().out
    written = {path.name for path in (here / "outputs/run/report").iterdir()}
    patterns = [pattern for row in rows(GUIDE, "Compare") for pattern in code(row[0])]
    assert {name for name in written if not any(fnmatch(name, pattern) for pattern in patterns)} == set()
    assert [pattern for pattern in patterns if not any(fnmatch(name, pattern) for name in written)] == []


@pytest.mark.parametrize("arguments", starting(*USER_MANUAL, start="a3c-exp"), ids=" ".join)
def test_the_program_is_each_command_under_one_name(arguments: list[str], here: Path) -> None:
    name, *rest = arguments
    quick = {"train": small(rest), "evaluate": [*placed(rest), "episodes=1"]}
    assert program_command([name, *quick[name]]) == 0


def test_each_shell_for_which_there_is_a_completion_is_shown() -> None:
    lines = [words for words in commands(GUIDE) if words[0] == "source" and words[1].startswith("<(")]
    assert [" ".join(words) for words in lines] == [f"source <(a3c-exp completion {shell})" for shell in COMPLETION]


@pytest.mark.parametrize("arguments", starting(RESULTS, TUNING, start="python -m a3c_exp"), ids=" ".join)
def test_the_commands_behind_the_results_are_of_a_run_that_can_be_made(arguments: list[str]) -> None:
    """Its environment and network are made. That every choice in them also trains is tested with the configurations."""
    if "pong" in " ".join(arguments) or "atari" in " ".join(arguments):
        pytest.importorskip("ale_py", reason="Atari games: pip install 'a3c-exp[atari]'")
    sweep = arguments[0] == "-m"
    first = [word.partition(",")[0] for word in arguments[1:]] if sweep else arguments
    load_experiment(a3c_exp.compose([*first, "seed=1"]))


@pytest.mark.parametrize("arguments", re.findall(r"python -m a3c_exp ([^'\n#]+)", CLUSTER))
def test_the_commands_for_clusters_are_of_a_run_that_can_be_made(arguments: str) -> None:
    """There is no cluster here, so that is all. Those for this machine alone run in the tests of that backend."""
    words = shlex.split(re.sub(r"\$\(\(.*\)\)", "2", arguments))
    ours = [word for word in words if not word.startswith("hydra.")]
    experiment = load_experiment(a3c_exp.compose(ours), check=False)
    assert isinstance(experiment.backend, Ray)


def test_the_files_for_clusters_can_be_read() -> None:
    launcher, job = map(yaml.safe_load, blocks(CLUSTER, "yaml"))
    assert {"cluster_name", "provider", "setup_commands"} <= set(launcher)
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}
    pinned = re.search(r"^ray==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None and cluster["rayVersion"] == pinned[1]


@pytest.mark.parametrize(
    ("command", "quick"),
    [
        ("bench.same", ["--only", "epsilon"]),
        ("bench.versus", ["--only", "cartpole_2x16", "--pairs", "1", "--seconds", "0.2"]),
        ("bench.path", []),
        ("bench.size", []),
        ("bench.report", ["--runs", "2", "--points", "20"]),
    ],
)
def test_the_measuring_commands_run_as_shown(command: str, quick: list[str], tmp_path: Path) -> None:
    """The other checkout is a copy of this one; of many rows one is run."""
    [arguments] = starting(CONTRIBUTING, start=f"python -m {command}")
    (tmp_path / "here").mkdir()
    for name in ("a3c_exp", "conf"):
        shutil.copytree(ROOT / name, tmp_path / "before" / name, ignore=shutil.ignore_patterns("__pycache__"))
    done = program(tmp_path / "here", "-m", command, *arguments, *quick)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("arguments", starting(*USER_MANUAL, start="python -m bench.backgrounds"), ids=shlex.join)
def test_backgrounds_are_measured_as_shown(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ale_py", reason="Atari games: pip install 'a3c-exp[atari]'")
    from bench import backgrounds

    assert backgrounds.main([*arguments, "--steps", "8"]) == 0
    shown = capsys.readouterr().out.splitlines()[2:]
    named = [word for word in arguments if not word.startswith("-") and not word.isdigit()]
    assert [line.split()[1] for line in shown] == (named or list(backgrounds.GAMES))


def test_tensorboard_finds_the_curves(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tensorboard import program

    [arguments] = starting(*USER_MANUAL, start="tensorboard")
    board = program.TensorBoard()
    board.configure(["tensorboard", *arguments, "--inspect"])
    board.main()
    shown = capsys.readouterr().out
    for name in ("rollout/ep_rew_mean", "train/policy_loss", "async/staleness_mean", "eval/mean_reward", "time/"):
        assert name in shown


def test_pip_commands_name_extras_that_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    [words] = starting(*USER_MANUAL, start="pip install")
    assert words == ["-c", "constraints.txt", "-e", ".[atari]"]
    assert (ROOT / "constraints.txt").is_file()
    named = re.findall(r"pip install .*?-e '\.\[(\w+)\]'", "\n".join(DOCUMENTS.values()))
    assert {"atari", "onnx", "pictures", "ray", "report", "video"} <= set(named) <= set(extras)
    assert {code(row[0])[0] for row in rows(GUIDE, "Install")} == set(extras)


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_targets_call_what_they_are_said_to() -> None:
    targets = starting(*MANUAL, RESULTS, start="make")
    assert targets[:2] == [["train"], ["train", "ARGS=env=lunar workers=16"]], "the quick start"
    # Not the settings of a make that may be running these tests.
    foreign = ("MAKE", "MFLAGS", "ARGS", "ENV")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    for words in targets:
        done = subprocess.run(
            ["make", "-n", f"PYTHON={sys.executable}", *words],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        calls = [line.rstrip() for line in done.stdout.splitlines() if line.startswith(".venv/bin/python -m ")]
        arguments = next((word.removeprefix("ARGS=") for word in words if word.startswith("ARGS=")), "")
        if words[0] == "train":
            assert calls[-1] == f".venv/bin/python -m a3c_exp {arguments}".rstrip()
            assert shlex.split(arguments) in RUNS, "it is trained above"
        if words[0] == "test":
            assert calls[-1] == f".venv/bin/python -m pytest -n 2 --dist worksteal {arguments}".rstrip()
            assert (ROOT / arguments).exists()
        if words[0] in ("faults", "fuzz", "soak"):
            assert calls[-1] == f".venv/bin/python -m bench.{words[0]} {arguments}".rstrip()
        if words[0] == "presets":
            assert calls[-1] == ".venv/bin/python -m study --presets"
        if words[0] == "learn":
            chosen = next((f" --env {word.removeprefix('ENV=')}" for word in words if word.startswith("ENV=")), "")
            assert calls[-1] == f".venv/bin/python -m study{chosen}"


# From Python.


def small_python(block: str) -> str:
    """A block of Python whose runs are small."""
    settings = ", ".join(f'"{setting}"' for setting in [*SMALL, "workers=2"])
    return re.sub(r"a3c_exp\.(train|compose)\(\[", rf"a3c_exp.\1([{settings}, ", block)


[EXPORTED_SCRIPT] = [block for block in blocks(DOCUMENTS["docs/python.md"], "python") if "onnxruntime" in block]
SCRIPTS = list(dict.fromkeys(block for text in USER_MANUAL for block in blocks(text, "python")))


def test_the_script_of_the_readme_runs_with_worker_processes(tmp_path: Path) -> None:
    script = blocks(README, "python")[0]
    assert "backend" not in script, "so that it is the default: processes"
    (tmp_path / "script.py").write_text(small_python(script))
    done = program(tmp_path, "script.py")
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done.stderr  # once: no worker has run the script again
    folder, reason, mean = lines[0].rsplit(" ", 2)
    assert (reason, mean) == ("total_steps", "None")
    assert (Path(folder) / "summary.json").is_file()
    assert lines[1] in ("0", "1")  # an action of CartPole


def test_other_scripts_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    others = [script for script in SCRIPTS if script not in [*blocks(README, "python"), EXPORTED_SCRIPT]]
    assert others
    for script in others:
        names: dict[str, Any] = {}
        exec(small_python(script), names)
        assert names["run"].exit_code == 0
        saved = yaml.safe_load((tmp_path / "outputs/acrobot/config.yaml").read_text())
        assert (saved["env"]["id"], saved["gamma"]) == ("Acrobot-v1", 0.98)


def program(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python started in `folder`, with this package on its path however these tests found it."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )


# The tables.


def options(group: str) -> set[str]:
    return {file.stem for file in (CONF / group).glob("*.yaml")}


def flat(settings: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{key}", inner) for key, inner in value.items())
        else:
            yield name, value


def test_the_table_of_settings_has_every_group_and_scalar_with_its_default() -> None:
    config = yaml.safe_load((CONF / "config.yaml").read_text())
    groups = {
        name: value
        for entry in config.pop("defaults")
        if isinstance(entry, dict)
        for name, value in entry.items()
        if not name.startswith("override")
    }
    del config["hydra"]
    lines = rows(SETTINGS, "Settings of a run")
    table = {code(name)[0]: (yaml.safe_load(code(default)[0]), text) for name, default, text in lines}
    assert {name: default for name, (default, _) in table.items()} == dict(flat(config)) | groups
    assert set(groups) == {folder.name for folder in CONF.iterdir() if folder.is_dir()}
    for group in groups.keys() - {"experiment"}:
        assert options(group) <= set(code(table[group][1])), group


def test_the_table_of_presets_has_every_one_once() -> None:
    named = [name for row in rows(SETTINGS, "Presets") for name in code(row[0])]
    assert sorted(named) == sorted(options("experiment"))


def test_the_table_of_backends_has_all_of_them() -> None:
    assert {code(row[0])[0] for row in rows(BACKENDS, "Which one")} == options("backend")


@pytest.mark.parametrize(
    ("document", "heading", "backend"), [(BACKENDS, "GA3C", "ga3c"), (CLUSTER, "On several", "ray")]
)
def test_the_table_of_a_backend_has_every_setting_with_its_default(document: str, heading: str, backend: str) -> None:
    """Those of all backends with workers beside each other have a table of their own."""
    expected = backend_settings(backend)
    for name in backend_settings("threads"):
        del expected[name]
    assert {code(row[0])[0]: yaml.safe_load(code(row[1])[0]) for row in rows(document, heading)} == expected


@pytest.mark.parametrize("backend", ["threads", "processes", "ga3c", "ray"])
def test_the_table_of_restarts_has_the_defaults_of_each_backend(backend: str) -> None:
    table = {code(row[0])[0]: code(row[1]) for row in rows(BACKENDS, "If a worker") if code(row[0])}
    shared = {name: value for name, value in backend_settings(backend).items() if name in table}
    assert {"backend.max_restarts", "backend.stall_seconds"} <= set(shared)
    assert {name: yaml.safe_load(table[name][0]) for name in shared} == shared


def test_the_table_of_stop_reasons_has_those_of_failed_runs() -> None:
    names = [code(row[0])[0] for row in rows(BACKENDS, "If a worker") if code(row[0])]
    assert [name for name in names if not name.startswith("backend.") and name != "stop_reason"] == list(FAILED)
    assert set(FAILED) <= set(code(next(row for row in rows(GUIDE, "Exit codes") if row[0] == "1")[1]))


def backend_settings(backend: str) -> dict[str, Any]:
    """The settings of a backend, with their defaults."""
    settings = yaml.safe_load((CONF / "backend" / f"{backend}.yaml").read_text())
    del settings["_target_"]
    return {f"backend.{name}": value for name, value in flat(settings)}


def test_the_table_of_atari_names_settings_that_exist() -> None:
    settings = yaml.safe_load((CONF / "env/atari.yaml").read_text())["env"]
    named = [name for row in rows(DOCUMENTS["docs/atari.md"], "Atari games") for name in code(row[2])]
    assert named
    assert {name.removeprefix("env.") for name in named} <= set(settings)


def test_a_run_leaves_what_the_table_says(here: Path) -> None:
    table = {code(row[0])[0]: code(row[1]) for row in rows(GUIDE, "leaves")}
    run = here / "outputs/run"
    left = {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()}
    assert {name for name in left if not any(fnmatch(name, pattern) for pattern in table)} == set()
    assert {pattern for pattern in table if not any(fnmatch(name, pattern) for name in left)} == {
        "videos/",
        "policy.onnx",
        "report/*",
    }
    assert set(table["summary.json"]) <= set(summary(run))


def test_the_map_of_the_design_has_every_module() -> None:
    """Packages that only re-export aside."""
    package = ROOT / "a3c_exp"
    named = [name for row in rows(DESIGN, "Where is what") for name in code(row[0])]
    assert sorted(set(named)) == sorted(named)
    modules = {str(path.relative_to(package)) for path in package.rglob("*.py")}
    without_code = {name for name in modules if name.endswith("/__init__.py") and name not in named}
    assert set(named) == modules - without_code
    assert all(not re.search(r"^(class|def) ", (package / name).read_text(), re.MULTILINE) for name in without_code)


def test_the_answers_of_the_design_name_places_that_exist() -> None:
    """Files, and what is in them: `Actor._next_values` in `core/rollout.py`."""
    answers = rows(DESIGN, "Questions")
    assert len(answers) >= 15
    for question, _, places in answers:
        files = [name for name in code(places) if name.endswith(".py")]
        text = "".join((ROOT / "a3c_exp" / name).read_text() for name in files)
        names = [part for name in code(places) if name not in files for part in name.split(".")]
        assert files, question
        assert [name for name in names if not re.search(rf"(def|class) {name}\b", text)] == [], question


def test_the_diagrams_of_the_design_name_files_that_exist() -> None:
    diagrams = blocks(DESIGN, "mermaid")
    assert len(diagrams) == 4
    files = {name for diagram in diagrams for name in re.findall(r"[\w/]+\.py", diagram)}
    package = ROOT / "a3c_exp"
    assert [name for name in files if not any((package / at / name).is_file() for at in ("", "backends/ga3c"))] == []


# Figures.


def figures(text: str) -> set[str]:
    """Numbers with a decimal point or a thousands separator, as they are written."""
    return set(re.findall(r"-?\d+(?:,\d{3})+(?:\.\d+)?|-?\d+\.\d+", text))


@pytest.mark.parametrize(
    ("document", "headings"), [("README.md", ("Results", "Beside other systems")), ("docs/guide.md", ("Train",))]
)
def test_figures_are_those_of_the_results(document: str, headings: tuple[str, ...]) -> None:
    sections = re.split(r"^## ", DOCUMENTS[document], flags=re.MULTILINE)
    text = "\n".join(part for part in sections if part.splitlines()[0] in headings)
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    known = figures(RESULTS) | figures(BENCHMARKS) | {"200,000"}  # the zoo's steps: study/peers.py
    assert figures(text)
    assert figures(text) - known == set()


def test_the_picture_of_the_readme_is_drawn_by_its_command(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="draws the picture: pip install -e '.[bench]'")
    assert "python -m study.picture" in README
    [picture] = re.findall(r"^!\[[^]]+\]\(([^)]+)\)$", README, re.MULTILINE)
    committed = ROOT / picture
    done = program(ROOT, "-m", "study.picture", "--to", str(tmp_path / "picture.png"))
    assert done.returncode == 0, done.stderr
    drawn = (tmp_path / "picture.png").read_bytes()
    assert drawn.startswith(b"\x89PNG")
    assert committed.read_bytes()[16:24] == drawn[16:24], "width and height"
    assert 10_000 < committed.stat().st_size < 200_000


# Extensions.


def named_blocks(document: str) -> dict[str, str]:
    """The blocks of Python and YAML, by the file that a comment in each names."""
    files: dict[str, str] = {}
    for block in blocks(document, "python") + blocks(document, "yaml"):
        comments = [line.removeprefix("# ") for line in block.splitlines() if line.startswith("# ")]
        name = next(comment for comment in comments if comment.endswith((".py", ".yaml")))
        assert name not in files
        files[name] = block
    return files


FILES = named_blocks(EXTENDING)


def lines_of(*names: str) -> int:
    """Lines of these files, empty ones and comments included."""
    return sum(len(FILES[name].splitlines()) for name in names)


def imported(name: str) -> list[str]:
    """The names that a file imports from this package, or the package itself."""
    names = []
    for node in ast.walk(ast.parse(FILES[name])):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names if alias.name.partition(".")[0] == "a3c_exp"]
        elif isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "a3c_exp":
            names += [alias.name for alias in node.names]
    return names


def file_of_class(name: str) -> str:
    """The file of the class that a YAML file names."""
    target: str = yaml.safe_load(FILES[name])["_target_"]
    return f"{target.rpartition('.')[0].replace('.', '/')}.py"


def test_a_network_of_ones_own_is_twenty_lines_that_know_nothing_of_this_package() -> None:
    assert next(iter(FILES)) == "my_a3c/residual.py", "it is the first recipe"
    assert lines_of("my_a3c/residual.py", "conf/network/residual.yaml") <= 20
    assert imported("my_a3c/residual.py") == []
    networks = [file_of_class(name) for name in FILES if name.startswith("conf/network/")]
    assert [name for name in networks if imported(name)] == []


def test_a_loss_of_ones_own_is_twenty_five_lines_with_four_names_of_this_package() -> None:
    assert lines_of("my_a3c/huber.py", "conf/algorithm/huber.yaml") <= 25
    assert len(imported("my_a3c/huber.py")) <= 4


def write(folder: Path, name: str) -> None:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(FILES[name])


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """my_project, as a reader of docs/extending.md has it after the last recipe."""
    folder = tmp_path_factory.mktemp("my_project")
    for name in FILES:
        write(folder, name)
    return folder


@pytest.fixture
def inside(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The project as the current folder, on the module path as `python -m` has it there, without earlier outputs."""
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(project)
    shutil.rmtree(project / "outputs", ignore_errors=True)
    yield project
    gymnasium.registry.pop("Thermostat-v0", None)
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_a3c"]:
        del sys.modules[name]


def only_run(folder: Path) -> Path:
    [run] = (folder / "outputs").iterdir()
    return run


def test_there_is_a_recipe_for_each_group(project: Path) -> None:
    assert {folder.name for folder in (project / "conf").iterdir()} == {
        path.name for path in CONF.iterdir() if path.is_dir()
    }


RECIPES = starting(EXTENDING, start="python -m a3c_exp")


@pytest.mark.parametrize("arguments", RECIPES, ids=lambda words: " ".join(words[2:]))
def test_recipes_run_from_the_command_line_alone(arguments: list[str], inside: Path) -> None:
    assert main(small(arguments)) == 0
    run = only_run(inside)
    assert summary(run)["stop_reason"] == "total_steps"
    ours = {name for name in FILES if any(name == f"conf/{choice.replace('=', '/')}.yaml" for choice in arguments)}
    named = re.findall(r"my_a3c[.:]\S+", (run / "config.yaml").read_text())
    assert len(named) == (6 if "experiment=mine" in arguments else max(len(ours), 1))


def test_the_derivatives_that_a_recipe_writes_out_are_those_of_its_loss(inside: Path) -> None:
    algorithm: Any = importlib.import_module("my_a3c.fast_huber").FastHuberA3C(delta=0.5)
    rng = np.random.default_rng(0)

    def numbers() -> Floats:
        return rng.standard_normal((5, 3)).astype(np.float32)

    mask = (rng.random((5, 3)) < 0.7).astype(np.float32)
    arrays: dict[str, Any] = {name: numbers() for name in ("log_probs", "values", "rewards", "advantages", "targets")}
    batch = BatchArrays(observations=numbers(), actions=numbers(), **arrays, mask=mask)
    outputs = NetworkOutputs(numbers(), numbers(), numbers())
    outputs.values[mask == 0] = np.nan
    gradients, metrics = algorithm.gradient(outputs, batch, 0.0)
    expected, expected_metrics = differentiate(algorithm, outputs, batch, 0.0)
    assert has_closed_form(type(algorithm))
    for name in ("log_probs", "entropy", "values"):
        np.testing.assert_allclose(getattr(gradients, name), getattr(expected, name), atol=1e-6)
    assert metrics == pytest.approx(expected_metrics, abs=1e-6)


def test_the_first_recipe_is_complete(tmp_path: Path) -> None:
    for name in ("my_a3c/residual.py", "conf/network/residual.yaml"):
        write(tmp_path, name)
    done = program(tmp_path, "-m", "a3c_exp", *RECIPES[0], *SMALL, "workers=2", "backend=processes")
    assert done.returncode == 0, done.stderr
    assert summary(only_run(tmp_path))["stop_reason"] == "total_steps"


def test_the_log_says_what_computes_the_network_as_shown(inside: Path) -> None:
    arguments = next(words for words in RECIPES if "network.shared=true" in words)
    assert main(small(arguments)) == 0
    [line] = re.findall(r"kernels: .*", (only_run(inside) / "train.log").read_text())
    assert f"`{line}`" in " ".join(EXTENDING.split())


def test_all_recipes_together_run_in_worker_processes(project: Path) -> None:
    shutil.rmtree(project / "outputs", ignore_errors=True)
    arguments = next(words for words in RECIPES if "experiment=mine" in words)
    done = program(project, "-m", "a3c_exp", *arguments, *SMALL, "workers=2", "backend=processes")
    assert done.returncode == 0, done.stderr
    assert summary(only_run(project))["stop_reason"] == "total_steps"


def test_the_environment_of_the_recipe_is_learned_to_its_reward_threshold(inside: Path) -> None:
    arguments = next(words for words in RECIPES if "env=thermostat" in words)
    assert main([*arguments, "backend=serial", "workers=1", "total_steps=200000", "eval.every=null"]) == 0
    assert summary(only_run(inside))["stop_reason"] == "mean_return"


def test_the_plugins_that_a_run_names_are_not_trusted(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = next(words for words in RECIPES if "env=rooms" in words)
    assert main(small(arguments)) == 0
    run = str(only_run(inside))
    again = "plugins=[my_a3c]"
    assert f"'{again}'" in code(DOCUMENTS["docs/security.md"])
    assert main([f"resume={run}", "total_steps=400"]) == 2
    assert evaluate.main([run, "episodes=1"]) == 2
    with pytest.raises(ConfigError):
        a3c_exp.load(run)
    assert "my_a3c.rooms.Rooms" in capsys.readouterr().err
    assert main([f"resume={run}", "total_steps=400", again]) == 0
    assert evaluate.main([run, "episodes=1", again]) == 0
    assert a3c_exp.load(run, plugins=["my_a3c"]).act(-10.0) in (0, 1)


def test_the_code_of_the_recipes_keeps_the_rules_of_this_project(project: Path) -> None:
    pytest.importorskip("ruff")
    own = "lint.isort.known-first-party=['a3c_exp', 'my_a3c']"
    for verb in (["check"], ["format", "--check"]):
        setting = ["--no-cache", "--config", str(ROOT / "pyproject.toml"), "--config", own]
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *verb, *setting, str(project)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


# Links.


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives to the headings."""
    titles = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", DOCUMENTS[document])
    for link in {link for link in links if "://" not in link}:
        path, _, anchor = link.partition("#")
        target = (ROOT / document).parent / path if path else ROOT / document
        assert target.exists(), link
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), link
