"""Hydra as its users know it: a command has the effect that it has on a plain program of Hydra's,
hydra_app.py. docs/hydra.md has the table of them, and what differs on purpose."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import hydra_app
import pytest
import yaml
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from omegaconf import OmegaConf
from refusals import Refuses, refused
from runs import QUICK, summary

import a3c_exp.__main__ as program
from a3c_exp import compose
from a3c_exp.cli.arguments import read_arguments
from a3c_exp.cli.hydra_compose import composed, to_container
from a3c_exp.cli.hydra_overrides import parse, search_path, sweep
from a3c_exp.cli.hydra_session import ConfSource, hydra_session, isolated
from a3c_exp.cli.launch import HYDRAS_LINE
from a3c_exp.cli.startup import conf_folder

SEEN = [*QUICK, "plugins=[hydra_seen]", "callbacks=[{_target_: hydra_seen.Seen}]"]
BASIC = ["hydra/launcher=basic", "hydra/sweeper=basic"]
LOGS = ["hydra/job_logging=default", "hydra/hydra_logging=default"]


def plain(*words: str) -> None:
    """Run the plain program. It knows no word and no setting of this one's."""
    with pytest.MonkeyPatch.context() as patch, isolated():
        patch.setattr(sys, "argv", ["app", *words])
        hydra_app.main()


def ours(*words: str) -> None:
    assert program.main([*words]) == 0


def seen(folder: Path | str) -> dict[str, Any]:
    noted: dict[str, Any] = json.loads(Path(folder, "seen.json").read_text())
    return noted


def select(config: Any, key: str) -> Any:
    return OmegaConf.select(OmegaConf.create(config), key)


