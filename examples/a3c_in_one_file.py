"""A3C on CartPole in one file, without this package, to be read from top to bottom.

    python examples/a3c_in_one_file.py

This is algorithm S3 of Mnih et al. 2016 (arXiv 1602.01783), with the settings of
`python -m a3c_exp experiment=paper workers=4`. Each worker is a process with an environment of its
own. It copies the shared parameters, acts for up to T_MAX steps, and steps the shared parameters
with its gradient. No lock keeps workers apart: one may write between two numbers of another.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import gymnasium
import torch
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributions import Categorical

WORKERS = 4
T_MAX = 20  # steps between two updates of a worker, fewer where an episode ends
GAMMA = 0.99
REWARD_SCALE = 0.05  # returns reach 500: values stay near 1
VALUE_WEIGHT, ENTROPY_WEIGHT = 0.5, 0.01
LEARNING_RATE = 2e-3  # falls to 0 in a straight line over TOTAL_STEPS
DECAY, EPSILON = 0.99, 1e-5  # of RMSProp
MAX_NORM = 40.0
TOTAL_STEPS = 400_000  # of all workers
GOAL = 475.0  # the mean return of 100 episodes that counts as solved


def layers(outputs: int, gain: float) -> nn.Sequential:
    first, second, last = nn.Linear(4, 64), nn.Linear(64, 64), nn.Linear(64, outputs)
    for layer, scale in ((first, 2**0.5), (second, 2**0.5), (last, gain)):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), last)


class ActorCritic(nn.Module):
    """The policy pi(a | s) and the value V(s), in two networks."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = layers(2, gain=0.01)  # nearly uniform at first
        self.critic = layers(1, gain=1.0)

    def forward(self, observations: Tensor) -> tuple[Categorical, Tensor]:
        return Categorical(logits=self.actor(observations)), self.critic(observations)[..., 0]


class Rollout(NamedTuple):
    observations: Tensor  # [T, 4]
    actions: Tensor  # [T]
    rewards: list[float]  # T of them
    last_observation: Tensor  # the state after the last step
    terminated: bool  # whether that state ends the episode, so that its value is 0


def loss(model: ActorCritic, rollout: Rollout) -> Tensor:
    """The sum over the rollout of -log pi(a|s) (R - V(s)) + c_v 1/2 (R - V(s))^2 - c_e H(pi)."""
    policy, values = model(rollout.observations)
    with torch.no_grad():
        _, last_value = model(rollout.last_observation)
    value_ahead = 0.0 if rollout.terminated else float(last_value)
    targets = []
    for reward in reversed(rollout.rewards):  # R <- r + gamma R, from the last step back
        value_ahead = REWARD_SCALE * reward + GAMMA * value_ahead
        targets.append(value_ahead)
    returns = torch.tensor(targets[::-1])
    advantages = (returns - values).detach()  # the actor teaches the critic nothing

    losses: Tensor = -policy.log_prob(rollout.actions) * advantages
    losses += VALUE_WEIGHT * 0.5 * (returns - values) ** 2
    losses -= ENTROPY_WEIGHT * policy.entropy()
    return losses.sum()


def gradient(model: ActorCritic, rollout: Rollout) -> list[Tensor]:
    """The gradient of the loss, shortened to MAX_NORM."""
    gradients = torch.autograd.grad(loss(model, rollout), list(model.parameters()))
    norm = float(torch.cat([part.flatten() for part in gradients]).norm())
    return [part * min(1.0, MAX_NORM / norm) for part in gradients]


@torch.no_grad()
def step(shared: ActorCritic, squares: list[Tensor], gradients: list[Tensor], rate: float) -> None:
    """RMSProp, whose mean squares all workers share: p <- p - rate g / sqrt(s + epsilon)."""
    for parameter, square, grad in zip(shared.parameters(), squares, gradients, strict=True):
        square.mul_(DECAY).addcmul_(grad, grad, value=1 - DECAY)
        parameter.addcdiv_(grad, (square + EPSILON).sqrt(), value=-rate)


def work(seed: int, shared: ActorCritic, squares: list[Tensor], steps: Any, ended: Any) -> None:
    """A worker: pull, act, compute a gradient, push. ended: takes the return of each episode."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = ActorCritic()
    env = gymnasium.make("CartPole-v1")
    state, _ = env.reset(seed=seed)
    episode_return = 0.0
    while steps.value < TOTAL_STEPS:
        rate = LEARNING_RATE * (1 - steps.value / TOTAL_STEPS)
        model.load_state_dict(shared.state_dict())  # pull

        observations: list[Tensor] = []
        actions: list[Tensor] = []
        rewards: list[float] = []
        over = terminated = False
        while len(rewards) < T_MAX and not over:
            observations.append(torch.as_tensor(state))
            with torch.no_grad():
                policy, _ = model(observations[-1])
            actions.append(policy.sample())
            state, reward, terminated, truncated, _ = env.step(int(actions[-1]))
            rewards.append(float(reward))
            over = terminated or truncated
        last = torch.as_tensor(state)
        rollout = Rollout(
            torch.stack(observations), torch.stack(actions), rewards, last, terminated
        )

        step(shared, squares, gradient(model, rollout), rate)  # push, whoever else does
        episode_return += sum(rewards)
        with steps.get_lock():
            steps.value += len(rewards)
        if over:
            ended.put((steps.value, episode_return))
            episode_return = 0.0
            state, _ = env.reset()
    ended.put(None)


def main(seed: int = 0) -> float:
    """Train, and return the mean return of the last 100 episodes."""
    torch.manual_seed(seed)
    shared = ActorCritic().share_memory()
    squares = [torch.ones_like(parameter) for parameter in shared.parameters()]
    for square in squares:
        square.share_memory_()  # type: ignore[no-untyped-call]
    steps: Any = mp.Value("l", 0)
    ended: Any = mp.SimpleQueue()
    arguments = [(1000 * seed + index, shared, squares, steps, ended) for index in range(WORKERS)]
    workers = [mp.Process(target=work, args=each, daemon=True) for each in arguments]
    for worker in workers:
        worker.start()

    returns: deque[float] = deque(maxlen=100)
    episodes, left = 0, 0
    while left < WORKERS:
        if (episode := ended.get()) is None:
            left += 1
            continue
        episodes += 1
        returns.append(episode[1])
        mean = sum(returns) / len(returns)
        if episodes % 100 == 0:
            print(f"{episode[0]:7,} steps, mean return of 100 episodes {mean:.1f}")
        if len(returns) == 100 and mean >= GOAL:
            steps.value = TOTAL_STEPS  # which ends the workers
    for worker in workers:
        worker.join()
    return sum(returns) / len(returns)


if __name__ == "__main__":
    print(f"mean return of the last 100 episodes: {main():.1f}")
