"""Optimizers of one flat vector: against torch's, against definitions in float64; rates and
clipping of groups."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refused
from runs import config

from a3c_exp import optimizers
from a3c_exp.common.arrays import Floats
from a3c_exp.config.builder import build_experiment
from a3c_exp.config.schema import build
from a3c_exp.optimizers import (
    OF_TORCH,
    SGD,
    Adam,
    Optimizer,
    ParamGroup,
    RMSProp,
    TorchOptimizer,
    check_param_groups,
    clip,
    rates,
)

SIZE = 37
STEPS = 100


def start() -> Floats:
    return np.random.default_rng(0).normal(size=SIZE).astype(np.float32)


def gradients() -> list[Floats]:
    """Of very different sizes, from element to element and from step to step; some are exactly
    0."""
    rng = np.random.default_rng(1)
    scales = 10 ** rng.uniform(-4, 2, size=SIZE)
    scales[:3] = 0
    return [
        (rng.normal(size=SIZE) * scales * 10 ** rng.uniform(-1, 1)).astype(np.float32)
        for _ in range(STEPS)
    ]


def train(optimizer: Optimizer, rate: Floats | None = None) -> Floats:
    parameters = start()
    optimizer_state = optimizer.initial_state(SIZE)
    for t, gradient in enumerate(gradients(), start=1):
        gradient.flags.writeable = False
        optimizer.step(
            parameters,
            optimizer_state,
            gradient,
            optimizer.learning_rate if rate is None else rate,
            t,
        )
    return parameters


def train_with_torch(make: Callable[[list[torch.Tensor]], torch.optim.Optimizer]) -> Floats:
    parameters = torch.from_numpy(start()).requires_grad_()
    optimizer = make([parameters])
    for gradient in gradients():
        parameters.grad = torch.from_numpy(gradient)
        optimizer.step()
    return parameters.detach().numpy()


RMSPROP = {"decay": 0.9, "epsilon": 1e-4, "momentum": 0.9}
TORCHS_RMSPROP = {"alpha": 0.9, "eps": 1e-4, "momentum": 0.9}
ADAM = [{"betas": (0.9, 0.999)}, {"betas": (0.5, 0.9)}, {"betas": (0.0, 0.99)}]


@pytest.mark.parametrize(
    ("ours", "theirs", "settings", "torchs"),
    [
        (RMSProp, torch.optim.RMSprop, {}, {"eps": 1e-5}),
        (RMSProp, torch.optim.RMSprop, RMSPROP, TORCHS_RMSPROP),
        *(
            (Adam, torch.optim.Adam, settings | {"epsilon": 1e-3}, settings | {"eps": 1e-3})
            for settings in ADAM
        ),
        (
            Adam,
            torch.optim.AdamW,
            {"weight_decay": 0.7, "epsilon": 1e-3},
            {"weight_decay": 0.7, "eps": 1e-3},
        ),
        (SGD, torch.optim.SGD, {}, {}),
        (SGD, torch.optim.SGD, {"momentum": 0.9}, {"momentum": 0.9}),
    ],
    ids=str,
)
def test_it_is_torchs_over_many_steps(
    ours: Any, theirs: Any, settings: dict[str, Any], torchs: dict[str, Any]
) -> None:
    rate = 1e-4 if ours is SGD else 0.01
    trained = train(ours(learning_rate=rate, **settings))
    np.testing.assert_allclose(
        trained, train_with_torch(lambda p: theirs(p, lr=rate, **torchs)), rtol=1e-4, atol=1e-5
    )


# -- torch's own
# --------------------------------------------------------------------------------------------------

SETTINGS: dict[str, list[dict[str, Any]]] = {
    "Adadelta": [{"lr": 0.5}],
    "Adagrad": [{"initial_accumulator_value": 0.1, "lr_decay": 0.01}],
    "Adam": [{"amsgrad": True, "weight_decay": 0.1}],
    "AdamW": [{"betas": [0.8, 0.99], "weight_decay": 0.1}],
    "Adamax": [{}],
    "NAdam": [{"momentum_decay": 0.01}],
    "RAdam": [{"decoupled_weight_decay": True, "weight_decay": 0.1}],
    "RMSprop": [{"centered": True, "momentum": 0.9}, {}],
    "SGD": [{"momentum": 0.9, "dampening": 0.5}, {"momentum": 0.9, "nesterov": True}, {}],
}


def of_torch(name: str, **settings: Any) -> TorchOptimizer:
    return build({"_target_": f"torch.optim.{name}", **settings}, Optimizer, "optimizer")  # type: ignore[type-abstract, return-value]


@pytest.mark.parametrize(
    ("name", "settings"),
    [(name, each) for name in OF_TORCH for each in SETTINGS[name]],
    ids=lambda each: str(each)[:30],
)
@pytest.mark.parametrize("critic_rate", [None, 1e-3])
def test_an_optimizer_of_torch_is_torchs_own_on_a_module(
    name: str, settings: dict[str, Any], critic_rate: float | None
) -> None:
    """With the same rate for all, and with one of the critic's own. Its state, saved and read after
    ten steps, is all that the next ten need."""
    arguments = {"lr": 0.01} | settings
    actor = torch.nn.Linear(4, 3)
    critic = torch.nn.Linear(4, 1)
    slices = {"actor": slice(0, 15), "critic": slice(15, 20)}
    size = 20
    flat = (
        torch.nn.utils.parameters_to_vector([*actor.parameters(), *critic.parameters()])
        .detach()
        .numpy()
        .copy()
    )
    options = {
        key: tuple(value) if isinstance(value, list) else value for key, value in arguments.items()
    }
    theirs = getattr(torch.optim, name)(
        [
            {"params": actor.parameters()},
            {"params": critic.parameters(), "lr": critic_rate or arguments["lr"]},
        ],
        **options,
    )
    ours = of_torch(name, **arguments, param_groups={"critic": {"learning_rate": critic_rate}})
    optimizer_state = ours.initial_state(size)
    inputs = np.random.default_rng(0).normal(size=(20, 8, 4)).astype(np.float32)
    for t, batch in enumerate(inputs, start=1):
        x = torch.from_numpy(batch)
        theirs.zero_grad()
        (actor(x).square().mean() + critic(x).abs().mean()).backward()
        parameters = [*actor.parameters(), *critic.parameters()]
        gradient = torch.nn.utils.parameters_to_vector([each.grad for each in parameters]).numpy()  # type: ignore[misc]
        gradient.flags.writeable = False
        ours.step(flat, optimizer_state, gradient, rates(ours, slices, flat, 1.0), t)
        theirs.step()
        np.testing.assert_allclose(
            flat,
            torch.nn.utils.parameters_to_vector(parameters).detach().numpy(),
            rtol=1e-5,
            atol=1e-7,
        )
        if t == 10:
            optimizer_state = optimizer_state.copy()
            ours = copy.deepcopy(ours)


@pytest.mark.parametrize(
    ("updates", "told"), [({}, True), ({"lock": True}, False), ({"update": "sync"}, False)]
)
def test_that_workers_write_over_one_another_is_told(updates: dict[str, Any], told: bool) -> None:
    run_config = config(optimizer={"_target_": "torch.optim.Adam", "lr": 0.01}, **updates)
    assert any("lock=true" in line for line in build_experiment(run_config).warnings) == told


@pytest.mark.parametrize(
    ("settings", "key", "value"),
    [
        ({"_target_": "torch.optim.LBFGS"}, "optimizer._target_", "torch.optim.LBFGS"),
        (
            {"_target_": "torch.optim.lr_scheduler.StepLR"},
            "optimizer._target_",
            "torch.optim.lr_scheduler.StepLR",
        ),
        ({"lr": 0}, "optimizer.lr", 0),
        ({"lr": "fast"}, "optimizer.lr", "fast"),
        ({"learning_rate": 0.1}, "optimizer.learning_rate", 0.1),
        ({"foreach": True}, "optimizer.foreach", True),
        ({"max_grad_norm": 0}, "optimizer.max_grad_norm", 0),
        ({"betas": [0.9, 1.5]}, "optimizer", ...),
        ({"eps": "small"}, "optimizer", ...),
    ],
)
def test_what_torch_or_a_flat_vector_cannot_do_is_refused(
    settings: dict[str, Any], key: str, value: object
) -> None:
    refused(lambda: of_torch("AdamW", **settings), key, value)


# -- against definitions in float64
# ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inside", "initial", "momentum"), [(False, 1.0, 0.0), (True, 0.0, 0.9), (True, 1.0, 0.0)]
)
def test_rmsprop_is_its_definition(inside: bool, initial: float, momentum: float) -> None:
    """torch has no counterpart of TensorFlow's pair (inside, 1)."""
    ours = train(
        RMSProp(
            learning_rate=0.01,
            epsilon_inside=inside,
            initial_mean_square=initial,
            momentum=momentum,
        )
    )
    parameters = start().astype(np.float64)
    mean_square = np.full(SIZE, initial)
    velocity = np.zeros(SIZE)
    for gradient in gradients():
        g = gradient.astype(np.float64)
        mean_square = 0.99 * mean_square + 0.01 * g**2
        quotient = g / np.sqrt(mean_square + 1e-5) if inside else g / (np.sqrt(mean_square) + 1e-5)
        velocity = momentum * velocity + quotient
        parameters -= 0.01 * velocity
    np.testing.assert_allclose(ours, parameters, rtol=1e-4, atol=1e-5)


