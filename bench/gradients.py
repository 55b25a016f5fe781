"""The cost of a gradient on arrays, and by torch's autograd over the same weights: `python -m bench.gradients`.

Two encoders of 64-64, four actions, the loss of A3C. Autograd runs through the network's `forward`, torch's own
log-softmax and the loss, in one graph.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import gymnasium as gym
import numpy as np
import torch

from a3c_exp.algorithms import A3C, BatchArrays
from a3c_exp.core.cpu import one_thread
from a3c_exp.networks import ActorCritic, EncoderNetwork, Mlp, ModuleSpec
from a3c_exp.run import markdown
from bench.arithmetic import microseconds

INPUTS, ACTIONS = 8, 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the median of both, in microseconds of processor time per gradient."""
    parser = argparse.ArgumentParser(prog="python -m bench.gradients", description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.3, help="of each measurement (default 0.3)")
    parser.add_argument("--turns", type=int, default=9, help="of both in turn (default 9)")
    parser.add_argument("--transitions", type=int, nargs="*", default=(5, 20, 64, 512, 4096))
    flags = parser.parse_args(arguments)
    print(markdown.table(["transitions", "arrays", "torch's graph", "ratio"]))
    with one_thread():
        for count in flags.transitions:
            ways = both(count)
            spent = [[microseconds(way, flags.seconds) for way in ways] for _ in range(flags.turns)]
            arrays, graph = np.median(spent, axis=0)
            cells = str(count), f"{arrays:.0f}", f"{graph:.0f}", f"{graph / arrays:.2f}"
            print(markdown.row(cells), flush=True)
    return 0


def both(count: int) -> tuple[Callable[[], None], Callable[[], None]]:
    """Functions that add the gradient of `count` transitions to the same network's: on arrays, and by autograd."""
    rng = np.random.default_rng(0)
    component = EncoderNetwork(encoder=ModuleSpec(Mlp), init="orthogonal")
    network = component.build(gym.spaces.Box(-1, 1, (INPUTS,)), gym.spaces.Discrete(ACTIONS), rng)
    observations = rng.standard_normal((1, count, INPUTS)).astype(np.float32)
    actions = rng.integers(0, ACTIONS, (1, count))
    names = "log_probs", "values", "rewards", "advantages", "targets"
    drawn = dict(zip(names, rng.standard_normal((5, 1, count)).astype(np.float32), strict=True))
    batch = BatchArrays(observations=observations, actions=actions, **drawn)
    algorithm = A3C()

    def arrays() -> None:
        outputs, add_gradient = network.evaluate(observations, actions)
        grad, _ = algorithm.gradient(outputs, batch, 0.0)
        add_gradient(grad)

    return arrays, lambda: _graph(network, algorithm, batch)


def _graph(network: ActorCritic, algorithm: A3C, batch: BatchArrays) -> None:
    flat, taken = torch.from_numpy(batch.observations[0]), torch.from_numpy(batch.actions[0])
    logits, values, _ = network(flat)
    log_pi = logits.log_softmax(-1)
    log_probs = log_pi.gather(-1, taken[:, None])[:, 0]
    entropy = -(log_pi.exp() * log_pi).sum(-1).mean()
    policy_loss = -(log_probs * torch.from_numpy(batch.advantages[0])).mean()
    value_loss = 0.5 * (values - torch.from_numpy(batch.targets[0])).square().mean()
    loss = policy_loss + algorithm.value_coefficient * value_loss - 0.01 * entropy
    loss.backward()
    for metric in (policy_loss, value_loss, entropy):
        metric.item()


if __name__ == "__main__":
    raise SystemExit(main())
