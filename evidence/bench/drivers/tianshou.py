"""tianshou's PPO, with the networks, the collector and the trainer of its CartPole script.

Settings: `envs`, how many environments, `collect` steps an iteration, `repeat`, how often each is
learned from, `batch_size`, `hidden_sizes`, `lr`, `orthogonal`, whether weights begin so, and
`algorithm`, arguments of `tianshou.algorithm.PPO`.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from tianshou.algorithm import PPO
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OnPolicyTrainerParams
from tianshou.utils.net.common import ActorCritic, Net
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic

from evidence.bench.drivers.watch import Task, Watch, run

ENDLESS = 10**9


class OverError(Exception):
    """Ends the trainer, which knows no other rule than one for test episodes."""


class Recorded(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Tells `watch` of episodes. index: of this environment among those that step together."""

    def __init__(self, env: gymnasium.Env[Any, Any], watch: Watch, index: int) -> None:
        super().__init__(env)
        self._watch = watch
        self._index = index
        self._return = 0.0
        self._steps = 0

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        self._return = 0.0
        return self.env.reset(**arguments)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._return += float(reward)
        self._steps += 1
        if terminated or truncated:
            steps = self._steps * self._watch.environments
            self._watch.episode(self._return, self._index, steps)
        return observation, reward, terminated, truncated, info


def make_algorithm(env: gymnasium.Env[Any, Any], settings: dict[str, Any]) -> PPO:
    """Return PPO for environments like `env`."""
    observations: Any = env.observation_space
    actions: Any = env.action_space
    net = Net(state_shape=observations.shape, hidden_sizes=settings["hidden_sizes"])
    actor = DiscreteActor(preprocess_net=net, action_shape=actions.n)
    critic = DiscreteCritic(preprocess_net=net)
    if settings["orthogonal"]:
        for module in ActorCritic(actor, critic).modules():
            if isinstance(module, torch.nn.Linear):
                torch.nn.init.orthogonal_(module.weight)
                torch.nn.init.zeros_(module.bias)

    policy = DiscreteActorPolicy(
        actor=actor, dist_fn=torch.distributions.Categorical, action_space=actions
    )
    return PPO(
        policy=policy,
        critic=critic,
        optim=AdamOptimizerFactory(lr=settings["lr"]),
        **settings["algorithm"],
    )


def train(task: Task) -> dict[str, Any]:
    """Train until the goal or the time ends it."""
    settings = dict(task.settings)
    watch = Watch(task.goal, settings["envs"], task.seconds)

    def make_env(index: int) -> gymnasium.Env[Any, Any]:
        return Recorded(gymnasium.make(task.environment), watch, index)

    np.random.seed(task.seed)  # noqa: NPY002 - the library's generator
    torch.manual_seed(task.seed)
    envs = DummyVectorEnv([partial(make_env, index) for index in range(settings["envs"])])
    envs.seed(task.seed)
    algorithm = make_algorithm(gymnasium.make(task.environment), settings)
    buffer = VectorReplayBuffer(settings["buffer_size"], len(envs))

    def before_collecting(epoch: int, steps: int) -> None:
        if steps and not watch.iteration(steps):
            raise OverError

    params = OnPolicyTrainerParams(
        training_collector=Collector(algorithm, envs, buffer),
        max_epochs=1,
        epoch_num_steps=ENDLESS,
        collection_step_num_env_steps=settings["collect"],
        update_step_num_repetitions=settings["repeat"],
        batch_size=settings["batch_size"],
        training_fn=before_collecting,
        verbose=False,
        show_progress=False,
    )

    watch.start()
    with suppress(OverError):
        algorithm.run_training(params)
    return watch.report(task)


if __name__ == "__main__":
    run(train)
