from dataclasses import dataclass

from torch import Tensor

from a3c_exp.algorithms import A3C, Batch, Metrics, PolicyOutputs


@dataclass(frozen=True, kw_only=True)
class Imitation(A3C):
    """A3C that imitates its own good actions (Oh et al. 2018, arXiv 1806.05635, equations 1 to 3).

    imitation_value_coefficient: the weight of the value's loss for what is drawn from memory.
    """

    imitation_value_coefficient: float = 0.01

    def loss(self, policy: PolicyOutputs, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        if not batch.from_memory:
            return super().loss(policy, batch, progress)

        gains = (batch.targets - policy.values).clamp(min=0)
        losses = -policy.log_probs * gains.detach()
        losses = losses + self.imitation_value_coefficient * 0.5 * gains**2
        return batch.mean(losses), {"gain": gains}
