"""Sites of classes on plain arrays: modes by bisection and where the slope vanishes, one dense update per row."""

import itertools

import numpy as np
import pytest
import torch

from gp_ensembles.experts.latent_update import LaplaceUpdate
from gp_ensembles.filters.latent import find_sites
from gp_ensembles.filters.plain_sites import logistic_sites, softmax_site
from gp_ensembles.filters.sites import LaplaceRule, MomentMatchingRule
from gp_ensembles.likelihoods import MulticlassLikelihood
from gp_ensembles.likelihoods.classification import LogisticLikelihood
from gp_ensembles.likelihoods.derivatives import known_derivatives, known_vector_derivatives
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


def check_rows(learn, num_rows, scale, loose=1.0, **rule):
    """One dense update per row with what ``learn`` makes of a mean, a variance and a label: a center, a curvature."""
    covariance, mean, y = block(3, num_rows, scale)
    y[num_rows // 2 :: 7] = np.nan if num_rows > 1 or not rule else 1.0
    found = logistic_sites(np.concatenate([covariance, mean[..., None]], -1), y, **rule)
    for m in range(3):
        S, c = covariance[m].copy(), mean[m].copy()
        for t in range(num_rows):
            close = {"rtol": 1e-8 * loose, "atol": 1e-8 * loose}
            np.testing.assert_allclose([found[0][m, t], found[1][m, t]], [c[t], S[t, t]], **close)
            np.testing.assert_allclose(found[4][m, t:, t], S[t:, t], rtol=1e-8 * loose, atol=1e-7 * loose)
            if np.isnan(y[t]):
                assert found[2][m, t] == found[3][m, t] == 0
                continue
            center, curvature = learn(c[t], S[t, t], y[t])
            np.testing.assert_allclose(found[3][m, t], curvature, rtol=1e-7 * loose)
            np.testing.assert_allclose(found[2][m, t], (center - c[t]) / S[t, t], rtol=1e-6, atol=1e-9)
            c = c + S[:, t] * (center - c[t]) / S[t, t]
            S = S - curvature * np.outer(S[:, t], S[:, t])


def test_rows_equal_dense_updates_at_modes_by_bisection():
    def learn(mean, variance, label):
        z = mode(mean, variance, label)
        p = 1 / (1 + np.exp(-z))
        return z, 1 / (1 / (p * (1 - p)) + variance)

    for scale, num_rows in itertools.product((0.1, 1.0, 5.0), (1, 2, 21)):
        check_rows(learn, num_rows, scale)


def on_a_grid(mean, variance, label):
    """Mean of the posterior of a latent value, and by how much its variance has fallen."""
    z = mean + np.sqrt(variance) * np.linspace(-12, 12, 40_001)
    log_density = -0.5 * (z - mean) ** 2 / variance - np.logaddexp(0, (1 - 2 * label) * z)
    share = np.exp(log_density - log_density.max())
    share /= share.sum()
    center = (share * z).sum()
    return center, (variance - (share * (z - center) ** 2).sum()) / variance**2


@pytest.mark.parametrize("num_rows", [1, 9])
def test_rows_equal_dense_updates_with_moments_from_a_grid(num_rows):
    rule = MomentMatchingRule(log_density, *gauss_hermite(32, torch.ones((), dtype=torch.float64)), is_logistic=True)
    check_rows(on_a_grid, num_rows, 0.25, loose=100.0, quadrature=rule.quadrature)


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
    torch.testing.assert_close(plain[:3], recorded[:3], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(plain.columns.tril(), recorded.columns.tril(), rtol=1e-9, atol=1e-9)


def moments(num_experts, num_classes, scale, lead):
    rng = np.random.default_rng(num_classes)
    root = rng.normal(size=(num_experts, num_classes, num_classes + 1)) * scale
    mean = rng.normal(size=(num_experts, num_classes)) * scale
    mean[:, 0] += lead
    return mean, root @ root.swapaxes(1, 2)


@pytest.mark.parametrize("num_classes", [2, 3, 7])
def test_the_slope_of_the_posterior_vanishes_at_the_mode(num_classes):
    for scale, lead in itertools.product((0.1, 1.0, 10.0), (0.0, 40.0, 300.0)):
        mean, covariance = moments(4, num_classes, scale, lead)
        gradient, curvature = softmax_site(mean, covariance, 1)
        for m in range(4):
            point = mean[m] + covariance[m] @ gradient[m]
            shares = np.exp(point - point.max())
            shares /= shares.sum()
            np.testing.assert_allclose(gradient[m], np.eye(num_classes)[1] - shares, rtol=0, atol=1e-6)
            falls = np.diag(shares) - np.outer(shares, shares)
            want = np.linalg.solve(np.eye(num_classes) + falls @ covariance[m], falls)
            np.testing.assert_allclose(curvature[m], want, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("scale", [0.3, 3.0])
def test_both_ways_of_the_rule_agree(scale):
    mean, covariance = (torch.from_numpy(part) for part in moments(5, 4, scale, 2.0))
    likelihood = MulticlassLikelihood(4)

    def log_density(z, y):
        return z.log_softmax(-1)[..., 2] + 0 * y

    rule = LaplaceUpdate().vector_rule(log_density, 4, mean, known_vector_derivatives(likelihood))
    y = torch.tensor(2.0, dtype=torch.float64)
    with torch.no_grad():
        plain = rule.solve(mean, covariance, y)
    recorded = rule.solve(mean.requires_grad_(), covariance, y)
    for one, other in zip(plain, recorded, strict=True):
        torch.testing.assert_close(one, other.detach(), rtol=1e-9, atol=1e-10)
