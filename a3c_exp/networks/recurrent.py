"""LSTM cells between an encoder and the heads: a torch module, and the numpy kernel that usually
runs it.

Acting takes one step of the cells. Learning takes all steps of a rollout, and goes back through
them by hand, since a torch graph of a dozen small operations a step takes several times as long. A
state is reset where an episode ends, and no gradient flows across the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from a3c_exp.common.arrays import Bools, Floats
from a3c_exp.networks.initialization import Initialization, Initializer
from a3c_exp.networks.kernels import Backward, array_of, gradient_of


class RecurrentInput(NamedTuple):
    """The input of a recurrent network besides observations, to compute a rollout as the actor did.

    state: float32 [B, S], at t = 0. episode_boundaries: bool [T, B], whether no transition leads
    from row t to t + 1.
    """

    state: Floats
    episode_boundaries: Bools

    def take(self, columns: NDArray[np.intp]) -> RecurrentInput:
        """The input of some of the B columns."""
        return RecurrentInput(self.state[columns], self.episode_boundaries[:, columns])


def reset_state(state: Floats, episode_boundaries: Bools) -> Floats:
    """The state [B, S] for the next row: zeros where `episode_boundaries` [B]."""
    return (
        np.where(episode_boundaries[:, None], np.float32(0), state)
        if episode_boundaries.any()
        else state
    )


class LstmCore(nn.Module):
    """Long short-term memory (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al.
    2000).

        o, i, f = sigmoid(x_t W_o,i,f + h_{t-1} U_o,i,f + b_o,i,f)
        g = tanh(x_t W_g + h_{t-1} U_g + b_g)
        c_t = f c_{t-1} + i g
        h_t = o tanh(c_t)

    The columns of W [F, 4 C], U [C, 4 C] and b [4 C] are those of o, i, f, g, with C cells each.
    A state is float32 [B, 2 C]: h and c side by side.
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
        """Draw each gate's two matrices as layers of their own, with gain 1. Biases are 0 but the
        forget gate's.

        The scheme is that of `initializer` if the cells have none of their own.

        Those of the scheme `default` are uniform in +-1 / sqrt(C), as in torch's LSTM.
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
        """One step: features [B, F], state [B, 2 C] -> h [B, C], the state after."""
        hidden, cell = torch.chunk(state, 2, dim=1)
        sums = features @ self.inputs + hidden @ self.recurrent + self.bias
        o, i, f, g = torch.chunk(sums, 4, dim=1)
        cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
        hidden = torch.sigmoid(o) * torch.tanh(cell)
        return hidden, torch.cat([hidden, cell], dim=1)


class LstmKernel:
    """The same cells on arrays."""

    def __init__(self, core: LstmCore) -> None:
        self._cells = core.hidden_size
        self._flat_inputs = array_of(core.inputs)
        self._inputs = _by_gate(core.inputs)
        self._recurrent = _by_gate(core.recurrent)
        self._flat_bias = array_of(core.bias)
        self._bias = self._flat_bias.reshape(4, 1, -1)
        self._gradients = (
            gradient_of(core.inputs),
            gradient_of(core.recurrent),
            gradient_of(core.bias),
        )

    def act_forward(self, features: Floats, state: Floats) -> tuple[Floats, Floats]:
        """One step: features [B, F], state [B, 2 C] -> h [B, C], the state after."""
        cells = self._cells
        sums = np.matmul(features, self._inputs)
        sums += self._bias
        hidden, cell = _step(sums, state[:, :cells], state[:, cells:], self._recurrent)
        return hidden, np.concatenate([hidden, cell], axis=1)

    def train_forward(
        self, features: Floats, recurrent_input: RecurrentInput
    ) -> tuple[Floats, Backward]:
        """All steps of a rollout, and the function that goes back through them: features [T, B, F]
        -> h [T, B, C]."""
        rows = features.reshape(-1, features.shape[-1])
        sums = rows.dot(self._flat_inputs)
        sums += self._flat_bias
        hidden, unroll_backward = unroll(
            sums.reshape(*features.shape[:2], -1), self._recurrent, recurrent_input
        )
        inputs, recurrent, bias = self._gradients

        def backward(grad_hidden: Floats) -> Floats:
            grad_sums, grad_recurrent = unroll_backward(grad_hidden)
            grad_rows = grad_sums.reshape(len(rows), -1)
            np.add(inputs, rows.T.dot(grad_rows), out=inputs)
            np.add(recurrent, grad_recurrent, out=recurrent)
            np.add(bias, np.add.reduce(grad_rows, 0), out=bias)
            grad_features: Floats = grad_rows.dot(self._flat_inputs.T)
            return grad_features.reshape(features.shape)

        return hidden, backward


def _by_gate(matrix: Tensor) -> Floats:
    """A view [4, N, C] of a matrix [N, 4 C]. With the gates first, the numbers of one gate lie
    together, and numpy multiplies by them at once. Row by row it takes three times as long."""
    return array_of(matrix).reshape(len(matrix), 4, -1).transpose(1, 0, 2)


def _step(sums: Floats, hidden: Floats, cell: Floats, recurrent: Floats) -> tuple[Floats, Floats]:
    """One step of the cells. sums: x_t W + b, [4, B, C], overwritten by the gates. recurrent: U,
    [4, C, C].

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


