"""Heads and action distributions: their derivatives, and that the torch form of a head is equal to
its kernel."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from learning import evaluated_by_torch
from nets import normal
from refusals import refused

from a3c_exp.common.arrays import Array, Floats
from a3c_exp.engine.distribution_kernels import DISTRIBUTIONS, Evaluated
from a3c_exp.engine.kernels import head_kernel
from a3c_exp.networks.distributions import (
    FORBIDDEN,
    Distribution,
    Gaussian,
    make_distribution,
)
from a3c_exp.networks.heads import PolicyHead
from a3c_exp.networks.initialization import Initializer

SPACES: list[gym.Space[Any]] = [
    Discrete(4),
    Discrete(1),
    MultiDiscrete([3, 4, 1]),
    MultiBinary(3),
    Box(-2, 2, (3,)),
    Box(-np.inf, np.inf, (1,)),
]
ROWS = 6
CONTINUOUS: list[dict[str, Any]] = [
    {},
    {"squash_mean": True},
    {"softplus_std": True},
    {"squash_mean": True, "softplus_std": True, "clip_actions": True},
    {"continuous": "squashed_gaussian"},
    {"continuous": "squashed_gaussian", "softplus_std": True},
    {"continuous": "beta"},
]


def draw(distribution: Distribution) -> tuple[Floats, Array]:
    """Parameters [ROWS, P], and actions that they make likely."""
    parameters = normal(ROWS, distribution.size)
    return parameters, distribution.sample(parameters, np.random.default_rng(3))[0]


Evaluate = Callable[[Distribution, Array, Array], Evaluated]


def evaluate_by_torch(distribution: Distribution, parameters: Array, actions: Array) -> Evaluated:
    """The definition, and its derivatives by torch."""
    leaf = torch.from_numpy(parameters).requires_grad_()
    log_probs, entropies = distribution.evaluate(leaf, torch.from_numpy(actions))

    def backward(grad_log_probs: Array, grad_entropies: Array) -> Array:
        gradients = torch.from_numpy(grad_log_probs), torch.from_numpy(grad_entropies)
        torch.autograd.backward((log_probs, entropies), gradients)
        assert leaf.grad is not None
        return leaf.grad.numpy()

    return log_probs.detach().numpy(), entropies.detach().numpy(), backward


def evaluate_as_a_run(distribution: Distribution, parameters: Array, actions: Array) -> Evaluated:
    """The fast form, if there is one."""
    form = DISTRIBUTIONS.get(type(distribution), evaluate_by_torch)
    return form(distribution, parameters, actions)


@pytest.fixture(params=[evaluate_by_torch, evaluate_as_a_run])
def evaluate(request: pytest.FixtureRequest) -> Evaluate:
    """Both forms of an evaluation: tests hold both against torch's own distributions."""
    form: Evaluate = request.param
    return form


def test_every_fast_form_is_held_against_torch_and_no_subclass_has_that_of_its_parent() -> None:
    class Own(Gaussian):
        """A subclass, whose methods may do anything."""

    made = [make_distribution(space) for space in SPACES]
    made += [make_distribution(Box(-2, 2, (3,)), **settings) for settings in CONTINUOUS]
    assert DISTRIBUTIONS.keys() <= {type(distribution) for distribution in made}
    assert Own not in DISTRIBUTIONS