@pytest.fixture
def mine(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of a user's own files."""
    monkeypatch.setenv("SEEN", "0.25")
    files = {
        "experiment/sub/simple.yaml": "# @package _global_\ngamma: 0.77\n",
        "experiment/variable.yaml": "# @package _global_\nvars: {rate: 0.25}\n"
        "optimizer: {learning_rate: '${vars.rate}'}\n",
        "experiment/no_package.yaml": "gamma: 0.5\noptimizer: {learning_rate: 0.123}\n",
        "experiment/resolved.yaml": "# @package _global_\nplugins: [hydra_seen]\n"
        "gamma: ${half:1.0}\n",
        "optimizer/slow.yaml": "defaults: [rmsprop, _self_]\ndecay: 0.5\n",
        "main.yaml": "defaults: [config, override env: acrobot, _self_]\ngamma: 0.66\n",
        "many.yaml": "defaults: [config, _self_]\nhydra: {mode: MULTIRUN, sweeper: {params: "
        "{gamma: '0.5,0.25'}, max_batch_size: 1}}\n",
        "other/returns/mine.yaml": "_target_: a3c_exp.returns.GAE\nlambda_: 0.5\n",
        "whole/config.yaml": "gamma: 0.125\n",
    }
    for name, text in files.items():
        (here / "mine" / name).parent.mkdir(parents=True, exist_ok=True)
        (here / "mine" / name).write_text(text)
    return here / "mine"


# What is composed.


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        ("env=lunar", "env.id", "LunarLander-v3"),
        ("returns=n_step returns.n=7", "returns.n", 7),
        ("+returns@critic_returns=vtrace", "critic_returns._target_", "a3c_exp.returns.VTrace"),
        ("network=lstm network@network.encoder=cnn", "network.encoder.padding", "valid"),
        ("experiment=parameter_server_cartpole ~critic_returns", "critic_returns", None),
        ("~stop.window", "stop.window", None),
        ("+env.kwargs.size=3", "env.kwargs.size", 3),
        ("++gamma=.5", "gamma", 0.5),
        ("total_steps=1_000", "total_steps", 1000),
        ("seed=3 total_steps=${seed}", "total_steps", 3),
        ("gamma=${oc.env:SEEN}", "gamma", 0.25),
        ("+vars.size=8 epsilon=${vars.size}", "epsilon", 8),
        ("env=gym env.id=${hydra:job.name}-v0", "env.id", "a3c_exp-v0"),
        ("+env.kwargs.map='a=b,c'", "env.kwargs.map", "a=b,c"),
        ("--config-dir MINE experiment=sub/simple", "gamma", 0.77),
        ("--config-dir MINE experiment=variable", "optimizer.learning_rate", 0.25),
        ("--config-dir MINE optimizer=slow", "optimizer.decay", 0.5),
        ("--config-dir MINE --config-name main", "env.id", "Acrobot-v1"),
        ("--config-path MINE/whole", "gamma", 0.125),
        ("hydra.searchpath=[file://MINE/other] returns=mine", "returns.lambda_", 0.5),
    ],
)
def test_a_command_composes_what_it_does_for_any_program(
    words: str, key: str, value: object, mine: Path
) -> None:
    typed = words.replace("MINE", str(mine)).split()
    flags = read_arguments(typed).flags
    places = flags.config_dir, flags.config_path, flags.config_name, search_path(flags.overrides)
    with hydra_session(*places) as session:
        assert select(to_container(composed(session, flags.overrides).node), key) == value
    if "--config-path" in words:  # no file there has the choice that is noted
        return
    plain(*typed, "hydra.run.dir=plain")
    noted = select(seen("plain")["config"], key)
    assert str(noted) == str(value), "a variable of the environment is a text without a schema"


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ("seed=1,2 gamma=.5,.25", {(1, 0.5), (1, 0.25), (2, 0.5), (2, 0.25)}),
        ("seed=range(0,6,2)", {(0, 0.99), (2, 0.99), (4, 0.99)}),
        ("seed=sort(3,1,2)", {(1, 0.99), (2, 0.99), (3, 0.99)}),
        ("seed=shuffle(3,1,2)", {(1, 0.99), (2, 0.99), (3, 0.99)}),
        ("seed=choice(1,2)", {(1, 0.99), (2, 0.99)}),
        ("returns=glob(n_step*)", {(0, 0.99)}),
    ],
)
def test_a_sweep_has_the_jobs_that_it_has_for_any_program(
    words: str, settings: set[tuple[int, float]], here: Path
) -> None:
    with hydra_session() as session:
        jobs = sweep(parse(words.split(), session.loader))
        configs = [to_container(composed(session, job).node) for job in jobs]
    plain(
        "-m", *BASIC, "hydra.sweep.dir=plain", "hydra.sweep.subdir=${hydra.job.num}", *words.split()
    )
    noted = [seen(folder) for folder in sorted(Path("plain").glob("*/"))]
    assert {(each["config"]["seed"], each["config"]["gamma"]) for each in noted} == settings
    assert {(each["seed"], each["gamma"]) for each in configs} == settings
    assert len(noted) == len(configs)


def test_a_plugin_registers_options_and_resolvers(mine: Path) -> None:
    """A plain program imports it by itself. One that a file names is imported before the file's
    interpolations are resolved."""
    chosen = compose(["plugins=[hydra_seen]", "optimizer=stored", "gamma=${half:1.5}"])
    assert (chosen["optimizer"]["decay"], chosen["gamma"]) == (0.125, 0.75)
    assert compose(["experiment=resolved"], str(mine))["gamma"] == 0.5


def test_files_are_read_as_hydra_reads_them() -> None:
    """The loader in C reads numbers, texts and packages alike."""
    folder = conf_folder()
    in_c = ConfSource("main", f"a3c-exp://{folder}")
    in_python = FileConfigSource("main", f"file://{folder}")
    for path in folder.rglob("*.yaml"):
        name = str(path.relative_to(folder))
        read, expected = in_c.load_config(name), in_python.load_config(name)
        assert OmegaConf.to_yaml(read.config) == OmegaConf.to_yaml(expected.config), name
        assert read.header == expected.header, name


def test_a_file_without_its_package_is_told_so(mine: Path) -> None:
    problem = refused(
        lambda: compose(["experiment=no_package"], str(mine)), "experiment", "no_package"
    )
    assert "# @package _global_" in problem
    problem = refused(lambda: compose(["mine=3"]), "mine", 3)
    assert "vars.mine" in problem


