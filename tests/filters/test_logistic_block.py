"""Blocks of two classes on plain arrays: the mode by bisection, one dense Gaussian update a row."""

import numpy as np
import pytest
import torch

from gp_ensembles.filters.latent import find_sites
from gp_ensembles.filters.logistic_block import logistic_sites
from gp_ensembles.filters.sites import LaplaceRule
from gp_ensembles.likelihoods import LogisticLikelihood
from gp_ensembles.likelihoods.derivatives import known_derivatives


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


@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("num_rows", [1, 2, 21])
def test_rows_equal_dense_updates_at_modes_by_bisection(num_rows, scale):
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


def test_both_ways_of_find_sites_agree():
    covariance, mean, y = block(4, 30, 0.5)
    parts = torch.tensor(mean), torch.tensor(covariance), None, torch.tensor(y)
    rule = LaplaceRule(
        lambda z, y: torch.nn.functional.logsigmoid((2 * y - 1) * z), known_derivatives(LogisticLikelihood())
    )
    with torch.no_grad():
        plain = find_sites(*parts, rule)
    recorded = find_sites(*parts, rule)
    for one, other in zip(plain[:3], recorded[:3], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(plain.columns.tril(), recorded.columns.tril(), rtol=1e-9, atol=1e-9)
