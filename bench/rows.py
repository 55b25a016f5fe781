"""The rows of the benchmark: a figure of this project, the systems it is compared with, and the bar for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.peers import ZOO, stable_baselines3
from bench.runs import curve, peak_memory, seconds_to_first_update, training_speed, whole_training_speed
from bench.stepping import atari_random_stepping, random_stepping


@dataclass(frozen=True)
class Measurement:
    """measure: takes the seconds that it may run, returns a figure. May raise UnavailableError."""

    label: str
    measure: Callable[[float], float]


@dataclass(frozen=True)
class Row:
    """A figure, measured in turn with those of `against`.

    unit: of all figures. at_least: bar for the ratio of the subject to the first of `against`; without any, for the
    subject's own figure. at_most: bar for the subject's own figure.
    """

    name: str
    title: str
    subject: Measurement
    against: tuple[Measurement, ...] = ()
    unit: str = "steps/s"
    at_least: float | None = None
    at_most: float | None = None


MLP = "network.hidden_sizes=[64,64]"
LUNAR = f"env=lunar {MLP} envs_per_worker=16 rollout_length=32"
LUNAR_2 = f"{LUNAR} workers=2"
SIXTEEN = "env=cartpole workers=2 envs_per_worker=16 rollout_length=32"
CARTPOLE = f"{MLP} {SIXTEEN}"
LSTM = f"network=lstm network.encoder.hidden_sizes=[64,64] network.hidden_size=64 {SIXTEEN}"
VECTOR = f"env=cartpole env.vectorized=true {MLP} workers=2 envs_per_worker=256 rollout_length=16"
# As in the paper, actor and critic share a body; the other rows have the default, two.
PAPER = f"env=cartpole {MLP} network.shared=true workers=2 envs_per_worker=1 rollout_length=20 returns=n_step"
PONG = "env=pong network=cnn workers=2 envs_per_worker=16 rollout_length=20"
# GA3C and one worker per game, both with their fastest kernels: `precision=auto`.
SIXTEEN_GAMES = "env=pong workers=16 envs_per_worker=1 rollout_length=20"
GA3C = "backend=ga3c backend.training_batch=80"
# rl-baselines3-zoo's recipe for LunarLander, with 16 environments on both sides.
PPO_LUNAR = (
    f"env=lunar {MLP} algorithm=ppo returns=gae returns.lambda_=0.98 optimizer=adam workers=2 envs_per_worker=8 "
    "rollout_length=1024 optimizer.learning_rate=3e-4 optimizer.max_grad_norm=0.5 algorithm.epochs=4 "
    "algorithm.minibatch_size=64 algorithm.entropy_coefficient=0.01 gamma=0.999"
)
PPO_ROUND = 2 * 8 * 1024
PPO_ROUND_SECONDS = 0.8
ZOO_PPO = {key: value for key, value in ZOO["PPO LunarLander-v3"].items() if key not in ("steps", "envs")}


def _training(label: str, overrides: str) -> Measurement:
    return Measurement(label, lambda seconds: training_speed(*overrides.split(), seconds=seconds))


def _stepping(env_id: str) -> Measurement:
    return Measurement("random stepping, both cores", lambda seconds: random_stepping(env_id, seconds))


def _a2c(environments: int, env_id: str = "CartPole-v1") -> Measurement:
    label = f"stable-baselines3 A2C, {environments} environments"
    return Measurement(label, lambda seconds: stable_baselines3("A2C", env_id, environments, seconds))


def _ppo(label: str, update: str) -> Measurement:
    def measure(seconds: float) -> float:
        steps = PPO_ROUND * max(1, round(seconds / PPO_ROUND_SECONDS))
        return whole_training_speed(*PPO_LUNAR.split(), f"update={update}", steps=steps)

    return Measurement(label, measure)


def _ga3c_row(network: str, title: str, at_least: float) -> Row:
    games, title = f"{SIXTEEN_GAMES} network={network}", f"Pong, GA3C, 16 agents x 1, {title}"
    workers = _training("processes, 16 workers x 1", games)
    return Row(f"ga3c_{network}", title, _training("GA3C", f"{games} {GA3C}"), (workers,), at_least=at_least)


def _start(workers: int, at_most: float) -> Row:
    subject = Measurement("env=lunar", lambda _: seconds_to_first_update("env=lunar", f"workers={workers}"))
    return Row(f"start_{workers}", f"Command to first update, {workers} workers", subject, unit="s", at_most=at_most)


PONG_TITLE = "Pong, processes, 2 workers x 16, the A3C paper's CNN"
ATARI_STEPPING = Measurement(
    "random stepping, ALE's vector environment of 32, both cores",
    lambda seconds: atari_random_stepping("pong", 32, seconds),
)
PPO_PEERS = (
    Measurement(
        "stable-baselines3 PPO, 16 environments, as it comes",
        lambda seconds: stable_baselines3("PPO", "LunarLander-v3", 16, seconds, ZOO_PPO, "default"),
    ),
    Measurement(
        "the same with one thread of torch and nothing ready to be drawn",
        lambda seconds: stable_baselines3("PPO", "LunarLander-v3", 16, seconds, ZOO_PPO),
    ),
)
MEMORY = Measurement("16 workers", lambda seconds: peak_memory("env=lunar", "workers=16", seconds=seconds) / 1e9)
RAY_WAIT = Measurement(
    "ray", lambda seconds: curve("ray/wait_share", *f"{LUNAR_2} backend=ray".split(), seconds=seconds)
)

ROWS = (
    Row(
        "lunar",
        "LunarLander-v3, processes, 2 workers x 16, MLP 64-64",
        _training("processes", LUNAR_2),
        (_stepping("LunarLander-v3"),),
        at_least=0.60,
    ),
    Row(
        "cartpole",
        "CartPole-v1, Python environments, 2 x 16, MLP 64-64",
        _training("processes", CARTPOLE),
        (_stepping("CartPole-v1"), _a2c(8), _a2c(16)),
        at_least=0.35,
    ),
    Row(
        "vector",
        "CartPole-v1, numpy vector environment, 2 x 256",
        _training("processes", VECTOR),
        (_a2c(16),),
        at_least=40.0,
    ),
    Row(
        "paper",
        "CartPole-v1, one environment a worker: 2 x 1, rollout 20, shared MLP 64-64",
        _training("processes", PAPER),
        (_stepping("CartPole-v1"),),
        at_least=0.10,
    ),
    Row("pong", PONG_TITLE, _training("processes", PONG), (ATARI_STEPPING,), at_least=0.55),
    Row("pong_a2c", PONG_TITLE, _training("processes", PONG), (_a2c(16, "PongNoFrameskip-v4"),), at_least=3.0),
    Row(
        "ppo",
        "LunarLander-v3, PPO with the zoo's recipe, processes, 2 workers x 8, asynchronous",
        _ppo("processes", "async"),
        (*PPO_PEERS, _ppo("ours in synchronous rounds", "sync"), _stepping("LunarLander-v3")),
        at_least=10.0,
    ),
    _ga3c_row("cnn", "the A3C paper's CNN", 1.4),
    _ga3c_row("cnn_nature", "Nature CNN", 1.9),
    Row(
        "lstm",
        "CartPole-v1, Python environments, 2 x 16, LSTM of 64 cells",
        _training("LSTM 64", LSTM),
        (_training("MLP 64-64", CARTPOLE),),
        at_least=0.35,
    ),
    Row(
        "scaling",
        "LunarLander-v3, 2 workers against 1",
        _training("2 workers", LUNAR_2),
        (_training("1 worker", f"{LUNAR} workers=1"),),
        at_least=1.8,
    ),
    _start(2, at_most=4.0),
    _start(16, at_most=8.0),
    Row("memory", "LunarLander-v3, 16 workers, all processes, shared pages once", MEMORY, unit="GB", at_most=1.5),
    Row(
        "ray",
        "LunarLander-v3, 2 Ray workers x 16",
        _training("ray", f"{LUNAR_2} backend=ray"),
        (_training("processes", LUNAR_2),),
        at_least=0.60,
    ),
    Row(
        "ray_wait",
        "LunarLander-v3, 2 Ray workers x 16 waiting for the server, A3C",
        RAY_WAIT,
        unit="of the time",
        at_most=0.10,
    ),
    Row(
        "threads",
        "CartPole-v1, numpy vector environment, 2 x 256, threads",
        _training("threads", f"{VECTOR} backend=threads"),
        (_training("serial", f"{VECTOR} backend=serial"),),
        at_least=1.2,
    ),
)
