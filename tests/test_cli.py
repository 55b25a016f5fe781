"""The command line: what runs, what is refused about which key, and what is written."""

from __future__ import annotations

import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf
from refusals import Refuses
from runs import QUICK, content, summary

import a3c_exp.__main__ as program
from a3c_exp import compose, evaluate
from a3c_exp.cli.arguments import read_arguments
from a3c_exp.cli.execute import make_new
from a3c_exp.cli.hydra_compose import composed
from a3c_exp.cli.hydra_overrides import parse, sweep
from a3c_exp.cli.hydra_session import hydra_session
from a3c_exp.cli.resume import saved_plan
from a3c_exp.cli.startup import conf_folder
from a3c_exp.common.settings import flatten
from a3c_exp.config.builder import load_final
from a3c_exp.config.elsewhere import ELSEWHERE, RENAMED
from a3c_exp.errors import FolderError
from a3c_exp.run.run_folder import config_text


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    assert program.main([*QUICK, "env=acrobot", "gamma=0.9", f"hydra.run.dir={folder}"]) == 0
    return folder


# Bad input: exit code 2, one line that names the key and the value, nothing on disk.

BAD = [
    ("--experimental-rerun config.pickle", "command line", "--experimental-rerun config.pickle"),
    ("~stop.mean", "~stop.mean", None),
    ("~hydra.job.chdir", "~hydra.job.chdir", None),
    ("+gamma=0.5", "+gamma", 0.5),
    ("hydra.verbos=true", "hydra.verbos", True),
    ("hydra.launcher.jobs=2", "hydra.launcher.jobs", "2"),
    ("--cfg nothing", "command line", "--cfg nothing"),
    ("--config-dir other", "--config-dir", "other"),
    ("--config-name nothing", "--config-name", "nothing"),
    ("--config-path nothing", "--config-path", "nothing"),
    (f"--config-dir {conf_folder()}", "--config-dir", str(conf_folder())),
    ("=3", "command line", "=3"),
    ("algorithm=a2c", "algorithm", "a2c"),
    ("workers=0", "workers", 0),
    ("returns.m=3", "returns.m", 3),
    ("env=LunarLander-v3", "env", "LunarLander-v3"),
    ("seed=0,1", "seed", "0,1"),
    ("resume=nowhere", "resume", "nowhere"),
    ("typed=3", "typed", 3),
    ("callback=histograms", "callback", "histograms"),
    ("callbacks=[{}]", "callbacks[0]._target_", None),
    ("sweep=x search=2 gamma=0.9,0.99 --cfg job", "--cfg", "job"),
    ("plugins=[mine.py]", "plugins", "mine.py"),
    ("plugins=[./mine]", "plugins", "./mine"),
    ("hydra.run.dir=läufe", "hydra.run.dir", "läufe"),
    ("+experiment=ppo", "+experiment", "ppo"),
    ("~env=lunar", "~env", "lunar"),
    ("~network", "network", None),
    ("env=lunar network=cnn_small", "network", "Cnn"),
    ("network@network.encoder=cnn", "network@network.encoder", "cnn"),
    ("network=lstm network.encoder=mlp", "network.encoder", "mlp"),
    ("plugins=null experiment=ppo_pong_solved algorithm=a3c", "plugins", None),
    ("gamma=${nothing}", "gamma", "${nothing}"),
    (f"seed={'9' * 5000}", "seed", ...),
    (f"env.kwargs.x={'{a:' * 150}1{'}' * 150}", "env.kwargs.x", ...),
    ("\x1b[31mred=1", "\\x1b[31mred", "1"),
    ("hydra.run.dir=/dev/null/run", "hydra.run.dir", "/dev/null/run"),
    ("resume=", "resume", ""),
    ("existing=resume hydra.run.dir=auto", "existing", "resume"),
    ("hydra/launcher=submitit_local", "hydra/launcher", "submitit_local"),
    ("-m resume=x", "resume", "x"),
    ("from=a resume=b", "from", "a"),
    ("jobs=2 hydra/launcher=submitit_local", "jobs", 2),
    ("-m seed=range(1,0)", "command line", "seed=range(1,0)"),
    ("-m seed=1,2 hydra.sweep.dir=/proc/nowhere/x", "hydra.sweep.dir", "/proc/nowhere/x"),
    ("-m seed=0,1 hydra.sweep.subdir=run", "hydra.sweep.subdir", "run"),
    ("sweep=x seed=0,1 hydra.sweep.subdir=../y${seed}", "hydra.sweep.subdir", "../y0"),
    ("-m seed=0,1 hydra.sweep.dir=a,b", "hydra.sweep.dir", "a,b"),
    ("sweep=x hydra.sweep.dir=y seed=0,1", "sweep", "x"),
    ("-m hydra.launcher=joblib seed=0,1", "hydra.launcher", "joblib"),
    ("-m hydra/launcher=null seed=0,1", "hydra/launcher", None),
    ("-m hydra/sweeper=optuna", "hydra/sweeper", "optuna"),
    ("sweep=x hydra.run.dir=y seed=0,1", "hydra.run.dir", "y"),
]


