"""What a picture costs in each arithmetic: `python -m bench.pictures`.

Processor time of one thread, in microseconds a picture, by the number of pictures at once. The ways of computing take
turns, and the least of the turns is taken, so that what else the machine does weighs little. It is what
`network.precision=auto` and `network.channels_last=auto` were decided by.
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
    parser.add_argument("--turns", type=int, default=20, help="of each way of computing (default 20)")
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
    """The network of an experiment in each of the ways, and the shape of what it sees."""
    networks = []
    for precision, last in WAYS:
        choice = (f"network.precision={precision}", f"network.channels_last={last}")
        network, env = build_network(load_experiment(a3c_exp.compose([*overrides, *choice])))
        networks.append(network)
    return networks, env.observation_space.shape or ()


def costs(networks: Sequence[ActorCritic], shape: tuple[int, ...], count: int, turns: int) -> list[tuple[float, float]]:
    """Of each network, microseconds a picture: of acting, and of a pass forward and backward."""
    seen = np.random.default_rng(0).integers(0, 255, (1, count, *shape), dtype=np.uint8)
    actions, by = np.zeros((1, count), np.int64), np.ones((1, count), np.float32)

    def act(network: ActorCritic) -> None:
        network.infer(seen[0])

    def learn(network: ActorCritic) -> None:
        _, add_gradient = network.evaluate(seen, actions)
        add_gradient(OutputGradients(by, by, by))

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
