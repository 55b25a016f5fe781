"""Networks of action values: Q(s, .) and its target network, for Q-learning and Sarsa; a policy
with action values and its average, for ACER."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from a3c_exp.networks.actor_critic import ActorCritic, UnrollOutputs
from a3c_exp.networks.composed import EncoderActorCritic
from a3c_exp.networks.distributions import Greedy
from a3c_exp.networks.inputs import ObservationInput


class DuelingHead(nn.Module):
    """Q(s, a) = V(s) + A(s, a) - mean_b A(s, b), from features: [N, F] -> [N, actions] (Wang et al.
    2016, arXiv 1511.06581, equation 9).

    V and A have a layer of F units each before the last one, as in the paper.
    """

    def __init__(self, features: int, actions: int, bias: bool = True) -> None:
        super().__init__()
        self.value_hidden = nn.Linear(features, features)
        self.value = nn.Linear(features, 1, bias)
        self.advantage_hidden = nn.Linear(features, features)
        self.advantage = nn.Linear(features, actions, bias)

    def forward(self, features: Tensor) -> Tensor:
        values: Tensor = self.value(self.value_hidden(features).relu())
        advantages: Tensor = self.advantage(self.advantage_hidden(features).relu())
        return values + advantages - advantages.mean(1, keepdim=True)


class QNetwork(ActorCritic):
    """Q(s, .), and Q^-(s, .) of a target network: an older copy of the same network, which no
    gradient moves.

    Both lie in the vector, as the groups `online` and `target`, so that whoever pulls, saves or
    sends the vector has both. `core.parameters` copies one to the other.

    To act, it is an `ActorCritic` whose parameters [N, 2 A] are Q(s, .) and Q^-(s, .), see
    `Greedy`, and whose values are max_a Q^-(s, a), or see `is_double`. To learn, its values are
    Q(s_t, a_t): see `evaluate_actions`.

    encoder: makes features [N, F] of observations.
    last: makes the values of A actions, [N, A], of features.
    observation_input: the form in which the encoder takes observations.
    distribution: of the actions.
    is_double: whether its values are Q^-(s, argmax_a Q(s, a)).
    """

    is_double: bool = False

    def __init__(
        self,
        encoder: nn.Module,
        last: nn.Linear | DuelingHead,
        observation_input: ObservationInput,
        distribution: Greedy,
    ) -> None:
        super().__init__(observation_input, distribution, None)
        self.encoders = (encoder,)
        self.online = nn.Sequential(encoder, last)
        self.target = copy.deepcopy(self.online)
        for network in (self.online, self.target):
            observation_input.share_pixels(network[0])

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        return {"online": list(self.online.parameters()), "target": list(self.target.parameters())}

    def forward(
        self, observations: Tensor, state: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        inputs = self.observation_input.prepare(observations)
        action_values = self.online(inputs)
        target_values = self.target(inputs)
        chosen = action_values if self.is_double else target_values
        values = target_values.gather(1, chosen.argmax(1, keepdim=True))[:, 0]
        return torch.cat([action_values, target_values], dim=1), values, None

    def unroll(
        self, observations: Tensor, state: Tensor | None, boundaries: Tensor | None
    ) -> UnrollOutputs:
        """Compute Q(s, .) alone: [T B, A], and its largest numbers in the place of values."""
        action_values = self.online(self.observation_input.prepare(observations.flatten(0, 1)))
        return action_values, action_values.detach().amax(1), None

    def evaluate_actions(
        self, parameters: Tensor, values: Tensor, actions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `ActorCritic.evaluate_actions`. The values are Q(s_t, a_t). The policy has no
        derivatives: log-probabilities and entropies are 0."""
        nothing = torch.zeros_like(values)
        return nothing, nothing, parameters.gather(1, actions[:, None])[:, 0]


class AveragedActorCritic(ActorCritic):
    """pi(. | s) and Q(s, .), and an average of the same network over earlier updates, which no
    gradient moves.

    Both lie in the vector, as the groups `online` and `target`: see `QNetwork`.

    To act, its parameters are logits [N, A], and its values sum_a pi(a | s) Q(s, a). To learn, its
    parameters [N, 3 A] are logits, Q(s, .) and the logits of the average policy, side by side.

    online: its value layer has A outputs.
    """

    def __init__(self, online: EncoderActorCritic) -> None:
        super().__init__(online.observation_input, online.distribution, None)
        self.online = online
        self.encoders = online.encoders
        self.state_size = online.state_size
        encoders = online.actor_encoder, online.critic_encoder
        cores = online.core, online.critic_core
        # a shared encoder stays one
        encoders, cores, head, value = copy.deepcopy((encoders, cores, online.head, online.value))
        self.target = EncoderActorCritic(
            encoders, online.observation_input, cores, head, value, online.distribution
        )

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        return {
            name: [p for group in network.parameter_groups().values() for p in group]
            for name, network in (("online", self.online), ("target", self.target))
        }

    def forward(
        self, observations: Tensor, state: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        logits, action_values, after = self.online(observations, state)
        return logits, _state_values(logits, action_values), after

    def unroll(
        self, observations: Tensor, state: Tensor | None, boundaries: Tensor | None
    ) -> UnrollOutputs:
        logits, action_values, _ = self.online.unroll(observations, state, boundaries)
        with torch.no_grad():
            average, _, _ = self.target.unroll(observations, state, boundaries)
            values = _state_values(logits, action_values)
        return torch.cat([logits, action_values, average], dim=1), values, None

    def evaluate_actions(
        self, parameters: Tensor, values: Tensor, actions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `ActorCritic.evaluate_actions`: of the policy, and V(s)."""
        logits, _, _ = parameters.chunk(3, dim=1)
        return super().evaluate_actions(logits, values, actions)


def _state_values(logits: Tensor, action_values: Tensor) -> Tensor:
    """Return V(s) = sum_a pi(a | s) Q(s, a), [N]."""
    return (logits.softmax(1) * action_values).sum(1)