@pytest.mark.parametrize(
    ("command", "key", "value"), BAD, ids=[command[:50] for command, _, _ in BAD]
)
def test_bad_input_is_one_line_and_writes_nothing(
    command: str, key: str, value: object, here: Path, refuses: Refuses
) -> None:
    refuses(command.split(), key, value)
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("name", ["cartpole_threads", "pong"])
def test_an_old_name_of_a_preset_is_answered_with_the_new_one(name: str, refuses: Refuses) -> None:
    line = refuses([f"experiment={name}"], "experiment", name)
    assert f"experiment={RENAMED[name]}" in line


def test_presets_that_have_been_renamed_are_there_and_their_old_names_are_free() -> None:
    presets = {path.stem for path in (conf_folder() / "experiment").glob("*.yaml")}
    assert presets >= set(RENAMED.values())
    assert not presets & RENAMED.keys()


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        ("resume=RUN gamma=0.5", "gamma", 0.5),
        ("resume=RUN workers=1,2", "workers", "1,2"),
        ("resume=RUN stop.max_episodes.x=3", "stop.max_episodes", {"x": 3}),
        ("from=RUN ~env", "env", None),
        ("from=RUN hydra.job.chdir=true", "hydra.job.chdir", True),
        ("from=RUN returns=gea", "returns", "gea"),
        ("from=RUN hydra.run.dir=RUN", "hydra.run.dir", ...),
        ("from=RUN hydra.run.dir=", "hydra.run.dir", ""),
        ("from=RUN hydra.run.dir=[a]", "hydra.run.dir", ["a"]),
        ("resume=RUN/config.yaml", "resume", ...),
    ],
)
def test_what_a_saved_run_cannot_change_is_refused(
    words: str, key: str, value: object, here: Path, finished: Path, refuses: Refuses
) -> None:
    before = content(finished)
    refuses(words.replace("RUN", str(finished)).split(), key, value)
    assert content(finished) == before
    assert list(here.iterdir()) == []


def test_a_current_folder_that_is_gone_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert program.main([*QUICK]) == 2
    assert capfd.readouterr().err.startswith("a3c_exp: the current folder: ")


@pytest.mark.parametrize("word", ["resume", "from", "init_from"])
@pytest.mark.parametrize("inside", ["checkpoints/latest.ckpt", "checkpoints", "metrics.csv"])
def test_a_path_inside_a_run_is_answered_with_its_folder(
    word: str, inside: str, here: Path, finished: Path, refuses: Refuses
) -> None:
    assert f"did you mean '{finished}'?" in refuses([f"{word}={finished / inside}"], word)


@pytest.mark.parametrize(
    ("key", "value", "option"),
    [
        ("returns", "n_step_missing", "returns=n_step_zero"),
        ("critic_returns", "max_terms", "critic_returns=n_step"),
        ("returns", "maximum", "returns=n_step"),
        ("returns", "missing_as_zero", "returns=n_step_zero"),
        ("env", "PongNoFrameskip-v4", "env=pong"),
        ("env", "Pong-v0", "env=pong"),
        ("env", "ALE/SpaceInvaders-v5", "env=atari env.game=space_invaders"),
        ("env", "CartPole-v0", "env=gym env.id=CartPole-v0; env=cartpole is CartPole-v1"),
        ("env", "LunarLander-v3", "env=lunar"),
        ("env", "lunar_lander", "env=lunar"),
        ("backend", "multiprocessing", "backend=processes"),
        ("optimizer", "adamw", "optimizer=adam optimizer.weight_decay=0.01"),
    ],
)
def test_words_of_other_programs_are_answered_by_the_option(
    key: str, value: str, option: str, here: Path, refuses: Refuses
) -> None:
    assert refuses([f"{key}={value}"], key, value).endswith(f"it is {option}\n")


