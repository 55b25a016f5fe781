"""The numpy kernel of LSTM cells, and their backpropagation through time.

Acting takes one step of the cells. Learning takes all steps of a rollout, and goes back through
them by hand, since a torch graph of a dozen small operations a step takes several times as long.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import Tensor

from a3c_exp.common.arrays import Floats
from a3c_exp.engine.kernels import Backward, array_of, gradient_of
from a3c_exp.networks.recurrent import LstmCore, RecurrentInput, reset_state


class LstmKernel:
    """The cells of an `LstmCore` on arrays."""

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
        """Take one step: features [B, F], state [B, 2 C] -> h [B, C], the state after."""
        cells = self._cells
        sums = np.matmul(features, self._inputs)
        sums += self._bias
        hidden, cell = _step(sums, state[:, :cells], state[:, cells:], self._recurrent)
        return hidden, np.concatenate([hidden, cell], axis=1)

    def train_forward(
        self, features: Floats, recurrent_input: RecurrentInput
    ) -> tuple[Floats, Backward]:
        """Take all steps of a rollout: features [T, B, F] -> h [T, B, C], and the function that
        goes back through them."""
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
    """Take one step of the cells: h and c before -> h and c after, [B, C] each, in new arrays.

    sums: x_t W + b, [4, B, C], which the gates overwrite.
    recurrent: U, [4, C, C].
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
    """Take `_step` for every row of a rollout. Returns h [T, B, C], and the function of
    backpropagation through time: from a loss's derivatives by h to those by the sums, and by U as
    [C, 4 C].

    sums: x_t W + b, [T, B, 4 C].
    weight: U, [4, C, C].
    """
    time, count, _ = sums.shape
    cells = weight.shape[-1]
    gates = sums.reshape(time, count, 4, cells).transpose(0, 2, 1, 3).copy()
    episode_boundaries = recurrent_input.episode_boundaries
    has_boundary: list[bool] = np.any(episode_boundaries, axis=1).tolist()
    before = np.empty((2, time, count, cells), gates.dtype)  # h and c with which each row begins
    out = np.empty_like(before[0])

    hidden = recurrent_input.state[:, :cells]
    cell = recurrent_input.state[:, cells:]
    for t in range(time):
        before[0, t] = hidden
        before[1, t] = cell
        hidden, cell = _step(gates[t], hidden, cell, weight)
        out[t] = hidden
        if has_boundary[t]:
            hidden = reset_state(hidden, episode_boundaries[t])
            cell = reset_state(cell, episode_boundaries[t])

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
        hidden = np.zeros_like(before[0, 0])
        cell = hidden
        for t in range(time - 1, -1, -1):
            if has_boundary[t]:
                hidden = reset_state(hidden, episode_boundaries[t])
                cell = reset_state(cell, episode_boundaries[t])

            hidden = hidden + grad_hidden[t]
            cell = cell + hidden * by_cell[t]
            np.multiply(hidden, by_output[t], out=grad_sums[t, 0])
            np.multiply(cell, by_others[t], out=grad_sums[t, 1:])
            hidden = np.add.reduce(np.matmul(grad_sums[t], weight_t))
            cell = cell * f[t]

        rows = grad_sums.transpose(0, 2, 1, 3).reshape(time * count, 4 * cells)
        grad_weight = before[0].reshape(time * count, cells).T.dot(rows)
        return rows.reshape(time, count, -1), grad_weight

    return out, backward
