"""The comparison of an ONNX file with the policy that it was made from, on episodes that the policy plays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space
from numpy.typing import NDArray

from a3c_exp.common.arrays import Array, Floats
from a3c_exp.core.rollout import episode_boundaries
from a3c_exp.envs import EnvBatch
from a3c_exp.errors import one_line
from a3c_exp.networks.recurrent import reset_state
from a3c_exp.run.policy import Policy

# Environments of the check, stepped together.
BATCH = 8

# Steps after the first one whose first observation is also given to the file alone, as a batch of one.
ALONE = 16

# Allowed difference between file and policy, relative to the largest number of an output, and to 1 if that is smaller.
TOLERANCE = 1e-5


class CheckError(Exception):
    """A file that does not act as its policy. Its text is one line."""


class RecordedNoise(np.random.Generator):
    """A generator of numbers that float32 holds, which keeps what it has drawn, for the `noise` of a file."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__(rng.bit_generator)
        self._drawn: list[Array] = []

    def random(self, size: Any = None, *_: Any, **__: Any) -> Any:
        drawn = super().random(size, np.float32)
        self._drawn.append(np.atleast_1d(np.asarray(drawn, np.float32)))
        return drawn

    def standard_normal(self, size: Any = None, *_: Any, **__: Any) -> Any:
        drawn = super().standard_normal(size, np.float32)
        self._drawn.append(np.asarray(drawn, np.float32))
        return drawn

    def take(self) -> Floats:
        """The numbers since the last call, [N, K]."""
        columns = [drawn if drawn.ndim == 2 else drawn[:, None] for drawn in self._drawn]
        self._drawn.clear()
        return np.concatenate(columns, axis=1)


class File:
    """An ONNX file in onnxruntime. Whatever that raises is a CheckError."""

    def __init__(self, path: Path) -> None:
        import onnxruntime

        onnxruntime.set_default_logger_severity(4)  # it would tell which devices this machine lacks
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise CheckError(f"onnxruntime cannot read it: {one_line(error)[:300]}") from error
        self._outputs = [each.name for each in self._session.get_outputs()]

    def run(self, inputs: dict[str, Array]) -> dict[str, Array]:
        """The outputs by name."""
        try:
            return dict(zip(self._outputs, self._session.run(None, inputs), strict=True))
        except Exception as error:
            raise CheckError(f"onnxruntime cannot run it: {one_line(error)[:300]}") from error


class Comparison:
    """The largest difference of each output of a file, and the largest number of it.

    An action among choices has no difference but a gap: how far the policy's numbers are from those for which it would
    have made the same choice. It is 0 for the same choice.
    """

    def __init__(self, space: Space[Any]) -> None:
        self._space = space
        self._differences: dict[str, Array] = {}
        self._scales: dict[str, Array] = {}

    def add(self, outputs: dict[str, Array], expected: dict[str, Array], noise: Floats | None) -> None:
        """Outputs of the file, those of the policy, and the noise of both. Raises CheckError for another form."""
        if outputs.keys() != expected.keys():
            raise CheckError(f"its outputs are {sorted(outputs)}, which must be {sorted(expected)}")
        for name, reference in expected.items():
            output = outputs[name]
            if (output.shape, output.dtype) != (reference.shape, reference.dtype):
                form, right = (f"{each.dtype} {list(each.shape)}" for each in (output, reference))
                raise CheckError(f"its output {name} is {form}, which must be {right}")
            if name != "action":
                self._keep(name, np.abs(output - reference).max(), np.maximum(1, np.abs(reference).max()))
            elif isinstance(self._space, Box):  # each dimension has a range of its own
                difference, largest = np.abs(output - reference).max(0), np.abs(reference).max(0)
                self._keep(name, difference, np.maximum(largest, half_range(self._space)))
            else:
                parameters = expected["parameters"]
                gap = action_gap(self._space, parameters, output, noise)
                self._keep(name, np.asarray(gap), np.maximum(1, np.abs(parameters).max()))

    def _keep(self, name: str, difference: Array, scale: Array) -> None:
        self._differences[name] = np.maximum(difference, self._differences.get(name, 0))
        self._scales[name] = np.maximum(scale, self._scales.get(name, 0))

    def largest(self) -> float:
        """The largest difference, relative to the scale of its output. Raises CheckError if it is too large."""
        relative = {name: float((each / self._scales[name]).max()) for name, each in self._differences.items()}
        wrong = {name: value for name, value in relative.items() if not value <= TOLERANCE}  # NaN is wrong too
        if wrong:
            texts = [f"{name} by {value:.2g}" for name, value in wrong.items()]
            problem = f"of their scale from the policy's (allowed: {TOLERANCE:g})"
            raise CheckError(f"was not written, since its outputs differ: {', '.join(texts)} {problem}")
        return max(relative.values())


