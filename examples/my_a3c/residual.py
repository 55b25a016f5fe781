import torch
from torch import Tensor, nn


class Residual(nn.Module):
    def __init__(self, inputs: int, width: int = 64, blocks: int = 2) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(blocks))

    def forward(self, observations: Tensor) -> Tensor:  # float32 [N, inputs] -> [N, width]
        x = torch.tanh(self.first(observations))
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        return x
