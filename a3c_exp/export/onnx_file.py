"""The policy of a run as an ONNX file: from raw observations to actions, with everything between them inside.

The file is checked before it gets its name, so a file with that name is one that acts as the policy does.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from a3c_exp.core import seeding
from a3c_exp.core.normalization import CLIP
from a3c_exp.core.seeding import Role
from a3c_exp.envs import EnvBatch, Environment
from a3c_exp.errors import ConfigError
from a3c_exp.export.onnx_check import BATCH, TOLERANCE, CheckError, check
from a3c_exp.networks import ActorCritic
from a3c_exp.networks.composed import EncoderActorCritic
from a3c_exp.networks.whole import WholeActorCritic
from a3c_exp.run import files
from a3c_exp.run.policy import REPLAY, Policy
from a3c_exp.run.run_folder import commit_of

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["CheckError", "describe", "export"]

# Observations of the example that a network is traced with: no number that a trace treats in a way of its own (0, 1).
EXAMPLE = 3

MEANINGS = {
    "observation": "as the environment gives it: not normalized; of discrete spaces one-hot vectors",
    "state": "zeros at the start of an episode, then next_state of the step before",
    "noise": "random numbers that make the action, {noise}",
    "action": "as the environment takes it: choices count from 0, a Box is flat and clipped to its bounds",
    "value": "what the critic expects of the episode's rest, in the scale of the rewards in training",
    "parameters": "of the action distribution: logits, or means and log standard deviations before the Box's scale",
    "next_state": "the state after this step",
}
"""Meanings of a file's inputs and outputs."""


