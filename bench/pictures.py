"""The cost of a picture in each number format and memory layout: `python -m bench.pictures`.

Processor time of one thread, in microseconds per picture, by the number of pictures in a batch. The variants take
turns, and the least of the turns counts, so that other load on the machine matters little. The defaults of
`network.precision=auto` and `network.channels_last=auto` come from these figures.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np

import a3c_exp
from a3c_exp.config.builder import load_experiment
from a3c_exp.core.cpu import one_thread
from a3c_exp.core.experiment import build_network
from a3c_exp.networks import ActorCritic
from a3c_exp.networks.outputs import OutputGradients
from a3c_exp.run import markdown

NETWORKS = {
    "cnn": ("env=pong",),
    "cnn_nature": ("env=pong", "network=cnn_nature"),
    "cnn_impala": ("env=pong", "network=cnn_impala"),
    "experiment=pong": ("experiment=pong",),
}
WAYS = tuple(product(("float32", "bfloat16"), (False, True)))
COUNTS = (1, 4, 8, 12, 16, 32, 80, 160)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table: forward alone, and forward and backward."""
    parser = argparse.ArgumentParser(prog="python -m bench.pictures", description=__doc__)
    parser.add_argument("--turns", type=int, default=20, help="of each variant (default 20)")
    parser.add_argument("--pictures", type=int, nargs="+", default=COUNTS, help="how many at once")
    flags = parser.parse_args(arguments)
    ways = [f"{precision}, channels {'last' if last else 'first'}" for precision, last in WAYS]
    print(markdown.table(["network", "pictures", *ways]))
    with one_thread():
        for name, overrides in NETWORKS.items():
            networks, shape = build(overrides)
            for count in flags.pictures:
                cells = [f"{act:.0f}, {learn:.0f}" for act, learn in costs(networks, shape, count, flags.turns)]
                print(markdown.row([name, str(count), *cells]), flush=True)
    return 0


def build(overrides: Sequence[str]) -> tuple[list[ActorCritic], tuple[int, ...]]:
    """The network of an experiment in each variant, and the shape of its observations."""
    networks = []
    for precision, last in WAYS:
        choice = (f"network.precision={precision}", f"network.channels_last={last}")
        network, env = build_network(load_experiment(a3c_exp.compose([*overrides, *choice])))
        networks.append(network)
    return networks, env.observation_space.shape or ()


def costs(networks: Sequence[ActorCritic], shape: tuple[int, ...], count: int, turns: int) -> list[tuple[float, float]]:
    """For each network, microseconds per picture: of acting, and of a pass forward and backward."""
    observations = np.random.default_rng(0).integers(0, 255, (1, count, *shape), dtype=np.uint8)
    actions, grad = np.zeros((1, count), np.int64), np.ones((1, count), np.float32)

    def act(network: ActorCritic) -> None:
        network.act_forward(observations[0])

    def learn(network: ActorCritic) -> None:
        _, add_gradient = network.evaluate(observations, actions)
        add_gradient(OutputGradients(grad, grad, grad))

    spent = {
        kind: [[_microseconds(kind, network) for network in networks] for _ in range(turns)] for kind in (act, learn)
    }
    least = [np.min(spent[kind], axis=0) / count for kind in (act, learn)]
    return list(zip(*least, strict=True))


def _microseconds(call: Callable[[ActorCritic], None], network: ActorCritic) -> float:
    began = time.process_time()
    call(network)
    return 1e6 * (time.process_time() - began)


if __name__ == "__main__":
    raise SystemExit(main())
