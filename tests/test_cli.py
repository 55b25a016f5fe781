"""The command line: what runs, what is refused with which message, and what is written."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from runs import QUICK

import a3c_exp.__main__ as program
from a3c_exp import ConfigError, compose
from a3c_exp.cli.hydra_compose import compose_node, hydra_session, sweep
from a3c_exp.cli.startup import conf_folder, importing
from a3c_exp.common.settings import flatten
from a3c_exp.config.builder import load_experiment
from a3c_exp.config.settings import ELSEWHERE, ONLY_WITH


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
    ("env=carpole", "env = 'carpole': is no option: did you mean 'cartpole' or 'cartpole_memory'? Allowed: acrobot, "),
    ("returns=gea", "returns = 'gea': is no option: did you mean 'gae'? Allowed: "),
    ("critic_returns=gea", "critic_returns = 'gea': is no option: "),
    ("experiment=nope", "experiment = 'nope': is no option: "),
    ("sed=1", "sed = 1: is no setting of Experiment: did you mean 'seed'? Allowed: "),
    ("returns.m=3", "returns.m = 3: is no setting of GAE: Allowed: lambda_"),
    (
        "stop.max_episode=3",
        "stop.max_episode = 3: is no setting of Stop: did you mean 'max_episodes' or 'worker_ep",
    ),
    ("eval.evry=3", "eval.evry = 3: is no setting of Eval: did you mean 'every'? Allowed: "),
    ("optimzer.learning_rate=1", "optimzer = {'learning_rate': 1}: is no setting of Experiment: did you mean 'optimiz"),
    ("seed.x=1", "seed = {'x': 1}: must be a whole number"),
    ("algorithm={epochs:9}", "algorithm.epochs = 9: is no setting of A3C: "),
    ("experiment.x=1", "experiment = {'x': 1}: is no setting of Experiment: "),
    ("plugins.x=1", "plugins.x = 1: does not fit what it would replace: "),
    ("+colour=red", "colour = 'red': is no setting of Experiment: Allowed: "),
    ("+seed=1", "+seed = 1: is a setting that is there already: seed=1, without +"),
    ("~colour", "colour = None: is no setting that ~ could take away"),
    ("~env=lunar", "~env = 'lunar': is not what has been chosen"),
    ("=3", "command line = '=3': must be key=value"),
    ("optimizer.param_groups=[1]", "optimizer.param_groups = [1]: must be a mapping of names"),
    ("-m seed=1,2 hydra.sweep.dir=/proc/nowhere/x", "hydra.sweep.dir = '/proc/nowhere/x': cannot be"),
    ("hydra.run.dri=x", "hydra.run.dri = 'x': is no setting of Hydra"),
    ("optimizer.param_groups={nose:{max_grad_norm:1.0}}", "optimizer.param_groups = 'nose': "),
    ("optimizer.param_groups.actor.rate=1", "optimizer.param_groups.actor.rate = 1: is no setting of ParamGroup: "),
    ("~network", "network = None: must be given: a mapping that names a Network by _target_"),
    ("seed=true", "seed = True: must be a whole number"),
    ("gamma=1.5", "gamma = 1.5: must be a number from 0 to 1"),
    ("workers=0", "workers = 0: must be a whole number from 1 to 65536, or 'auto'"),
    ("envs_per_worker=1e12", "envs_per_worker = 1000000000000: must be a whole number from 1 to 65536"),
    ("rollout_length=episode", "envs_per_worker = 16: must be 1 where rollout_length=episode"),
    ("update=sync optimizer_state=per_worker", "optimizer_state = 'per_worker': must be 'shared' where update=sync"),
    ("returns=n_step returns.n=0", "returns.n = 0: must be a whole number >= 1"),
    ("+optimizer.param_groups.nose.learning_rate=1.0", "optimizer.param_groups = 'nose': "),
    ("env=gym", "env.id = None: must be given: text"),
    (
        "env=gym env.id=CartPol-v1",
        "env.id = 'CartPol-v1': no such environment is registered: did you mean 'CartPol",
    ),
    ("env.kwargs.size=3", "env.kwargs = {'size': 3}: CartPole-v1 cannot be made: "),
    ("+env.kwargs.size=3", "env.kwargs = {'size': 3}: CartPole-v1 cannot be made: "),
    ("env=gym env.id=Blackjack-v1", "env.id = 'Blackjack-v1': "),
    ("env=lunar env.vectorized=true", "env.vectorized = True: must be false"),
    ("init_from=/nowhere", "init_from = '/nowhere': must be the folder of a run: it has no readable config.yaml"),
    ("resume=nowhere", "resume = 'nowhere': must be the folder of a run: it has no readable config.yaml"),
    ("-m resume=nowhere", "resume = 'nowhere': cannot go with -m"),
    ("critic_returns=vtrace", "critic_returns = 'VTrace': must go with returns that correct for lag as well (vtrace)"),
    ("plugins=[no_such_package]", "plugins = 'no_such_package': cannot be imported: "),
    ("hydra/launcher=null", "hydra/launcher = None: must be one of basic"),
    ("plugins=null experiment=pong algorithm=a3c", "plugins = None: must be a list"),
    ("seed", "command line = 'seed': must be key=value"),
    ("seed=[", "seed = '[': cannot be read: "),
    ("seed=0,1", "seed = '0,1': several values need -m"),
    ("gamma=${nothing}", "gamma = '${nothing}': cannot be resolved: "),
    ("--cfg job sed=1", "sed = 1: is no setting of Experiment: "),
    ("--info defaults sed=1", "sed = 1: is no setting of Experiment: "),
    ("--faster", "command line = '--faster': unrecognized arguments: --faster"),
    ("-sc install=bash", "--shell-completion = True: is refused: "),
    ("--config-name other", "--config-name = 'other': is no configuration: Allowed: config"),
    (
        f"--config-dir {conf_folder()} --config-name config",
        f"--config-dir = '{conf_folder()}': has a config.yaml, which ",
    ),
    ("--config-dir other", "--config-dir = 'other': there is no such folder"),
    ("--config-path other", "--config-path = 'other': there is no such folder"),
    ("-m seed=0,1 gamma=0.9,1.5", "gamma = 1.5: must be a number from 0 to 1"),  # the last job of four
    ("-m env=cartpole,lunr", "env = 'lunr': is no option: did you mean 'lunar'? Allowed: "),
    ("-m sed=0,1", "sed = 0: is no setting of Experiment: did you mean 'seed'?"),
    (
        "algorithm.entropy_coeficient={_target_:a3c_exp.schedules.Linear}",
        "algorithm.entropy_coeficient = {'_target_': 'a3c_exp.schedules.Linear'}: is no setting of A3C: "
        "did you mean 'entropy_coefficient'",
    ),
    (
        "-m algorithm.entropy_coeficient={_target_:a3c_exp.schedules.Linear} seed=0,1",
        "algorithm.entropy_coeficient = {'_target_': 'a3c_exp.schedules.Linear'}: is no setting of A3C: "
        "did you mean 'entropy_coefficient'",
    ),
    (
        "-m seed=0,1 hydra.sweep.subdir=run",
        "hydra.sweep.subdir = 'run': is the folder of two runs: add ${hydra.job.num}",
    ),
    ("network@network.encoder=cnn", "network@network.encoder = 'cnn': there is no network.encoder to choose one for"),
    ("experiment=a3c_paper_atari_lstm network=cnn", "network = 'cnn': cannot be composed: In 'experiment/a3c_paper"),
    (
        "network=lstm network.encoder=mlp",
        "network.encoder = 'mlp': must be a mapping that names a Network by _target_; ",
    ),
    # What newcomers from other libraries type.
    ("env=LunarLander-v3", "env = 'LunarLander-v3': is no option: it is env=lunar\n"),
    ("env=CartPole-v1", "env = 'CartPole-v1': is no option: it is env=cartpole"),
    ("-m env=cartpole,BipedalWalker-v3", "env = 'BipedalWalker-v3': is no option: it is env=bipedal\n"),
    (
        "env=FrozenLake-v1",
        "env = 'FrozenLake-v1': is no option: env=gym env.id=FrozenLake-v1 takes any environment of gymnasium. Allowed",
    ),
    ("learning_rate=1e-3", "learning_rate = 0.001: is no setting of Experiment: it is optimizer.learning_rate here\n"),
    ("lr=1e-3", "lr = 0.001: is no setting of Experiment: it is optimizer.learning_rate here\n"),
    ("optimizer.lr=1e-3", "optimizer.lr = 0.001: is no setting of RMSProp: it is optimizer.learning_rate here\n"),
    ("n_steps=5", "n_steps = 5: is no setting of Experiment: it is rollout_length here\n"),
    ("n_envs=4", "n_envs = 4: is no setting of Experiment: it is envs_per_worker here\n"),
    ("ent_coef=0.0", "ent_coef = 0.0: is no setting of Experiment: it is algorithm.entropy_coefficient here\n"),
    ("vf_coef=0.5", "vf_coef = 0.5: is no setting of Experiment: it is algorithm.value_coefficient here\n"),
    ("algorithm.vf_coef=1", "algorithm.vf_coef = 1: is no setting of A3C: it is algorithm.value_coefficient here\n"),
    ("device=cuda", "device = 'cuda': is no setting of Experiment: it is backend.device here, with backend=ga3c\n"),
    ("network=LSTM", "network = 'LSTM': is no option: did you mean 'lstm'? Allowed: "),
    ("experiment=PPO", "experiment = 'PPO': is no option: did you mean 'ppo'? Allowed: "),
    ("+experiment=ppo", "+experiment = 'ppo': is a choice that every run has: experiment=ppo, without +\n"),
    (
        "render=human",
        "render = 'human': is no setting of Experiment: training shows nothing. Afterwards: python -m a3c_",
    ),
    (
        "video=true",
        "video = True: is no setting of Experiment: training shows nothing. Afterwards: python -m a3c_exp.ev",
    ),
    (
        "env=gym env.id=MiniGrid-Empty-5x5-v0",
        "env.id = 'MiniGrid-Empty-5x5-v0': no such environment is registered. If another package registers it: ",
    ),
    ("returns=null", "returns = None: must be one of discounted, gae, gae_095, n_step, n_step_zero, vtrace"),
    ("env=lunar network=cnn_small", "network = 'Cnn': must be a network for observations of shape (8,): Cnn takes "),
    (
        "algorithm._target_=a3c_exp.algorithms.No",
        "algorithm._target_ = 'a3c_exp.algorithms.No': is no component class of",
    ),
    ("resume=", "resume = '': must be one run's folder"),
    ("hydra.run.dir=", "hydra.run.dir = '': must be the name of a folder; . for this one"),
    ("hydra.run.dir=x/${nowhere}", "hydra.run.dir = 'x/${nowhere}': cannot be resolved: "),
    ("-m seed=0,1 hydra.sweep.dir=x/${nowhere}", "hydra.sweep.dir = 'x/${nowhere}': cannot be resolved: "),
    ("-m seed=range(1,0)", "command line = 'seed=range(1,0)': is a sweep without a run"),
    ("sweep=x hydra.run.dir=y seed=0,1", "hydra.run.dir = 'y': is the folder of one run: sweep=<folder> or"),
    ("sweep=/proc/nowhere/x seed=0,1", "sweep = '/proc/nowhere/x': cannot be made: "),
    ("sweep=x/${nowhere} seed=0,1", "sweep = 'x/${nowhere}': cannot be resolved: "),
    ("-m seed=range(0,1e12)", "command line = 'seed=range(0,1e12)': is a sweep of more than 10,000 runs\n"),
    ("from=a resume=b", "from = 'a': cannot go with resume: "),
    ("policy=MlpPolicy", "policy = 'MlpPolicy': is no setting of Experiment: it is network=mlp here\n"),
    ("policy=CnnPolicy", "policy = 'CnnPolicy': is no setting of Experiment: it is network=cnn here\n"),
    ("algorithm=A2C", "algorithm = 'A2C': is no option: it is algorithm=a3c update=sync here\n"),
    ("algorithm=PPO", "algorithm = 'PPO': is no option: did you mean 'ppo'? Allowed: a3c, ppo\n"),
    # What is no plain value, and what is beyond any limit.
    ("env=[1,2]", "env = [1, 2]: must be one of "),
    ("eval={1:2}", "eval.1 = 2: is no setting of Eval: "),
    (f"seed={'9' * 5000}", "seed = '99999"),
    (f"seed={'[' * 150}{']' * 150}", "seed = "),
    (f"env.kwargs.x={'{a:' * 150}1{'}' * 150}", "env.kwargs.x = "),
    ("seed=9223372036854775808", "seed = 9223372036854775808: is a whole number beyond 9223372036854775807, "),
    ("total_steps=1e30", "total_steps = 1e+30: must be a whole number, at most 9223372036854775807\n"),
    ("eval.every=1e30", "eval.every = 1e+30: must be a whole number or null, at most 9223372036854775807\n"),
    ("rollout_length=1e12", "rollout_length = 1000000000000: must be a whole number from 1 to 1048576, or 'episode'"),
    ("eval.episodes=1e12", "eval.episodes = 1000000000000: must be a whole number from 1 to 1000000\n"),
    ("experiment=pong env.width=4294967296", "env.width = 4294967296: must be a whole number from 1 to 1024\n"),
    ("experiment=pong env.frame_stack=65537", "env.frame_stack = 65537: must be a whole number from 1 to 64\n"),
    (
        "network=lstm network.hidden_size=1e18",
        "network.hidden_size = 1000000000000000000: must be a whole number from ",
    ),
    (
        "network.hidden_sizes=[64,1e9]",
        "network.hidden_sizes = (64, 1000000000): must be at most 100 whole numbers from ",
    ),
    ("resume=~nobody_of_that_name/x", "resume = '~nobody_of_that_name/x': must be the folder of a run"),
    # Control characters, which a terminal would obey.
    ("\x1b[31mred=1", "\\x1b[31mred = '1': cannot be read: "),
    ("env=\x1b[31mred", r"env = '\x1b[31mred': "),
    ("hydra.mode=MULTIRUN gamma=0.9,1.5", "gamma = 1.5: must be a number from 0 to 1"),
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
    whole = [dict(flatten(compose(choices))) for choices in ([], ["algorithm=ppo"], ["backend=ga3c"])]
    for full in ELSEWHERE.values():
        found = [index for index, config in enumerate(whole) if full in config]
        assert found, full
        assert (0 in found) == (full not in ONLY_WITH), full
        if full in ONLY_WITH:
            assert full in dict(flatten(compose([ONLY_WITH[full]])))


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
        ("_target_: a3c_exp.returns.GAE\nlambda_: [1,\n", "returns/mine.yaml, line 3: expected the node content"),
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


def test_a_folder_that_cannot_be_made_is_refused(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "file").touch()
    for command in (["hydra.run.dir=file/run"], ["-m", "hydra.sweep.dir=file/sweep", "seed=0,1"]):
        assert program.main([*QUICK, *command]) == 2
        assert " = " in capfd.readouterr().err
    assert [path.name for path in here.iterdir()] == ["file"]


def test_a_folder_with_a_run_in_it_is_refused(here: Path, finished: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = content(finished)
    assert program.main([*QUICK, f"hydra.run.dir={finished}"]) == 2
    assert "must be without a run: resume=<folder> continues" in capfd.readouterr().err
    assert content(finished) == before


# No configuration runs other code.


@pytest.mark.parametrize("target", ["os.system", "numpy.load", "scripted.Anything"])
def test_a_class_of_another_package_is_refused(target: str, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert program.main([f"env._target_={target}"]) == 2
    assert f"env._target_ = '{target}': must be a component class of a3c_exp" in capfd.readouterr().err


def test_an_environment_that_imports_a_module_needs_it_in_plugins(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = [*QUICK, "env=gym", "env.id=scripted:Scripted-v0"]
    assert program.main(command) == 2
    assert (
        "env.id = 'scripted:Scripted-v0': imports scripted: allow it with plugins=[scripted]" in capfd.readouterr().err
    )
    assert program.main([*command, "plugins=[scripted]"]) == 0


def test_a_pickled_job_is_not_run_again(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "config.pickle").touch()
    assert program.main(["--experimental-rerun", "config.pickle"]) == 2
    assert "--experimental-rerun = 'config.pickle': is refused" in capfd.readouterr().err


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


@pytest.mark.parametrize("flag", ["--info", "--hydra-help"])
def test_flags_that_print_do_not_resume_a_run(
    flag: str, here: Path, finished: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = content(finished)
    assert program.main([f"resume={finished}", "total_steps=1e6", flag]) == 2
    assert capfd.readouterr().err.startswith("a3c_exp: resume = ")
    assert program.main([f"resume={finished}", "total_steps=1e6", "--help"]) == 0
    assert content(finished) == before


# Ctrl-C.


def test_a_ctrl_c_during_imports_raises_after_them() -> None:
    before = signal.getsignal(signal.SIGINT)
    reached = []
    with pytest.raises(KeyboardInterrupt), importing():
        with suppress(BaseException):
            signal.raise_signal(signal.SIGINT)
        reached.append(True)
    assert reached
    with pytest.raises(KeyboardInterrupt), importing():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("the second one raises at once")
    assert signal.getsignal(signal.SIGINT) is before


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


def test_a_sweep_is_a_run_for_each_combination(here: Path) -> None:
    folders = "hydra.sweep.subdir=${hydra.job.num}_${hydra.job.override_dirname}"
    quick = ["hydra.job.config.override_dirname.exclude_keys=" + str([word.partition("=")[0] for word in QUICK])]
    values = ["returns=n_step,n_step_zero", "optimizer.learning_rate=1e-3,1e-2"]
    assert program.main([*QUICK, *quick, folders, "-m", *values]) == 0
    summaries = sorted((here / "outputs").glob("*_sweep/*/summary.json"))
    assert [path.parent.name for path in summaries] == [
        "0_optimizer.learning_rate=0.001,returns=n_step",
        "1_optimizer.learning_rate=0.01,returns=n_step",
        "2_optimizer.learning_rate=0.001,returns=n_step_zero",
        "3_optimizer.learning_rate=0.01,returns=n_step_zero",
    ]


def test_the_runs_of_a_sweep_may_have_folders_named_by_their_settings(here: Path) -> None:
    folders = ["hydra.sweep.dir=${env.id}", "hydra.sweep.subdir=s${seed}"]
    assert program.main([*QUICK, "-m", "env=cartpole,acrobot", *folders]) == 0
    assert sorted(path.parent.name for path in here.glob("*/s0")) == ["Acrobot-v1", "CartPole-v1"]


def test_a_sweep_may_start_from_a_relative_folder_and_change_to_its_own(here: Path, finished: Path) -> None:
    start = os.path.relpath(finished, here)
    assert program.main([*QUICK, "-m", "seed=1,2", f"init_from={start}", "hydra.job.chdir=true"]) == 0
    assert len(list((here / "outputs").glob("*_sweep/*/summary.json"))) == 2


def test_a_sweep_with_a_failed_run_runs_the_rest_and_exits_with_1(here: Path) -> None:
    command = [*QUICK, "-m", "plugins=[scripted]", "env=gym", "env.id=Scripted-v0", "+env.kwargs.fails_at=3,null"]
    assert program.main(command) == 1
    summaries = [json.loads(path.read_text()) for path in sorted((here / "outputs").glob("*/*/summary.json"))]
    assert [summary["stop_reason"] for summary in summaries] == ["env_errors", "total_steps"]


# Resuming.


def test_resume_writes_to_the_same_folder_with_other_settings(tmp_path: Path, here: Path) -> None:
    assert program.main([*QUICK, "hydra.run.dir=run"]) == 0
    assert program.main(["resume=run", "total_steps=128", "stop.max_episodes=1e6", "backend=threads"]) == 0
    summary = json.loads((here / "run" / "summary.json").read_text())
    assert summary["steps"] >= 128
    assert [path.name for path in here.iterdir()] == ["run"]


def test_a_run_is_resumed_with_a_backend_of_the_users_own(here: Path) -> None:
    (here / "my_conf" / "backend").mkdir(parents=True)
    (here / "my_conf" / "backend" / "mine.yaml").write_text((conf_folder() / "backend" / "threads.yaml").read_text())
    assert program.main([*QUICK, "hydra.run.dir=run"]) == 0
    assert program.main(["--config-dir", "my_conf", "resume=run", "total_steps=128", "backend=mine"]) == 0
    assert json.loads((here / "run" / "summary.json").read_text())["steps"] >= 128


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("gamma=0.5", "gamma = 0.5: cannot change in a resumed run; what can: "),
        ("env=lunar", "env = 'lunar': cannot change in a resumed run"),
        ("hydra.run.dir=x", "hydra.run.dir = 'x': cannot change in a resumed run"),
        (
            "stop.max_episode=3",
            "stop.max_episode = 3: is no setting of Stop: did you mean 'max_episodes' or 'worker_e",
        ),
        ("backend=thread", "backend = 'thread': is no option: did you mean 'threads'?"),
        ("total_steps=many", "total_steps = 'many': must be a whole number"),
        ("workers=1,2", "workers = '1,2': must be one value in a resumed run"),
        ("~backend", "backend = None: must be one value in a resumed run"),
        ("evl.every=3", "evl.every = 3: cannot change in a resumed run; what can: "),
        ("stop.max_episodes.x=3", "stop.max_episodes = {'x': 3}: must be a whole number or null"),
        ("backend.wire=x", "backend.wire = 'x': is no setting of Serial"),
        ("total_steps=${nothing}", "total_steps = '${nothing}': cannot be resolved: "),
    ],
)
def test_what_a_resumed_run_cannot_change_is_refused(
    change: str, words: str, here: Path, finished: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = content(finished)
    assert program.main([f"resume={finished}", change]) == 2
    assert capfd.readouterr().err.startswith(f"a3c_exp: {words}")
    assert content(finished) == before


def test_a_run_without_its_checkpoint_or_with_a_damaged_one_is_not_resumed(
    here: Path, finished: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, damage in {"damaged": b"", "missing": None}.items():
        folder = here / name
        shutil.copytree(finished, folder)
        latest = folder / "checkpoints" / "latest.ckpt"
        latest.write_bytes(damage) if damage is not None else latest.unlink()
        before = content(folder)
        assert program.main([f"resume={folder}", "total_steps=1000"]) == 2
        err = capfd.readouterr().err
        assert err.startswith("a3c_exp: resume = ")
        assert err.count("\n") == 1
        assert content(folder) == before


def test_plugins_in_a_runs_folder_do_not_count(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = [*QUICK, "env=gym", "env.id=scripted:Scripted-v0", "plugins=[scripted]", "hydra.run.dir=run"]
    assert program.main(command) == 0
    assert program.main(["resume=run", "total_steps=128"]) == 2
    assert "allow it with plugins=[scripted]" in capfd.readouterr().err
    assert program.main(["resume=run", "total_steps=128", "plugins=[scripted]"]) == 0


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
