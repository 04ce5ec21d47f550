"""Blocks of two classes on plain arrays: the mode by bisection, one dense Gaussian update a row."""

import itertools

import numpy as np
import pytest
import torch

from gp_ensembles.filters.latent import find_sites
from gp_ensembles.filters.logistic_block import logistic_sites
from gp_ensembles.filters.sites import LaplaceRule, MomentMatchingRule
from gp_ensembles.likelihoods import LogisticLikelihood
from gp_ensembles.likelihoods.derivatives import known_derivatives
from gp_ensembles.numerics.gauss_hermite import gauss_hermite


def block(num_experts, num_rows, scale):
    rng = np.random.default_rng(num_rows)
    root = rng.normal(size=(num_experts, num_rows, num_rows + 2)) * scale
    return root @ root.swapaxes(1, 2), rng.normal(size=(num_experts, num_rows)) * 3, rng.integers(0, 2, num_rows) * 1.0


def mode(mean, variance, label):
    low, high = mean - variance - 1, mean + variance + 1
    for _ in range(200):
        middle = (low + high) / 2
        slope = label - 1 / (1 + np.exp(-middle)) - (middle - mean) / variance
        low, high = (middle, high) if slope > 0 else (low, middle)
    return (low + high) / 2


def test_rows_equal_dense_updates_at_modes_by_bisection():
    for scale, num_rows in itertools.product((0.1, 1.0, 5.0), (1, 2, 21)):
        covariance, mean, y = block(3, num_rows, scale)
        y[num_rows // 2 :: 7] = np.nan
        found = logistic_sites(np.concatenate([covariance, mean[..., None]], -1), y)
        for m in range(3):
            S, c = covariance[m].copy(), mean[m].copy()
            for t in range(num_rows):
                np.testing.assert_allclose([found[0][m, t], found[1][m, t]], [c[t], S[t, t]], rtol=1e-8, atol=1e-8)
                np.testing.assert_allclose(found[4][m, t:, t], S[t:, t], rtol=1e-8, atol=1e-7)
                if np.isnan(y[t]):
                    assert found[2][m, t] == found[3][m, t] == 0
                    continue
                z = mode(c[t], S[t, t], y[t])
                p = 1 / (1 + np.exp(-z))
                curvature = 1 / (1 / (p * (1 - p)) + S[t, t])
                np.testing.assert_allclose(found[3][m, t], curvature, rtol=1e-7)
                np.testing.assert_allclose(found[2][m, t], (z - c[t]) / S[t, t], rtol=1e-6, atol=1e-9)
                c = c + S[:, t] * (z - c[t]) / S[t, t]
                S = S - curvature * np.outer(S[:, t], S[:, t])


def on_a_grid(mean, variance, label):
    """Mean and variance of the posterior of a latent value."""
    z = mean + np.sqrt(variance) * np.linspace(-12, 12, 40_001)
    log_density = -0.5 * (z - mean) ** 2 / variance - np.logaddexp(0, (1 - 2 * label) * z)
    share = np.exp(log_density - log_density.max())
    share /= share.sum()
    center = (share * z).sum()
    return center, (share * (z - center) ** 2).sum()


@pytest.mark.parametrize("num_rows", [1, 9])
def test_rows_equal_dense_updates_with_moments_from_a_grid(num_rows):
    covariance, mean, y = block(3, num_rows, 0.25)
    y[num_rows // 2 :: 7] = np.nan if num_rows > 1 else 1.0
    one = torch.ones((), dtype=torch.float64)
    rule = MomentMatchingRule(log_density, *gauss_hermite(32, one), is_logistic=True)
    found = logistic_sites(np.concatenate([covariance, mean[..., None]], -1), y, rule.quadrature)
    for m in range(3):
        S, c = covariance[m].copy(), mean[m].copy()
        for t in range(num_rows):
            np.testing.assert_allclose([found[0][m, t], found[1][m, t]], [c[t], S[t, t]], rtol=1e-6, atol=1e-7)
            if np.isnan(y[t]):
                assert found[2][m, t] == found[3][m, t] == 0
                continue
            center, spread = on_a_grid(c[t], S[t, t], y[t])
            curvature = (S[t, t] - spread) / S[t, t] ** 2
            np.testing.assert_allclose(found[3][m, t], curvature, rtol=1e-5)
            np.testing.assert_allclose(found[2][m, t], (center - c[t]) / S[t, t], rtol=1e-6)
            c = c + S[:, t] * (center - c[t]) / S[t, t]
            S = S - curvature * np.outer(S[:, t], S[:, t])


def log_density(z, y):
    return torch.nn.functional.logsigmoid((2 * y - 1) * z)


def rules():
    one = torch.ones((), dtype=torch.float64)
    yield LaplaceRule(log_density, known_derivatives(LogisticLikelihood()))
    yield MomentMatchingRule(log_density, *gauss_hermite(32, one), is_logistic=True)


@pytest.mark.parametrize("rule", list(rules()), ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("scale", [0.05, 0.5, 3.0])
def test_both_ways_of_find_sites_agree(rule, scale):
    covariance, mean, y = block(4, 30, scale)
    y[3::9] = np.nan
    parts = torch.tensor(mean), torch.tensor(covariance), None, torch.tensor(y)
    with torch.no_grad():
        plain = find_sites(*parts, rule)
    recorded = find_sites(*parts, rule)
    for one, other in zip(plain[:3], recorded[:3], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(plain.columns.tril(), recorded.columns.tril(), rtol=1e-9, atol=1e-9)