def unroll(
    sums: Floats, weight: Floats, recurrent_input: RecurrentInput
) -> tuple[Floats, Callable[[Floats], tuple[Floats, Floats]]]:
    """`_step` for every row of a rollout, and backpropagation through time.

    sums: x_t W + b, [T, B, 4 C]. weight: U, [4, C, C]. Returns h [T, B, C], and the function from a
    loss's derivatives by h to those by the sums and by U as [C, 4 C].
    """
    (time, count, _), cells = sums.shape, weight.shape[-1]
    gates = sums.reshape(time, count, 4, cells).transpose(0, 2, 1, 3).copy()
    episode_boundaries = recurrent_input.episode_boundaries
    has_boundary: list[bool] = np.any(episode_boundaries, axis=1).tolist()
    before = np.empty((2, time, count, cells), gates.dtype)  # h and c with which each row begins
    out = np.empty_like(before[0])
    hidden = recurrent_input.state[:, :cells]
    cell = recurrent_input.state[:, cells:]
    for t in range(time):
        before[0, t], before[1, t] = hidden, cell
        hidden, cell = _step(gates[t], hidden, cell, weight)
        out[t] = hidden
        if has_boundary[t]:
            hidden, cell = (
                reset_state(hidden, episode_boundaries[t]),
                reset_state(cell, episode_boundaries[t]),
            )

    def backward(grad_hidden: Floats) -> tuple[Floats, Floats]:
        o, i, f, g = gates.swapaxes(0, 1)
        squashed = np.tanh(f * before[1] + i * g)
        # dh_t by o's sum and by c_t, and dc_t by the other sums: for all rows at once.
        by_output = squashed * o * (1 - o)
        by_cell = o * (1 - squashed * squashed)
        by_others = np.stack([g * i * (1 - i), before[1] * f * (1 - f), i * (1 - g * g)], axis=1)
        # The rest goes back row by row. hidden, cell: the loss's derivatives by h_t and c_t.
        grad_sums = np.empty_like(gates)
        weight_t = weight.transpose(0, 2, 1)
        hidden = cell = np.zeros_like(before[0, 0])
        for t in range(time - 1, -1, -1):
            if has_boundary[t]:
                hidden, cell = (
                    reset_state(hidden, episode_boundaries[t]),
                    reset_state(cell, episode_boundaries[t]),
                )
            hidden = hidden + grad_hidden[t]
            cell = cell + hidden * by_cell[t]
            np.multiply(hidden, by_output[t], out=grad_sums[t, 0])
            np.multiply(cell, by_others[t], out=grad_sums[t, 1:])
            hidden, cell = np.add.reduce(np.matmul(grad_sums[t], weight_t)), cell * f[t]
        rows = grad_sums.transpose(0, 2, 1, 3).reshape(time * count, 4 * cells)
        return rows.reshape(time, count, -1), before[0].reshape(time * count, cells).T.dot(rows)

    return out, backward