# -- the flat vector
# -------------------------------------------------------------------------------------------------

EVERY_OPTIMIZER = {
    "RMSProp": RMSProp(learning_rate=0.01, momentum=0.5),
    "Adam": Adam(learning_rate=0.01),
    "Adam with decay": Adam(learning_rate=0.01, weight_decay=0.1),
    "SGD with momentum": SGD(learning_rate=0.01, momentum=0.5),
}
every_optimizer = pytest.mark.parametrize(
    "optimizer", EVERY_OPTIMIZER.values(), ids=EVERY_OPTIMIZER
)


@every_optimizer
def test_a_vector_is_updated_the_same_in_pieces(
    optimizer: Optimizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one rate, or with one for each element."""
    in_one_piece = train(optimizer)
    monkeypatch.setattr(optimizers, "CHUNK", 8)
    np.testing.assert_array_equal(train(optimizer), in_one_piece)
    by_element = train(optimizer, np.full(SIZE, optimizer.learning_rate, np.float32))
    np.testing.assert_allclose(by_element, in_one_piece, rtol=1e-6)


# -- workers that write over one another
# -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "optimizer", [RMSProp(learning_rate=0.01), Adam(learning_rate=0.01)], ids=repr
)
def test_workers_that_write_over_one_another_take_no_disproportionate_step(
    optimizer: Optimizer,
) -> None:
    """Seven gradients in eight are 0, element by element, as for a unit or an input that is seldom
    on. A mean square that has lost another's gradient is 0 then, and a step divided by its root
    alone would be millions of rates long."""
    size = 20_000
    workers = 4
    steps = 50
    parameters = np.zeros(size, np.float32)
    optimizer_state = optimizer.initial_state(size)
    begin = threading.Barrier(workers)

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        drawn = [
            (rng.normal(size=size) * (rng.random(size) < 1 / 8)).astype(np.float32)
            for _ in range(8)
        ]
        begin.wait()
        for t in range(1, steps + 1):
            optimizer.step(parameters, optimizer_state, drawn[t % 8], 0.01, t)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (optimizer_state[-1] >= 0).all()
    assert np.isfinite(optimizer_state).all()
    assert np.abs(parameters).max() < 0.01 * 10 * workers * steps / 4


@pytest.mark.parametrize("mean", [1e-3, -1e-3])
def test_adam_leaves_an_element_alone_whose_mean_has_no_mean_square(mean: float) -> None:
    """Another worker has written the mean and not yet the mean square. The mean is set to 0."""
    optimizer = Adam(learning_rate=0.1)
    parameters = np.zeros(3, np.float32)
    optimizer_state = optimizer.initial_state(3)
    optimizer_state[0, 0] = mean
    optimizer.step(parameters, optimizer_state, np.array([0.0, 0.0, 1.0], np.float32), 0.1, 1)
    assert parameters.tolist() == [0.0, 0.0, pytest.approx(-0.1)]
    assert optimizer_state[0].tolist() == [0.0, 0.0, pytest.approx(0.1)]


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.9), (0.0, 0.0), (0.9, 0.0), (0.95, 0.9)])
@pytest.mark.parametrize("length", [1, 10, 300])
def test_adams_longest_possible_steps_are_not_taken_for_torn_state(
    betas: tuple[float, float], length: int
) -> None:
    """The longest step follows gradients that grow by b2 / b1 from one to the next (where the two
    sums of Cauchy and Schwarz are proportional), up to what float32 holds."""
    first, second = betas
    growth = min(second / first, 1e3) if first and second else 1.0
    scale = np.array([1e-6, 1.0, 1e6])
    parameters = np.zeros(3)
    mean = np.zeros(3)
    square = np.zeros(3)
    ours = np.zeros(3, np.float32)
    optimizer = Adam(learning_rate=1.0, betas=betas)
    optimizer_state = optimizer.initial_state(3)
    for t in range(1, length + 1):
        gradient = scale * np.clip(growth ** float(t - length), 1e-6, 1e6)
        optimizer.step(ours, optimizer_state, gradient.astype(np.float32), 1.0, t)
        mean, square = (
            first * mean + (1 - first) * gradient,
            second * square + (1 - second) * gradient**2,
        )
        parameters -= (
            mean / (1 - first**t) / (np.sqrt(square / (1 - second**t)) + optimizer.epsilon)
        )
    np.testing.assert_allclose(ours, parameters, rtol=1e-3)


# -- rates of groups, and clipping
# ------------------------------------------------------------------------------------

NINE = np.zeros(9, np.float32)
SLICES = {"encoder": slice(0, 4), "actor": slice(4, 6), "critic": slice(6, 9)}


def sgd(**param_groups: ParamGroup) -> SGD:
    return SGD(learning_rate=0.1, param_groups=param_groups)


def test_a_group_has_its_own_rate_which_follows_the_schedule_too() -> None:
    assert rates(sgd(critic=ParamGroup()), SLICES, NINE, 0.5) == 0.05
    rate = rates(
        sgd(actor=ParamGroup(learning_rate=0.0), critic=ParamGroup(learning_rate=1.0)),
        SLICES,
        NINE,
        0.5,
    )
    np.testing.assert_allclose(rate, [0.05] * 4 + [0.0] * 2 + [0.5] * 3)
    optimizer = SGD(
        learning_rate=0.1,
        staleness_power=1.0,
        param_groups={"critic": ParamGroup(learning_rate=1.0)},
    )
    np.testing.assert_allclose(
        rates(optimizer, SLICES, NINE, 0.5, staleness=5), [0.01] * 6 + [0.1] * 3
    )


@pytest.mark.parametrize("limit", [0.5, 1e9])
def test_clipping_is_torchs(limit: float) -> None:
    """torch adds 1e-6 to the norm before it divides."""
    gradient = gradients()[0]
    parameter = torch.zeros(SIZE, requires_grad=True)
    parameter.grad = torch.from_numpy(gradient.copy())
    norm = torch.nn.utils.clip_grad_norm_([parameter], limit)
    assert clip(gradient, limit) == pytest.approx(norm.item(), rel=1e-5)
    np.testing.assert_allclose(gradient, parameter.grad.numpy(), rtol=1e-5)


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_a_gradient_that_is_not_finite_has_such_a_norm_and_is_left(bad: float) -> None:
    gradient = np.full(9, 3, np.float32)
    gradient[5] = bad
    before = gradient.copy()
    assert not math.isfinite(clip(gradient, 0.5))
    np.testing.assert_array_equal(gradient, before)


def test_large_numbers_are_not_taken_for_infinite() -> None:
    """Their squares overflow in single precision."""
    gradient = np.full(4, 1e30, np.float32)
    assert clip(gradient, 1.0) == pytest.approx(2e30)
    np.testing.assert_allclose(gradient, 0.5)


def test_a_group_that_the_network_does_not_have_is_refused() -> None:
    check_param_groups(sgd(actor=ParamGroup()), SLICES)
    refused(lambda: check_param_groups(sgd(critc=ParamGroup()), SLICES), "param_groups", "critc")
