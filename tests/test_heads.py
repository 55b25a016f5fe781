"""Heads and action distributions: their derivatives, and that the torch form of a head is equal to its kernel."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from learning import evaluated_by_torch
from nets import normal

from a3c_exp.common.arrays import Array, Floats
from a3c_exp.networks.distributions import Distribution, make_distribution
from a3c_exp.networks.heads import LOG_STD_RANGE, PolicyHead, bound_log_std
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


def draw(distribution: Distribution) -> tuple[Floats, Array]:
    """Parameters [ROWS, P], and actions that they make likely."""
    parameters = normal(ROWS, distribution.size)
    return parameters, distribution.sample(parameters, np.random.default_rng(3))[0]


class TestDistributions:
    @pytest.mark.parametrize("space", SPACES, ids=str)
    def test_numbers_and_derivatives_are_those_of_torchs_distributions(self, space: gym.Space[Any]) -> None:
        distribution = make_distribution(space)
        parameters, actions = draw(distribution)
        weights, entropy_weights = normal(2, ROWS, seed=4)
        log_probs, entropy, backward = distribution.evaluate(parameters, actions)
        grad = backward(weights.copy(), entropy_weights.copy())

        tensor = torch.from_numpy(parameters).requires_grad_()
        expected = evaluated_by_torch(space, tensor, torch.from_numpy(actions))
        torch.autograd.backward(expected, [torch.from_numpy(weights), torch.from_numpy(entropy_weights)])
        np.testing.assert_allclose(log_probs, expected[0].detach(), atol=1e-5)
        np.testing.assert_allclose(entropy, expected[1].detach(), atol=1e-5)
        assert tensor.grad is not None
        np.testing.assert_allclose(grad, tensor.grad, atol=1e-5)
        assert log_probs.dtype == entropy.dtype == grad.dtype == np.float32

    @pytest.mark.parametrize("choices", [3, 1000, 200_000])
    def test_numbers_of_very_many_choices_are_those_in_double_precision(self, choices: int) -> None:
        distribution, logits = make_distribution(Discrete(choices)), 2 * normal(2, choices)
        actions, log_probs = distribution.sample(logits, np.random.default_rng(0))
        evaluated, entropy, backward = distribution.evaluate(logits, actions)
        grad = backward(np.ones(2, np.float32), np.ones(2, np.float32))

        exact = logits.astype(np.float64)
        exact -= np.log(np.exp(exact).sum(1, keepdims=True))
        exact_entropy = -(np.exp(exact) * exact).sum(1)
        chosen = np.arange(choices) == actions[:, None]
        for found in (log_probs, evaluated):
            np.testing.assert_allclose(found, exact[chosen], atol=3e-6)
        np.testing.assert_allclose(entropy, exact_entropy, atol=3e-6)
        np.testing.assert_allclose(grad, chosen - np.exp(exact) * (1 + exact + exact_entropy[:, None]), atol=3e-6)
        assert log_probs.dtype == evaluated.dtype == entropy.dtype == grad.dtype == np.float32

    @pytest.mark.parametrize("space", [Discrete(3), MultiDiscrete([3, 2]), MultiBinary(2)], ids=str)
    def test_extreme_logits_give_finite_numbers(self, space: gym.Space[Any]) -> None:
        distribution = make_distribution(space)
        parameters = 1e4 * normal(ROWS, distribution.size)
        log_probs, entropy, backward = distribution.evaluate(
            parameters, distribution.mode_for_env(torch.from_numpy(parameters)).numpy()
        )
        grad = backward(np.ones(ROWS, np.float32), np.ones(ROWS, np.float32))
        assert np.isfinite(grad).all()
        np.testing.assert_allclose(log_probs, 0, atol=1e-5)
        np.testing.assert_allclose(entropy, 0, atol=1e-5)


def make_drawn_head(space: gym.Space[Any], state_dependent_std: bool, log_std: float = 0.0) -> Any:
    """A head from 5 features. log_std: about what the log standard deviations are."""
    head: Any = PolicyHead(5, make_distribution(space), state_dependent_std, 1.0)
    with torch.no_grad():
        for index, parameter in enumerate(head.parameters()):
            parameter.copy_(torch.from_numpy(0.5 * normal(*parameter.shape, seed=index)))
        if isinstance(space, Box):
            (head.linear.bias[space.shape[0] :] if state_dependent_std else head.log_std).add_(log_std)
    return head


class TestHeads:
    @pytest.mark.parametrize("space", [Discrete(4), Box(-2, 2, (3,))], ids=str)
    @pytest.mark.parametrize("state_dependent_std", [False, True])
    @pytest.mark.parametrize("log_std", [-30.0, -5.0, 2.0])
    def test_the_kernel_is_equal_to_the_torch_form_in_outputs_and_gradients(
        self, space: gym.Space[Any], state_dependent_std: bool, log_std: float
    ) -> None:
        """Log standard deviations lie below, within and above their range, and on both sides of its ends."""
        by_kernel, by_torch = (make_drawn_head(space, state_dependent_std, log_std) for _ in range(2))
        features = normal(ROWS, 5)
        kernel = by_kernel.kernel()
        parameters = kernel.forward(features)
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
        if isinstance(space, Box):
            bounded = parameters[:, space.shape[0] :]
            assert bounded.min() >= LOG_STD_RANGE[0] and bounded.max() <= LOG_STD_RANGE[1]

    @pytest.mark.parametrize("state_dependent_std", [False, True])
    def test_a_new_head_has_the_deviation_of_the_setting_and_a_policy_near_zero(
        self, state_dependent_std: bool
    ) -> None:
        head = PolicyHead(64, make_distribution(Box(-1, 1, (2,))), state_dependent_std, 0.3)
        head.initialize(Initializer("orthogonal", 0.1, torch.Generator().manual_seed(0)), 0.01)
        parameters = head(torch.ones(1, 64)).detach()
        torch.testing.assert_close(parameters[:, 2:].exp(), torch.full((1, 2), 0.3), atol=0.05, rtol=0)
        assert parameters[:, :2].abs().max() < 0.1

    def test_a_free_deviation_beyond_its_range_follows_the_sum_of_all_rows(self) -> None:
        """One row leads further out, and the others more strongly back."""
        head: Any = PolicyHead(5, make_distribution(Box(-1, 1, (1,))), False, 1.0)
        head.log_std.data.fill_(7.0)
        weights = torch.tensor([[0.0, 2.0], [0.0, 2.0], [0.0, -1.0]])
        torch.autograd.backward(head(torch.zeros(3, 5)), weights)
        assert head.log_std.grad.tolist() == [3.0]

    def test_the_bound_lets_gradients_through_that_lead_back(self) -> None:
        """d/dx (w x): beyond a bound it is w only if a step against it leads back."""
        parameters = torch.tensor([[0.0, 0.0, 0.0, 0.0, 7.0, 7.0, -9.0, -9.0]]).requires_grad_()
        weights = torch.tensor([[1.0, 1.0, 1.0, 1.0, 1.0, -1.0, 1.0, -1.0]])
        bounded = bound_log_std(parameters)
        assert bounded.tolist() == [[0.0, 0.0, 0.0, 0.0, 2.0, 2.0, -5.0, -5.0]]
        torch.autograd.backward(bounded, weights)
        assert parameters.grad is not None
        assert parameters.grad.tolist() == [[1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, -1.0]]
