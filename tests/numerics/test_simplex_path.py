"""Minimizers that follow a growing quadratic: against all supports."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.numerics.simplex_path import Followed, Growth, follow_minimizer, settle_by_loops, settle_by_products
from tests.numerics.test_simplex import by_all_supports, problem

GROWTHS = [Growth(1.0, 0.0, 5.0, False, 0.02), Growth(0.9, 0.2, 1.5, True, 0.01), Growth(1.0, 0.0, 0.7, True, 0.1)]


def start(size):
    equal = np.full(size, 1 / size)
    return Followed(np.eye(size), np.zeros(size), equal, equal[None])


def densities(seed, num_rows, size, scale):
    return np.exp(np.random.default_rng(seed).normal(size=(num_rows, size)) * scale)


def by_hand(rows, growth, epsilon=1.0):
    """Weights before and after every row, from the definitions; the matrix begins with epsilon on its diagonal."""
    size = rows.shape[1]
    A, sums, v = epsilon * np.eye(size), np.zeros(size), np.full(size, 1 / size)
    weights = [v]
    for x in rows:
        g = x / (weights[-1] @ x) if weights[-1] @ x > 0 else 0 * x
        A = growth.discount * A + growth.refill * np.eye(size) + np.outer(g, g)
        sums = sums + g
        c = A @ v + growth.step * g if growth.is_proximal else growth.step * sums
        v = by_all_supports(torch.tensor(A), torch.tensor(c))
        weights.append((1 - growth.share) * v + growth.share / size)
    return np.array(weights), A, sums, v


def check(rows, growth):
    before = start(rows.shape[1])
    after = follow_minimizer(before, rows, growth)
    weights, A, sums, v = by_hand(rows, growth)
    np.testing.assert_allclose(after.weights, weights, rtol=0, atol=1e-9)
    np.testing.assert_allclose(after.matrix, A, rtol=1e-8)
    np.testing.assert_allclose(after.sums, sums, rtol=1e-8)
    np.testing.assert_allclose(after.leader, v, rtol=0, atol=1e-9)
    np.testing.assert_array_equal(before.matrix, np.eye(rows.shape[1]))


@pytest.mark.parametrize("growth", GROWTHS)
@pytest.mark.parametrize("size", [1, 2, 6])
def test_minimizers_equal_the_best_of_all_supports(size, growth):
    rows = densities(0, 25, size, 1.5)
    rows[7] = 1.0
    rows[11] = 0.0  # impossible under all: no gradient, and time passes
    check(rows, growth)


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), growth=st.sampled_from(GROWTHS), scale=st.sampled_from([0.1, 1.0, 3.0]))
def test_any_stream_equals_the_best_of_all_supports(seed, growth, scale):
    check(densities(seed, 8, 5, scale), growth)


@pytest.mark.parametrize("settled", [settle_by_products, settle_by_loops])
@pytest.mark.parametrize("condition", [1.0, 1e5])
def test_either_way_settles_at_the_best_of_all_supports(settled, condition):
    num_settled = 0
    for seed in range(40):
        A, c = problem(seed, 6, condition)
        point = np.full(6, 1 / 6)
        if settled(A.numpy(), c.numpy(), point):
            num_settled += 1
            np.testing.assert_allclose(point, by_all_supports(A, c), rtol=0, atol=1e-9)
        else:
            np.testing.assert_array_equal(point, np.full(6, 1 / 6))
    assert num_settled > 20


@pytest.mark.parametrize("settled", [settle_by_products, settle_by_loops])
def test_either_way_refuses_what_is_not_positive_definite(settled):
    assert not settled(-np.eye(2), np.zeros(2), np.full(2, 0.5))


def test_a_curvature_that_is_not_positive_definite_raises():
    with pytest.raises(NumericalError, match="positive definite"):
        follow_minimizer(start(2)._replace(matrix=-np.eye(2)), np.zeros((1, 2)), GROWTHS[0])
