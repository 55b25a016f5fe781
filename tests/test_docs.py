"""The documents are true: every command and every piece of code in them runs, in a small form;
every table is complete.

The recipes of docs/extend*.md are followed as a user follows them: in a copy of examples/, a
package and YAML files of one's own, called from the command line, with no change to this package.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import yaml
from runs import summary

import a3c_exp
from a3c_exp import evaluate
from a3c_exp.__main__ import main
from a3c_exp.backends.ray import Ray
from a3c_exp.cli.hydra_compose import compose_jobs, to_container
from a3c_exp.cli.hydra_session import hydra_session
from a3c_exp.common.signals import ENDING
from a3c_exp.config.builder import load_experiment, load_final
from a3c_exp.config.schema import settings_of
from a3c_exp.ending import FAILED
from a3c_exp.envs.gym import PACKAGES
from a3c_exp.exit_codes import ExitCode, signal_code
from a3c_exp.export import __main__ as export
from a3c_exp.report import __main__ as report
from evidence.bench import settings

ROOT = Path(__file__).parents[1]
CONF = ROOT / "conf"
FOLDERS = (".", "docs", "evidence/notes", "evidence/results")
PATHS = [path for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.md"))]
DOCUMENTS = {path.name: path.read_text(encoding="utf-8") for path in PATHS}
RECORDED = [path.name for path in PATHS if path.parent.name == "results"]
README, DESIGN, INDEX = (DOCUMENTS[f"{name}.md"] for name in ("README", "design", "index"))

# With these a command of the documents runs for a moment.
SMALL = ["total_steps=64", "workers=2", "envs_per_worker=2", "rollout_length=8", "eval.every=null"]
ATARI = {"env=atari", "env=pong", "experiment=ppo_pong_solved", "experiment=impala_pong"}
# Images take milliseconds each, and a game's emulator most of a second to start.
IMAGES = ATARI | {"network=cnn", "network=pixels"}
SMALL_IMAGES = [
    "total_steps=16",
    "workers=1",
    "envs_per_worker=1",
    "env.normalize_observations=[128,64]",
]


def blocks(document: str, language: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", document, re.MULTILINE | re.DOTALL)


def commands(document: str) -> list[list[str]]:
    """Every command that is shown, as the shell splits it."""
    lines = [line for block in blocks(document, "sh") for line in block.splitlines()]
    return [words for words in (shlex.split(line, comments=True) for line in lines) if words]


def rows(document: str, heading: str) -> list[list[str]]:
    """The rows of the table under the heading that contains `heading`, without its head."""
    sections = re.split(r"^## ", DOCUMENTS[f"{document}.md"], flags=re.MULTILINE)
    body = next(part for part in sections if heading in part.splitlines()[0])
    lines = [line for line in body.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def code(cell: str) -> list[str]:
    """The texts between single backticks."""
    return re.findall(r"(?<!`)`([^`\n]+)`", cell)


def small(arguments: list[str]) -> list[str]:
    """A training command in its small form."""
    keys = {argument.partition("=")[0] for argument in arguments}
    if "resume" in keys:
        return [*arguments, "total_steps=300"]
    if "replay" in keys:
        return arguments
    backend = [] if "backend" in keys else ["backend=serial"]
    # a staleness needs more workers than that
    sizes = [size for size in SMALL if not ("backend.staleness" in keys and "workers" in size)]
    return [*arguments, *backend, *sizes, *(SMALL_IMAGES if IMAGES & set(arguments) else [])]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small run with evaluations."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    assert (
        main(
            [
                *small([f"hydra.run.dir={folder}"]),
                "total_steps=200",
                "eval.every=100",
                "eval.episodes=1",
                "lock=true",
                "record=order",
            ]
        )
        == 0
    )
    return folder


@pytest.fixture
def here(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with one run in outputs/, those of examples/ and the file of
    settings.md."""
    shutil.copytree(finished, tmp_path / "outputs" / "run")
    shutil.copytree(ROOT / "examples" / "runs", tmp_path / "examples" / "runs")
    mine = tmp_path / "my_conf" / "experiment" / "mine.yaml"
    mine.parent.mkdir(parents=True)
    [shown] = blocks(DOCUMENTS["settings.md"], "yaml")
    mine.write_text(shown, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


# Commands. Each kind has a function that runs one in a folder with a run in outputs/.


def train(arguments: list[str], here: Path) -> None:
    """Commands that inform, or name a run or a folder of options, are run. Of the others, and of
    the first run of a sweep, the environment and the network are made: that every choice trains is
    tested with the configurations, and sweeps by themselves."""
    if ATARI & set(arguments):
        pytest.importorskip("ale_py", reason="Atari games: pip install 'a3c-exp[atari]'")
    if {"env=mujoco", "experiment=ppo_mujoco"} & set(arguments):
        pytest.importorskip("mujoco", reason="robots: pip install 'a3c-exp[mujoco]'")
    if any(argument.startswith("env=doom") for argument in arguments):
        pytest.importorskip("vizdoom", reason="Doom: pip install 'a3c-exp[doom]'")
    for name in ("wandb", "mlflow", "video"):
        if any("callbacks" in argument and name in argument.lower() for argument in arguments):
            pytest.importorskip({"video": "moviepy"}.get(name, name))
    keys = {argument.partition("=")[0] for argument in arguments}
    informs = bool({"--help", "--cfg", "--info"} & keys)
    runs = {"resume", "from", "replay", "init_from", "existing", "--config-dir"} & keys
    if informs or runs:
        assert main(arguments if informs else small(arguments)) == 0
        new = [
            path.parent
            for path in (here / "outputs").rglob("summary.json")
            if path.parent.name != "run"
        ]
        assert len(new) == (0 if informs or "resume" in keys else 1)
        assert all(summary(folder)["stop_reason"] == "total_steps" for folder in new)
    else:
        given = "env.normalize_observations" in keys or not IMAGES & {*arguments}
        # to measure images takes seconds
        known = [] if given else ["env.normalize_observations=[128,64]"]
        load_experiment(a3c_exp.compose([*first_run(arguments), *known]))


def first_run(arguments: list[str]) -> list[str]:
    """The settings of a run, or of the first run of a sweep."""
    settings = [
        word for word in arguments if not word.startswith(("-m", "jobs=", "search=", "sweep="))
    ]
    settings = [re.sub(r"(?:loguniform|range)\(([^,]*),.*\)", r"\1", word) for word in settings]
    return (
        [re.sub(r",(?![^\[]*\]).*", "", word) for word in settings]
        if settings != arguments
        else arguments
    )


def evaluates(arguments: list[str], here: Path) -> None:
    if "video=true" in arguments:
        pytest.importorskip("moviepy")
    assert evaluate.main([*arguments, "episodes=2"]) == 0
    assert len(list((here / "outputs/run/videos").glob("*.mp4"))) == ("video=true" in arguments)


def exports(arguments: list[str], here: Path) -> None:
    pytest.importorskip("onnx")
    assert export.main([*arguments, "steps=40"]) == 0
    [file] = here.rglob("policy.*")
    if file.suffix == ".onnx":
        exec(EXPORTED_SCRIPT, {})


def measures(arguments: list[str], here: Path) -> None:
    """What is printed is tested with the backend."""
    words = [word for word in arguments if not word.startswith("backend")]
    load_experiment(a3c_exp.compose([*words, "backend=simulated"]))


def reports(arguments: list[str], here: Path) -> None:
    assert report.main(arguments) == 0
    files = (here / "outputs/report").iterdir()
    written = [re.sub(r"\.(pdf|svg)$", ".png", path.name) for path in files]
    patterns = [pattern for row in rows("compare", "Files of a report") for pattern in code(row[0])]
    assert [
        name for name in written if not any(fnmatch(name, pattern) for pattern in patterns)
    ] == []
    assert [
        pattern for pattern in patterns if not any(fnmatch(name, pattern) for name in written)
    ] == []


def makes(arguments: list[str], here: Path) -> None:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    # Not the settings of a make that may be running these tests.
    foreign = ("MAKE", "MFLAGS", "ARGS", "ENV")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(foreign)
    }
    call = ["make", "-n", f"PYTHON={sys.executable}", *arguments]
    done = subprocess.run(call, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    settings = [shlex.split(word.partition("=")[2]) for word in arguments if "=" in word]
    assert [word for words in settings for word in words if word not in done.stdout] == []
    if arguments[0] == "train":
        load_final(a3c_exp.compose([word for words in settings for word in words]))


def installs(arguments: list[str], here: Path) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert arguments[:3] == ["-c", "constraints.txt", "-e"]
    text = "\n".join(DOCUMENTS.values())
    named = re.findall(r"pip install .*?-e '\.\[([\w,]+)\]'|\(extra `?(\w+)", text)
    assert {name for pair in named for names in pair for name in names.split(",") if name} <= set(
        extras
    )
    assert {code(row[0])[0] for row in rows("install", "Install")} == set(extras)


HOW: dict[str, Callable[[list[str], Path], None]] = {
    "python -m a3c_exp": train,
    "python -m a3c_exp.evaluate": evaluates,
    "python -m a3c_exp.export": exports,
    "python -m a3c_exp.measure": measures,
    "python -m a3c_exp.report": reports,
    "a3c-exp": train,
    "make": makes,
    "pip install": installs,
    "tensorboard": lambda arguments, here: None,
    "python3 -m venv": lambda arguments, here: None,
    "source .venv/bin/activate": lambda arguments, here: None,
}


def run_shown(words: list[str], here: Path) -> None:
    """Run a command with the run in outputs/ in the place of the reader's."""
    words = [word.replace("<run>", "run").replace("/<sweep>", "") for word in words]
    if words[:2] == ["python", "-m"] and words[2].startswith("evidence."):
        shown = io.StringIO()
        module = importlib.import_module(words[2])
        if hasattr(module, "__path__"):
            module = importlib.import_module(f"{words[2]}.__main__")
        # that it runs is tested by its own tests
        with redirect_stdout(shown), pytest.raises(SystemExit):
            module.main(["--help"])
        assert [
            word for word in words[3:] if word.startswith("--") and word not in shown.getvalue()
        ] == []
        return None
    starts = [kind for kind in HOW if words[: len(kind.split())] == kind.split()]
    assert starts, f"no kind of command that is tested here: {shlex.join(words)}"
    return HOW[starts[0]](words[len(starts[0].split()) :], here)


def distinct(*names: str) -> list[list[str]]:
    found = [tuple(words) for name in names for words in commands(DOCUMENTS[name])]
    return [list(words) for words in dict.fromkeys(found)]


# Commands of cluster*.md need a cluster, those of results and tuning*.md hours, those of recipes
# examples/, those of environments.md other packages. Each kind has a test.
EXTENDING = [name for name in DOCUMENTS if name.startswith("extend") or name == "research.md"]
LATER = (
    "cluster.md",
    "cluster_setup.md",
    "RESULTS.md",
    *RECORDED,
    "tuning.md",
    "tuning_images.md",
    "environments.md",
    *EXTENDING,
)


@pytest.mark.parametrize(
    "words", distinct(*(name for name in DOCUMENTS if name not in LATER)), ids=shlex.join
)
def test_a_command_runs(words: list[str], here: Path) -> None:
    run_shown(words, here)


def test_commands_of_the_notes_on_tuning_are_of_runs_that_can_be_made() -> None:
    """Those of results are of entries of the study, which have been run."""
    shown = [
        words
        for words in distinct("tuning.md", "tuning_images.md")
        if words[:3] == ["python", "-m", "a3c_exp"]
    ]
    jobs = [[*first_run(["-m", *words[3:]]), "seed=1"] for words in shown]
    with hydra_session() as hydra:
        for whole in compose_jobs(hydra, jobs):
            load_final(to_container(whole.node))
    assert len(jobs) >= 8


def test_commands_for_environments_of_other_packages_have_settings_that_exist() -> None:
    """They are made where the package is installed."""
    tried = [shlex.split(code(row[1])[0]) for row in rows("environments", "What was tried")]
    shown = [
        words[3:]
        for words in distinct("environments.md")
        if words[:3] == ["python", "-m", "a3c_exp"]
    ]
    assert ["env=gym", *tried[0]] in shown and len(tried) >= 9
    for words in shown:
        composed = a3c_exp.compose([word for word in words if not word.startswith("plugins=")])
        start = next(filter(composed["env"]["id"].startswith, PACKAGES), None)
        if start is not None and importlib.util.find_spec(PACKAGES[start][0].partition(".")[0]):
            load_experiment(composed)
    for plugin, *words in tried:
        package = re.fullmatch(r"plugins=\[(\w+)[\w.]*\]", plugin)
        composed = a3c_exp.compose(["env=gym", *words])
        if package is not None and importlib.util.find_spec(package[1]) is not None:
            load_experiment({**composed, "plugins": [plugin[len("plugins=[") : -1]]})
        assert package is not None and composed["env"]["id"]


def test_what_is_shown_for_clusters_can_be_read_and_made() -> None:
    text = DOCUMENTS["cluster.md"] + DOCUMENTS["cluster_setup.md"]
    for arguments in re.findall(r"python -m a3c_exp ([^'\n#]+)", text):
        words = shlex.split(re.sub(r"\$\(\(.*\)\)", "2", arguments))
        composed = a3c_exp.compose([word for word in words if not word.startswith("hydra.")])
        assert isinstance(load_final(composed)[1].backend, Ray)
    [job] = map(yaml.safe_load, blocks(text, "yaml"))
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}
    assert f"\nray=={cluster['rayVersion']}\n" in (ROOT / "constraints.txt").read_text()