def test_an_option_of_ones_own_has_a_name_of_its_own(here: Path, refuses: Refuses) -> None:
    (here / "mine" / "returns").mkdir(parents=True)
    (here / "mine" / "returns" / "gae.yaml").write_text("lambda_: 0.5")
    assert "returns/gae.yaml" in refuses(
        ["--config-dir", "mine", "returns=gae"], "--config-dir", "mine"
    )


def test_a_damaged_file_is_named_with_its_line(here: Path, refuses: Refuses) -> None:
    (here / "mine" / "returns").mkdir(parents=True)
    (here / "mine" / "returns" / "mine.yaml").write_text(
        "_target_: a3c_exp.returns.GAE\nlambda_: [1,\n"
    )
    assert "returns/mine.yaml, line 3" in refuses(
        ["--config-dir", "mine", "returns=mine"], "returns", "mine"
    )


def test_the_full_names_in_hints_are_those_of_settings() -> None:
    hints = [hint.partition(" with ") for hint in ELSEWHERE.values()]
    known = {
        chosen: dict(flatten(compose(chosen.split()))) for chosen in {each[2] for each in hints}
    }
    for full, _, chosen in hints:
        is_one = full in known[chosen] or (conf_folder() / full).is_dir()
        assert is_one or not re.fullmatch(r"[a-z_.]+", full), full


@pytest.mark.parametrize(
    "word",
    [
        "name",
        "output_dir",
        "logger",
        "wandb",
        "verbose",
        "render_mode",
        "n_timesteps",
        "tensorboard_log",
        "return_type",
        "ENTROPY_BETA",
        "n_agents",
        "MINI_BATCH",
        "env.name",
        "norm_obs",
        "frame_stack",
    ],
)
def test_a_word_of_another_library_is_answered_with_ours(
    word: str, here: Path, refuses: Refuses
) -> None:
    assert "here it is" in refuses([f"{word}=1"], word, 1)


@pytest.mark.parametrize(
    ("words", "key", "advice"),
    [
        (["evaluate", "latest"], "command line", "python -m a3c_exp.evaluate latest"),
        (["export", "latest", "to=a"], "command line", "python -m a3c_exp.export latest to=a"),
        (["resume"], "command line", "resume=latest"),
        (["resume", "outputs/a"], "command line", "resume=outputs/a"),
        (["--resume", "latest"], "command line", "resume=latest"),
        (["--resume", "--cfg", "job"], "command line", "resume=latest"),
        (["resume=last"], "resume", "latest is"),
        (["steps=10000"], "steps", "it is total_steps;"),
        (["preset=lunar_solved"], "preset", "it is experiment;"),
        (["experiment=lunar"], "experiment", "experiment=lunar_solved"),
        (["experiment=mine.yaml"], "experiment", "without .yaml"),
        (["--env", "lunar", "--seed", "1"], "command line", "env=lunar seed=1"),
        (["--learning-rate=1e-3"], "command line", "optimizer.learning_rate=1e-3"),
        (["--n-epochs", "5", "--name=x"], "command line", "n_epochs=5 name=x"),
        (["\u2014multirun", "seed=0,1"], "command line", "type --multirun"),
        (["\u2013m", "seed=0,1"], "command line", "type -m"),
        (["env", "=", "lunar"], "command line", "env=lunar"),
        (["seed=1", "env=", "lunar"], "command line", "env=lunar"),
        (["env", "=lunar"], "command line", "env=lunar"),
        (["optimizer.learning_rate=1e\u20133"], "command line", "optimizer.learning_rate=1e-3"),
        (["env=lunar", "\u2018plugins=[a]\u2019"], "command line", "typographic"),
        (["env.id=\u201cA-v0\u201d"], "command line", "typographic"),
        (["network.hidden_sizes=[64,", "64]"], "command line", "'network.hidden_sizes=[64, 64]'"),
        (["total_steps=1M"], "total_steps", "write 1000000"),
        (["total_steps=0.5m"], "total_steps", "write 500000"),
        (["stop.max_seconds=5m"], "stop.max_seconds", "write 300"),
        (["stop.max_seconds=00:05:00"], "stop.max_seconds", "write 300"),
        (["total_steps='1 000 000'"], "total_steps", "write 1000000"),
        (["seed=0-4"], "seed", "-m seed=0,1,2,3,4"),
        (["-m", "seed=[0,1]"], "seed", "-m seed=0,1"),
        (["seed:1"], "command line", "must be seed=1"),
        (["seed==1"], "command line", "must be seed=1"),
        (["env = lunar"], "command line", "must be env=lunar"),
        (["network.hidden_sizes=64,64"], "network.hidden_sizes", "[64,64]"),
        (["network.hidden_sizes=64"], "network.hidden_sizes", "network.hidden_sizes=[64,64]"),
        (["-m", "seed=0,1,"], "seed", "comma"),
        (["env=lunar seed=1"], "env", "quotes"),
        (["+env=lunar"], "+env", "env=lunar"),
        (["returns.n=5"], "returns.n", "returns=n_step or returns=n_step_zero"),
        (["eval=false"], "eval", "eval.every=null"),
        (["callbacks=early_stopping"], "callbacks", "callbacks=[no_improvement]"),
        (["--multi-run", "seed=0,1"], "command line", "'--multirun'"),
        (["env=my_env:A-v1"], "env", "env=gym env.id=my_env:A-v1 plugins=[my_env]"),
        (["env=my.envs:A"], "env", 'gymnasium.register("A-v0", entry_point="my.envs:A")'),
        (["env=my.envs:A"], "env", "env=gym env.id=my.envs:A-v0 plugins=[my],"),
        (["env=my_env.py"], "env", "plugins=[my_env]"),
        (["env=gym"], "env.id", "env.id=Acrobot-v1"),
        (["env=gym", "env.id=ALE/Breakout-v5"], "env.id", "env=breakout prepares"),
        (["env=gym", "env.id=QbertNoFrameskip-v4"], "env.id", "env=atari env.game=qbert"),
    ],
)
def test_what_is_probably_meant_is_written_out(
    words: list[str], key: str, advice: str, here: Path, refuses: Refuses
) -> None:
    assert advice in refuses(words, key)
    assert list(here.iterdir()) == []


