"""Distributed PPO on Pendulum: ChuaCheowHuan/reinforcement_learning,
DPPO/DPPO_cont_GAE_dist_GPU.ipynb.

A parameter server and 4 workers; 500 episodes of 200 steps in all, of an environment without time
limit: no step is an end, and the last batch of an episode has 8 transitions, the others 32. What
the source does beside PPO with GAE:

- Rewards are centred and scaled by each worker's running statistics, of the rewards, and clipped to
+-10.
- The action is clipped before it is kept, and its probability is that of the clipped action.
- Ten passes of the actor, then ten of the critic. In each a worker steps its own parameters, then
  pushes the gradient that these have, and pulls in the same session.run, so before or after the
  push (drawn here).
- The old policy is a copy made before each batch, but trainable: the local step changes it too,
against the policy.
- Each worker has an Adam of its own, also for the shared parameters, whose beta powers its local
steps advance as well.
- A worker starts with parameters of its own: it pulls for the first time after its first pass.

Left out: workers that start late initialise the shared parameters again. Pendulum is version 1
here, which clips the velocity before the angle is updated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from evidence.study.sources.tensorflow1 import Adam, Array, Network, Worker, run_in_random_order

WORKERS = 4
EPISODES = 500
STEPS = 200
BATCH = 32
PASSES = 10
GAMMA = 0.9
LAMBDA = 0.95
CLIP = 0.2
TORQUE = 2.0
HIDDEN = 50
ACTOR_RATE = 1e-4
CRITIC_RATE = 2e-4


@dataclass(frozen=True)
class Peculiarities:
    """What the source does, each of which can be left out to see what it is good for."""

    centred_rewards: bool = True  # False: divided by the deviation of the running discounted return
    squashed_mean: bool = True  # False: 2 z instead of 2 tanh z
    softplus: bool = True  # False: exp(z - 0.37), as large at z = 0
    clipped_actions: bool = True  # False: the action is kept as it was drawn
    local_step: bool = True
    passes_apart: bool = True  # False: each pass is one of the actor and one of the critic
    adam_per_worker: bool = True  # False: all workers push with one Adam


class Statistics:
    """Running mean and deviation, as in OpenAI's baselines: count 1e-4 at first."""

    def __init__(self) -> None:
        self.mean = 0.0
        self.variance = 1.0
        self._count = 1e-4

    def update(self, x: NDArray[np.float64]) -> None:
        """Add the numbers [N]."""
        delta = x.mean() - self.mean
        total = self._count + len(x)
        squares = (
            self.variance * self._count + x.var() * len(x) + delta**2 * self._count * len(x) / total
        )
        self.mean = self.mean + delta * len(x) / total
        self.variance = squares / total
        self._count = total

    @property
    def deviation(self) -> float:
        return float(max(self.variance**0.5, 1e-6))


@dataclass
class Shared:
    """The parameter server."""

    actor: Network
    critic: Network
    optimizers: tuple[Adam, Adam]  # only used if workers have none of their own
    episodes: int = 0
    returns: list[float] = field(default_factory=list)


def advantages(rewards: NDArray[np.float64], values: Array, next_value: float) -> Array:
    """GAE of a batch in which no episode ends."""
    out = np.empty(len(rewards), np.float32)
    last = 0.0
    following = [*values[1:], next_value]
    for t in reversed(range(len(rewards))):
        out[t] = last = rewards[t] + GAMMA * following[t] - values[t] + GAMMA * LAMBDA * last
    return out


