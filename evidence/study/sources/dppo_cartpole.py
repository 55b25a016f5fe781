"""Distributed PPO on CartPole-v0: Ceruleanacg/Learning-Notes, playground/PPO.py (bb3421b) and a
notebook that runs it.

One server, 3 workers, 1000 episodes of each; an update after each episode. What the source does
beside PPO:

- All variables are on the server, and none are pulled: a worker acts with what the others are just
  changing. The optimizers' m, v and powers of betas are shared as well.
- The ratio is not of the action's probabilities but of the largest ones, of the two policies at the
  time of acting, and is clipped to [0.1, 1.9]. It is a number without a gradient, a weight of a
  plain policy gradient.
- The old policy is what any worker last copied, before its update.
- One step of each optimizer an episode, on discounted returns (0.95), which are not normalised.
- The reward of falling is -10, and no episode has a time limit.
- As the processes are forked from one, and each seeds its environment with 1, all have the same
  start states and draw their actions with the same random numbers.

Left out: workers that start late initialise the variables again. A run ends early after a number of
steps in all, as
an episode may never end.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from typing import Any

import gymnasium
import numpy as np

from evidence.study.sources.a3c import discounted, probabilities
from evidence.study.sources.tensorflow1 import Adam, Array, Network, Worker, run_in_random_order

WORKERS = 3
EPISODES = 1000
STEPS = 1_000_000
RATE = 1e-3
GAMMA = 0.95
CLIP = 0.9
FALL = -10.0
GREEDY_EPISODES = 100
GREEDY_LIMIT = 500


class Server:
    """The variables, and what the workers have done."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.policy, self.old = (
            Network((4, 64, 32, 2), rng, deviations=(0.01, 0.01, 0.01)) for _ in range(2)
        )
        self.critic = Network((4, 64, 1), rng, deviations=(0.01, None))
        self._actor_adam = Adam(RATE)
        self._critic_adam = Adam(RATE)
        self.steps = 0
        self.returns = list[float]()

    def train(
        self,
        states: Array,
        actions: Sequence[int],
        targets: Array,
        advantages: Array,
        ratios: Array,
    ) -> None:
        """A step of both optimizers, with gradients of the same values."""
        count = np.float32(len(states))
        activations = self.critic.forward(states)
        critic_gradient = self.critic.gradient(
            activations, 2 / count * (activations[-1] - targets[:, None])
        )
        activations = self.policy.forward(states)
        error = probabilities(activations[-1])
        error[np.arange(len(states)), actions] -= 1
        error *= (np.clip(ratios, 1 - CLIP, 1 + CLIP) * advantages / count)[:, None]
        self._actor_adam.apply((self.policy, self.policy.gradient(activations, error)))
        self._critic_adam.apply((self.critic, critic_gradient))


def first_probability(policy: Network, state: Array) -> float:
    """The softmax of the first of two actions."""
    first, second = policy.forward(state[None])[-1][0].tolist()
    return 1 / (1 + exp(second - first)) if second - first < 700 else 0.0


def work(server: Server, episodes: int, limit: int, seed: int) -> Worker:
    """Episodes of one worker. limit: of all workers' steps."""
    env: Any = gymnasium.make("CartPole-v1").unwrapped
    rng = np.random.default_rng(seed)
    env.reset(seed=1)

    for _ in range(episodes):
        state = env.reset()[0]

        ended = False
        states = []
        actions = []
        rewards = []
        ratios = []
        while not ended:
            yield
            new, old = first_probability(server.policy, state), first_probability(server.old, state)
            ratios.append(max(new, 1 - new) / max(old, 1 - old))
            states.append(state)
            actions.append(int(rng.random() >= new))
            state, reward, ended, *_ = env.step(actions[-1])
            rewards.append(FALL if ended else float(reward))
            server.steps += 1
            if server.steps >= limit:
                return

        batch = np.array(states)
        targets = discounted(rewards, GAMMA)
        yield
        server.old.assign(server.policy)
        yield
        advantages = targets - server.critic.forward(batch)[-1][:, 0]
        yield
        server.train(batch, actions, targets, advantages, np.array(ratios, np.float32))
        server.returns.append(sum(rewards))


def greedy_return(policy: Network) -> float:
    """Mean length of episodes of most likely actions, cut at 500."""
    env: Any = gymnasium.make("CartPole-v1").unwrapped
    lengths = []
    env.reset(seed=10**6)

    for _ in range(GREEDY_EPISODES):
        state = env.reset()[0]

        ended = False
        length = 0
        while not ended and length < GREEDY_LIMIT:
            state, _, ended, *_ = env.step(int(policy.forward(state[None])[-1].argmax()))
            length += 1

        lengths.append(length)

    return float(np.mean(lengths))


def run(seed: int, episodes: int = EPISODES, limit: int = STEPS) -> tuple[list[float], float]:
    """The returns of the episodes (with -10 for falling), in the order in which they ended, and the
    greedy return."""
    rng = np.random.default_rng(seed)
    server = Server(rng)
    same = int(rng.integers(2**31))
    run_in_random_order([work(server, episodes, limit, same) for _ in range(WORKERS)], seed)
    return server.returns, greedy_return(server.policy)