def test_a_file_of_settings_that_names_options_as_values_is_answered_with_its_defaults(
    here: Path, refuses: Refuses
) -> None:
    file = here / "my_conf" / "experiment" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("# @package _global_\nenv: lunar\n")
    line = refuses(["--config-dir", "my_conf", "experiment=mine"], "env", "lunar")
    assert "defaults: [override /env: lunar]" in line
    words = ["--config-dir", "my_conf/experiment", "--config-name", "mine"]
    assert "experiment=mine" in refuses(words, "--config-name", "mine")


@pytest.mark.parametrize("name", ["lun", "outputs/lunar_a3c"])
def test_a_folder_that_is_not_there_is_answered_with_the_runs_that_begin_so(
    name: str, here: Path, finished: Path, refuses: Refuses
) -> None:
    run = here / "outputs" / "lunar_a3c_s0"
    run.mkdir(parents=True)
    (run / "config.yaml").write_bytes((finished / "config.yaml").read_bytes())
    assert "'outputs/lunar_a3c_s0'" in refuses([f"resume={name}"], "resume", name)
    assert "'outputs/lunar_a3c_s0'" in refuses([name], "run", name, main=evaluate.main)


@pytest.mark.parametrize("form", ["--config FILE", "--config=FILE", "-c FILE", "FILE", "from=FILE"])
def test_a_file_of_settings_is_answered_with_the_command_that_takes_it(
    form: str, here: Path, finished: Path, refuses: Refuses
) -> None:
    def answer(file: str) -> str:
        key = "from" if form == "from=FILE" else "command line"
        return refuses(form.replace("FILE", file).split(), key)

    assert "no such" in answer("my.yaml")
    (here / "my.yaml").write_text("gamma: 0.9")
    assert "--config-dir my_conf experiment=my " in answer("my.yaml")
    (here / "mine" / "experiment").mkdir(parents=True)
    (here / "mine" / "experiment" / "wide.yaml").write_text("# @package _global_\ngamma: 0.9")
    assert "--config-dir mine experiment=wide " in answer("mine/experiment/wide.yaml")
    assert ": env=lunar " in answer(str(conf_folder() / "env" / "lunar.yaml"))
    if form != "from=FILE":
        assert f"from={finished}/config.yaml " in answer(f"{finished}/config.yaml")


def test_many_workers_on_few_cores_are_a_warning() -> None:
    _, experiment = load_final(compose(["workers=20000"]))
    assert any(text.startswith("workers: 20,000 take turns") for text in experiment.warnings)
    _, few = load_final(compose(["workers=16", "backend=serial"]))
    assert not any(text.startswith("workers") for text in few.warnings)


