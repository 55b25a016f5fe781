from torch import nn


class Pixels(nn.Sequential):
    """Two convolutions and an affine layer: [N, channels, height, width] -> [N, features_dim]."""

    def __init__(self, channels: int, features_dim: int = 64) -> None:
        if features_dim < 1:
            raise ValueError(f"features_dim must be a whole number >= 1, not {features_dim}")
        convolutions = [
            nn.Conv2d(channels, 16, 8, 4),
            nn.ReLU(),
            nn.Conv2d(16, 32, 4, 2),
            nn.ReLU(),
        ]
        super().__init__(*convolutions, nn.Flatten(), nn.LazyLinear(features_dim), nn.ReLU())
