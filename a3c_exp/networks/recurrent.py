"""Memory: a core of LSTM cells between a body and the heads.

The step of a cell is written once, on arrays. Acting takes one such step; learning takes all steps of a rollout and
goes back through them by hand, since a torch graph of a dozen small operations a step takes several times as long.
Where an episode ends, nothing is remembered, and no gradient flows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from a3c_exp.networks.layers import Array, Initialisation, Linear, initialise

Bools = NDArray[np.bool_]


class Memory(NamedTuple):
    """What a recurrent network needs to see a rollout as it was seen.

    state: float32 [B, S], at t = 0. restarts: bool [T, B], where nothing leads from row t to row t + 1.
    """

    state: Array
    restarts: Bools


def forget(state: Array, restarts: Bools) -> Array:
    """The state [B, S] with which the next row begins: zeros where `restarts` [B]."""
    return np.where(restarts[:, None], np.float32(0), state) if restarts.any() else state


class LstmCore:
    """Long short-term memory (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000).

        i, f, o = sigmoid(W_i,f,o x_t + U_i,f,o h_{t-1} + b_i,f,o)      g = tanh(W_g x_t + U_g h_{t-1} + b_g)
        c_t = f c_{t-1} + i g                                           h_t = o tanh(c_t)

    The rows of the weights are those of i, f, g, o, as in torch.nn.LSTM, whose second bias is left out.
    A state is float32 [B, 2 * cells]: h and c side by side.
    """

    def __init__(self, inputs: int, cells: int) -> None:
        self.features = cells
        self.inputs = Linear(inputs, 4 * cells)
        self.recurrent = nn.Parameter(torch.zeros(4 * cells, cells))

    def initialise(self, scheme: Initialisation, forget_bias: float, generator: torch.Generator) -> None:
        """Draw each gate's two matrices as layers of their own, with gain 1. Biases are 0, but for the forget gate's."""
        cells = self.features
        with torch.no_grad():
            for matrix in (self.inputs.weight, self.recurrent):
                for rows in matrix.split(cells):
                    layer = Linear(rows.shape[1], cells)
                    initialise(layer, scheme, 1.0, generator)
                    rows.copy_(layer.weight)
            self.inputs.bias.zero_()
            self.inputs.bias[cells : 2 * cells] = forget_bias

    def parameters(self) -> list[nn.Parameter]:
        return [*self.inputs.parameters(), self.recurrent]

    def bind(self) -> None:
        self.inputs.bind()
        self._recurrent: Array = self.recurrent.detach().numpy()

    def initial_state(self, count: int) -> Array:
        """The state of `count` environments whose episodes begin."""
        return np.zeros((count, 2 * self.features), np.float32)

    def infer(self, features: Array, state: Array) -> tuple[Array, Array]:
        """One step: features [B, F], state [B, S] -> h [B, cells], the state after."""
        after = np.empty_like(state)
        _step(self.inputs.infer(features), state, self._recurrent, after)
        return after[:, : self.features], after

    def __call__(self, features: Tensor, memory: Memory) -> Tensor:
        """All steps of a rollout: features [T, B, F] -> h [T, B, cells]."""
        unrolled: Tensor = Unrolled.apply(self.inputs(features), self.recurrent, memory)  # type: ignore[no-untyped-call]
        return unrolled


def _step(gates: Array, state: Array, recurrent: Array, after: Array) -> None:
    """gates: W x_t + b [B, 4 C], in whose place are left i, f, g, o. after: [B, 2 C], for h_t and c_t."""
    cells = recurrent.shape[1]
    gates += state[:, :cells].dot(recurrent.T)
    # sigmoid(x) = 1/2 + 1/2 tanh(x/2): one call for all four gates, and nothing that overflows.
    each = gates.reshape(len(gates), 4, cells)
    sigmoids = (each[:, :2], each[:, 3])
    for sigmoid in sigmoids:
        sigmoid *= 0.5
    np.tanh(gates, out=gates)
    for sigmoid in sigmoids:
        sigmoid *= 0.5
        sigmoid += 0.5
    hidden, cell = after[:, :cells], after[:, cells:]
    np.multiply(each[:, 1], state[:, cells:], out=cell)
    cell += each[:, 0] * each[:, 2]
    np.tanh(cell, out=hidden)
    hidden *= each[:, 3]


class Unrolled(torch.autograd.Function):
    """`_step` for every row of a rollout, and backpropagation through time."""

    @staticmethod
    def forward(ctx: Any, projected: Tensor, recurrent: Tensor, memory: Memory) -> Tensor:
        """projected: W x_t + b, [T, B, 4 C]; recurrent: U, [4 C, C] -> h [T, B, C]."""
        gates, weight = projected.detach().numpy().copy(), recurrent.detach().numpy()
        time, count, _ = gates.shape
        cells = weight.shape[1]
        hidden = np.empty((time, count, cells), gates.dtype)
        before = np.empty((time, count, 2 * cells), gates.dtype)
        state, after = memory.state, np.empty_like(before[0])
        for t in range(time):
            before[t] = state
            _step(gates[t], state, weight, after)
            hidden[t] = after[:, :cells]
            state = forget(after, memory.restarts[t])
        ctx.kept = gates.reshape(time, count, 4, cells), before, weight, memory.restarts
        return torch.from_numpy(hidden)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        gates, before, weight, restarts = ctx.kept
        time, count, _, cells = gates.shape
        i, f, g, o = (gates[:, :, gate] for gate in range(4))
        hidden_before, cell_before = before[..., :cells], before[..., cells:]
        squashed = np.tanh(f * cell_before + i * g)
        # What is the same for every row is done for all at once: how h_t and c_t move with the sums behind the gates ...
        by_cell = np.stack([g * i * (1 - i), cell_before * f * (1 - f), i * (1 - g * g)], axis=2)
        by_hidden = squashed * o * (1 - o)
        cell_by_hidden = o * (1 - squashed * squashed)
        # ... and what is left goes back row by row.
        sums = np.empty_like(gates)
        carried = np.zeros_like(before[0])
        for t in range(time - 1, -1, -1):
            carried = forget(carried, restarts[t])
            hidden, cell = carried[:, :cells] + gradient[t].numpy(), carried[:, cells:]
            cell = cell + hidden * cell_by_hidden[t]
            np.multiply(cell[:, None], by_cell[t], out=sums[t, :, :3])
            np.multiply(hidden, by_hidden[t], out=sums[t, :, 3])
            carried = np.concatenate([sums[t].reshape(count, -1).dot(weight), cell * f[t]], axis=1)
        flat = sums.reshape(time * count, -1)
        to_weight = flat.T.dot(hidden_before.reshape(time * count, cells))
        return torch.from_numpy(sums.reshape(time, count, -1)), torch.from_numpy(to_weight), None
