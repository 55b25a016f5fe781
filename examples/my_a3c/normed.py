import itertools

from torch import nn


class Normed(nn.Sequential):
    """Affine layers, each with layer normalization and a rectifier after it: [N, inputs] -> [N,
    width]."""

    def __init__(self, inputs: int, width: int = 64, layers: int = 2) -> None:
        sizes = [inputs] + [width] * layers
        pairs = itertools.pairwise(sizes)
        super().__init__(
            *(nn.Sequential(nn.Linear(*pair), nn.LayerNorm(width), nn.ReLU()) for pair in pairs)
        )