@pytest.mark.parametrize(
    ("code", "then"), [(0, ""), (75, "scontrol requeue 7"), (143, "sleep 600"), (137, "")]
)
def test_a_task_of_the_job_array_trains_its_run_and_is_queued_again(
    code: int, then: str, tmp_path: Path
) -> None:
    """By the script after a time limit, by Slurm after a preemption, if the script waits for
    that."""
    (tmp_path / "a3c").mkdir()
    for name in ("srun", "scontrol", "sleep"):
        (tmp_path / name).write_text(
            f'#!/bin/bash\necho {name} "$@"\n{f"exit {code}" if name == "srun" else ""}\n'
        )
        (tmp_path / name).chmod(0o755)
    [script] = blocks(DOCUMENTS["batch.md"], "bash")
    slurm = {
        "SLURM_ARRAY_TASK_ID": "28",
        "SLURM_JOB_ID": "7",
        "SCRATCH": "/scratch",
        "HOME": str(tmp_path),
    }
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], env=slurm | path, capture_output=True, text=True)
    step, *others = done.stdout.splitlines()
    assert (done.returncode, " ".join(others), done.stderr) == (code, then, "")
    words = step.partition("python -m a3c_exp ")[2].split()
    composed = a3c_exp.compose(
        [word for word in words if not word.startswith(("hydra.", "existing="))]
    )
    assert (composed["seed"], composed["optimizer"]["learning_rate"]) == (3, 3e-3)
    assert words[-2:] == ["hydra.run.dir=/scratch/lunar/rate-3e-3_seed-3", "existing=resume"]