def test_a_preset_is_refused_beside_the_settings_of_a_run(finished: Path, refuses: Refuses) -> None:
    assert "with from" in refuses([f"from={finished}", "experiment=ppo"], "experiment", "ppo")


# What is composed.


def test_an_optional_choice_may_be_null() -> None:
    assert compose(["experiment=null", "critic_returns=null"])["critic_returns"] is None
    chosen = ["experiment=parameter_server_cartpole"]
    assert compose(chosen)["critic_returns"] is not None
    for away in ("critic_returns=null", "~critic_returns"):
        assert compose([*chosen, away])["critic_returns"] is None
    with hydra_session() as hydra:
        assert sweep(parse(["critic_returns=gae,null"], hydra.loader)) == [
            ["critic_returns=gae"],
            ["critic_returns=null"],
        ]


def test_a_setting_of_a_free_mapping_needs_no_plus() -> None:
    chosen = compose(["env.kwargs.size=3", "optimizer.param_groups={actor:{learning_rate:1.0}}"])
    assert chosen["env"]["kwargs"] == {"size": 3}
    assert chosen["optimizer"]["param_groups"] == {"actor": {"learning_rate": 1.0}}


def test_what_hydra_records_is_what_was_typed() -> None:
    typed = [
        "returns={_target_:a3c_exp.returns.NStep,n:3}",
        "gamma=0.5",
        "env=lunar",
        "+env.kwargs.gravity=-5.0",
    ]
    with hydra_session() as hydra:
        node = composed(hydra, [*typed, "hydra.run.dir=run"]).node
        jobs = sweep(parse(["returns=n_step,n_step_zero", "optimizer.learning_rate=1e-3,1e-2"]))
    assert node.hydra.job.override_dirname == ",".join(sorted(typed))
    assert jobs[1] == ["returns=n_step", "optimizer.learning_rate=0.01"]


# Flags that print and run nothing.