# What a job finds.


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        ("hydra.job.chdir=true", "cwd", "NAME"),
        ("+hydra.job.env_set.SEEN=set", "SEEN", "set"),
        ("hydra.verbose=true", "level", logging.DEBUG),
        ("returns=n_step", "choice", "n_step"),
    ],
)
def test_a_run_finds_what_a_job_of_any_program_does(
    words: str, key: str, value: object, here: Path, root_logger: None
) -> None:
    plain(*words.split(), "hydra.run.dir=plain")
    ours(*SEEN, *words.split(), "hydra.run.dir=run")
    for name in ("plain", "run"):
        assert seen(name)[key] == (name if value == "NAME" else value)


@pytest.fixture
def root_logger() -> Iterator[None]:
    """The root logger's settings, which Hydra changes, are put back."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


def test_a_run_leaves_what_a_job_of_any_program_does(here: Path, root_logger: None) -> None:
    """Files of Hydra's own, and the log of its loggers."""
    words = [*LOGS, "hydra.output_subdir=.hydra", "env=lunar", "seed=3"]
    plain(*words, "hydra.run.dir=plain")
    ours(*SEEN, *words, "hydra.run.dir=run")
    for name, typed in (("plain", words[3:]), ("run", [*SEEN, *words[3:]])):
        assert yaml.safe_load(Path(name, ".hydra", "overrides.yaml").read_text()) == typed
        assert yaml.safe_load(Path(name, ".hydra", "config.yaml").read_text())["seed"] == 3
        assert Path(name, ".hydra", "hydra.yaml").exists()
        assert "said by a job" in Path(name, "a3c_exp.log").read_text()


def test_a_run_writes_beside_no_configuration_of_hydras(here: Path, refuses: Refuses) -> None:
    refuses([*QUICK, "hydra.run.dir=run", "hydra.output_subdir=."], "hydra.output_subdir", ".")
    assert not (here / "run").exists()


@pytest.mark.parametrize("is_sweep", [False, True])
def test_callbacks_of_hydra_are_called_as_for_any_program(
    is_sweep: bool, here: Path, in_process: None
) -> None:
    told = f"{{t: {{_target_: hydra_seen.Told, file: {here}/NAME}}}}"
    jobs = ["-m", "seed=0,1"] if is_sweep else []
    places = ["hydra.sweep.dir=NAME_dir"] if is_sweep else ["hydra.run.dir=NAME_dir"]

    def words(name: str, *more: str) -> list[str]:
        texts = [*jobs, f"+hydra.callbacks={told}", *places, *more]
        return [text.replace("NAME", name) for text in texts]

    numbered = [*BASIC, "hydra.sweep.subdir=${hydra.job.num}"] if is_sweep else []
    plain(*words("plain", *numbered))
    ours(*words("run", *QUICK))
    expected = ["job starts", "job COMPLETED"] * (1 + is_sweep)
    if is_sweep:
        expected = ["multirun starts", *expected, "multirun ends"]
    for name in ("plain", "run"):
        assert Path(name).read_text().splitlines() == expected


FAILING = ["plugins=[faulty]", "algorithm={_target_:faulty.FailingA3C,trigger:trigger}"]
INTERRUPTED = ["plugins=[hydra_seen]", "callbacks=[{_target_: hydra_seen.CtrlC}]"]


@pytest.mark.parametrize(
    ("words", "code", "tracebacks"),
    [(FAILING, 1, 1), (INTERRUPTED, 130, 0)],
    ids=["fails", "is interrupted"],
)
def test_a_run_that_does_not_finish_is_a_job_that_failed(
    words: list[str], code: int, tracebacks: int, here: Path, capfd: Any
) -> None:
    (here / "trigger").touch()
    told = f"+hydra.callbacks={{t: {{_target_: hydra_seen.Told, file: {here}/told}}}}"
    quick = ["backend=threads", *QUICK[1:], "hydra.run.dir=run"]
    assert program.main([*quick, *words, told]) == code
    assert Path("told").read_text().splitlines() == ["job starts", "job FAILED"]
    err = capfd.readouterr().err
    assert err.count("Traceback") == tracebacks, "the worker's own"
    assert HYDRAS_LINE not in err


