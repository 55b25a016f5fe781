"""The encoder of observations of several parts: Dict and Tuple spaces."""

from __future__ import annotations

import torch
from gymnasium.spaces import Dict
from torch import Tensor, nn

from a3c_exp.networks.cnn import Cnn, Padding, Precision
from a3c_exp.networks.mlp import ActivationName, Mlp


class DictEncoder(nn.Module):
    """Convolutions for each image; their features and all vectors side by side, and affine layers
    after them.

    Parts by name, vectors [N, size] and images [N, C, H, W] -> float32 [N, F].

    observation_space: of the parts, by name: vectors, and images [C, H, W] of numbers from 0 to 1.
    hidden_sizes, activation: of the affine layers after the parts. Without any the features are the
        parts themselves.
    layers, features_dim, padding, precision: of the convolutions of each image, see `Cnn`.
    """

    def __init__(
        self,
        observation_space: Dict,
        hidden_sizes: tuple[int, ...] = (64,),
        activation: ActivationName = "tanh",
        layers: tuple[tuple[int, int, int], ...] = ((16, 3, 2), (32, 3, 2)),
        features_dim: int | None = 64,
        padding: Padding = "same",
        precision: Precision = "auto",
    ) -> None:
        super().__init__()
        shapes = {name: space.shape or () for name, space in observation_space.items()}
        self._images = [name for name, shape in shapes.items() if len(shape) == 3]
        self._vectors = [name for name in shapes if name not in self._images]
        self.convolutions = nn.ModuleList()
        inputs = sum(shapes[name][0] for name in self._vectors)
        for channels, height, width in (shapes[name] for name in self._images):
            max_pixel = 1.0
            cnn = Cnn(
                channels, height, width, max_pixel, layers, features_dim, "relu", padding, precision
            )
            with torch.no_grad():
                inputs += cnn(torch.zeros(1, channels, height, width)).shape[1]
            self.convolutions.append(cnn)

        self.joint = Mlp(inputs, hidden_sizes, activation)

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        features = [
            cnn(observation[name])
            for name, cnn in zip(self._images, self.convolutions, strict=True)
        ]
        features += [observation[name] for name in self._vectors]
        joined: Tensor = self.joint(torch.cat(features, dim=1))
        return joined