class Agent:
    """A worker."""

    def __init__(
        self, shared: Shared, rng: np.random.Generator, episodes: int, options: Peculiarities
    ) -> None:
        self._shared = shared
        self._rng = rng
        self._episodes = episodes
        self._options = options
        self._env: Any = gymnasium.make("Pendulum-v1").unwrapped
        self._env.reset(seed=int(rng.integers(2**31)))
        self.actor = _actor(rng)
        self.old = _actor(rng)
        self.critic = _critic(rng)
        self._local = Adam(ACTOR_RATE), Adam(CRITIC_RATE)
        self._global = self._local if options.adam_per_worker else shared.optimizers
        self._statistics = Statistics()
        self._sum = 0.0

    def work(self) -> Worker:
        """Episodes until there are enough."""
        yield
        while self._shared.episodes < self._episodes:
            state = self._env.reset()[0]

            total = 0.0
            rows: list[tuple[Array, float, float, float]] = []
            for t in range(STEPS):
                yield
                mean, deviation = self.heads(self.actor.forward(state[None])[-1])
                drawn = float(mean[0] + deviation[0] * self._rng.standard_normal())
                action = min(max(drawn, -TORQUE), TORQUE)
                following, reward, *_ = self._env.step(np.array([action]))
                yield
                value = self.critic.forward(state[None])[-1][0, 0]
                rows.append(
                    (
                        state,
                        action if self._options.clipped_actions else drawn,
                        float(reward),
                        value,
                    )
                )
                state, total = following, total + float(reward)

                if (t + 1) % BATCH == 0 or t == STEPS - 1:
                    yield
                    yield from self._update(rows, self.critic.forward(state[None])[-1][0, 0])
                    rows = []

            yield
            self._shared.episodes += 1
            yield
            self._shared.returns.append(total)
            yield

    def _update(
        self, rows: Sequence[tuple[Array, float, float, float]], next_value: float
    ) -> Worker:
        states, actions, rewards, values = (np.array(column) for column in zip(*rows, strict=True))
        advantage = advantages(self._normalized(rewards), values, next_value)
        targets = advantage + values
        yield
        self.old.assign(self.actor)
        batch = states, actions.astype(np.float32), advantage, targets

        for part in (0, 1) if self._options.passes_apart else (0, 1) * PASSES:
            for _ in range(PASSES if self._options.passes_apart else 1):
                yield
                if self._options.local_step:
                    self._local[part].apply(*self._gradients(part, *batch))
                yield
                self._push_and_pull(part, self._gradients(part, *batch)[0][1])

    def _gradients(
        self, part: int, states: Array, actions: Array, advantage: Array, targets: Array
    ) -> tuple[tuple[Network, Array], ...]:
        """Of the actor (part 0) or the critic, each network with its own."""
        if part == 0:
            return self.actor_gradients(states, actions, advantage)
        return ((self.critic, self.critic_gradient(states, targets)),)

    def _push_and_pull(self, part: int, gradient: Array) -> None:
        mine, theirs = (
            (self.actor, self._shared.actor) if part == 0 else (self.critic, self._shared.critic)
        )
        pull_first = self._rng.random() < 0.5
        if pull_first:
            mine.assign(theirs)
        self._global[part].apply((theirs, gradient))
        if not pull_first:
            mine.assign(theirs)

    def _normalized(self, rewards: NDArray[np.float64]) -> NDArray[np.float64]:
        if self._options.centred_rewards:
            self._statistics.update(rewards)
            return np.clip((rewards - self._statistics.mean) / self._statistics.deviation, -10, 10)

        sums = []
        for reward in rewards:
            self._sum = GAMMA * self._sum + reward
            sums.append(self._sum)

        self._statistics.update(np.array(sums))
        return rewards / self._statistics.deviation

    def heads(self, outputs: Array) -> tuple[Array, Array]:
        """Mean and deviation of the actions."""
        mean = np.tanh(outputs[:, 0]) if self._options.squashed_mean else outputs[:, 0]
        z = outputs[:, 1]
        return np.float32(TORQUE) * mean, np.logaddexp(0, z) if self._options.softplus else np.log(
            2
        ) * np.exp(z)

    def critic_gradient(self, states: Array, targets: Array) -> Array:
        """Of the mean squared error."""
        activations = self.critic.forward(states)
        return self.critic.gradient(
            activations, 2 / len(states) * (activations[-1] - targets[:, None])
        )

    def actor_gradients(
        self, states: Array, actions: Array, advantage: Array
    ) -> tuple[tuple[Network, Array], ...]:
        """Of -mean(min(ratio A, clip(ratio) A)): with respect to the policy, and to the old
        policy."""
        new, old = self.actor.forward(states), self.old.forward(states)
        (mean, deviation), (old_mean, old_deviation) = self.heads(new[-1]), self.heads(old[-1])
        noise = (actions - mean) / deviation
        old_noise = (actions - old_mean) / old_deviation
        ratio = np.exp(-0.5 * noise**2) / deviation / (np.exp(-0.5 * old_noise**2) / old_deviation)
        free = ratio * advantage <= np.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage
        error = -(ratio * advantage * free) / np.float32(len(states))  # with respect to log(ratio)
        of_new = self._log_prob_error(new[-1], error, noise, deviation)
        of_old = self._log_prob_error(old[-1], -error, old_noise, old_deviation)

        return (self.actor, self.actor.gradient(new, of_new)), (
            self.old,
            self.old.gradient(old, of_old),
        )

    def _log_prob_error(
        self, outputs: Array, error: Array, noise: Array, deviation: Array
    ) -> Array:
        slope = 1 - np.tanh(outputs[:, 0]) ** 2 if self._options.squashed_mean else np.float32(1)
        rise = 1 / (1 + np.exp(-outputs[:, 1])) if self._options.softplus else deviation
        parts = (
            error * noise / deviation * TORQUE * slope,
            error * (noise**2 - 1) / deviation * rise,
        )
        return np.stack(parts, axis=1).astype(np.float32)


def _actor(rng: np.random.Generator) -> Network:
    return Network((3, HIDDEN, 2), rng, heads=2)


def _critic(rng: np.random.Generator) -> Network:
    return Network((3, HIDDEN, 1), rng)


def run(
    seed: int, episodes: int = EPISODES, options: Peculiarities = Peculiarities()
) -> list[float]:
    """The returns of the episodes, in the order in which they ended."""
    rng = np.random.default_rng(seed)
    shared = Shared(_actor(rng), _critic(rng), (Adam(ACTOR_RATE), Adam(CRITIC_RATE)))
    agents = [Agent(shared, child, episodes, options) for child in rng.spawn(WORKERS)]
    run_in_random_order([agent.work() for agent in agents], seed)
    return shared.returns[:episodes]
