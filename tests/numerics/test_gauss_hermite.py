"""Quadrature nodes against numpy, exact moments and closed forms."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gp_ensembles.numerics.gauss_hermite import gauss_hermite, log_expectation, normal_nodes

LIKE = torch.zeros(1, dtype=torch.float64)


def double_factorial(n):
    return math.prod(range(n, 0, -2))


@pytest.mark.parametrize("num_nodes", [1, 2, 3, 7, 20, 64, 100, 128])
def test_nodes_and_weights_equal_numpy(num_nodes):
    nodes, weights = gauss_hermite(num_nodes, LIKE)
    expected_nodes, expected_weights = np.polynomial.hermite_e.hermegauss(num_nodes)
    np.testing.assert_allclose(nodes, expected_nodes, atol=1e-13)
    np.testing.assert_allclose(weights, expected_weights / expected_weights.sum(), rtol=1e-11)


@given(num_nodes=st.integers(1, 256), degree=st.integers(0, 40))
def test_moments_are_exact_up_to_the_promised_degree(num_nodes, degree):
    degree = min(degree, 2 * num_nodes - 1)
    nodes, weights = gauss_hermite(num_nodes, LIKE)
    exact = 0.0 if degree % 2 else double_factorial(degree - 1)
    scale = float((weights * nodes.abs() ** degree).sum())
    assert float((weights * nodes**degree).sum()) == pytest.approx(exact, abs=1e-12 * scale)
    assert bool((weights > 0).all())
    assert bool((nodes.diff() > 0).all())


@pytest.mark.parametrize("num_nodes", [0, 257])
def test_a_number_of_nodes_out_of_range_is_refused(num_nodes):
    with pytest.raises(ValueError, match=f"1 to 256, got {num_nodes}"):
        gauss_hermite(num_nodes, LIKE)


@pytest.mark.parametrize(("num_nodes", "dim"), [(9, 1), (64, 1), (5, 2), (64, 2), (8, 4), (64, 3), (64, 6), (64, 20)])
def test_mean_and_covariance_are_exact_in_several_dimensions(num_nodes, dim):
    nodes, weights = normal_nodes(num_nodes, dim, LIKE)
    assert nodes.shape == (weights.shape[0], dim)
    assert weights.shape[0] <= 4096
    torch.testing.assert_close(weights.sum(), LIKE[0] + 1)
    torch.testing.assert_close((weights.unsqueeze(-1) * nodes).sum(0), LIKE.new_zeros(dim), atol=1e-13, rtol=0)
    covariance = (weights.unsqueeze(-1) * nodes).mT @ nodes
    torch.testing.assert_close(covariance, torch.eye(dim, dtype=torch.float64), atol=1e-12, rtol=0)


@pytest.mark.parametrize(("dim", "tolerance"), [(2, 1e-12), (3, 1e-9), (5, 0.02), (10, 0.05)])
def test_a_smooth_expectation_in_several_dimensions(dim, tolerance):
    nodes, weights = normal_nodes(32, dim, LIKE)
    direction = torch.arange(1.0, dim + 1, dtype=torch.float64)
    direction = direction / direction.norm()
    # E exp(a . x) is exp(|a|² / 2)
    assert float(log_expectation(nodes @ direction, weights)) == pytest.approx(0.5, abs=tolerance)


def test_bad_dimensions_are_refused():
    with pytest.raises(ValueError, match="dimensions must be positive, got 0"):
        normal_nodes(5, 0, LIKE)
    with pytest.raises(ValueError, match="20 nodes are too few for 10 dimensions; allow at least 40"):
        normal_nodes(5, 10, LIKE, most_nodes=20)


def test_log_expectation_in_log_space():
    nodes, weights = gauss_hermite(40, LIKE)
    values = torch.stack([nodes - 1e5, 0.5 * nodes + 1e5], dim=-1)
    expected = LIKE.new_tensor([0.5 - 1e5, 0.125 + 1e5])
    torch.testing.assert_close(log_expectation(values, weights), expected)
