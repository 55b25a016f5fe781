from dataclasses import dataclass

from torch import Tensor, nn

from a3c_exp.algorithms import A3C, Batch, Metrics, PolicyOutputs


@dataclass(frozen=True, kw_only=True)
class RewardPrediction(A3C):
    """A3C that also predicts the reward of each transition from the policy's features."""

    reward_coefficient: float = 0.1

    def build(self, features: int) -> nn.Module:
        return nn.Sequential(nn.Linear(features, 32), nn.Tanh(), nn.Linear(32, 1))

    def loss(self, policy: PolicyOutputs, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        loss, metrics = super().loss(policy, batch, progress)
        assert policy.module is not None
        predicted = policy.module(policy.features)[..., 0]
        reward_loss = batch.mean((predicted - batch.rewards) ** 2)
        return loss + self.reward_coefficient * reward_loss, {**metrics, "reward_loss": reward_loss}
