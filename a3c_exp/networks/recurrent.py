"""LSTM cells between an encoder and the heads, and the state of a recurrent network in a rollout.

A state is reset where an episode ends, and no gradient flows across the end.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from a3c_exp.common.arrays import Bools, Floats
from a3c_exp.networks.initialization import Initialization, Initializer


class RecurrentInput(NamedTuple):
    """The input of a recurrent network besides observations, to compute a rollout as the actor did.

    state: float32 [B, S], at t = 0.
    episode_boundaries: bool [T, B], whether no transition leads from row t to t + 1.
    """

    state: Floats
    episode_boundaries: Bools

    def take(self, columns: NDArray[np.intp]) -> RecurrentInput:
        """Return the input of some of the B columns."""
        return RecurrentInput(self.state[columns], self.episode_boundaries[:, columns])


def reset_state(state: Floats, episode_boundaries: Bools) -> Floats:
    """Return the state [B, S] for the next row: zeros where `episode_boundaries` [B]."""
    if not episode_boundaries.any():
        return state
    return np.where(episode_boundaries[:, None], np.float32(0), state)


class LstmCore(nn.Module):
    """Long short-term memory (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al.
    2000).

        o, i, f = sigmoid(x_t W_o,i,f + h_{t-1} U_o,i,f + b_o,i,f)
        g = tanh(x_t W_g + h_{t-1} U_g + b_g)
        c_t = f c_{t-1} + i g
        h_t = o tanh(c_t)

    The columns of W [F, 4 C], U [C, 4 C] and b [4 C] are those of o, i, f, g, with C cells each.
    A state is float32 [B, 2 C]: h and c side by side. Unless kernels=false, `engine.lstm` computes
    the same on arrays.

    inputs: F, the number of features.
    hidden_size: C, the number of cells.
    scheme, forget_bias: see `initialize`.
    """

    def __init__(
        self, inputs: int, hidden_size: int, scheme: Initialization | None, forget_bias: float
    ) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self._scheme = scheme
        self._forget_bias = forget_bias
        self.inputs = nn.Parameter(torch.empty(inputs, 4 * hidden_size))
        self.recurrent = nn.Parameter(torch.empty(hidden_size, 4 * hidden_size))
        self.bias = nn.Parameter(torch.zeros(4 * hidden_size))

    def initialize(self, initializer: Initializer) -> None:
        """Draw each gate's two matrices as separate layers, with gain 1. Biases are 0 but the
        forget gate's.

        The scheme is that of `initializer` if the cells have none of their own. Matrices of the
        scheme `default` are uniform in +-1 / sqrt(C), as in torch's LSTM.
        """
        cells = self.hidden_size
        initializer = replace(initializer, scheme=self._scheme or initializer.scheme)
        with torch.no_grad():
            for matrix in (self.inputs, self.recurrent):
                for columns in torch.split(matrix, cells, dim=1):
                    layer = nn.Linear(len(columns), cells)
                    initializer.draw(layer)
                    columns.copy_(layer.weight.T)

            if initializer.scheme == "default":  # the bound of an affine layer would be 1 / sqrt(F)
                self.inputs.mul_(math.sqrt(len(self.inputs) / cells))
            self.bias.zero_()
            self.bias[2 * cells : 3 * cells] = self._forget_bias

    def forward(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Take one step: features [B, F], state [B, 2 C] -> h [B, C], the state after."""
        hidden, cell = torch.chunk(state, 2, dim=1)
        sums = features @ self.inputs + hidden @ self.recurrent + self.bias
        o, i, f, g = torch.chunk(sums, 4, dim=1)
        cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
        hidden = torch.sigmoid(o) * torch.tanh(cell)
        return hidden, torch.cat([hidden, cell], dim=1)
