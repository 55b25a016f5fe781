"""The speed that GA3C could gain on this machine by batches alone: `python -m bench.arithmetic`.

A step costs time in the emulator, a forward pass, and its share of a pass forward and backward. A worker with one
environment computes the passes of one observation and of one rollout; GA3C computes those of batches. Queues, switches
between processes and the update itself are left out, and every pass finds its weights in the cache.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import numpy as np

import a3c_exp
from a3c_exp.config.builder import load_experiment
from a3c_exp.core.cpu import one_thread
from a3c_exp.core.experiment import build_network
from a3c_exp.networks.outputs import OutputGradients
from a3c_exp.run import markdown

NETWORKS = ("cnn", "cnn_nature")
COLUMNS = (
    "network", "emulator", "forward, 1 / 12", "forward and backward, 20 / 80", "a worker a game", "GA3C", "ratio",
)  # fmt: skip
ROLLOUT, TRAINING_BATCH, PREDICTION_BATCH = 20, 80, 12  # of 16 agents 12 to 13 are answered together: `python -m bench`


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the costs of a step in microseconds of processor time, and their ratio."""
    parser = argparse.ArgumentParser(prog="python -m bench.arithmetic", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement (default 3)")
    seconds = parser.parse_args(arguments).seconds
    print(markdown.table(COLUMNS))
    for name in NETWORKS:
        with one_thread():
            emulator, alone, together, small, large = costs(name, seconds)
        worker, ga3c = emulator + alone + small, emulator + together + large
        passes = f"{alone:.0f} / {together:.0f}", f"{small:.0f} / {large:.0f}"
        print(markdown.row([name, f"{emulator:.0f}", *passes, f"{worker:.0f}", f"{ga3c:.0f}", f"{worker / ga3c:.2f}"]))
    return 0


def costs(name: str, seconds: float) -> tuple[float, float, float, float, float]:
    """Microseconds of processor time of a step of Pong with the network `name`.

    The emulator; the forward pass of an observation, alone and in a batch; the passes forward and backward of a
    transition, in one rollout and in a batch of several.
    """
    experiment = load_experiment(a3c_exp.compose(["env=pong", f"network={name}"]))
    network, env = build_network(experiment)
    games = experiment.env.make(1, [0])
    games.reset()
    actions = np.zeros(1, np.int64)
    rng = np.random.default_rng(0)

    def pictures(*shape: int) -> np.ndarray:
        return rng.integers(0, 255, (*shape, *(env.observation_space.shape or ())), dtype=np.uint8)

    def forward(count: int) -> float:
        observations = pictures(count)
        return microseconds(lambda: network.act_forward(observations), seconds) / count

    def learn(rollouts: int) -> float:
        observations, grad = pictures(ROLLOUT, rollouts), np.ones((ROLLOUT, rollouts), np.float32)
        taken = np.zeros((ROLLOUT, rollouts), np.int64)

        def both() -> None:
            _, add_gradient = network.evaluate(observations, taken)
            add_gradient(OutputGradients(grad, grad, grad))

        return microseconds(both, seconds) / (ROLLOUT * rollouts)

    try:
        emulator = microseconds(lambda: games.step(actions), seconds)
    finally:
        games.close()
    return emulator, forward(1), forward(PREDICTION_BATCH), learn(1), learn(TRAINING_BATCH // ROLLOUT)


def microseconds(call: Callable[[], object], seconds: float) -> float:
    """Of processor time, all threads of this process together, for one call."""
    call()
    count, started, used = 0, time.perf_counter(), time.process_time()
    while not count or time.perf_counter() - started < seconds:
        call()
        count += 1
    return 1e6 * (time.process_time() - used) / count


if __name__ == "__main__":
    raise SystemExit(main())
