"""The rows of the benchmark: a figure of this project, the systems it is compared with, and the bar for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from bench.capacity import SIZES, measured_pushes
from bench.peers import UnavailableError, sample_factory, stable_baselines3
from bench.runs import curve, peak_memory, seconds_to_first_update, training_speed, whole_training_speed
from bench.stepping import atari_random_stepping, random_stepping
from study.peers import ZOO


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


def _training(label: str, *overrides: str) -> Measurement:
    return Measurement(label, lambda seconds: training_speed(*overrides, seconds=seconds))


def _stepping(env_id: str) -> Measurement:
    return Measurement("random stepping, both cores", lambda seconds: random_stepping(env_id, seconds))


def _a2c(environments: int) -> Measurement:
    label = f"stable-baselines3 A2C, {environments} environments"
    return Measurement(label, lambda seconds: stable_baselines3("A2C", "CartPole-v1", environments, seconds))


def _pong_row(name: str, against: Measurement, at_least: float) -> Row:
    title = "Pong, processes, 2 workers x 16, the A3C paper's CNN"
    return Row(name, title, _training("processes", *PONG), (against,), at_least=at_least)


def _ga3c_row(network: str, title: str, at_least: float) -> Row:
    games = (*SIXTEEN_GAMES, f"network={network}")
    return Row(
        f"ga3c_{network}",
        f"Pong, GA3C, 16 agents x 1, {title}",
        _training("GA3C", *games, *GA3C),
        (_training("processes, 16 workers x 1", *games),),
        at_least=at_least,
    )


def _ga3c_curve(agents: int, name: str) -> Row:
    """The mean of a curve of GA3C over a run of Pong."""
    overrides = (*SIXTEEN_GAMES, f"workers={agents}", "network=cnn", *GA3C)
    subject = Measurement(name, lambda seconds: curve(f"ga3c/{name}", *overrides, seconds=seconds))
    bar = 6.0 if (agents, name) == (16, "prediction_batch") else None
    title = f"Pong, GA3C, {agents} agents x 1, the A3C paper's CNN: {GA3C_CURVES[name]}"
    return Row(f"ga3c_{name}_{agents}", title, subject, unit="on average", at_least=bar)


def _on_gpu(measure: Callable[[float], float]) -> Callable[[float], float]:
    def measured(seconds: float) -> float:
        if not torch.cuda.is_available():
            raise UnavailableError("no GPU here: on a machine with one, make clean setup TORCH=default")
        return measure(seconds)

    return measured


def _gpu_rows(agents: int, network: str, title: str) -> tuple[Row, Row]:
    """Steps per second, compared with the machine's cores, and predictions per second."""
    games = ("env=pong", f"network={network}", "rollout_length=20")
    on_gpu = (*games, f"workers={agents}", "envs_per_worker=1", *GA3C, "backend.device=cuda")
    name, title = f"ga3c_gpu_{network}_{agents}", f"Pong, GA3C on a GPU, {agents} agents x 1, {title}"
    speed = Measurement("GA3C", _on_gpu(lambda seconds: training_speed(*on_gpu, seconds=seconds)))
    rate = "ga3c/predictions_per_second"
    answers = Measurement("GA3C", _on_gpu(lambda seconds: curve(rate, *on_gpu, seconds=seconds)))
    cores = _training("processes, a worker of 16 games a core", *games, "envs_per_worker=16")
    predictions = Row(f"{name}_predictions", f"{title}, predictions", answers, unit="predictions/s")
    return Row(name, title, speed, (cores,)), predictions


def _start(workers: int) -> Row:
    subject = Measurement("env=lunar", lambda _: seconds_to_first_update("env=lunar", f"workers={workers}"))
    title = f"Command to first update, {workers} workers"
    return Row(f"start_{workers}", title, subject, unit="s", at_most={2: 4.0, 16: 8.0}[workers])


