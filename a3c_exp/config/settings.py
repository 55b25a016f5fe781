"""The record of a setting, and the former names of settings."""

from __future__ import annotations

from typing import Any, NamedTuple


class Setting(NamedTuple):
    """The type of a setting, and whether it must be given."""

    hint: Any
    required: bool


RENAMED = {
    "goal": "reward_threshold", "moments": "optimizer_state", "accumulate": "accumulate_rollouts",
    "parts": "param_groups", "life_loss": "terminal_on_life_loss", "all_actions": "full_action_space",
    "sticky_actions": "repeat_action_probability", "stack": "frame_stack", "wire": "wire_dtype",
    "entropy": "entropy_coefficient", "sizes": "hidden_sizes", "critic_sizes": "critic_hidden_sizes",
    "features": "features_dim", "cells": "hidden_size", "channels": "sections",
}  # fmt: skip
"""Former names of settings, for a hint where a component has a setting of the new name."""

RENAMED_VALUES = {"optimizer_state": {"worker": "per_worker"}}
"""Former values of settings, by the settings' new names."""
