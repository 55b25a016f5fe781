"""torchrl's PPO, as its sota-implementations/ppo puts it together, with a policy for discrete
actions.

Settings: those of `config_mujoco.yaml` there, by the same names, without their groups.
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
from torchrl.envs import (
    ClipTransform,
    ExplorationType,
    RewardSum,
    StepCounter,
    TransformedEnv,
    VecNorm,
)
from torchrl.envs.libs.gym import GymEnv
from torchrl.modules import MLP, OneHotCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss, group_optimizers
from torchrl.objectives.value import GAE

from evidence.bench.drivers.watch import Task, Watch, run

HIDDEN_SIZES = (64, 64)


def make_env(name: str, seed: int) -> TransformedEnv:
    """Return an environment whose observations are normalized by running statistics."""
    env = TransformedEnv(GymEnv(name, device="cpu"))
    env.append_transform(RewardSum())
    env.append_transform(StepCounter())
    env.append_transform(VecNorm(in_keys=["observation"]))
    env.append_transform(ClipTransform(in_keys=["observation"], low=-10, high=10))
    env.set_seed(seed)
    return env


def make_network(inputs: int, outputs: int, gain: float) -> MLP:
    """Return a perceptron whose weights begin orthogonal, its last layer's too."""
    network = MLP(
        in_features=inputs,
        out_features=outputs,
        num_cells=list(HIDDEN_SIZES),
        activation_class=torch.nn.Tanh,
    )
    for layer in network.modules():
        if isinstance(layer, torch.nn.Linear):
            torch.nn.init.orthogonal_(layer.weight, gain)
            layer.bias.data.zero_()
    return network


def train(task: Task) -> dict[str, Any]:
    """Train until the goal, the time or the settings' number of steps ends it."""
    settings: Any = task.settings
    torch.manual_seed(task.seed)
    env = make_env(task.environment, task.seed)
    inputs = env.observation_spec["observation"].shape[-1]
    actor = ProbabilisticActor(
        TensorDictModule(
            make_network(inputs, env.action_spec.shape[-1], gain=1.0), ["observation"], ["logits"]
        ),
        in_keys=["logits"],
        spec=env.full_action_spec_unbatched,
        distribution_class=OneHotCategorical,
        return_log_prob=True,
        default_interaction_type=ExplorationType.RANDOM,
    )
    critic = ValueOperator(make_network(inputs, 1, gain=0.01), in_keys=["observation"])

    rollout = settings["frames_per_batch"]
    total = settings["total_frames"] if task.goal is not None else 10**8
    batch_size = settings["mini_batch_size"]
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(rollout),
        sampler=SamplerWithoutReplacement(),
        batch_size=batch_size,
    )
    advantage = GAE(
        gamma=settings["gamma"],
        lmbda=settings["gae_lambda"],
        value_network=critic,
        average_gae=False,
    )
    loss_of = ClipPPOLoss(
        actor_network=actor,
        critic_network=critic,
        clip_epsilon=settings["clip_epsilon"],
        loss_critic_type=settings["loss_critic_type"],
        entropy_coeff=settings["entropy_coeff"],
        critic_coeff=settings["critic_coeff"],
        normalize_advantage=True,
    )
    rate = settings["lr"]
    optimizer = group_optimizers(
        torch.optim.Adam(actor.parameters(), lr=torch.tensor(rate), eps=1e-5),
        torch.optim.Adam(critic.parameters(), lr=torch.tensor(rate), eps=1e-5),
    )
    collector = Collector(
        create_env_fn=env, policy=actor, frames_per_batch=rollout, total_frames=total
    )

    updates = 0
    all_updates = total // rollout * settings["ppo_epochs"] * (rollout // batch_size)
    steps = 0
    watch = Watch(task.goal, environments=1, seconds=task.seconds)
    for data in collector:
        for at in data["next", "done"].flatten().nonzero().flatten().tolist():
            watch.episode(float(data["next", "episode_reward"].flatten()[at]), 0, steps + at + 1)

        for _ in range(settings["ppo_epochs"]):
            with torch.no_grad():
                data = advantage(data)
            buffer.extend(data.reshape(-1))
            for batch in buffer:
                optimizer.zero_grad(set_to_none=True)
                for group in optimizer.param_groups:
                    share = 1.0 - updates / all_updates if settings["anneal_lr"] else 1.0
                    group["lr"] = torch.tensor(rate * share)

                losses = loss_of(batch)
                loss = losses["loss_critic"] + losses["loss_objective"] + losses["loss_entropy"]
                loss.backward()
                optimizer.step()
                updates += 1

        steps += data.numel()
        if not watch.iteration(steps):
            break

    collector.shutdown()
    return watch.report(task)


if __name__ == "__main__":
    run(train)