def _waiting(name: str, title: str, *overrides: str, at_most: float | None = None) -> Row:
    """The share of a worker's time in which it waits for the server."""
    subject = Measurement("ray", lambda seconds: curve("ray/wait_share", *overrides, *ON_RAY, seconds=seconds))
    return Row(name, title, subject, unit="of the time", at_most=at_most)


def _capacity(name: str, size: str) -> Row:
    subject = Measurement("2 workers that only push", lambda seconds: measured_pushes(SIZES[size], seconds))
    return Row(name, f"A parameter server, {size} parameters", subject, unit="pushes/s")


def _memory(seconds: float) -> float:
    return peak_memory("env=lunar", "workers=16", seconds=seconds) / 1e9


MLP = "network.hidden_sizes=[64,64]"
LUNAR = ("env=lunar", MLP, "envs_per_worker=16", "rollout_length=32")
ON_RAY = ("backend=ray", "workers=2")
RAY_PPO = ("experiment=ppo_lunar", "update=async")
LSTM = ("network=lstm", "network.encoder.hidden_sizes=[64,64]", "network.hidden_size=64")
SIXTEEN = ("env=cartpole", "workers=2", "envs_per_worker=16", "rollout_length=32")
CARTPOLE = (MLP, *SIXTEEN)
VECTOR = ("env=cartpole", "env.vectorized=true", MLP, "workers=2", "envs_per_worker=256", "rollout_length=16")
# As in the paper, actor and critic share a body; the other rows have the default, two.
PAPER = (
    "env=cartpole", MLP, "network.shared=true", "workers=2", "envs_per_worker=1", "rollout_length=20", "returns=n_step",
)  # fmt: skip
PONG = ("env=pong", "network=cnn", "workers=2", "envs_per_worker=16", "rollout_length=20")
# GA3C and one worker per game, both with their fastest kernels: `precision=auto`.
SIXTEEN_GAMES = ("env=pong", "workers=16", "envs_per_worker=1", "rollout_length=20")
GA3C = ("backend=ga3c", "backend.training_batch=80")
GA3C_CURVES = {
    "prediction_batch": "observations answered together",
    "training_batch": "transitions learned from together",
    "agent_wait": "share of its time that an agent waits",
    "prediction_queue": "requests that wait when a batch is taken, those taken included",
    "training_queue": "rollouts that wait when a batch is taken, those taken included",
}
PONG_STEPPING = Measurement(
    "random stepping, ALE's vector environment of 32, both cores",
    lambda seconds: atari_random_stepping("pong", 32, seconds),
)
PONG_A2C = Measurement(
    "stable-baselines3 A2C, 16 environments",
    lambda seconds: stable_baselines3("A2C", "PongNoFrameskip-v4", 16, seconds),
)
# rl-baselines3-zoo's recipe for LunarLander, with 16 environments on both sides.
PPO_LUNAR = (
    "env=lunar", MLP, "algorithm=ppo", "returns=gae", "returns.lambda_=0.98", "optimizer=adam", "workers=2",
    "envs_per_worker=8", "rollout_length=1024", "optimizer.learning_rate=3e-4", "optimizer.max_grad_norm=0.5",
    "algorithm.epochs=4", "algorithm.minibatch_size=64", "algorithm.entropy_coefficient=0.01", "gamma=0.999",
)  # fmt: skip
PPO_ROUND = 2 * 8 * 1024
PPO_ROUND_SECONDS = 0.8  # about
_ZOO = {key: value for key, value in ZOO["PPO", "LunarLander-v3"].items() if key not in ("steps", "envs")}
PPO_PEERS = (
    Measurement(
        "stable-baselines3 PPO, 16 environments, as it comes",
        lambda seconds: stable_baselines3("PPO", "LunarLander-v3", 16, seconds, _ZOO, "default"),
    ),
    Measurement(
        "the same with one thread of torch and nothing ready to be drawn",
        lambda seconds: stable_baselines3("PPO", "LunarLander-v3", 16, seconds, _ZOO),
    ),
)
SAMPLE_FACTORY = Measurement("Sample Factory APPO, 2 x 16", sample_factory)


