"""Memory: a core of LSTM cells between a body and the heads.

The step of a cell is written once, on arrays. Acting takes one such step; learning takes all steps of a rollout and
goes back through them by hand, since a torch graph of a dozen small operations a step takes several times as long.
Where an episode ends, nothing is remembered, and no gradient flows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from a3c_exp.common.arrays import Bools, Floats
from a3c_exp.networks.layers import Backward, Initialisation, Linear, array_of, gradient_of, initialise


class RecurrentInput(NamedTuple):
    """The input of a recurrent network besides observations, to compute a rollout as the actor did.

    state: float32 [B, S], at t = 0. episode_boundaries: bool [T, B], whether no transition leads from row t to t + 1.
    """

    state: Floats
    episode_boundaries: Bools

    def take(self, columns: NDArray[np.intp]) -> RecurrentInput:
        """The input of some of the B columns."""
        return RecurrentInput(self.state[columns], self.episode_boundaries[:, columns])


def reset_state(state: Floats, episode_boundaries: Bools) -> Floats:
    """The state [B, S] for the next row: zeros where `episode_boundaries` [B]."""
    return np.where(episode_boundaries[:, None], np.float32(0), state) if episode_boundaries.any() else state


class LstmCore:
    """Long short-term memory (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000).

        o, i, f = sigmoid(x_t W_o,i,f + h_{t-1} U_o,i,f + b_o,i,f)      g = tanh(x_t W_g + h_{t-1} U_g + b_g)
        c_t = f c_{t-1} + i g                                           h_t = o tanh(c_t)

    The columns of W [F, 4 C], U [C, 4 C] and b [4 C] are those of o, i, f, g, with C cells each.
    A state is float32 [B, 2 C]: h and c side by side.
    """

    def __init__(self, inputs: int, cells: int) -> None:
        self.features = cells
        self.inputs = nn.Parameter(torch.empty(inputs, 4 * cells))
        self.recurrent = nn.Parameter(torch.empty(cells, 4 * cells))
        self.bias = nn.Parameter(torch.empty(4 * cells))

    def initialise(self, scheme: Initialisation, forget_bias: float, generator: torch.Generator | None) -> None:
        """Draw each gate's two matrices as layers of their own, with gain 1. Biases are 0 but the forget gate's."""
        cells = self.features
        with torch.no_grad():
            for matrix in (self.inputs, self.recurrent):
                for columns in torch.split(matrix, cells, dim=1):
                    layer = Linear(len(columns), cells)
                    initialise(layer, scheme, 1.0, generator)
                    columns.copy_(layer.weight.T)
            self.bias.zero_()
            self.bias[2 * cells : 3 * cells] = forget_bias

    def parameters(self) -> list[nn.Parameter]:
        return [self.inputs, self.recurrent, self.bias]

    def bind(self) -> None:
        self._inputs, self._recurrent = _by_gate(self.inputs), _by_gate(self.recurrent)
        self._bias: Floats = self.bias.detach().numpy().reshape(4, 1, -1)

    def initial_state(self, count: int) -> Floats:
        """The state of `count` environments whose episodes begin."""
        return np.zeros((count, 2 * self.features), np.float32)

    def infer(self, features: Floats, state: Floats) -> tuple[Floats, Floats]:
        """One step: features [B, F], state [B, 2 C] -> h [B, C], the state after."""
        cells = self.features
        sums = np.matmul(features, self._inputs)
        sums += self._bias
        hidden, cell = _step(sums, state[:, :cells], state[:, cells:], self._recurrent)
        return hidden, np.concatenate([hidden, cell], axis=1)

    def learn(self, features: Floats, memory: RecurrentInput) -> tuple[Floats, Backward]:
        """All steps of a rollout, and the way back: features [T, B, F] -> h [T, B, C]."""
        rows = features.reshape(-1, features.shape[-1])
        sums = rows.dot(array_of(self.inputs))
        sums += array_of(self.bias)
        hidden, back = unrolled(sums.reshape(*features.shape[:2], -1), self._recurrent, memory)

        def backward(by_hidden: Floats) -> Floats:
            by_sums, by_recurrent = back(by_hidden)
            by_rows = by_sums.reshape(len(rows), -1)
            gradient_of(self.inputs)[:] += rows.T.dot(by_rows)
            gradient_of(self.recurrent)[:] += by_recurrent
            gradient_of(self.bias)[:] += np.add.reduce(by_rows, 0)
            by_features: Floats = by_rows.dot(array_of(self.inputs).T)
            return by_features.reshape(features.shape)

        return hidden, backward


def _by_gate(matrix: Tensor) -> Floats:
    """A view [4, N, C] of a matrix [N, 4 C]. With the gates first, what belongs to one lies together, and numpy does it
    in one go; row by row it takes three times as long."""
    view: Floats = matrix.detach().numpy().reshape(len(matrix), 4, -1).transpose(1, 0, 2)
    return view


def _step(sums: Floats, hidden: Floats, cell: Floats, recurrent: Floats) -> tuple[Floats, Floats]:
    """sums: x_t W + b, [4, B, C], in whose place are left the gates; recurrent: U, [4, C, C].

    h and c before -> h and c after, [B, C] each, in new arrays.
    """
    sums += np.matmul(hidden, recurrent)
    # sigmoid(x) = 1/2 + 1/2 tanh(x/2): one call for all gates, and nothing that overflows.
    sigmoids = sums[:3]
    sigmoids *= 0.5
    np.tanh(sums, out=sums)
    sigmoids *= 0.5
    sigmoids += 0.5
    o, i, f, g = sums
    cell = f * cell
    cell += i * g
    hidden = np.tanh(cell)
    hidden *= o
    return hidden, cell


def unrolled(
    sums: Floats, weight: Floats, memory: RecurrentInput
) -> tuple[Floats, Callable[[Floats], tuple[Floats, Floats]]]:
    """`_step` for every row of a rollout, and backpropagation through time.

    sums: x_t W + b, [T, B, 4 C]; weight: U, [4, C, C] -> h [T, B, C], and from the loss's derivatives by that to those
    by sums and by U as [C, 4 C].
    """
    (time, count, _), cells = sums.shape, weight.shape[-1]
    gates = sums.reshape(time, count, 4, cells).transpose(0, 2, 1, 3).copy()
    episode_boundaries = memory.episode_boundaries
    restarted: list[bool] = np.any(episode_boundaries, axis=1).tolist()
    before = np.empty((2, time, count, cells), gates.dtype)  # h and c with which each row begins
    out = np.empty_like(before[0])
    hidden, cell = memory.state[:, :cells], memory.state[:, cells:]
    for t in range(time):
        before[0, t], before[1, t] = hidden, cell
        hidden, cell = _step(gates[t], hidden, cell, weight)
        out[t] = hidden
        if restarted[t]:
            hidden, cell = reset_state(hidden, episode_boundaries[t]), reset_state(cell, episode_boundaries[t])

    def backward(by_hidden: Floats) -> tuple[Floats, Floats]:
        o, i, f, g = gates.swapaxes(0, 1)
        squashed = np.tanh(f * before[1] + i * g)
        # How h_t moves with o's sum and with c_t, and c_t with the other sums: for all rows at once.
        by_output, by_cell = squashed * o * (1 - o), o * (1 - squashed * squashed)
        by_others = np.stack([g * i * (1 - i), before[1] * f * (1 - f), i * (1 - g * g)], axis=1)
        # What is left goes back row by row. hidden, cell: the loss's gradient by h_t and c_t.
        by_sums, back = np.empty_like(gates), weight.transpose(0, 2, 1)
        hidden = cell = np.zeros_like(before[0, 0])
        for t in range(time - 1, -1, -1):
            if restarted[t]:
                hidden, cell = reset_state(hidden, episode_boundaries[t]), reset_state(cell, episode_boundaries[t])
            hidden = hidden + by_hidden[t]
            cell = cell + hidden * by_cell[t]
            np.multiply(hidden, by_output[t], out=by_sums[t, 0])
            np.multiply(cell, by_others[t], out=by_sums[t, 1:])
            hidden, cell = np.add.reduce(np.matmul(by_sums[t], back)), cell * f[t]
        by_row = by_sums.transpose(0, 2, 1, 3).reshape(time * count, 4 * cells)
        return by_row.reshape(time, count, -1), before[0].reshape(time * count, cells).T.dot(by_row)

    return out, backward