def test_help_explains_every_choice_and_every_setting(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert program.main(["--help"]) == 0
    text = capfd.readouterr().out
    for path in conf_folder().glob("*/*.yaml"):
        assert f"\n  {path.parent.name}:\n" in text
        assert re.search(rf"\n    {path.stem} +\w", text), "what it is"
    for name, value in compose().items():
        assert f"  {name}:" in text or f"\n  {name} " in text
        if isinstance(value, dict) and "_target_" not in value:
            assert all(f"    {inner}:" in text for inner in value)
    assert list(here.iterdir()) == []


def test_cfg_job_prints_the_composed_configuration(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert program.main(["--cfg", "job", "env=lunar", "gamma=0.5"]) == 0
    printed = yaml.safe_load(capfd.readouterr().out)
    assert (printed["gamma"], printed["env"]["id"]) == (0.5, "LunarLander-v3")
    assert "hydra" not in printed
    assert list(here.iterdir()) == []


# Runs.


def test_a_folder_says_what_its_run_is(here: Path) -> None:
    assert program.main([*QUICK, "seed=7"]) == 0
    [folder] = (here / "outputs").iterdir()
    assert re.fullmatch(r"cartpole_a3c_s7_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d", folder.name)
    assert (summary(folder)["seed"], summary(folder)["stop_reason"]) == (7, "total_steps")
    assert (folder / "config.yaml").is_file()
    assert not (folder / ".hydra").exists()


def test_runs_that_begin_in_one_moment_each_have_a_folder(here: Path) -> None:
    with ThreadPoolExecutor(20) as pool:
        made = list(pool.map(make_new, [here / "outputs" / "run"] * 20))
    assert sorted(path.name for path in made) == sorted(
        ["run", *(f"run_{number}" for number in range(2, 21))]
    )
    (here / "dangling").symlink_to("nowhere")
    with pytest.raises(FolderError):
        make_new(here / "dangling" / "run")


def test_a_sweep_goes_on_without_the_run_that_it_started_from(
    here: Path, finished: Path, in_process: None
) -> None:
    shutil.copytree(finished, here / "start")
    command = [*QUICK, "env=acrobot", "sweep=one", "init_from=start", "seed=1"]
    command.append("hydra.sweep.subdir=run_${hydra.job.num}")
    assert program.main(command) == 0
    shutil.rmtree(here / "start")
    (here / "one" / "run_0" / "summary.json").unlink()
    assert program.main(command) == 0
    assert summary(here / "one" / "run_0")["resumed"] == 1
    assert program.main([*command, "seed=1,2"]) == 2


def test_a_run_is_resumed_with_a_backend_of_the_users_own(here: Path) -> None:
    (here / "my_conf" / "backend").mkdir(parents=True)
    (here / "my_conf" / "backend" / "mine.yaml").write_text(
        (conf_folder() / "backend" / "threads.yaml").read_text()
    )
    assert program.main([*QUICK, "hydra.run.dir=run"]) == 0
    assert (
        program.main(["--config-dir", "my_conf", "resume=run", "total_steps=128", "backend=mine"])
        == 0
    )
    assert summary(here / "run")["steps"] >= 128


@pytest.mark.parametrize(
    "change", ["backend=processes", "total_steps=1e6", "backend=serial total_steps=1e6"]
)
def test_a_copy_with_another_backend_or_length_chooses_its_points_again(
    change: str, here: Path
) -> None:
    saved, _ = load_final(compose([*QUICK, "total_steps=1000"]))
    (here / "run.yaml").write_text(config_text(saved))
    changed = saved_plan(
        "from", "run.yaml", read_arguments(["from=run.yaml", *change.split()])
    ).config
    assert (saved["log"], changed["log"]) == ({"every": 4}, {"every": "auto"})


def test_a_setting_that_is_typed_before_its_component_counts(here: Path) -> None:
    saved, _ = load_final(compose(QUICK))
    (here / "run.yaml").write_text(config_text(saved))
    words = ["from=run.yaml", "optimizer.learning_rate=0.25", "optimizer=adam"]
    optimizer = saved_plan("from", "run.yaml", read_arguments(words)).config["optimizer"]
    assert (optimizer["_target_"], optimizer["learning_rate"]) == ("a3c_exp.optimizers.Adam", 0.25)


@pytest.mark.parametrize(
    ("words", "place", "target"),
    [
        ("+returns@critic_returns=gae", "critic_returns", "a3c_exp.returns.GAE"),
        ("+schedule@epsilon=linear", "epsilon", "a3c_exp.schedules.Linear"),
        ("network@network.encoder=cnn network=lstm", "network.encoder", "a3c_exp.networks.Cnn"),
    ],
)
def test_an_option_goes_where_it_is_put_and_nowhere_else(
    words: str, place: str, target: str, here: Path
) -> None:
    saved, _ = load_final(compose(QUICK))
    (here / "run.yaml").write_text(config_text(saved))
    changed = saved_plan(
        "from", "run.yaml", read_arguments(["from=run.yaml", *words.split()])
    ).config
    assert OmegaConf.select(OmegaConf.create(dict(changed)), place)["_target_"] == target
    others = {"returns", "schedule", "network", "optimizer"} - {place.partition(".")[0]}
    assert {key: changed[key] for key in others} == {key: saved[key] for key in others}


def test_a_saved_configuration_runs_again(finished: Path, here: Path) -> None:
    """A component that is written out replaces the saved one."""
    adam = "optimizer={_target_: a3c_exp.optimizers.Adam, learning_rate: 1e-3}"
    changes = ["seed=5", "returns=n_step", "returns.n=7", "critic_returns=gae", adam]
    assert program.main([f"from={finished}", *changes]) == 0
    [folder] = (here / "outputs").iterdir()
    assert folder.name.startswith("acrobot_a3c_s5_")
    before, after = (
        yaml.safe_load((run / "config.yaml").read_text()) for run in (finished, folder)
    )
    expected = before | {
        "seed": 5,
        "returns": {"_target_": "a3c_exp.returns.NStep", "n": 7},
        "critic_returns": after["critic_returns"],
        "optimizer": {"_target_": "a3c_exp.optimizers.Adam", "learning_rate": 1e-3},
    }
    assert after == expected
    assert after["critic_returns"]["_target_"] == "a3c_exp.returns.GAE"
    assert summary(folder)["steps"] == 64
    assert (
        program.main([f"from={finished}", "hydra.run.dir=sgd${seed}", "seed=4", "optimizer=sgd"])
        == 0
    )
    places = here / "sgd4" / "config.yaml", conf_folder() / "optimizer" / "sgd.yaml"
    sgd, option = (yaml.safe_load(place.read_text()) for place in places)
    assert sgd["optimizer"] == option, "nothing of the default environment"
    shutil.copy(folder / "config.yaml", here / "mine.yaml")
    assert program.main(["from=mine.yaml", "hydra.run.dir=again"]) == 0
    assert (here / "again" / "config.yaml").read_text() == (folder / "config.yaml").read_text()
