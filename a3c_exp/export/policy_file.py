"""The file of an exported policy: where it may be written, and what it says of itself."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from gymnasium.spaces import Box, Space

from a3c_exp.config.saved import read_config
from a3c_exp.core.seeding import Role, environment_seeds
from a3c_exp.envs.errors import close_within
from a3c_exp.envs.parts import PartsBox
from a3c_exp.errors import ConfigError, RunError, one_line
from a3c_exp.evaluate import Loaded
from a3c_exp.export import weights
from a3c_exp.run.files import write_bytes
from a3c_exp.run.policy import LATER_EVALUATIONS
from a3c_exp.run.run_folder import environment_of, read_summary

Format = Literal["onnx", "safetensors"]

CHECKED_ENVS = 8
"""Environments of the check, stepped together."""


def check_replaceable(path: Path, file_format: Format) -> None:
    """Raise ConfigError for a file that is there, and that no export has written."""
    about: dict[str, str] = {}
    with suppress(Exception):  # the file may hold anything
        data = path.read_bytes()
        if file_format == "onnx":
            from a3c_exp.export import onnx_file

            about = onnx_file.model_metadata(data)
        else:
            about = weights.header_metadata(data)
    is_export = {"run", "checkpoint", "observation_space"} <= about.keys()
    if os.path.lexists(path) and not is_export:
        raise ConfigError("file", str(path), "must be free, or of an earlier export")


def write_policy(path: Path, file_format: Format, folder: Path, loaded: Loaded, steps: int) -> str:
    """Write the policy of the run in `folder` to `path`; return a line about it. An ONNX file is
    checked on `steps` observations.

    If the check fails or the disk is full, nothing is written, and an earlier file stays as it was.
    Raises ConfigError if the network cannot be exported, and RunError if the file cannot be written
    or differs from the policy.
    """
    policy = loaded.policy
    policy.use_float32()
    count = min(steps, CHECKED_ENVS)
    env = loaded.experiment.env.make(
        count, environment_seeds(0, Role.EVALUATION, LATER_EVALUATIONS, count)
    )
    about = _about(folder, loaded, env)
    try:
        if file_format == "onnx":
            from a3c_exp.export import onnx_file

            data = onnx_file.make_model(policy, env, about).SerializeToString()
            result = onnx_file.compare_with_policy(data, policy, env, steps)
        else:
            tensors = weights.tensors_of(policy)
            data = weights.encode(tensors, about)
            result = f"{len(tensors)} tensors: {', '.join(tensors)}"
        write_bytes(path, data)
    except (ConfigError, RunError):
        raise
    except Exception as error:  # a full disk, or whatever onnxruntime raises
        raise RunError(f"{path} cannot be written: {one_line(error)[:300]}") from error
    finally:
        close_within(env)
    return result


def _about(folder: Path, loaded: Loaded, env: Any) -> dict[str, str]:
    """Return what a file says of its policy."""
    config = read_config(folder)
    return {
        "env": environment_of(config),
        "observation_space": space_text(env.observation_space),
        "action_space": space_text(env.action_space),
        "network": config["network"]["_target_"].rpartition(".")[2],
        "run": folder.absolute().name,
        "checkpoint": loaded.checkpoint.name,
        "steps": str(loaded.steps),
        "commit": str((read_summary(folder) or {}).get("commit") or "unknown"),
    }


def space_text(space: Space[Any]) -> str:
    """Return a space as text: its parts by name, and the outermost bounds of a Box."""
    if isinstance(space, PartsBox):
        parts = (f"{part.name}: {space_text(part.space)}" for part in space.parts)
        return f"Dict({', '.join(parts)})"
    if isinstance(space, Box):
        return f"Box({space.low.min()}, {space.high.max()}, {space.shape}, {space.dtype})"
    return str(space)