def _ppo(label: str, update: str) -> Measurement:
    def measure(seconds: float) -> float:
        steps = PPO_ROUND * max(1, round(seconds / PPO_ROUND_SECONDS))
        return whole_training_speed(*PPO_LUNAR, f"update={update}", steps=steps)

    return Measurement(label, measure)


ROWS = (
    Row(
        "lunar",
        "LunarLander-v3, processes, 2 workers x 16, MLP 64-64",
        _training("processes", *LUNAR, "workers=2"),
        (_stepping("LunarLander-v3"),),
        at_least=0.60,
    ),
    Row(
        "cartpole",
        "CartPole-v1, Python environments, 2 x 16, MLP 64-64",
        _training("processes", *CARTPOLE),
        (_stepping("CartPole-v1"), _a2c(8), _a2c(16), SAMPLE_FACTORY),
        at_least=0.35,
    ),
    Row(
        "vector",
        "CartPole-v1, numpy vector environment, 2 x 256",
        _training("processes", *VECTOR),
        (_a2c(16),),
        at_least=40.0,
    ),
    Row(
        "paper",
        "CartPole-v1, one environment a worker: 2 x 1, rollout 20, shared MLP 64-64",
        _training("processes", *PAPER),
        (_stepping("CartPole-v1"),),
        at_least=0.10,
    ),
    _pong_row("pong", PONG_STEPPING, 0.55),
    _pong_row("pong_a2c", PONG_A2C, 3.0),
    Row(
        "ppo",
        "LunarLander-v3, PPO with the zoo's recipe, processes, 2 workers x 8, asynchronous",
        _ppo("processes", "async"),
        (*PPO_PEERS, _ppo("ours in synchronous rounds", "sync"), _stepping("LunarLander-v3")),
        at_least=10.0,
    ),
    _ga3c_row("cnn", "the A3C paper's CNN", 1.4),
    _ga3c_row("cnn_nature", "Nature CNN", 1.9),
    *(_ga3c_curve(agents, name) for agents in (4, 16, 64) for name in GA3C_CURVES),
    *(
        row
        for network, title in (("cnn", "the A3C paper's CNN"), ("cnn_nature", "Nature CNN"))
        for agents in (32, 128)
        for row in _gpu_rows(agents, network, title)
    ),
    Row(
        "lstm",
        "CartPole-v1, Python environments, 2 x 16, LSTM of 64 cells",
        _training("LSTM 64", *LSTM, *SIXTEEN),
        (_training("MLP 64-64", *CARTPOLE),),
        at_least=0.35,
    ),
    Row(
        "scaling",
        "LunarLander-v3, 2 workers against 1",
        _training("2 workers", *LUNAR, "workers=2"),
        (_training("1 worker", *LUNAR, "workers=1"),),
        at_least=1.8,
    ),
    _start(2),
    _start(16),
    Row(
        "memory",
        "LunarLander-v3, 16 workers, all processes, shared pages once",
        Measurement("16 workers", _memory),
        unit="GB",
        at_most=1.5,
    ),
    Row(
        "ray",
        "LunarLander-v3, 2 Ray workers x 16",
        _training("ray", *LUNAR, *ON_RAY),
        (_training("processes", *LUNAR, "workers=2"),),
        at_least=0.60,
    ),
    _waiting("ray_wait", "LunarLander-v3, 2 Ray workers x 16 waiting for the server, A3C", *LUNAR, at_most=0.10),
    _waiting("ray_wait_ppo", "The same, experiment=ppo_lunar, a push a minibatch", *RAY_PPO),
    _capacity("ray_20k", "20 thousand"),
    _capacity("ray_1.7m", "1.7 million"),
    Row(
        "threads",
        "CartPole-v1, numpy vector environment, 2 x 256, threads",
        _training("threads", *VECTOR, "backend=threads"),
        (_training("serial", *VECTOR, "backend=serial"),),
        at_least=1.2,
    ),
)
