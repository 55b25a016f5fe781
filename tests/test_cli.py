"""The command line: what runs, what is refused with which message, and what is written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from runs import QUICK

import a3c_exp.__main__ as program
from a3c_exp import ConfigError, compose
from a3c_exp.cli.hydra_compose import compose_node, hydra_session, sweep
from a3c_exp.cli.startup import conf_folder
from a3c_exp.common.settings import flatten
from a3c_exp.config.builder import load_experiment
from a3c_exp.config.settings import ELSEWHERE


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    assert program.main([*QUICK, f"hydra.run.dir={folder}"]) == 0
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Bad input: exit code 2, one line that names the key, the value and what is allowed, nothing on disk.

BAD = [
    ("--experimental-rerun config.pickle", "--experimental-rerun = 'config.pickle': is refused"),
    ("resume=x --hydra-help", "resume = 'x': goes with"),
    ("hydra.run.dir=/dev/null/run", "hydra.run.dir = '/dev/null/run': cannot be written"),
    ("env=carpole", "env = 'carpole': is no option:"),
    ("sed=1", "sed = 1: is no setting"),
    ("late=next", "late = 'next': is gone"),
    ("backend=ray backend.placement=pack", "backend.placement = 'pack': is gone"),
    ("algorithm={epochs:9}", "algorithm.epochs = 9: is no setting"),
    ("plugins.x=1", "plugins.x = 1: does not fit"),
    ("+seed=1", "+seed = 1: is a setting"),
    ("~env=lunar", "~env = 'lunar': is not what"),
    ("=3", "command line = '=3': must be key=value"),
    ("-m seed=1,2 hydra.sweep.dir=/proc/nowhere/x", "hydra.sweep.dir = '/proc/nowhere/x': cannot be"),
    ("~network", "network = None: must be given:"),
    ("env.kwargs.size=3", "env.kwargs = {'size': 3}: CartPole-v1 cannot"),
    ("resume=nowhere", "resume = 'nowhere': must be the"),
    ("-m resume=nowhere", "resume = 'nowhere': cannot go with"),
    ("plugins=null experiment=pong algorithm=a3c", "plugins = None: must be a"),
    ("seed=0,1", "seed = '0,1': several values need"),
    ("gamma=${nothing}", "gamma = '${nothing}': cannot be resolved:"),
    ("--faster", "command line = '--faster': unrecognized arguments: --faster"),
    (
        f"--config-dir {conf_folder()} --config-name config",
        f"--config-dir = '{conf_folder()}': has a config.yaml, which ",
    ),
    ("--config-dir other", "--config-dir = 'other': there is no"),
    (
        "algorithm.entropy_coeficient={_target_:a3c_exp.schedules.Linear}",
        "algorithm.entropy_coeficient = {'_target_': 'a3c_exp.schedules.Linear'}: is no",
    ),
    ("-m seed=0,1 hydra.sweep.subdir=run", "hydra.sweep.subdir = 'run': is the folder"),
    ("network@network.encoder=cnn", "network@network.encoder = 'cnn': there is no"),
    ("experiment=a3c_paper_atari_lstm network=cnn", "network = 'cnn': cannot be composed:"),
    ("network=lstm network.encoder=mlp", "network.encoder = 'mlp': must be a"),
    ("env=LunarLander-v3", "env = 'LunarLander-v3': is no option:"),
    ("+experiment=ppo", "+experiment = 'ppo': is a choice"),
    ("env=gym env.id=MiniGrid-Empty-5x5-v0", "env.id = 'MiniGrid-Empty-5x5-v0': no such environment"),
    ("env=lunar network=cnn_small", "network = 'Cnn': must be a"),
    ("resume=", "resume = '': must be one"),
    ("-m seed=range(1,0)", "command line = 'seed=range(1,0)': is a sweep"),
    ("sweep=x hydra.run.dir=y seed=0,1", "hydra.run.dir = 'y': is the folder"),
    ("from=a resume=b", "from = 'a': cannot go with"),
    ("algorithm=A2C", "algorithm = 'A2C': is no option:"),
    (f"seed={'9' * 5000}", "seed = '99999"),
    (f"env.kwargs.x={'{a:' * 150}1{'}' * 150}", "env.kwargs.x ="),
    ("seed=9223372036854775808", "seed = 9223372036854775808: is a whole"),
    ("\x1b[31mred=1", "\\x1b[31mred = '1': cannot be read:"),
    ("env=\x1b[31mred", "env = '\\x1b[31mred':"),
    ("hydra.mode=MULTIRUN gamma=0.9,1.5", "gamma = 1.5: must be a"),
]


@pytest.mark.parametrize(("command", "words"), BAD, ids=[command for command, _ in BAD])
def test_bad_input_is_one_line_and_writes_nothing(
    command: str, words: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert program.main(command.split()) == 2
    out, err = capfd.readouterr()
    assert err.startswith(f"a3c_exp: {words}")
    assert err.count("\n") == 1
    assert out == ""
    assert list(here.iterdir()) == []


def test_an_optional_choice_may_be_null(here: Path) -> None:
    assert compose(["critic_returns=null"])["critic_returns"] is None
    assert compose(["experiment=null"])["critic_returns"] is None
    chosen = ["experiment=parameter_server_cartpole"]
    assert compose(chosen)["critic_returns"] is not None
    assert compose([*chosen, "critic_returns=null"])["critic_returns"] is None
    with hydra_session() as hydra:
        assert sweep(hydra, ["critic_returns=gae,null"]) == [["critic_returns=gae"], ["critic_returns=null"]]


def test_the_full_names_in_hints_are_those_of_settings() -> None:
    for hint in ELSEWHERE.values():
        full, *chosen = hint.split(" with ")
        assert full in dict(flatten(compose(chosen))) or full.startswith(("network=", "python -m")), hint


def test_the_package_of_an_environment_is_guessed_where_it_is_installed(here: Path) -> None:
    """`yaml` stands for a package that registers environments with its own name in theirs."""
    with pytest.raises(ConfigError, match=r"no such environment is registered\. .*: plugins=\[yaml\]$"):
        load_experiment(compose(["env=gym", "env.id=YAML-Empty-5x5-v0", "backend=serial"]))


def test_a_setting_of_a_free_mapping_needs_no_plus(here: Path) -> None:
    assert compose(["env.kwargs.size=3"])["env"]["kwargs"] == {"size": 3}
    assert compose(["optimizer.param_groups={actor:{max_grad_norm:1.0}}"])["optimizer"]["param_groups"] == {
        "actor": {"max_grad_norm": 1.0}
    }


def test_what_hydra_records_is_what_was_typed() -> None:
    typed = ["returns={_target_:a3c_exp.returns.NStep,n:3}", "gamma=0.5", "env=lunar", "+env.kwargs.gravity=-5.0"]
    with hydra_session() as hydra:
        node = compose_node(hydra, [*typed, "hydra.job.chdir=false"])
        jobs = sweep(hydra, ["returns=n_step,n_step_zero", "optimizer.learning_rate=1e-3,1e-2"])
    assert list(node.hydra.overrides.task) == typed
    assert list(node.hydra.overrides.hydra) == ["hydra.job.chdir=false"]
    assert node.hydra.job.override_dirname == ",".join(sorted(typed))
    assert jobs[1] == ["returns=n_step", "optimizer.learning_rate=0.01"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("_target_: a3c_exp.returns.GAE\nlambda_: [1,\n", "returns/mine.yaml, line 3:"),
        ("_target_: a3c_exp.returns.GAE\n  lambda_: 1\n", "returns/mine.yaml, line 2: mapping values are not allowed"),
        ("returns:\n  _target_: a3c_exp.returns.GAE\n", "returns.returns does: a file that sets returns itself begins"),
    ],
)
def test_a_damaged_file_is_named_with_its_line(
    text: str, words: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (here / "mine" / "returns").mkdir(parents=True)
    (here / "mine" / "returns" / "mine.yaml").write_text(text)
    assert program.main(["--config-dir", "mine", "returns=mine"]) == 2
    err = capfd.readouterr().err
    assert words in err
    assert err.count("\n") == 1


def test_a_folder_with_a_run_in_it_is_refused(here: Path, finished: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = content(finished)
    assert program.main([*QUICK, f"hydra.run.dir={finished}"]) == 2
    assert "must be without a run: resume=<folder> continues" in capfd.readouterr().err
    assert content(finished) == before


# Flags that print and run nothing.


def test_help_explains_every_choice_and_every_setting(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--help"]) == 0
    text = capfd.readouterr().out
    groups = [path.name for path in conf_folder().iterdir() if path.is_dir()]
    assert len(groups) == 9
    assert all(f"\n  {group} " in text for group in groups)
    for name, value in compose().items():
        assert f"  {name}:" in text or f"\n  {name} " in text
        if isinstance(value, dict) and "_target_" not in value:
            assert all(f"    {inner}:" in text for inner in value)
    assert "n_step_zero" in text
    assert "resume=" in text
    assert list(here.iterdir()) == []


def test_cfg_job_prints_the_composed_configuration(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--cfg", "job", "env=lunar", "gamma=0.5"]) == 0
    text = capfd.readouterr().out
    assert "gamma: 0.5" in text
    assert "id: LunarLander-v3" in text
    assert "hydra" not in text
    assert list(here.iterdir()) == []


# Runs.


def test_a_run_is_in_a_folder_named_by_time_and_seed(here: Path) -> None:
    assert program.main([*QUICK, "seed=7"]) == 0
    (folder,) = (here / "outputs").iterdir()
    assert folder.name.endswith("_s7")
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["seed"] == 7
    assert summary["stop_reason"] == "total_steps"
    assert (folder / "config.yaml").is_file()
    assert not (folder / ".hydra").exists()


def test_a_sweep_is_a_run_for_each_combination(here: Path, in_process: None) -> None:
    folders = "hydra.sweep.subdir=${hydra.job.num}_${hydra.job.override_dirname}"
    quick = ["hydra.job.config.override_dirname.exclude_keys=" + str([word.partition("=")[0] for word in QUICK])]
    values = ["returns=n_step", "optimizer.learning_rate=1e-3,1e-2"]
    assert program.main([*QUICK, *quick, folders, "-m", *values]) == 0
    summaries = sorted((here / "outputs").glob("*_sweep/*/summary.json"))
    assert [path.parent.name for path in summaries] == [
        "0_optimizer.learning_rate=0.001,returns=n_step",
        "1_optimizer.learning_rate=0.01,returns=n_step",
    ]


def test_a_sweep_may_start_from_a_relative_folder_and_change_to_its_own(
    here: Path, finished: Path, in_process: None
) -> None:
    start = os.path.relpath(finished, here)
    assert program.main([*QUICK, "-m", "seed=1,2", f"init_from={start}", "hydra.job.chdir=true"]) == 0
    assert len(list((here / "outputs").glob("*_sweep/*/summary.json"))) == 2


# Resuming.


def test_a_run_is_resumed_with_a_backend_of_the_users_own(here: Path) -> None:
    (here / "my_conf" / "backend").mkdir(parents=True)
    (here / "my_conf" / "backend" / "mine.yaml").write_text((conf_folder() / "backend" / "threads.yaml").read_text())
    assert program.main([*QUICK, "hydra.run.dir=run"]) == 0
    assert program.main(["--config-dir", "my_conf", "resume=run", "total_steps=128", "backend=mine"]) == 0
    assert json.loads((here / "run" / "summary.json").read_text())["steps"] >= 128


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("gamma=0.5", "gamma = 0.5: cannot change in"),
        ("hydra.run.dir=x", "hydra.run.dir = 'x': cannot change in"),
        ("workers=1,2", "workers = '1,2': cannot go with"),
        ("~backend", "backend = None: cannot go with"),
        ("stop.max_episodes.x=3", "stop.max_episodes = {'x': 3}: must be"),
        ("total_steps=${nothing}", "total_steps = '${nothing}': cannot be resolved:"),
    ],
)
def test_what_a_resumed_run_cannot_change_is_refused(
    change: str, words: str, here: Path, finished: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = content(finished)
    assert program.main([f"resume={finished}", change]) == 2
    assert capfd.readouterr().err.startswith(f"a3c_exp: {words}")
    assert content(finished) == before


# The program itself, as a process.


def test_the_program_ends_with_the_exit_code_and_leaves_no_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "a3c_exp", "gamma=1.5"]
    mark = {"A3C_EXP_TEST": str(tmp_path)}
    environment = {
        **os.environ,
        **mark,
        "PYTHONPATH": os.pathsep.join([str(Path(program.__file__).parents[1]), *sys.path]),
    }
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "a3c_exp: gamma = 1.5: must be a number from 0 to 1\n"
    assert list(tmp_path.iterdir()) == []
    if Path("/proc").is_dir():
        marked = f"A3C_EXP_TEST={tmp_path}".encode()
        assert not [p for p in Path("/proc").glob("[0-9]*/environ") if marked in _read(p).split(b"\0")]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # gone, or somebody else's
        return b""
