"""The parts of TensorFlow 1 in the sources, in numpy: dense layers, Adam, and workers without an
order."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
# a worker stops before each session.run of its source, and goes on when the scheduler picks it
Worker = Iterator[None]


class Network:
    """Dense layers with an activation between them, over one vector.

    sizes: inputs, hidden layers, outputs. heads: the outputs are so many layers of their own.
    ceiling: of the activation: infinity is relu, 6 is relu6. deviations: of the normal kernels of
    each layer; None: Glorot uniform, the default of tf.layers.dense. Biases start at 0.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        rng: np.random.Generator,
        *,
        heads: int = 1,
        ceiling: float = np.inf,
        deviations: Sequence[float | None] | None = None,
    ) -> None:
        layers = list(pairwise(sizes))
        self.values = np.zeros(
            sum((inputs + 1) * outputs for inputs, outputs in layers), np.float32
        )
        self._layers = []

        start = 0
        for number, ((inputs, outputs), deviation) in enumerate(
            zip(layers, deviations or [None] * len(layers), strict=True)
        ):
            fan_out = outputs // heads if number == len(layers) - 1 else outputs
            weights = self.values[start : start + inputs * outputs].reshape(inputs, outputs)
            start += weights.size
            self._layers.append((weights, self.values[start : start + outputs]))
            start += outputs
            limit = (6 / (inputs + fan_out)) ** 0.5
            shape = (inputs, outputs)
            weights[:] = (
                rng.uniform(-limit, limit, shape)
                if deviation is None
                else rng.normal(0, deviation, shape)
            )

        self._ceiling = ceiling

    def forward(self, x: Array) -> list[Array]:
        """[N, inputs] -> the inputs of each layer and the outputs, [N, outputs], last."""
        activations = [x]
        for number, (weights, biases) in enumerate(self._layers, 1):
            x = x @ weights + biases
            if number < len(self._layers):
                x = (
                    np.maximum(x, 0)
                    if self._ceiling == np.inf
                    else np.minimum(np.maximum(x, 0), self._ceiling)
                )

            activations.append(x)

        return activations

    def gradient(self, activations: Sequence[Array], error: Array) -> Array:
        """The gradient of `values`, from that of the outputs."""
        parts: list[Array] = []
        for number in range(len(self._layers) - 1, -1, -1):
            x = activations[number]
            parts += [error.sum(0), (x.T @ error).ravel()]
            if number:
                error = (error @ self._layers[number][0].T) * ((x > 0) & (x < self._ceiling))

        return np.concatenate(parts[::-1])

    def assign(self, other: Network) -> None:
        """Take the values of the other."""
        self.values[:] = other.values


Slots = dict[Network, tuple[Array, Array]]


class Adam:
    """tf.train.AdamOptimizer: p -= rate sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + 1e-8).

    Each network has m and v of its own. The powers of the betas are the optimizer's: any step on
    any network is one t.
    slots: m and v by network, if several optimizers share those of the networks that they share.
    """

    def __init__(
        self, rate: float, beta1: float = 0.9, beta2: float = 0.999, slots: Slots | None = None
    ) -> None:
        self._rate = rate
        self._beta1 = beta1
        self._beta2 = beta2
        self._power1 = beta1
        self._power2 = beta2
        self._slots: Slots = {} if slots is None else slots

    def apply(self, *gradients: tuple[Network, Array]) -> None:
        """A step on these networks: one apply_gradients."""
        rate = np.float32(self._rate * (1 - self._power2) ** 0.5 / (1 - self._power1))
        for network, gradient in gradients:
            if network not in self._slots:
                self._slots[network] = np.zeros_like(network.values), np.zeros_like(network.values)
            m, v = self._slots[network]
            m += np.float32(1 - self._beta1) * (gradient - m)
            v += np.float32(1 - self._beta2) * (gradient * gradient - v)
            network.values -= rate * m / (np.sqrt(v) + np.float32(1e-8))

        self._power1 *= self._beta1
        self._power2 *= self._beta2


def run_in_random_order(workers: Sequence[Worker], seed: int) -> None:
    """Let the workers run until all have ended, each time one that is drawn, all with the same
    chance."""
    alive = list(workers)
    draw = random.Random(seed).random
    while alive:
        worker = alive[int(draw() * len(alive))]
        if next(worker, alive) is alive:
            alive.remove(worker)