def test_an_environment_may_compose_by_itself(here: Path) -> None:
    composing = ["plugins=[hydra_seen]", "env=gym", "env.id=hydra_seen:Composing-v0"]
    ours(*QUICK, *composing, "hydra.run.dir=run")
    assert summary(here / "run")["stop_reason"] == "total_steps"


# Sweeps.


@pytest.mark.parametrize("launcher", ["basic", "processes"])
@pytest.mark.parametrize("sweeper", ["basic", "grid"])
def test_sweepers_go_with_launchers(
    launcher: str, sweeper: str, mine: Path, in_process: None
) -> None:
    """The mode, values and sizes of batches are those of a file."""
    choices = [f"hydra/launcher={launcher}", f"hydra/sweeper={sweeper}", "hydra.sweep.dir=runs"]
    sgd = {"_target_": "a3c_exp.optimizers.SGD", "learning_rate": 0.5}
    written_out = "optimizer={_target_: a3c_exp.optimizers.SGD, learning_rate: 0.5}"
    ours("--config-dir", str(mine), "--config-name", "many", *QUICK, *choices, written_out)
    configs = {
        path.parent.name: yaml.safe_load(path.read_text())
        for path in Path("runs").glob("*/config.yaml")
    }
    is_plain = sweeper == launcher == "basic"
    names = ["0", "1"] if is_plain else ["gamma-0.5", "gamma-0.25"]
    gammas = {name: config["gamma"] for name, config in configs.items()}
    assert gammas == dict(zip(names, [0.5, 0.25], strict=True))
    assert all(config["optimizer"] == sgd for config in configs.values())


def test_a_sweeper_of_hydras_gets_the_score_of_each_run(here: Path, in_process: None) -> None:
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    returned: list[Any] = []
    kept = BasicSweeper.sweep

    def keep(self: Any, arguments: list[str]) -> Any:
        found = kept(self, arguments)
        returned.extend(each.return_value for batch in found for each in batch)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BasicSweeper, "sweep", keep)
        for launcher in ("basic", "processes"):
            chosen = [f"hydra/launcher={launcher}", "hydra/sweeper=basic", f"sweep={launcher}"]
            ours(*QUICK, *chosen, "seed=0,1")
    assert len(returned) == 4 and returned[:2] == returned[2:]
    assert all(isinstance(score, float) and score > 0 for score in returned)


def test_its_plugins_refuse_another_program(here: Path) -> None:
    with pytest.raises(SystemExit):
        plain("-m", "seed=0,1", "hydra.sweep.dir=plain")
    assert not list(here.glob("plain/*/"))


def test_its_plugins_and_a_wrong_key_import_nothing_large() -> None:
    """Every program of Hydra's imports the plugins."""
    plugins = "import hydra_plugins.a3c_exp_sweeps; names = {'torch', 'a3c_exp'}"
    refusal = "from a3c_exp.__main__ import main; assert main(['gamm=3']) == 2; names = {'torch'}"
    for code in (plugins, refusal):
        script = f"import sys; {code}; sys.exit(str(names & sys.modules.keys()))"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert done.stderr.splitlines()[-1] == "set()"


# Flags that print.


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        ("--cfg hydra", ["sweep:", "ProcessesLauncher"]),
        ("--cfg all gamma=0.5", ["gamma: 0.5", "hydra:"]),
        ("--cfg job --package returns returns=n_step", ["# @package returns", "NStep"]),
        ("--cfg job --resolve reward_threshold=7", ["mean_return: 7"]),
        ("--info searchpath", ["provider", "main"]),
        ("--info defaults returns=n_step", ["returns/n_step"]),
        ("--info plugins", ["ProcessesLauncher"]),
        ("--hydra-help", ["hydra/launcher: basic"]),
    ],
)
def test_flags_print_what_they_do_for_any_program(
    words: str, texts: list[str], here: Path, capfd: Any, root_logger: None
) -> None:
    printed = []
    for run in (ours, plain):
        capfd.readouterr()
        with suppress(SystemExit):
            run(*words.split())
        printed.append(capfd.readouterr().out.lower())
    for out in printed:
        assert all(text.lower() in out for text in texts)
    assert list(here.iterdir()) == []
