"""A3C on CartPole-v0: ChuaCheowHuan/reinforcement_learning, A3C/A3C_disc_{miss,max,max_dist}.ipynb.

500 episodes in all, an update after each. What the sources do beside A3C:

- Actor and critic are networks, losses and optimizers apart. The critic learns from discounted
  returns, the actor from n-step targets, which the critic cuts short: N = 15 means 14 rewards and
  then V.
- An end at 200 steps counts as a death. So every episode ends with the value 0, and "missing terms
  as zero" and "maximum terms" are the same algorithm here.
- The critic's own copy makes a step before it gives the baseline; the shared critic is stepped by
  the same gradient, which was taken before that.
- log(p + 1e-5) in the loss and in the entropy, whose weight is 0.1; its gradient goes through that
sum.
- Threads: one Adam for the actors and one for the critics of all workers. m and v belong to a
  network, but the powers of the betas advance with every step of any worker, also with those on the
  workers' own critics.
- Parameter server (2 processes): m and v of the shared networks lie on the server, the powers of
  the betas are each worker's own; and as processes are forked after numpy's generator was seeded,
  all draw their actions with the same random numbers.

Left out: workers of the parameter server that start late initialise the shared parameters again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from evidence.study.sources.tensorflow1 import (
    Adam,
    Array,
    Network,
    Slots,
    Worker,
    run_in_random_order,
)

EPISODES = 500
TIME_LIMIT = 200
N = 15
GAMMA = 0.999
ENTROPY = 0.1
NDArrayInt = NDArray[np.int64]
TINY = np.float32(1e-5)


@dataclass(frozen=True)
class Notebook:
    """Settings in which the notebooks differ. maximum: of terms; False: missing ones are zero."""

    workers: int
    hidden: int
    maximum: bool
    server: bool


NOTEBOOKS = {
    "threads_n_step_zero": Notebook(4, 128, maximum=False, server=False),
    "threads_n_step_max": Notebook(4, 128, maximum=True, server=False),
    "parameter_server_cartpole": Notebook(2, 64, maximum=True, server=True),
}


@dataclass
class Shared:
    """The shared networks, their optimizers and what these have for a network, and the episodes so
    far."""

    actor: Network
    critic: Network
    slots: Slots
    optimizers: tuple[Adam, Adam]
    episodes: int = 0
    returns: list[float] = field(default_factory=list)


def n_step_targets(
    rewards: Sequence[float], values: Array, n: int, gamma: float, last_value: float | None = None
) -> Array:
    """n - 1 rewards and then the critic's value. last_value: after the last step; None: missing
    terms are zero."""
    length, n = len(rewards), min(n, len(rewards))
    targets = np.zeros(length, np.float32)

    for t in range(length):
        targets[t] = sum(gamma**k * reward for k, reward in enumerate(rewards[t : t + n - 1]))
        if t + n - 1 < length:
            targets[t] += gamma ** (n - 1) * values[t + n - 1]
        elif last_value is not None:
            targets[t] += gamma ** (length - t) * last_value

    return targets


def discounted(rewards: Sequence[float], gamma: float) -> Array:
    """Sums of the rewards until the end."""
    out = np.zeros(len(rewards), np.float32)
    total = 0.0
    for t in reversed(range(len(rewards))):
        out[t] = total = rewards[t] + gamma * total
    return out


def probabilities(logits: Array) -> Array:
    """Softmax of each row."""
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


def actor_error(logits: Array, actions: NDArrayInt, advantages: Array) -> Array:
    """The gradient of mean(-(0.1 entropy + log(p[a] + 1e-5) A)) with respect to the logits."""
    p = probabilities(logits)
    rows = np.arange(len(actions))
    error = ENTROPY * (np.log(p + TINY) + p / (p + TINY))
    error[rows, actions] -= advantages / (p[rows, actions] + TINY)
    return np.asarray(p * (error - (error * p).sum(1, keepdims=True)) / np.float32(len(actions)))


class Agent:
    """A worker."""

    def __init__(
        self,
        shared: Shared,
        notebook: Notebook,
        rng: np.random.Generator,
        actions: np.random.Generator,
        episodes: int,
    ) -> None:
        self._shared = shared
        self._notebook = notebook
        self._actions = actions
        self._episodes = episodes
        self._env: Any = gymnasium.make("CartPole-v1").unwrapped
        self._env.reset(seed=int(rng.integers(2**31)))
        self._actor, self._critic = _networks(notebook, rng)
        self._optimizers = _optimizers(shared.slots) if notebook.server else shared.optimizers

    def work(self) -> Worker:
        """Episodes until there are enough."""
        shared = self._shared
        yield

        while shared.episodes < self._episodes:
            state = self._env.reset()[0]
            ended = False
            states = []
            actions = []
            rewards = []
            yield from self._pull()

            while not ended:
                yield
                p = probabilities(self._actor.forward(state[None])[-1])
                action = int(self._actions.random() >= p[0, 0])
                states.append(state)
                actions.append(action)
                state, reward, ended, *_ = self._env.step(action)
                rewards.append(float(reward))
                ended = ended or len(rewards) == TIME_LIMIT

            yield from self._update(np.array(states), np.array(actions), rewards)
            if self._notebook.server:
                yield
            shared.episodes += 1
            if self._notebook.server:
                yield
            shared.returns.append(sum(rewards))

    def _pull(self) -> Worker:
        yield
        self._actor.assign(self._shared.actor)
        self._critic.assign(self._shared.critic)

    def _update(self, states: Array, actions: NDArrayInt, rewards: Sequence[float]) -> Worker:
        actor_adam, critic_adam = self._optimizers
        yield
        activations = self._critic.forward(states)
        error = (
            2 / np.float32(len(rewards)) * (activations[-1] - discounted(rewards, GAMMA)[:, None])
        )
        critic_gradient = self._critic.gradient(activations, error)
        yield
        critic_adam.apply((self._critic, critic_gradient))
        yield
        baseline = self._critic.forward(states)[-1][:, 0]
        targets = n_step_targets(
            rewards, baseline, N, GAMMA, 0.0 if self._notebook.maximum else None
        )
        yield
        activations = self._actor.forward(states)
        gradient = self._actor.gradient(
            activations, actor_error(activations[-1], actions, targets - baseline)
        )
        yield
        actor_adam.apply((self._shared.actor, gradient))
        yield
        critic_adam.apply((self._shared.critic, critic_gradient))
        yield from self._pull()
        yield  # to clear the sums of gradients
        yield


def _networks(notebook: Notebook, rng: np.random.Generator) -> tuple[Network, Network]:
    return Network((4, notebook.hidden, 2), rng, ceiling=6), Network(
        (4, notebook.hidden, 1), rng, ceiling=6
    )


def _optimizers(slots: Slots) -> tuple[Adam, Adam]:
    return Adam(0.01, beta1=0.99, slots=slots), Adam(0.01, beta1=0.99, slots=slots)


def run(name: str, seed: int, episodes: int = EPISODES) -> list[float]:
    """The returns of the episodes, in the order in which they ended."""
    notebook = NOTEBOOKS[name]
    rng = np.random.default_rng(seed)
    slots: Slots = {}
    shared = Shared(*_networks(notebook, rng), slots, _optimizers(slots))
    same = int(rng.integers(2**31))
    agents = [
        Agent(
            shared,
            notebook,
            child,
            np.random.default_rng(same) if notebook.server else child,
            episodes,
        )
        for child in rng.spawn(notebook.workers)
    ]
    run_in_random_order([agent.work() for agent in agents], seed)

    return shared.returns[:episodes]
