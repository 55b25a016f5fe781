"""Values of settings that are out of range are refused by their component, with the setting's
name."""

from __future__ import annotations

import math
from typing import Any

import pytest
from refusals import refused

from a3c_exp.algorithms import A3C, PPO
from a3c_exp.core.experiment import Stop
from a3c_exp.networks import Cnn, EncoderNetwork, Impala, Lstm, Mlp, ModuleSpec
from a3c_exp.optimizers import SGD, Adam, ParamGroup, RMSProp
from a3c_exp.returns import GAE, NStep, NStepZero, VTrace
from a3c_exp.schedules import Constant, Linear

RATE = {"learning_rate": 1.0}
IMAGES = {"channels": 4, "height": 84, "width": 84, "max_pixel": 255.0}
NEEDED: dict[Any, dict[str, Any]] = {
    SGD: RATE,
    Adam: RATE,
    RMSProp: RATE,
    Mlp: {"inputs": 4},
    Cnn: IMAGES,
    Impala: IMAGES,
    EncoderNetwork: {"encoder": ModuleSpec(Mlp)},
}
WRONG: dict[Any, dict[str, list[Any]]] = {
    A3C: {"value_coefficient": [-0.5], "entropy_coefficient": [math.nan]},
    PPO: {
        "clip": [0.0, 1.0, Linear(start=1.0)],
        "epochs": [0],
        "minibatch_size": [0],
        "target_kl": [-1.0],
    },
    SGD: {
        "learning_rate": [0, math.nan],
        "max_grad_norm": [0],
        "staleness_power": [-1.0],
        "momentum": [1.0],
    },
    RMSProp: {
        "decay": [1.0],
        "epsilon": [0.0, 1e-46],
        "initial_mean_square": [-1.0],
        "momentum": [-0.1],
    },
    Adam: {"betas": [(0.9, 1.0)], "epsilon": [-1e-8, 1e39], "weight_decay": [-0.1, math.inf]},
    ParamGroup: {"learning_rate": [-1.0]},
    NStep: {"n": [0]},
    NStepZero: {"n": [0]},
    GAE: {"lambda_": [1.5, math.nan]},
    VTrace: {"lambda_": [-0.1], "rho_clip": [0.0], "c_clip": [2.0]},
    Constant: {"value": [math.nan]},
    Linear: {"start": [math.inf], "end": [math.nan], "after": [1.0, -0.1], "until": [0.0, 1.1]},
    Mlp: {"hidden_sizes": [(0,), (8,) * 101]},
    Cnn: {"layers": [(), ((16, 0, 4),)], "features_dim": [0]},
    Impala: {"sections": [()], "blocks": [-1]},
    EncoderNetwork: {"init_std": [0.0], "policy_gain": [-1.0], "initial_std": [0.0]},
    Lstm: {
        "hidden_size": [-1],
        "critic_hidden_size": [-1],
        "forget_bias": [11.0],
        "policy_gain": [0.0],
    },
    Stop: {"worker_episodes": [0], "window": [0, 10**9]},
}
CASES = [
    (cls, name, value)
    for cls, names in WRONG.items()
    for name, values in names.items()
    for value in values
]


@pytest.mark.parametrize(("cls", "name", "value"), CASES, ids=str)
def test_a_value_out_of_range_is_refused(cls: Any, name: str, value: Any) -> None:
    refused(lambda: cls(**NEEDED.get(cls, {}) | {name: value}), name)
