"""Quadratics over the simplex against all supports, and by the optimality conditions where those are many."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.numerics.simplex import simplex_quadratic


def problem(seed, size, condition=1e3, scale=3.0):
    rng = np.random.default_rng(seed)
    Q, _ = np.linalg.qr(rng.normal(size=(size, size)))
    A = (Q * np.geomspace(1, condition, size)) @ Q.T
    return torch.tensor((A + A.T) / 2), torch.tensor(rng.normal(size=size) * scale)


def by_all_supports(A, c):
    A, c = A.numpy(), c.numpy()
    best, value = None, np.inf
    for mask in itertools.product([False, True], repeat=len(c)):
        S = np.flatnonzero(mask)
        if len(S) == 0:
            continue
        K = np.block([[A[np.ix_(S, S)], np.ones((len(S), 1))], [np.ones((1, len(S))), np.zeros((1, 1))]])
        w = np.zeros(len(c))
        w[S] = np.linalg.solve(K, np.append(c[S], 1.0))[:-1]
        if w.min() >= 0 and 0.5 * w @ A @ w - c @ w < value:
            best, value = w, 0.5 * w @ A @ w - c @ w
    return best


def assert_optimal(A, c, w):
    assert w.min() >= 0
    assert float(w.sum()) == pytest.approx(1, abs=1e-12)
    gradient = A @ w - c
    slope = gradient - gradient @ w
    size = 1e-13 * (A.abs().max() + c.abs().max()) * len(c) ** 0.5
    assert slope.min() >= -size
    assert slope[w > 0].abs().max() <= size


@settings(max_examples=80)
@given(
    seed=st.integers(0, 10**6),
    size=st.integers(1, 6),
    condition=st.sampled_from([1.0, 30.0, 1e5]),
    scale=st.sampled_from([0.0, 0.1, 3.0, 1e3]),
)
def test_equals_the_best_of_all_supports(seed, size, condition, scale):
    A, v = problem(seed, size, condition, scale)
    np.testing.assert_allclose(simplex_quadratic(A, v), by_all_supports(A, v), rtol=0, atol=1e-9)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    size=st.integers(7, 90),
    condition=st.sampled_from([1.0, 1e3, 1e6]),
    scale=st.sampled_from([0.1, 10.0, 1e4]),
)
def test_many_experts_meet_the_optimality_conditions(seed, size, condition, scale):
    A, c = problem(seed, size, condition, scale)
    cold = simplex_quadratic(A, c)
    assert_optimal(A, c, cold)
    rng = np.random.default_rng(seed + 1)
    start = torch.tensor(rng.dirichlet(np.full(size, 0.1)))
    warm = simplex_quadratic(A, c, start)
    torch.testing.assert_close(warm, cold, rtol=0, atol=1e-9)
    torch.testing.assert_close(simplex_quadratic(A, c, cold), cold, rtol=0, atol=1e-10)


def test_ties_and_corners_end():
    ones = torch.ones(6, dtype=torch.float64)
    torch.testing.assert_close(simplex_quadratic(torch.diag(ones), 0 * ones), ones / 6)
    c = torch.tensor([5.0, 5.0, 0, 0, 0, 0], dtype=torch.float64)
    torch.testing.assert_close(simplex_quadratic(torch.diag(ones), c)[:2], ones[:2] / 2)
    corner = simplex_quadratic(torch.diag(ones), 1e6 * c + torch.tensor([1.0, 0, 0, 0, 0, 0], dtype=torch.float64))
    torch.testing.assert_close(corner, torch.tensor([1.0, 0, 0, 0, 0, 0], dtype=torch.float64), rtol=0, atol=1e-8)


def test_bad_input():
    A, v = problem(7, 4)
    with pytest.raises(ValueError, match="shape"):
        simplex_quadratic(A, v[:3])
    with pytest.raises(NumericalError, match="not positive definite"):
        simplex_quadratic(-A, v)