class TestDistributions:
    @pytest.mark.parametrize("space", SPACES, ids=str)
    def test_numbers_and_derivatives_are_those_of_torchs_distributions(
        self, evaluate: Evaluate, space: gym.Space[Any]
    ) -> None:
        distribution = make_distribution(space)
        parameters, actions = draw(distribution)
        weights, entropy_weights = normal(2, ROWS, seed=4)
        log_probs, entropy, backward = evaluate(distribution, parameters, actions)
        grad = backward(weights.copy(), entropy_weights.copy())

        tensor = torch.from_numpy(parameters).requires_grad_()
        expected = evaluated_by_torch(space, tensor, torch.from_numpy(actions))
        torch.autograd.backward(
            expected, [torch.from_numpy(weights), torch.from_numpy(entropy_weights)]
        )
        np.testing.assert_allclose(log_probs, expected[0].detach(), atol=1e-5)
        np.testing.assert_allclose(entropy, expected[1].detach(), atol=1e-5)
        assert tensor.grad is not None
        np.testing.assert_allclose(grad, tensor.grad, atol=1e-5)
        assert log_probs.dtype == entropy.dtype == grad.dtype == np.float32

    @pytest.mark.parametrize("settings", CONTINUOUS, ids=str)
    def test_continuous_ones_are_those_of_torch_in_double_precision(
        self, evaluate: Evaluate, settings: dict[str, Any]
    ) -> None:
        space = Box(-2, 2, (3,))
        distribution = make_distribution(space, **settings)
        parameters, actions = (numbers.astype(np.float64) for numbers in draw(distribution))
        parameters *= 0.5  # standard deviations below 3
        weights, entropy_weights = normal(2, ROWS, seed=4).astype(np.float64)

        log_probs, entropy, backward = evaluate(distribution, parameters, actions)
        grad = backward(weights.copy(), entropy_weights.copy())
        tensor = torch.from_numpy(parameters).requires_grad_()
        expected = evaluated_by_torch(space, tensor, torch.from_numpy(actions), **settings)
        torch.autograd.backward(
            expected, [torch.from_numpy(weights), torch.from_numpy(entropy_weights)]
        )
        assert tensor.grad is not None
        np.testing.assert_allclose(log_probs, expected[0].detach(), atol=1e-6)
        np.testing.assert_allclose(entropy, expected[1].detach(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(grad, tensor.grad, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("settings", CONTINUOUS, ids=str)
    def test_sampled_actions_follow_the_density_they_report(
        self, evaluate: Evaluate, settings: dict[str, Any]
    ) -> None:
        """1 / density, averaged over samples, is the size of where they lie; an environment gets
        them within its range.

        The densities are bounded below there, or the average would not converge.
        """
        distribution = make_distribution(Box(3, 7, (1,)), **settings)
        parameters = np.repeat(normal(1, 2), 100_000, 0)
        actions, log_probs = distribution.sample(parameters, np.random.default_rng(3))
        again, _, _ = evaluate(distribution, parameters, actions)
        np.testing.assert_allclose(log_probs, again, atol=1e-4)
        shares = (distribution.to_env(actions)[:, 0] - 3) / 4
        assert shares.min() >= 0 and shares.max() <= 1
        inside = (shares > 0.2) & (shares < 0.6)
        size = 0.4 if settings.get("continuous") == "beta" else 0.8
        assert (inside / np.exp(log_probs)).mean() == pytest.approx(size, rel=0.02)

    @pytest.mark.parametrize("allowed", [1.0, 0.5], ids=["all", "some"])
    @pytest.mark.parametrize("space", SPACES, ids=str)
    def test_sampled_actions_have_the_log_probability_that_the_learner_computes(
        self, evaluate: Evaluate, space: gym.Space[Any], allowed: float
    ) -> None:
        """Else the ratios of PPO and V-trace would drift from 1."""
        distribution = make_distribution(space)
        parameters = 3 * normal(200, distribution.size)
        if isinstance(space, (Discrete, MultiDiscrete)):
            forbidden = np.random.default_rng(1).random(parameters.shape) > allowed
            forbidden[:, [0, -1]] = False  # of each choice one is left
            if isinstance(space, MultiDiscrete):
                forbidden[:, np.cumsum(space.nvec)[:-1]] = False
            parameters = np.where(forbidden, FORBIDDEN, parameters)
        actions, log_probs = distribution.sample(parameters, np.random.default_rng(3))
        again, _, _ = evaluate(distribution, parameters, actions)
        np.testing.assert_allclose(log_probs, again, rtol=1e-5, atol=1e-5)

    def test_the_greedy_bits_are_the_likelier_ones(self) -> None:
        bits = make_distribution(MultiBinary(2)).mode_for_env(torch.tensor([[0.1, -0.1]]))
        assert bits.tolist() == [[1, 0]]

    def test_a_uniform_number_of_0_gives_a_bit_of_1(self) -> None:
        zeros: Any = SimpleNamespace(random=np.zeros)
        bits = make_distribution(MultiBinary(2))
        with np.errstate(all="raise"):
            actions, _ = bits.sample(np.zeros((3, 2), np.float32), zeros)
        assert (actions == 1).all()

    @pytest.mark.parametrize("settings", CONTINUOUS, ids=str)
    def test_the_greedy_action_is_in_the_middle_of_sampled_ones(
        self, evaluate: Evaluate, settings: dict[str, Any]
    ) -> None:
        """The mean, or the median where the two differ: of a squashed Gaussian."""
        distribution = make_distribution(Box(3, 7, (2,)), **settings)
        parameters = normal(1, 4) - 1
        repeated = np.repeat(parameters, 40_000, 0)
        actions, log_probs = distribution.sample(repeated, np.random.default_rng(3))
        np.testing.assert_allclose(
            log_probs, evaluate(distribution, repeated, actions)[0], atol=1e-4
        )
        in_env = distribution.to_env(actions)
        middle = in_env.mean(0) if settings.get("continuous") == "beta" else np.median(in_env, 0)
        greedy = distribution.mode_for_env(torch.from_numpy(parameters)).numpy()
        np.testing.assert_allclose(greedy[0], middle, atol=0.03)

    def test_the_greedy_action_of_large_concentrations_is_that_of_sampled_ones(self) -> None:
        distribution = make_distribution(Box(0, 1, (1,)), "beta")
        parameters = np.array([[3e4, 1e4]], np.float32)
        actions, _ = distribution.sample(np.repeat(parameters, 1000, 0), np.random.default_rng(0))
        greedy = distribution.mode_for_env(torch.from_numpy(parameters)).numpy()
        np.testing.assert_allclose(greedy, [[actions.mean()]], atol=0.01)

    @pytest.mark.parametrize(
        "settings", [{"continuous": "squashed_gaussian"}, {"continuous": "beta"}], ids=str
    )
    @pytest.mark.parametrize("size", [1e3, 1e30, np.inf])
    def test_extreme_parameters_give_finite_actions_and_numbers(
        self, evaluate: Evaluate, settings: dict[str, Any], size: float
    ) -> None:
        distribution = make_distribution(Box(-1, 1, (2,)), **settings)
        parameters = np.array([[1, -1, 1, -1], [-1, -1, 1, 1]], np.float32) * np.float32(size)
        actions, log_probs = distribution.sample(parameters, np.random.default_rng(0))
        in_env = distribution.to_env(actions)
        assert (np.abs(in_env) <= 1).all()
        if np.isfinite(size) and settings["continuous"] == "beta":
            numbers = evaluate(distribution, parameters, actions)
            grad = numbers[2](np.ones(2, np.float32), np.ones(2, np.float32))
            assert all(np.isfinite(array).all() for array in (log_probs, *numbers[:2], grad))

    def test_a_clipped_action_has_the_density_at_the_bound(self) -> None:
        distribution = make_distribution(Box(-2, 2, (1,)), clip_actions=True)
        parameters = np.array([[3.0, 0.0]] * 1000, np.float32)
        actions, log_probs = distribution.sample(parameters, np.random.default_rng(0))
        assert actions.max() == 1 and (actions == 1).mean() == pytest.approx(0.977, abs=0.02)
        at_the_bound = -0.5 * 2**2 - 0.5 * np.log(2 * np.pi)
        np.testing.assert_allclose(log_probs[actions[:, 0] == 1], at_the_bound, rtol=1e-5)

    def test_a_dimension_without_room_has_its_only_action(self, evaluate: Evaluate) -> None:
        space = Box(np.array([0.5, -1], np.float32), np.array([0.5, 1], np.float32))
        distribution = make_distribution(space, clip_actions=True)
        parameters = normal(ROWS, 4)
        actions, log_probs = distribution.sample(parameters, np.random.default_rng(0))
        assert (
            np.isfinite(log_probs).all()
            and np.isfinite(evaluate(distribution, parameters, actions)[0]).all()
        )
        assert all(action in space for action in distribution.to_env(actions))

    @pytest.mark.parametrize(
        ("settings", "signs"),
        [
            ({}, [1, 1, 0, 0, -1]),
            ({"softplus_std": True}, [1, 1, 0, 0, -1]),
            # the wide ones lie at the bounds, and say little
            ({"continuous": "squashed_gaussian"}, [-1, 0, 1, 0, -1]),
        ],
        ids=str,
    )
    def test_a_deviation_is_bounded_and_its_derivative_leads_back(
        self, evaluate: Evaluate, settings: dict[str, Any], signs: list[int]
    ) -> None:
        """d/dx (w H): beyond a bound it is 0 only if a step against it would lead further out."""
        distribution: Any = make_distribution(Box(-1, 1, (1,)), **settings)
        spread = np.array([0.0, 9.0, 9.0, -9.0, -9.0], np.float32)
        parameters = np.stack([np.zeros_like(spread), spread], 1)
        std = np.exp(distribution.moments(parameters)[1][:, 0])
        np.testing.assert_allclose(std[1:], np.exp([2, 2, -5, -5]), rtol=1e-3)
        no_log_probs = np.zeros(5, np.float32)
        weights = np.array([1, 1, -1, 1, -1], np.float32)
        grad = evaluate(distribution, parameters, np.zeros((5, 1), np.float32))[2](
            no_log_probs, weights
        )[:, 1]
        assert np.sign(grad).tolist() == signs

    @pytest.mark.parametrize("continuous", ["squashed_gaussian", "beta"])
    @pytest.mark.parametrize(
        "space",
        [Discrete(2), Box(-np.inf, 1, (1,)), Box(-3e38, 3e38, (1,)), Box(0, 9, (1,), np.int64)],
        ids=str,
    )
    def test_a_distribution_that_does_not_fit_the_actions_is_refused(
        self, continuous: Any, space: Any
    ) -> None:
        whole_numbers = isinstance(space, Box) and np.issubdtype(space.dtype, np.integer)
        key, value = (
            ("env.id", str(space)) if whole_numbers else ("network.distribution", continuous)
        )
        refused(lambda: make_distribution(space, continuous), key, value)

    @pytest.mark.parametrize("choices", [3, 1000, 200_000])
    def test_numbers_of_very_many_choices_are_those_in_double_precision(
        self, evaluate: Evaluate, choices: int
    ) -> None:
        distribution = make_distribution(Discrete(choices))
        logits = 2 * normal(2, choices)
        actions, log_probs = distribution.sample(logits, np.random.default_rng(0))
        evaluated, entropy, backward = evaluate(distribution, logits, actions)
        grad = backward(np.ones(2, np.float32), np.ones(2, np.float32))

        exact = logits.astype(np.float64)
        exact -= np.log(np.exp(exact).sum(1, keepdims=True))
        exact_entropy = -(np.exp(exact) * exact).sum(1)
        chosen = np.arange(choices) == actions[:, None]
        for computed in (log_probs, evaluated):
            np.testing.assert_allclose(computed, exact[chosen], atol=3e-6)
        np.testing.assert_allclose(entropy, exact_entropy, rtol=1e-6, atol=3e-6)
        np.testing.assert_allclose(
            grad, chosen - np.exp(exact) * (1 + exact + exact_entropy[:, None]), atol=3e-6
        )
        assert log_probs.dtype == evaluated.dtype == entropy.dtype == grad.dtype == np.float32

    @pytest.mark.parametrize("space", [Discrete(3), MultiDiscrete([3, 2]), MultiBinary(2)], ids=str)
    def test_extreme_logits_give_finite_numbers(
        self, evaluate: Evaluate, space: gym.Space[Any]
    ) -> None:
        distribution = make_distribution(space)
        parameters = 1e4 * normal(ROWS, distribution.size)
        log_probs, entropy, backward = evaluate(
            distribution,
            parameters,
            distribution.mode_for_env(torch.from_numpy(parameters)).numpy(),
        )
        grad = backward(np.ones(ROWS, np.float32), np.ones(ROWS, np.float32))
        assert np.isfinite(grad).all()
        np.testing.assert_allclose(log_probs, 0, atol=1e-5)
        np.testing.assert_allclose(entropy, 0, atol=1e-5)


def make_drawn_head(space: gym.Space[Any], state_dependent_std: bool, continuous: Any) -> Any:
    """A head from 5 features."""
    head: Any = PolicyHead(5, make_distribution(space, continuous), state_dependent_std, 1.0)
    with torch.no_grad():
        for index, parameter in enumerate(head.parameters()):
            parameter.copy_(torch.from_numpy(0.5 * normal(*parameter.shape, seed=index)))
    return head


class TestHeads:
    @pytest.mark.parametrize("state_dependent_std", [False, True])
    @pytest.mark.parametrize(
        ("space", "continuous"),
        [(Discrete(4), "gaussian"), (Box(-2, 2, (3,)), "gaussian"), (Box(-2, 2, (3,)), "beta")],
        ids=str,
    )
    def test_the_kernel_is_equal_to_the_torch_form_in_outputs_and_gradients(
        self, space: gym.Space[Any], continuous: str, state_dependent_std: bool
    ) -> None:
        by_kernel, by_torch = (
            make_drawn_head(space, state_dependent_std, continuous) for _ in range(2)
        )
        features = normal(ROWS, 5)
        kernel = head_kernel(by_kernel)
        parameters = kernel.act_forward(features)
        weights = normal(*parameters.shape, seed=4)
        grad_features = kernel.backward(features, weights.copy())

        inputs = torch.from_numpy(features.copy()).requires_grad_()
        expected = by_torch(inputs)
        torch.autograd.backward(expected, torch.from_numpy(weights))
        np.testing.assert_allclose(parameters, expected.detach(), atol=1e-5)
        assert inputs.grad is not None
        np.testing.assert_allclose(grad_features, inputs.grad, atol=1e-5)
        for one, other in zip(by_kernel.parameters(), by_torch.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, atol=1e-5, rtol=1e-5)

    @pytest.mark.parametrize("state_dependent_std", [False, True])
    @pytest.mark.parametrize("settings", CONTINUOUS, ids=str)
    def test_a_new_head_has_the_deviation_of_the_setting_and_a_policy_near_zero(
        self, settings: dict[str, Any], state_dependent_std: bool
    ) -> None:
        """In shares of half the range; a Gaussian has it before it is squashed."""
        distribution = make_distribution(Box(-1, 1, (2,)), **settings)
        head = PolicyHead(64, distribution, state_dependent_std, 0.3)
        head.initialize(Initializer("orthogonal", 0.1, torch.Generator().manual_seed(0)), 0.01)
        parameters = head(torch.ones(1, 64)).detach()
        actions, _ = distribution.sample(
            parameters.numpy().repeat(20_000, 0), np.random.default_rng(3)
        )
        if settings.get("continuous") == "beta":
            actions = distribution.to_env(actions)
        np.testing.assert_allclose(actions.std(0), 0.3, atol=0.03)
        assert distribution.mode_for_env(parameters).abs().max() < 0.1