class PolicyModule(nn.Module):
    """A policy as one torch module: raw observations of an EnvBatch, state and noise -> see `MEANINGS`, from `action`.

    noise: None for the most likely actions.
    """

    mean: Tensor | None
    inverse_std: Tensor | None

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.network = policy.network
        self.actions = self.network.distribution.action_module()
        scales = policy.normalizer
        if scales is None or scales.by_network:
            mean = inverse_std = None
        else:
            mean, inverse_std = scales.mean, scales.inverse_std
        self.register_buffer("mean", None if mean is None else torch.from_numpy(mean))
        self.register_buffer("inverse_std", None if inverse_std is None else torch.from_numpy(inverse_std))

    def forward(
        self, observation: Tensor, state: Tensor | None = None, noise: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        if self.mean is not None and self.inverse_std is not None:
            observation = ((observation.float() - self.mean) * self.inverse_std).clamp(-CLIP, CLIP)
        parameters, values, after = self.network(observation, state)
        outputs = self.actions(parameters, noise), values, parameters
        return outputs if after is None else (*outputs, after)


def export(
    path: Path, policy: Policy, environment: Environment, about: Mapping[str, str], greedy: bool, steps: int, seed: int
) -> str:
    """Write a policy to `path`, checked on `steps` observations of episodes that it plays; return a line about it.

    about: see `describe`. greedy, seed: see `export.__main__.Options`.
    If the check fails or the disk is full, nothing is written, and an earlier file stays as it was.
    Raises ConfigError if the network cannot be exported, CheckError if the file differs from the policy, and OSError.
    """
    policy.use_float32()
    count = min(steps, BATCH)
    try:
        env = environment.make(count, seeding.environment_seeds(seed, Role.EVALUATION, REPLAY, count))
    except ConfigError as error:
        raise error.under("env") from error
    try:
        model = make_model(policy, env, greedy, about)
        rng = seeding.generator(seed, Role.EVALUATION_ACTIONS, REPLAY)
        results: list[tuple[int, float]] = []

        def write(file: IO[bytes]) -> None:
            write_model(file, model)
            file.flush()
            results.append(check(Path(file.name), policy, env, greedy, steps, rng))

        files.atomic_write(path, write)
    finally:
        env.close()
    [(checked, largest)] = results
    inputs, outputs = (
        ", ".join(f"{value.name} {_shape(value)}" for value in values)
        for values in (model.graph.input, model.graph.output)
    )
    equal = f"equal to the policy on {checked:,} observations, largest difference {largest:.1g}"
    return f"{inputs} -> {outputs}; {equal} (allowed: {TOLERANCE:g})"


def write_model(file: IO[bytes], model: ModelProto) -> None:
    """Write a model into an open file."""
    file.write(model.SerializeToString())


def describe(folder: Path, config: Mapping[str, Any], checkpoint: Path, steps: int) -> dict[str, str]:
    """The origin of a policy, for the file's metadata. steps: of its training."""
    env = config.get("env")
    env = env if isinstance(env, Mapping) else {}
    return {
        "env": str(env.get("id") or env.get("_target_")),
        "run": folder.absolute().name,
        "checkpoint": checkpoint.name,
        "steps": str(steps),
        "commit": commit_of(folder) or "unknown",
    }


def make_model(policy: Policy, env: EnvBatch, greedy: bool, about: Mapping[str, str]) -> ModelProto:
    """The ONNX model of a policy. Raises ConfigError for a network that torch cannot export."""
    module, space = PolicyModule(policy), env.observation_space
    network = module.network
    arguments = {"observation": torch.from_numpy(np.zeros((EXAMPLE, *space.shape), space.dtype))}
    names = ["action", "value", "parameters"]
    if network.recurrent:
        arguments["state"] = torch.zeros(EXAMPLE, network.state_size)
        names.append("next_state")
    if not greedy:
        arguments["noise"] = torch.full((EXAMPLE, module.actions.noise_size), 0.5)
    try:
        with _silence(), torch.no_grad():
            program = torch.onnx.export(
                _trace(module, arguments), dynamo=True, verbose=False, input_names=list(arguments),
                output_names=names,
            )  # fmt: skip
    except Exception as error:  # the exporter raises anything, and so does a user's module
        reason = (str(error).strip().splitlines() or [""])[0][:300]
        problem = f"cannot be exported to ONNX by torch {torch.__version__}: {type(error).__name__}: {reason}"
        raise ConfigError("network", _class_name(network), problem) from error
    assert program is not None
    model: ModelProto = program.model_proto
    _clean(model)
    spaces = {"observation_space": str(space), "action_space": str(env.action_space)}
    values = {
        value.name: f"{_shape(value)}: {MEANINGS[value.name].format(noise=module.actions.noise_kind)}"
        for value in [*model.graph.input, *model.graph.output]
    }
    for key, text in {**about, **spaces, "greedy": str(greedy).lower(), **values}.items():
        model.metadata_props.add(key=key, value=text)
    return model


def _class_name(network: ActorCritic) -> str:
    """The class that a configuration names."""
    match network:
        case EncoderActorCritic():
            return type(network.actor_encoder).__name__
        case WholeActorCritic():
            return type(network.module).__name__
    return type(network).__name__


def _clean(model: ModelProto) -> None:
    """Leave out the paths and lines of the code that made each node, and call the number of rows N."""
    del model.graph.value_info[:]
    for each in [*model.graph.node, *model.graph.input, *model.graph.output]:
        each.ClearField("metadata_props")
    for value in [*model.graph.input, *model.graph.output]:
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param:
                dimension.dim_param = "N"


def _trace(module: nn.Module, arguments: dict[str, Tensor]) -> torch.export.ExportedProgram:
    """The graph of a module for any number of rows.

    torch.onnx could trace the module itself, but it would quietly fix the number of rows if the code needs that.
    The strict way reads the code of the module. It takes longer, and can trace `len(x)`, which the other way cannot.
    """
    rows = {0: torch.export.Dim("N")}
    shapes = dict.fromkeys(arguments, rows)
    try:
        return torch.export.export(module, (), arguments, dynamic_shapes=shapes, strict=False)
    except Exception:  # of any kind
        return torch.export.export(module, (), arguments, dynamic_shapes=shapes, strict=True)


@contextmanager
def _silence() -> Iterator[None]:
    """Leave out what torch prints, logs and warns of: libraries that it misses, and graphs that it cannot make."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _shape(value: Any) -> str:
    """The shape of an input or output of a graph: [N, 4]."""
    return f"[{', '.join(each.dim_param or str(each.dim_value) for each in value.type.tensor_type.shape.dim)}]"
