import torch
from torch import Tensor, nn


class Gru(nn.Module):
    """A gated recurrent unit (Cho et al. 2014, arXiv 1406.1078) that actor and critic share."""

    def __init__(self, inputs: int, outputs: int, width: int = 32) -> None:
        super().__init__()
        self.cell = nn.GRUCell(inputs, width)
        self.policy, self.value = nn.Linear(width, outputs), nn.Linear(width, 1)

    def initial_state(self, count: int) -> Tensor:
        return torch.zeros(count, self.cell.hidden_size)

    def forward(self, observations: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        state = self.cell(observations, state)
        return self.policy(state), self.value(state)[:, 0], state
