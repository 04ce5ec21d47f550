"""Additive polynomials against the frozen numbers of the reference and closed forms."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gp_ensembles.features import AdditivePolynomialFeatures


def reference_columns(order: int) -> list[int]:
    """Columns of the reference's design that are our powers: it has [x^p, ..., x, 1] for every input."""
    return [j * (order + 1) + order - power for j in range(5) for power in range(1, order + 1)]


@pytest.mark.parametrize("order", [2, 3, 4])
def test_golden_design_matrix(golden: Path, order: int) -> None:
    data, expert = np.load(golden / "data_synth.npz"), np.load(golden / f"expert_poly{order}.npz")
    features = AdditivePolynomialFeatures(5, order, dtype=torch.float64)
    for inputs, design in (("X", "phi"), ("X_new", "phi_new")):
        Phi, reference = features(torch.as_tensor(data[inputs])), torch.as_tensor(expert[design])
        torch.testing.assert_close(Phi[:, :-1], reference[:, reference_columns(order)], rtol=1e-13, atol=0.0)
        assert bool((Phi[:, -1] == 1).all())


@pytest.mark.parametrize("order", [2, 3, 4])
def test_one_constant_predicts_what_the_references_five_do(golden: Path, order: int) -> None:
    """Five constants of prior variance v are one of 5 v, here by a divisor of 1/sqrt(5) of the constant."""
    data, expert = np.load(golden / "data_synth.npz"), np.load(golden / f"expert_poly{order}.npz")
    X, y = torch.as_tensor(data["X"]), torch.as_tensor(data["y"])
    scales = X.new_ones(5 * order + 1)
    scales[-1] = 5**-0.5
    features = AdditivePolynomialFeatures(5, order, torch.as_tensor(expert["var_theta"]), scales)
    Phi, noise = features(X).detach(), torch.as_tensor(expert["var_eps"])
    mean = X.new_zeros(features.num_features)
    covariance = features.prior_variance.detach() * torch.eye(features.num_features, dtype=X.dtype)
    for t in range(100):
        gain = covariance @ Phi[t]
        variance = Phi[t] @ gain + noise
        residual = y[t] - Phi[t] @ mean
        torch.testing.assert_close(y[t] - residual, torch.as_tensor(expert["static_mean"][t]), rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(variance, torch.as_tensor(expert["static_var"][t]), rtol=1e-8, atol=1e-9)
        mean, covariance = mean + gain * residual / variance, covariance - gain.outer(gain) / variance


@settings(max_examples=30)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 2**31))
def test_from_data_gives_unit_mean_squares(num_inputs: int, order: int, seed: int) -> None:
    X = 3 * torch.randn(30, num_inputs, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 1
    features = AdditivePolynomialFeatures.from_data(X, order)
    torch.testing.assert_close(features(X).square().mean(0), X.new_ones(num_inputs * order + 1))


@settings(max_examples=30)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(0, 2**31))
def test_every_additive_polynomial_is_in_the_span(num_inputs: int, order: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    coefficients = torch.randn(num_inputs, order + 1, dtype=torch.float64, generator=generator)
    X = torch.randn(8, num_inputs, dtype=torch.float64, generator=generator)
    direct = sum((coefficients[j, k] * X[:, j] ** k for j in range(num_inputs) for k in range(order + 1)), X[:, 0] * 0)
    weights = torch.cat([coefficients[:, 1:].flatten(), coefficients[:, 0].sum().reshape(1)])
    Phi = AdditivePolynomialFeatures(num_inputs, order, dtype=torch.float64)(X)
    torch.testing.assert_close(Phi @ weights, direct, rtol=1e-10, atol=1e-10)


def zeroed(X: Tensor, column: int) -> Tensor:
    X = X.clone()
    X[:, column] = 0
    return X


def test_wrong_arguments() -> None:
    X = torch.ones(4, 3, dtype=torch.float64)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        AdditivePolynomialFeatures(2, 0, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"scales must have shape \(5,\), got \(4,\)"):
        AdditivePolynomialFeatures(2, 2, scales=X.new_ones(4), dtype=torch.float64)
    with pytest.raises(ValueError, match="scales must be positive"):
        AdditivePolynomialFeatures(2, 1, scales=X.new_zeros(3), dtype=torch.float64)
    with pytest.raises(ValueError, match=r"power 1 of column 1 of X has root mean square 0\.0"):
        AdditivePolynomialFeatures.from_data(zeroed(X, 1), 3)
    with pytest.raises(ValueError, match="power 2 of column 0 of X has root mean square inf"):
        AdditivePolynomialFeatures.from_data(1e100 * X, 3)