# From Python.


def small_python(block: str) -> str:
    """A block of Python whose runs are small."""
    settings = ", ".join(f'"{setting}"' for setting in SMALL)
    return re.sub(r"a3c_exp\.(train|compose)\(\[", rf"a3c_exp.\1([{settings}, ", block)


[EXPORTED_SCRIPT] = [
    block for block in blocks(DOCUMENTS["onnx.md"], "python") if "onnxruntime" in block
]
OTHERS = [name for name in DOCUMENTS if name not in ("CONTRIBUTING.md", *EXTENDING)]
SCRIPTS = dict.fromkeys(script for name in OTHERS for script in blocks(DOCUMENTS[name], "python"))
del SCRIPTS[EXPORTED_SCRIPT]


@pytest.mark.parametrize("script", SCRIPTS, ids=range(len(SCRIPTS)))
def test_scripts_run(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(small_python(script), names)
    run = names["run"]
    assert run.summary["stop_reason"] == "total_steps"
    if "config" in names:
        saved = yaml.safe_load((tmp_path / run.folder / "config.yaml").read_text())
        assert (saved["env"]["id"], saved["gamma"]) == ("Acrobot-v1", 0.98)


@pytest.mark.slow
def test_the_notebook_trains_compares_and_plays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cells, in their order, in an empty folder."""
    pyplot = pytest.importorskip(
        "matplotlib.pyplot", reason="plots the curves: pip install -e '.[report]'"
    )
    pyplot.switch_backend("agg")
    cells = json.loads((ROOT / "docs/first_run.ipynb").read_text(encoding="utf-8"))["cells"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    names: dict[str, Any] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            assert not cell["outputs"], "kept without outputs"
            exec("".join(cell["source"]), names)
    pyplot.close("all")
    assert names["run"].summary["stop_reason"] == "mean_return"
    assert {name: len(counts) for name, counts in names["solved"].items()} == {"A3C": 3, "Huber": 3}
    assert names["total"] > 400


# The tables.


GROUPS = sorted(path.name for path in CONF.iterdir() if path.is_dir())


def options(group: str) -> set[str]:
    return {file.stem for file in (CONF / group).glob("*.yaml")}


def defaults(document: str, heading: str) -> dict[str, Any]:
    """The settings of a table with their defaults."""
    return {
        code(row[0])[0]: yaml.safe_load(code(row[1])[0])
        for row in rows(document, heading)
        if code(row[0])
    }


def test_the_table_of_groups_has_every_group_with_its_default() -> None:
    config = yaml.safe_load((CONF / "config.yaml").read_text())
    chosen = [entry for entry in config["defaults"] if isinstance(entry, dict)]
    groups = {
        name: value
        for entry in chosen
        for name, value in entry.items()
        if not name.startswith("override")
    }
    assert defaults("settings", "How a configuration is composed") == groups
    assert sorted([*groups, "callback"]) == GROUPS


def components() -> Iterator[tuple[Path, str, str]]:
    """Each file that lists all settings of a class, the prefix of their keys, and the class."""
    yield CONF / "config.yaml", "", settings.WHOLE_RUN
    for path in sorted(CONF.glob("*/*.yaml")):
        node = yaml.safe_load(path.read_text(encoding="utf-8"))
        target = node.get(path.parent.name, node).get("_target_")
        if target is not None and path.parent.name != "experiment":
            yield path, f"{path.parent.name}.", target


# What docs/options.md says in words: of the whole run the groups, of every callback, and of a
# network's parts.
IN_WORDS = {*GROUPS, "callback.on_error", "network.encoder"}


@pytest.mark.parametrize(
    ("path", "prefix", "target"), list(components()), ids=lambda value: getattr(value, "stem", "")
)
def test_the_tables_of_the_site_have_every_setting_of_the_schema(
    path: Path, prefix: str, target: str
) -> None:
    head, found = settings.read(path)
    meanings = {each.key: each.meaning for each in found}
    wanted = {prefix + name for name in settings_of(target)} - IN_WORDS
    wanted = {key for key in wanted if not key.startswith("network.critic_")}
    assert head
    assert [
        key for key in wanted if not any(f"{name}.".startswith(f"{key}.") for name in meanings)
    ] == []
    assert [key for key in wanted & meanings.keys() if not meanings[key]] == []


def test_tables_of_choices_have_every_one_once() -> None:
    assert sorted(name for row in rows("settings", "Presets") for name in code(row[0])) == sorted(
        options("experiment")
    )
    assert sorted(code(row[0])[0] for row in rows("backends", "Which one")) == sorted(
        options("backend")
    )


def test_the_table_of_stop_reasons_has_every_failure() -> None:
    assert [code(row[0])[0] for row in rows("failures", "Stop reasons")] == list(FAILED)
    assert set(FAILED) <= set(
        code(next(row for row in rows("exit_codes", "Codes") if row[0] == "1")[1])
    )


def test_the_table_of_exit_codes_has_each_one_once() -> None:
    table = sorted(int(row[0]) for row in rows("exit_codes", "Codes"))
    assert table == sorted({*ExitCode, *map(signal_code, ENDING)})


def test_the_table_of_atari_names_settings_that_exist() -> None:
    settings = yaml.safe_load((CONF / "env/atari.yaml").read_text())["env"]
    named = [name for row in rows("atari", "Settings of Atari") for name in code(row[2])]
    assert named
    assert {name.removeprefix("env.") for name in named} <= set(settings)


def test_a_run_leaves_what_the_table_says(finished: Path) -> None:
    table = {code(row[0])[0]: code(row[1]) for row in rows("run_folder", "Files")}
    left = {str(path.relative_to(finished)) for path in finished.rglob("*") if path.is_file()}
    assert [name for name in left if not any(fnmatch(name, pattern) for pattern in table)] == []
    others = {pattern for pattern in table if not any(fnmatch(name, pattern) for name in left)}
    assert others == {
        "checkpoints/step_*.ckpt",
        "checkpoints/memory_*.npz",
        "videos/",
        "trace.json",
        "policy.onnx",
        "report/*",
    }
    assert set(table["summary.json"]) <= set(summary(finished))


def test_the_map_of_the_design_has_every_module() -> None:
    """Packages that only re-export aside."""
    package = ROOT / "a3c_exp"
    lines = re.findall(r"^- (`.*?`): ", DESIGN.partition("## Questions")[0], re.MULTILINE)
    named = [name for line in lines for name in code(line)]
    modules = {str(path.relative_to(package)) for path in package.rglob("*.py")}
    without_code = {name for name in modules if name.endswith("/__init__.py") and name not in named}
    assert sorted(named) == sorted(modules - without_code)
    assert all(
        not re.search(r"^(class|def) ", (package / name).read_text(), re.MULTILINE)
        for name in without_code
    )


def test_the_answers_and_the_diagrams_of_the_design_name_places_that_exist() -> None:
    """Files, and what is in them: `Actor._next_values` in `core/rollout.py`."""
    package = ROOT / "a3c_exp"
    answers = rows("design", "Questions")
    assert len(answers) >= 15
    for question, _, places in answers:
        files = [name for name in code(places) if name.endswith(".py")]
        text = "".join((package / name).read_text() for name in files)
        names = [part for name in code(places) if name not in files for part in name.split(".")]
        assert files, question
        assert [name for name in names if not re.search(rf"(def|class) {name}\b", text)] == [], (
            question
        )
    drawn = {
        name for diagram in blocks(DESIGN, "mermaid") for name in re.findall(r"[\w/]+\.py", diagram)
    }
    assert drawn
    assert [
        name
        for name in drawn
        if not any((package / at / name).is_file() for at in ("", "backends/ga3c"))
    ] == []


# Figures.


def figures(text: str) -> set[str]:
    """Numbers with a decimal point or a thousands separator, as they are written."""
    return set(re.findall(r"-?\d+(?:,\d{3})+(?:\.\d+)?|-?\d+\.\d+", text))


def test_figures_are_those_of_the_results() -> None:
    sections = re.split(r"^## ", README, flags=re.MULTILINE)
    shown = "".join(
        part for part in sections if part.startswith(("Results", "Beside other systems"))
    )
    found = figures(re.sub(r"```.*?```", "", shown, flags=re.DOTALL))
    measured = (ROOT / "evidence/bench").glob("*.md")
    known = set[str]().union(*(figures(path.read_text(encoding="utf-8")) for path in measured))
    known = known.union(*(figures(DOCUMENTS[name]) for name in RECORDED))
    assert found
    assert found <= known | {"200,000"}, "but for the zoo's steps: evidence/study/peers.py"


def test_the_picture_of_the_readme_is_drawn_by_its_command(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="draws the picture: pip install -e '.[bench]'")
    assert "python -m evidence.study.picture" in README
    importlib.import_module("evidence.study.picture").draw(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


# Extensions.


def named_blocks(document: str) -> dict[str, str]:
    """The blocks of Python and YAML, by the file that a comment in each names."""
    named = [
        (re.search(r"^# (\S+\.(?:py|yaml))$", block, re.MULTILINE), block)
        for language in ("python", "yaml")
        for block in blocks(document, language)
    ]
    return {name[1]: block for name, block in named if name is not None}


SHOWN = {name: text for page in EXTENDING for name, text in named_blocks(DOCUMENTS[page]).items()}
EXAMPLES = ROOT / "examples"
FILES = {
    str(path.relative_to(EXAMPLES)): path
    for kind in ("py", "yaml")
    for path in EXAMPLES.rglob(f"*.{kind}")
}
RECIPES = [words[3:] for words in distinct(*EXTENDING) if words[:3] == ["python", "-m", "a3c_exp"]]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """my_project, as a reader has it who has copied examples/."""
    return Path(shutil.copytree(EXAMPLES, tmp_path_factory.mktemp("my_project") / "my_project"))


def test_code_that_a_page_shows_is_that_of_the_examples() -> None:
    assert {"my_a3c/residual.py", "my_a3c/huber.py", "my_a3c/thermostat.py"} <= set(SHOWN)
    for name, text in SHOWN.items():
        assert text.replace(f"# {name}\n", "", 1) == FILES[name].read_text(encoding="utf-8"), name


@pytest.fixture
def inside(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The project as the current folder, on the module path as `python -m` has it there, without
    earlier outputs."""
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


def test_there_is_a_recipe_for_each_group() -> None:
    assert {name.split("/")[1] for name in FILES if name.startswith("conf/")} == set(GROUPS)


@pytest.mark.parametrize("arguments", RECIPES, ids=" ".join)
def test_recipes_run_from_the_command_line_alone(arguments: list[str], inside: Path) -> None:
    assert main(small(first_run(arguments))) == 0
    run = only_run(inside)
    assert summary(run)["stop_reason"] == "total_steps"
    assert re.search(r"(my_a3c[.:]|torch\.optim\.)\S+", (run / "config.yaml").read_text())
    if "memory=episodes" in arguments:
        assert "train/gain" in (run / "metrics.csv").read_text()
    if "network.shared=true" in arguments:
        [line] = re.findall(r"kernels: .*", (run / "train.log").read_text())
        assert f"`{line}`" in " ".join(DOCUMENTS["extend_network_more.md"].split())


@pytest.mark.slow
def test_the_environment_of_the_recipe_is_learned_to_its_reward_threshold(inside: Path) -> None:
    quick = ["backend=serial", "workers=1", "total_steps=200000", "eval.every=null"]
    assert main([*next(words for words in RECIPES if "env=thermostat" in words), *quick]) == 0
    assert summary(only_run(inside))["stop_reason"] == "mean_return"


# Links.


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives to the headings."""
    titles = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", PATHS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", DOCUMENTS[document.name])
    for link in {link for link in links if "://" not in link}:
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        assert target.exists(), link
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), link


def test_the_contents_lead_to_every_document() -> None:
    links = re.findall(r"\]\(([^)#\s]+)\)", INDEX)
    reached = {(ROOT / "docs" / link).resolve() for link in links if "://" not in link}
    fronts = (ROOT / "README.md", ROOT / "docs/index.md")
    assert [
        path.name for path in PATHS if path not in fronts and path.resolve() not in reached
    ] == []
    assert "(docs/index.md)" in README


def linked_from(page: Path) -> set[Path]:
    """The documents that a page links to."""
    links = re.findall(r"\]\(([^)#:\s]+\.md)[)#]", page.read_text(encoding="utf-8"))
    return {(page.parent / link).resolve() for link in links}


def test_the_site_has_the_documents_that_its_contents_and_its_pages_link_to() -> None:
    patterns = runpy.run_path(str(ROOT / "docs/conf.py"))["include_patterns"]
    pages = {path for pattern in patterns for path in ROOT.glob(pattern)}
    contents = ROOT / "docs/index.md"
    assert linked_from(contents) | {contents} == pages
    assert set().union(*map(linked_from, pages)) - pages == set()


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    for name in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(name, reason="the site: pip install -e '.[docs]'")
    call = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-c",
        "docs",
        ".",
        str(tmp_path / "site"),
    ]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "lock-free" in (tmp_path / "site/docs/paper.html").read_text(encoding="utf-8")
    assert "Train as" in (tmp_path / "site/docs/api.html").read_text(encoding="utf-8"), "docstrings"