def half_range(space: Box) -> Floats:
    """Half the range of each dimension; 1 where a bound is missing."""
    half = space.high.astype(np.float32).ravel() / 2 - space.low.astype(np.float32).ravel() / 2
    return np.where(np.isfinite(half), half, np.float32(1))


def action_gap(space: Space[Any], parameters: Floats, actions: Array, noise: Floats | None) -> float:
    """The gap of actions among choices: see `Comparison`. In logits; with noise, in probability."""
    if isinstance(space, MultiBinary):
        probabilities = 1 / (1 + np.exp(-parameters.astype(np.float64)))
        above = parameters.astype(np.float64) if noise is None else probabilities - noise
        return float(np.where((above > 0) == (actions == 1), 0, np.abs(above)).max())
    assert isinstance(space, Discrete | MultiDiscrete)
    sizes = [space.n] if isinstance(space, Discrete) else space.nvec.tolist()
    pieces = np.split(parameters.astype(np.float64), np.cumsum(sizes)[:-1], axis=-1)
    columns = actions.reshape(len(parameters), -1).T
    uniform = [None] * len(sizes) if noise is None else list(noise.T)
    return max(map(_choice_gap, pieces, columns, uniform))


def _choice_gap(logits: NDArray[np.float64], choices: Array, uniform: Floats | None) -> float:
    if choices.min() < 0 or choices.max() >= logits.shape[1]:
        return float("inf")
    rows = np.arange(len(logits))
    if uniform is None:
        return float((logits.max(-1) - logits[rows, choices]).max())
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    probabilities = weights / weights.sum(-1, keepdims=True)
    ends = np.cumsum(probabilities, -1)[rows, choices]
    begins = ends - probabilities[rows, choices]
    return float(np.maximum(begins - uniform, uniform - ends).max(initial=0))


def check(
    path: Path, policy: Policy, env: EnvBatch, greedy: bool, steps: int, rng: np.random.Generator
) -> tuple[int, float]:
    """Compare a file with its policy on at least `steps` observations of episodes that the policy plays.

    Each carries its own recurrent state. Returns the number of observations, and the largest difference relative to
    the scale of its output. Raises CheckError if one exceeds TOLERANCE.
    """
    file, recorded, comparison = File(path), RecordedNoise(rng), Comparison(env.action_space)
    policy = policy.with_generator(recorded)
    observations, count = env.reset(), 0
    state, own = policy.initial_state(env.count), policy.initial_state(env.count)
    while count < steps:
        parameters, values, after = policy.outputs(observations, state)
        with np.errstate(divide="ignore"):  # a uniform number may be 0
            actions = policy.choose(parameters, greedy)
        noise = None if greedy else recorded.take()
        inputs = _present(observation=observations, state=own, noise=noise)
        expected = _present(action=actions, value=values, parameters=parameters, next_state=after)
        outputs = file.run(inputs)
        comparison.add(outputs, expected, noise)
        if count < ALONE * env.count:
            first, one = ({name: each[:1] for name, each in arrays.items()} for arrays in (inputs, expected))
            comparison.add(file.run(first), one, None if noise is None else noise[:1])
        step = env.step(actions)
        observations, count = step.obs, count + env.count
        if after is not None:
            ends = episode_boundaries(step)
            state, own = reset_state(after, ends), reset_state(outputs["next_state"], ends)
    return count, comparison.largest()


def _present(**arrays: Array | None) -> dict[str, Array]:
    return {name: array for name, array in arrays.items() if array is not None}
