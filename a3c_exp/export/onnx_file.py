"""The policy of a run as an ONNX file: from raw observations to actions, with everything between
them inside.

The file is checked before it gets its name, so a file with that name is one that acts as the policy
does.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from gymnasium.spaces import Box
from onnx import ModelProto, helper
from torch import Tensor, nn

from a3c_exp.common.arrays import Array
from a3c_exp.core.normalization import CLIP
from a3c_exp.core.rollout import episode_boundaries
from a3c_exp.envs import EnvBatch
from a3c_exp.envs.parts import PartsBox
from a3c_exp.errors import ConfigError, RunError, one_line
from a3c_exp.networks.distributions import FORBIDDEN
from a3c_exp.networks.recurrent import reset_state
from a3c_exp.run.policy import Policy

OUTPUTS = ("action", "value", "parameters", "next_state")
"""Names of the file's outputs; the last only with a recurrent network."""

MOST_DIFFERENCE = 1e-5
"""Allowed difference of an output, relative to its largest number, and to 1 if that is smaller."""


def model_metadata(data: bytes) -> dict[str, str]:
    """Return the metadata of a file's content. Raises an error of onnx's for another one."""
    model = onnx.load_model_from_string(data)
    return {entry.key: entry.value for entry in model.metadata_props}


class PolicyModule(nn.Module):
    """A policy as one torch module.

    Raw observations of an EnvBatch, and the recurrent state of a network that has one -> the most
    likely actions, as the environment takes them; values; parameters of the distributions; and the
    next state.
    """

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.network = policy.network
        self.scales = policy.normalizer

    def forward(
        self, observation: Tensor | dict[str, Tensor], state: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        if isinstance(observation, dict):  # see `PartsBox.join`
            parts = [
                part / 255 if part.dtype == torch.uint8 else part for part in observation.values()
            ]
            observation = torch.cat([part.flatten(1) for part in parts], dim=1)

        if self.scales is not None and not self.scales.by_network:
            mean = torch.from_numpy(self.scales.mean)
            inverse_std = torch.from_numpy(self.scales.inverse_std)
            observation = ((observation.float() - mean) * inverse_std).clamp(-CLIP, CLIP)

        parameters, values, after = self.network(observation, state)
        actions = self.network.distribution.mode_for_env(parameters)
        if after is None:
            return actions, values, parameters

        return actions, values, parameters, after


def inputs_of(space: Box, observations: Array) -> dict[str, Array]:
    """Return a model's inputs for observations [N, ...] of an EnvBatch: those of a Dict or Tuple by
    the names of its parts.

    A part whose name is that of an output or of the recurrent state is `observation.<name>`.
    """
    if not isinstance(space, PartsBox):
        return {"observation": observations}
    parts = space.split(observations).items()
    return {
        f"observation.{name}" if name in (*OUTPUTS, "state") else name: part for name, part in parts
    }


def make_model(policy: Policy, env: EnvBatch, about: dict[str, str]) -> ModelProto:
    """Make the ONNX model of a policy, for any number of rows. about: for its metadata.

    Raises ConfigError for a network that torch cannot export.
    """
    module = PolicyModule(policy)
    space = env.observation_space
    example = np.zeros((3, *space.shape), space.dtype)
    inputs = {name: torch.from_numpy(array) for name, array in inputs_of(space, example).items()}
    states = {}
    output_names: tuple[str, ...] = OUTPUTS[:-1]
    if module.network.recurrent:
        states["state"] = torch.zeros(3, module.network.state_size)
        output_names = OUTPUTS

    rows = {0: torch.export.Dim("N")}
    arguments: dict[str, Any] = inputs
    shapes: dict[str, Any] = dict.fromkeys(inputs, rows)
    if isinstance(space, PartsBox):
        arguments = {"observation": arguments}
        shapes = {"observation": shapes}

    arguments = arguments | states
    shapes |= dict.fromkeys(states, rows)
    try:
        with _silenced(), torch.no_grad():
            # Traced by itself, torch.onnx would quietly fix the number of rows if the code needs
            # that.
            graph = torch.export.export(module, (), arguments, dynamic_shapes=shapes)
            program: Any = torch.onnx.export(
                graph, verbose=False, input_names=[*inputs, *states], output_names=output_names
            )
    except Exception as error:  # the exporter raises anything, and so does a user's module
        cause = one_line(error)[:300]
        problem = f"cannot be exported to ONNX by torch {torch.__version__}: {cause}"
        raise ConfigError("network", about["network"], problem) from error

    model: ModelProto = program.model_proto
    del model.graph.value_info[:]
    for entry in [*model.graph.node, *model.graph.input, *model.graph.output]:
        entry.ClearField("metadata_props")  # paths and lines of the code that made it
    helper.set_model_props(model, about)

    return model


@contextmanager
def _silenced() -> Iterator[None]:
    """Hold back what torch prints of libraries that it misses, and of graphs that it cannot
    make."""
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            redirect_stdout(io.StringIO()),
            redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def compare_with_policy(data: bytes, policy: Policy, env: EnvBatch, steps: int) -> str:
    """Compare a model's file with its policy on at least `steps` observations of episodes that the
    policy plays.

    The file's actions are compared with those that the policy would choose by the file's own
    distribution parameters, so that a near tie of two choices is no difference.
    Returns what was found, as text. Raises RunError if a difference exceeds MOST_DIFFERENCE.
    """
    onnxruntime.set_default_logger_severity(4)  # it would tell which devices this machine lacks
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    observations = env.reset()
    state = policy.network.initial_state(env.count)
    count = 0
    largest = 0.0
    while count < steps:
        inputs = inputs_of(env.observation_space, observations)
        if state is not None:
            inputs["state"] = state
        outputs = session.run(None, inputs)

        parameters, values, after = policy.outputs(observations, state)
        expected = [policy.choose(outputs[2]), values, parameters]
        if after is not None:
            expected.append(after)
        largest = max(largest, *map(difference, OUTPUTS, outputs, expected))

        step = env.step(policy.choose(parameters))
        observations = step.obs
        count += env.count
        state = None if after is None else reset_state(after, episode_boundaries(step))

    return (
        f"equal to the policy on {count:,} observations, "
        f"largest difference {largest:.1g} (allowed: {MOST_DIFFERENCE:g})"
    )


def difference(name: str, output: Array, expected: Array) -> float:
    """Return the largest difference of an output, relative to its scale. Raises RunError if it is
    too large."""
    if (output.shape, output.dtype) != (expected.shape, expected.dtype):
        raise RunError(
            f"the file's {name} is {output.dtype} {output.shape}, "
            f"which must be {expected.dtype} {expected.shape}"
        )

    # what stands for a forbidden action has none
    scale = np.abs(expected[expected != FORBIDDEN]).max(initial=1)
    largest = float(np.abs(output - expected).max() / scale)
    if not largest <= MOST_DIFFERENCE:  # NaN is wrong too
        raise RunError(
            f"not written, since the file's {name} differs by {largest:.2g} (allowed: "
            f"{MOST_DIFFERENCE:g})"
        )

    return largest
